"""A model that runs again and again without gradients, followed once: for scripts that evaluate before they train.

nanoGPT's ``estimate_loss`` calls its model 400 times before it trains. All these calls allocate the same, so the first
one is followed and the others only leave their results. A call stands for the next ones if

- they come in the same phase of the same step, to the same module, with arguments of the same shapes, and no more is
  allocated around them than was around it: so no peak is missed;
- the first one asked for no values: so nothing in the batch could have led another way;
- of what it made, its results alone are left when the next one begins, and nothing older was freed: so it keeps no
  cache. Autocast's copies of the weights are left until its ``with`` ends, which is before the next call or not.

What else a ``forward`` does in Python, such as counting its calls, is not done again.

Between two calls an evaluation may keep something, mostly the logits of every batch. How much stands when each call
begins is noted, and once the name that keeps it.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from memkit.program.hooks import PLAIN, source_name, tensors_in
from memkit.units import format_bytes
from stepscope.tracing.log import BETWEEN_STEPS, LEAST_SHARE
from stepscope.tracing.refusals import OWN_HOME, TORCH_HOME, values_of
from stepscope.tracing.values import GENERATION

SIMPLE = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""What may stand among arguments and results beside tensors: it holds no memory."""


LEAST_CALLS = 4
"""An evaluation of fewer calls has no growth."""

FOR_METRICS = (
    "for compute_metrics: preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1) keeps a number a "
    "token, and eval_accumulation_steps=1 moves them to the host"
)
BY_HAND = "keep logits.argmax(-1) or .cpu() of them in their place"
TRAINER = "transformers.trainer"


