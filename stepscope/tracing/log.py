"""What a script's trace writes down beside the kit's log: evaluations, and the program's own line at the peak."""

from dataclasses import dataclass, field

from memkit.program.log import Log
from stepscope.tracing.refusals import own_line

ABOUT_NUMBER, OWN_LINE = "about the number", "own line"
"""In a timeline's provenance: what a reader of its peak has to know, a sentence a line; the program's line then."""


@dataclass(slots=True)
class ScriptLog(Log):
    """``tops`` are the events at which more stood than ever before, the bytes, and the program's own line then."""

    standing_bytes: int = 0
    tops: list[tuple[int, int, str]] = field(default_factory=lambda: [(-1, 0, "")])

    @property
    def moment(self) -> tuple[str, int, int]:
        """Phase, step and count; an evaluation is one, however many batches it has."""
        return (self.phase, self.step, 1) if self.phase == "evaluation" else Log.moment.fget(self)

    def allocate(self, num_bytes: int, op: object, place: object = None) -> int:
        """A block is born; at a new peak the program's own line is noted."""
        block = Log.allocate(self, num_bytes, op, place)
        self.standing_bytes += num_bytes
        if self.standing_bytes > self.tops[-1][1]:
            self.tops.append((len(self.events) - 1, self.standing_bytes, own_line()))
        return block

    def free(self, block: int) -> None:
        """A block is freed."""
        Log.free(self, block)
        self.standing_bytes -= self.sizes[block]

    def leave_out(self, start: int) -> int:
        """Forget blocks that a kernel held in registers."""
        self.tops = [top for top in self.tops if top[0] < start]
        return Log.leave_out(self, start)

    def line_at(self, event: int) -> str:
        """The program's own line at the highest peak up to this event."""
        return next((line for number, _, line in reversed(self.tops) if number <= event), "")

    def start_evaluation(self) -> None:
        """After an optimizer's step a module runs without gradients: what follows is an evaluation."""
        if self.phase == "zero_grad":
            self.mark("zero_grad")
            self.phase = "evaluation"

    def end_step(self) -> None:
        """The training step has returned; an evaluation that came in it ends with it."""
        Log.end_step(self)
        if self.phase == "evaluation":
            self.marks[-1] = (*self.marks[-1][:1], "evaluation", *self.marks[-1][2:])
