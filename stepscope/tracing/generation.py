"""``generate`` of transformers, whose loop runs the model once for each token: most tokens are skipped.

The first tokens are followed one by one. Where they do the same operations, and what each allocates and leaves grows
by the same bytes from token to token, keys, values and masks are made as long as they are shortly before the end, and
the last tokens are followed again. Those have to lie on the line of the first: then no token between them has stood
higher. Where they do not, the report says so.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from memkit.units import format_bytes
from stepscope.tracing.refusals import calling_frame, values_of
from stepscope.tracing.values import GENERATION

LOOP = "_sample"
KEEPS = "scores", "raw_logits", "decoder_attentions", "decoder_hidden_states"
"""The loop and its names that hold something of each token, where the program asks for it."""

NUM_FIRST, NUM_LAST, LEAST_SKIPPED = 4, 4, 32
"""So many tokens are followed at each end, beside the one of the prompt's pass and the one right after the skip, which
frees more than others; fewer are not worth a skip."""


@dataclass(frozen=True)
class Token:
    """What was done for one token: operations and what they freed, the bytes they made, and those that stood then."""

    length: int
    done: tuple[object, ...]
    made: tuple[int, ...]

    def after(self, num_tokens: int, slope: tuple[int, ...]) -> "Token":
        """What it is so many tokens later, on a line."""
        made = tuple(a + num_tokens * b for a, b in zip(self.made, slope, strict=True))
        return Token(self.length + num_tokens, self.done, made)


class Generations:
    """Sees where the loop puts its next token behind the others; ``tracer`` has the log."""

    def __init__(self, tracer):
        self.tracer = tracer
        self.tokens: list[Token] = []
        self.start = 0
        # of a generation that has skipped: the last token before, and what each one adds to it
        self.line: tuple[Token, tuple[int, ...]] | None = None
        self.said: dict[str, None] = {}

    def cat(self, mode, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """``torch.cat``; in the loop's own call it may add more tokens than one."""
        out = func(*args, **kwargs)
        frame = calling_frame()
        code = frame.f_code
        if code.co_name != LOOP or not code.co_filename.endswith(GENERATION):
            return out
        length = out.shape[-1]
        if not self.tokens or length != self.tokens[-1].length + 1:
            self.tokens, self.line = [], None
        self.tokens.append(self.token(length))
        self.start = len(self.tracer.log.events)
        if self.line is not None and len(self.tokens) > 2:
            last, slope = self.line
            if self.tokens[-1] != last.after(length - last.length, slope):
                self.said[
                    "the last tokens of generate do not allocate what its first ones foretell, and those between were "
                    "not followed: it may take more"
                ] = None
        slope = self.slope if self.line is None else None
        return out if slope is None else self.skip(out, slope, values_of(frame))

    def token(self, length: int) -> Token:
        """What has been done since the last one."""
        log = self.tracer.log
        events = log.events[self.start :]
        born = [event for event in events if event >= 0]
        place = {block: number for number, block in enumerate(born)}
        done = (
            str(log.births[event][0]) if event >= 0 else place.get(~event, -1) for event in events
        )
        return Token(length, tuple(done), (*(log.sizes[block] for block in born), log.live_bytes))

    @property
    def slope(self) -> tuple[int, ...] | None:
        """What each token adds; None where those of the beginning are too few, or on no line."""
        if len(self.tokens) != 1 + NUM_FIRST:  # the first has the prompt's pass in it
            return None
        *_, before, last = self.tokens
        if before.done != last.done:
            return None
        slope = tuple(b - a for a, b in zip(before.made, last.made, strict=True))
        is_line = all(t == last.after(t.length - last.length, slope) for t in self.tokens[2:])
        return slope if is_line and min(slope) >= 0 else None

    def skip(self, tokens: Tensor, slope: tuple[int, ...], names: dict[str, object]) -> Tensor:
        """The tokens as they are shortly before the end, with all that the loop keeps for them."""
        model, kwargs = names["self"], names["model_kwargs"]
        longest, length = names["stopping_criteria"].max_length, tokens.shape[-1]
        more = (longest or 0) - length - NUM_LAST
        layers = getattr(kwargs.get("past_key_values"), "layers", [])
        layer = getattr(sys.modules["transformers.cache_utils"], "DynamicLayer", None)
        home = sys.modules["transformers.generation.utils"].GenerationMixin
        update = home._update_model_kwargs_for_generation
        is_own = type(model)._update_model_kwargs_for_generation is not update
        is_known = layers and all(type(each) is layer for each in layers) and not is_own
        if more < LEAST_SKIPPED or not is_known or any(names[name] is not None for name in KEEPS):
            return tokens
        for each in layers:
            for name in ("keys", "values"):
                kept = getattr(each, name)
                *outer, old, width = kept.shape
                setattr(each, name, kept.new_empty(*outer, old + more, width))
                del kept
        update(model, names["outputs"], kwargs, num_new_tokens=more)
        self.line = self.tokens[-1], slope
        out = torch.cat([tokens, tokens[:, -1:].expand(-1, more)], dim=-1)
        self.tokens = [Token(out.shape[-1], (), ())]
        self.start = len(self.tracer.log.events)
        self.said[
            f"of the {longest:,} tokens of generate {more:,} were not followed: the first and last are on one line, "
            f"by which each adds {format_bytes(slope[-1])}; cached blocks that those between leave are not in the "
            "expected bytes"
        ] = None
        return out