class Evaluations:
    """Stands in ``nn.Module.__call__``; ``tracer`` has the log."""

    def __init__(self, tracer):
        self.tracer = tracer
        # of a module, as long as the program keeps it: by call, bytes around it, what it left, what makes its results
        self.seen = weakref.WeakKeyDictionary()
        self.is_inside = False
        # by step: bytes that stood as each call of its evaluation began; the blocks of the first, and what keeps more
        self.around_calls: dict[int, list[int]] = {}
        self.before: set[int] = set()
        self.keeper, self.keeps_for_metrics = "", False

    def around(self, call: Callable) -> Callable:
        """``nn.Module.__call__``, which a call that was seen before does not reach."""

        def called(module: nn.Module, *args, **kwargs):
            is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
            is_watched = torch.compiler.is_compiling() or is_transformed
            if self.is_inside or torch.is_grad_enabled() or is_watched:
                return call(module, *args, **kwargs)
            log, seen = self.tracer.log, self.seen.setdefault(module, {})
            key = self.key_of(module, args, kwargs)
            around = sum(log.sizes[block] for block in log.live)
            if log.step and log.phase in ("zero_grad", *BETWEEN_STEPS):
                self.evaluates(around, sys._getframe(1))
            bytes_around, left, results = seen.get(key, (-1, set(), None))
            if around <= bytes_around and left.isdisjoint(log.live):
                return results()
            start, num_questions = len(log.events), self.tracer.known.num_questions
            self.is_inside = True
            try:
                out = call(module, *args, **kwargs)
            finally:
                self.is_inside = False
            if key is not None and num_questions == self.tracer.known.num_questions:
                again = self.again(out, log.events[start:])
                if again is not None:
                    seen[key] = around, *again
            return out

        return called

    def evaluates(self, around: int, frame: FrameType | None) -> None:
        """An evaluation calls the model again, while ``around`` bytes stand."""
        calls = self.around_calls.setdefault(self.tracer.log.step, [])
        calls.append(around)
        if len(calls) == 1:
            self.before = set(self.tracer.log.live)
        if len(calls) != LEAST_CALLS or around <= calls[-2]:
            return
        # the last call's results stand too, by a name that is bound anew with each
        grown = 2 * (around - calls[-2])
        with torch._C.DisableTorchFunction():
            while frame is not None and not self.keeper:
                if frame.f_code.co_filename.endswith(GENERATION):
                    self.around_calls.clear()  # of one answer's words, whose cache grows with each
                    return
                if not frame.f_code.co_filename.startswith((TORCH_HOME, OWN_HOME)):
                    self.look_for_keeper(frame, grown)
                frame = frame.f_back

    def look_for_keeper(self, frame: FrameType, grown: int) -> None:
        """The name of a function that holds as much as has grown, or an attribute of what it names."""
        for name, value in values_of(frame).items():
            attributes = {} if isinstance(value, (type, Tensor)) else getattr(value, "__dict__", {})
            for path, kept in {
                name: value,
                **{f"{name}.{key}": x for key, x in attributes.items()},
            }.items():
                if isinstance(kept, (list, tuple, dict, Tensor)) and self.bytes_of(kept) >= grown:
                    place = f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno}"
                    self.keeper = f"{path} ({place})"
                    self.keeps_for_metrics = frame.f_globals.get("__name__") == TRAINER
                    return

    def bytes_of(self, value: object) -> int:
        """Bytes of the card in the tensors of a name that the evaluation has made."""
        blocks = {self.tracer.block_of(tensor) for tensor in tensors_in(value)}
        return sum(self.tracer.log.sizes[block] for block in blocks - {None} - self.before)

    def words(self, peak_bytes: int) -> list[str]:
        """What the evaluation keeps of each call, and what more of them would add; nothing where it keeps little."""
        calls = max(self.around_calls.values(), key=len, default=[])
        steps, num_calls = Counter(b - a for a, b in pairwise(calls)), len(calls)
        each, times = steps.most_common(1)[0] if num_calls >= LEAST_CALLS else (0, 0)
        if each * num_calls < LEAST_SHARE * peak_bytes or 2 * times < num_calls - 1:
            return []
        more = format_bytes(each * num_calls)
        where = f" in {self.keeper}" if self.keeper else ""
        cure = FOR_METRICS if self.keeps_for_metrics else BY_HAND
        keeps = f"the evaluation calls the model {num_calls} times and keeps {format_bytes(each)} of each call{where}"
        return [
            f"{keeps}: {num_calls} calls more add {more}, and as much again where they are put together; {cure}"
        ]

    def key_of(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        """What two calls that allocate the same have in common; None for arguments that may hold memory themselves."""
        leaves, form = tree_flatten((args, kwargs))
        if not are_plain(leaves):
            return None
        log = self.tracer.log
        said = tuple(shape_of(x) if isinstance(x, Tensor) else x for x in leaves)
        modes = module.training, torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")
        return log.step, log.phase, log.micro_batch, *modes, str(form), said

    def again(self, out: object, events: list[int]) -> tuple[set[int], Callable[[], object]] | None:
        """The blocks that the call left beside its results, and what makes such results once more.

        None if it freed what was there before it.
        """
        born = {event for event in events if event >= 0}
        freed = {~event for event in events if event < 0}
        leaves, form = tree_flatten(out)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not are_plain(leaves) or not tensors or freed - born:
            return None
        kept = {self.tracer.block_of(tensor) for tensor in tensors}
        if not kept <= born - freed:
            return None
        left = born - freed - kept
        device = tensors[0].device
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        made_of = [
            (t.untyped_storage()._cdata, shape_of(t)) if isinstance(t, Tensor) else t
            for t in leaves
        ]
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        del leaves, tensors  # else ``results`` would keep the first call's memory

        def results() -> object:
            new = {
                key: torch.empty(size, dtype=torch.uint8, device=device)
                for key, size in storages.items()
            }

            def made(storage: int, shape: tuple) -> Tensor:
                return new[storage].view(shape[0]).as_strided(*shape[1:])

            return tree_unflatten(
                [made(*x) if one else x for x, one in zip(made_of, is_tensor, strict=True)], form
            )

        return left, results


def are_plain(leaves: list) -> bool:
    """Whether these are tensors of torch's own kinds, and values that hold no memory."""
    return all(type(leaf) in PLAIN or isinstance(leaf, SIMPLE) for leaf in leaves)


def shape_of(tensor: Tensor) -> tuple:
    """Dtype, sizes, strides and offset."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
