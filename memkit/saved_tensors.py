"""What autograd keeps between forward and backward, for any code of the reader's own.

Autograd calls a hook for every tensor that an operation saves for its backward. Several saved tensors may be
views of one storage, and it is storages that take memory: each is listed once, with the operations that saved
it. Which operation that was is known from outside: a ``TorchFunctionMode`` sees each call into torch begin
and end.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from memkit.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class SavedStorage:
    """One storage that the backward will need: the shape and dtype of the first tensor saved from it, and its bytes.

    ``num_saves`` counts how often operations saved it, ``ops`` names them; ``is_elsewhere`` says that the
    caller counts it elsewhere, as one does with parameters.
    """

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    num_saves: int = 1
    is_elsewhere: bool = False
    ops: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = "counted elsewhere" if self.is_elsewhere else format_bytes(self.num_bytes)
        return f"{'×'.join(map(str, self.shape)) or 'scalar'} {self.dtype}, saved {self.num_saves}×: {size}"


class CallNames(TorchFunctionMode):
    """Knows which function of torch the program is in; ``name`` is empty between calls."""

    name = ""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before, self.name = self.name, getattr(func, "__name__", "").strip("_")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.name = before


def saved_storages(
    run: Callable[[], object], elsewhere: Iterable[Tensor] = ()
) -> tuple[SavedStorage, ...]:
    """Run ``run()`` and list the storages that autograd saves in it, in order, each once.

    ``elsewhere``: parameters and other tensors that would be there anyway. Source:
    https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors

    >>> import torch
    >>> x = torch.ones(8, requires_grad=True)
    >>> [(saved.shape, saved.ops) for saved in saved_storages(lambda: x.exp() * 2)]
    [((8,), ('exp',))]
    """
    known = {tensor.untyped_storage()._cdata for tensor in elsewhere}
    saved: dict[int, SavedStorage] = {}
    calls = CallNames()
    alive = []  # an address may be given to another tensor once its storage is gone

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in saved:
            before = saved[key]
            ops = tuple(dict.fromkeys((*before.ops, calls.name or "custom function")))
            saved[key] = replace(before, num_saves=before.num_saves + 1, ops=ops)
        else:
            alive.append(storage)
            saved[key] = SavedStorage(
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                num_bytes=storage.nbytes(),
                is_elsewhere=key in known,
                ops=(calls.name or "custom function",),
            )
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), calls:
        run()
    return tuple(saved.values())


def saved_bytes(run: Callable[[], object], elsewhere: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd saves while ``run()`` runs, without what is counted ``elsewhere``.

    >>> import torch
    >>> x = torch.ones(1024, requires_grad=True)
    >>> saved_bytes(lambda: x.exp())  # its result: 4 B each
    4096
    """
    return sum(
        saved.num_bytes for saved in saved_storages(run, elsewhere) if not saved.is_elsewhere
    )
