"""What the book promises about speed and memory, as ratios of two things measured in the same run.

A file ``dev/bench/bench_NAME.py`` has a function ``run()`` that returns rows. ``make bench`` runs them all.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One promise: ``ratio`` is at least ``at_least``, or at most ``at_most``.

    ``detail`` says in words what was divided by what, with the absolute figures of this machine.
    """

    name: str
    ratio: float
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""

    def __post_init__(self):
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.name} needs one of at_least and at_most")

    @property
    def met(self) -> bool:
        return self.ratio <= self.at_most if self.at_least is None else self.ratio >= self.at_least

    @property
    def requirement(self) -> str:
        return (
            f"at most {self.at_most:g}×"
            if self.at_least is None
            else f"at least {self.at_least:g}×"
        )
