"""Logits that are never made whole: what a program does with them is done to some rows at a time.

``in_pieces(model)`` changes a model's ``lm_head``, while gradients are made. It then returns ``Logits``, which stand
for the tensor: they take the program's views and scalings down, and a loss, a sum over the words or the choice of one
word a row makes ``PIECE`` rows of logits at a time, each in a checkpoint. What else is asked gets them whole, which
saves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from stepscope.advice.changes import PIECE

HEAD = "lm_head"
"""What transformers, and most who write a model, call the layer that makes logits."""

OF_ROWS = {"__getitem__", "flatten", "reshape", "split", "squeeze", "unbind", "view"}
OF_VALUES = set(
    "contiguous div float log_softmax mul tanh to true_divide __mul__ __truediv__".split()
)
"""Functions of tensors that leave the words of a row together: some choose rows, some change each value or row."""

OF_LOSS = {
    "cross_entropy": "weight size_average ignore_index reduce reduction label_smoothing".split(),
    "cross_entropy_loss": "weight reduction ignore_index label_smoothing".split(),
}
"""The loss and the function below it, which a mode of torch's sees: what comes after the target."""


@dataclass(frozen=True, eq=False)
class Logits:
    """What ``head`` would make of the rows of ``hidden``, and what the functions of ``then`` make of that."""

    hidden: Tensor
    head: Callable[[Tensor], Tensor]
    num_words: int
    then: tuple[Callable[[Tensor], Tensor], ...] = ()

    def of(self, hidden: Tensor) -> Tensor:
        """The logits of these rows."""
        logits = self.head(hidden)
        for function in self.then:
            logits = function(logits)
        return logits

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.hidden.shape[:-1], self.num_words))

    @property
    def dtype(self) -> torch.dtype:
        """As it would be; nothing is asked of the head, whose weight autocast would keep without its gradient."""
        kind, dtype = self.hidden.device.type, self.hidden.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        value = torch.empty(1, dtype=dtype, device=self.hidden.device)
        for function in self.then:
            value = function(value)
        return value.dtype

    def __getattr__(self, name: str):
        if not callable(getattr(Tensor, name, None)):
            return getattr(self.hidden, name)
        function = getattr(Tensor, name)
        return lambda *args, **kwargs: called(function, (self, *args), kwargs)

    def __getitem__(self, index):
        return called(Tensor.__getitem__, (self, index), {})

    def __truediv__(self, other):
        return called(Tensor.__truediv__, (self, other), {})

    def __mul__(self, other):
        return called(Tensor.__mul__, (self, other), {})

    def __iter__(self):
        return iter(self.unbind())

    def __len__(self) -> int:
        return len(self.hidden)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return called(function, args, kwargs or {})


def called(function: Callable, args: tuple, kwargs: dict) -> object:
    """A function of tensors, given logits."""
    name, (logits, *rest) = function.__name__, args
    if isinstance(logits, Logits):
        if name == "size":
            return logits.shape[rest[0]] if rest else logits.shape
        if name in OF_VALUES and not any(isinstance(x, (Tensor, Logits)) and x.ndim for x in rest):
            return replace(logits, then=(*logits.then, lambda x: function(x, *rest, **kwargs)))
        if name in OF_ROWS and (rows := rows_of(function, logits, rest, kwargs)) is not None:
            return rows
        if name in OF_LOSS and logits.ndim == 2:
            return cross_entropy(logits, *rest[:1], **dict(zip(OF_LOSS[name], rest[1:])) | kwargs)
        axis = kwargs.get("dim", rest[0] if rest else None)
        of_words = isinstance(axis, int) and axis == -1
        if name == "gather" and of_words:
            index = kwargs.get("index", rest[-1] if rest else None)
            return each_piece(logits, lambda x, index: x.gather(-1, index), index)
        if name in ("logsumexp", "sum", "amax") and of_words:
            return each_piece(logits, lambda x: function(x, *rest, **kwargs))
    return function(*tree_map_only(Logits, lambda x: x.of(x.hidden), args), **kwargs)


def rows_of(function: Callable, logits: Logits, rest: list, kwargs: dict) -> object:
    """Other rows of the same logits; None where words are chosen, or rows and words become one."""
    hidden, count = logits.hidden, logits.num_words
    # one tensor tells where the words go: nothing is made of it
    words = torch.empty(1, device=hidden.device).expand(logits.shape)
    places = function(words, *rest, **kwargs)
    if function.__name__ in ("view", "reshape"):
        if places.shape[-1] != count:
            return None
        return replace(logits, hidden=hidden.reshape(*places.shape[:-1], hidden.shape[-1]))
    is_one = isinstance(places, Tensor)
    if any(x.ndim == 0 or x.shape[-1] != count for x in ([places] if is_one else places)):
        return None
    chosen = function(hidden, *rest, **kwargs)
    return replace(logits, hidden=chosen) if is_one else [replace(logits, hidden=x) for x in chosen]


def each_piece(logits: Logits, function: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """What a function makes of each row, from some rows at a time, in the rows' shape."""
    outer = logits.hidden.shape[:-1]
    pieces = [x.flatten(0, len(outer) - 1).split(PIECE) for x in (logits.hidden, *others)]
    out = torch.cat(
        [
            checkpoint(
                lambda rows, *more: function(logits.of(rows), *more), *piece, use_reentrant=False
            )
            for piece in zip(*pieces, strict=True)
        ]
    )
    return out.unflatten(0, outer)


def cross_entropy(
    logits: Logits, target: Tensor, reduction: str | int = "mean", **kwargs
) -> Tensor:
    """``F.cross_entropy`` of rows; a mean is of all rows, as a trace does not know which are left out."""
    losses = each_piece(
        logits,
        lambda x, y: nn.functional.cross_entropy(x.float(), y, reduction="none", **kwargs),
        target,
    )
    return {"mean": losses.mean, 1: losses.mean, "sum": losses.sum, 2: losses.sum}.get(
        reduction, lambda: losses
    )()


def in_pieces(model: nn.Module) -> bool:
    """Changes the head of a model, and says whether it has one.

    A wrapper of adapters shows its model's head as its own: it is changed once, where it stands.
    """
    head = model._modules.get(HEAD)
    if not isinstance(head, nn.Linear):
        return False
    if "forward" not in vars(head):
        whole = head.forward

        def forward(hidden: Tensor) -> Tensor | Logits:
            return (
                Logits(hidden, whole, head.out_features)
                if torch.is_grad_enabled()
                else whole(hidden)
            )

        head.forward = forward
    return True
