"""What a program of the zoo is, and what is asked of each: traced for CUDA, traced for the CPU, measured there."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from memkit.measure import measure_memory
from stepscope.tracing.trace import trace_script

EXACT, MORE = 0.001, 0.05
"""Trace and measurement may differ by this part of the peak; and by so much more than a record says they do."""

MEASURE = "measure it there"
"""What a trace on the CPU's rules says of operations that are no transformer's: it may lack what they take."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that nobody here wrote, small: ``build(device)`` makes model and optimizer and returns the step.

    ``refused`` gives, by "cuda", "cpu" and "measured", words of the refusal; ``warns`` words of the warning where
    a trace says that it may differ, and ``off`` what that came to, but for what is to be measured.
    """

    name: str
    build: Callable[[str], Callable[[], object]]
    refused: dict[str, str] = field(default_factory=dict)
    warns: str = ""
    off: str = ""
    compiles: bool = False  # with a C++ compiler, for half a minute

    def row(self) -> str:
        """The program's line in README.md."""
        cells = [
            f"refused: *{self.refused[way]}*" if way in self.refused else "runs" for way in WAYS
        ]
        if "cpu" not in self.refused and "measured" not in self.refused:
            cells[1] = (
                ", told: ".join(filter(None, (self.off, self.warns and f"*{self.warns}*")))
                or "within 0.1 %"
            )
        return f"| {self.name} | {' | '.join(cells)} |"


WAYS = ("cuda", "cpu", "measured")


def watched(program: Program, way: str) -> tuple[int | None, list[str]]:
    """The peak, or None where it was refused in the words that were promised; and what was said."""
    torch.manual_seed(0)
    device = "cuda" if way == "cuda" else "cpu"

    def build():
        return program.build(device)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way in program.refused:
            with pytest.raises((ValueError, RuntimeError), match=program.refused[way]):
                measure_memory(build, device=device) if way == "measured" else trace_script(
                    build, device=device
                )
            return None, []
        timeline = (
            measure_memory(build, device=device)
            if way == "measured"
            else trace_script(build, device=device)
        )
    assert timeline.at("zero_grad").weights > 0
    return timeline.peak_bytes, [str(warning.message) for warning in caught]


def check(program: Program) -> None:
    """Run the program three ways, and hold the trace against the measurement."""
    card, _ = watched(program, "cuda")
    traced, said = watched(program, "cpu")
    measured, _ = watched(program, "measured")
    assert card is None or card > 0
    if program.warns:
        assert any(program.warns in text for text in said), said
    is_told = any(MEASURE in text for text in said)
    assert is_told == (program.warns == MEASURE), said
    if traced is not None and measured is not None and not is_told:
        bound = (
            abs(float(program.off.removesuffix(" %").replace("−", "-"))) / 100 + MORE
            if program.off
            else EXACT
        )
        assert abs(traced - measured) <= bound * measured, (traced, measured)
