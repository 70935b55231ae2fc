"""Which line of the program asked for memory: the ``where`` of each event, by which chapter 07's tables are grouped."""

import contextlib
import linecache
from pathlib import Path
from types import CodeType

import torch

from memkit.program.doors import line_of

ENGINE = torch.autograd.graph._engine_run_backward.__code__
"""The frame below a backward's operations, which have no line: they belong to a line of the forward."""

FOREIGN = (str(Path(torch.__file__).parent), contextlib.__file__, "<")
OWN_FILES = {str(path) for path in Path(__file__).parent.glob("*.py")} | {
    str(Path(__file__).parents[1] / name) for name in ("program/doors.py",)
}


class Lines:
    """The program's lines by the number that autograd gave their operation; ``top`` is where the program is called.

    ``texts`` has what stands on each line, for the film of a step.
    """

    def __init__(self, top: CodeType):
        self.top = top
        self.of_forward: dict[int, str] = {}
        self.texts: dict[str, str] = {}
        self.foreign_files = set(OWN_FILES)

    def of(self, frame) -> str:
        """The program's own line that asked; in a backward, the line of the forward that it belongs to."""
        if frame.f_code is ENGINE:
            node = torch._C._current_autograd_node()
            if node is None:  # the engine casts the gradient that the program gave
                return "backward"
            # A view allocates nothing and has no line: take the one before.
            lines = (self.of_forward.get(node._sequence_nr() - back) for back in range(8))
            return next((f"{line} (backward)" for line in lines if line), "backward")
        while frame is not None and frame.f_code is not self.top:
            file = frame.f_code.co_filename
            if file not in self.foreign_files:
                if not file.startswith(FOREIGN):
                    line = line_of(frame)
                    if line not in self.texts:
                        self.texts[line] = linecache.getline(file, frame.f_lineno).rstrip()
                    if torch.is_grad_enabled():
                        self.of_forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, line)
                    return line
                self.foreign_files.add(file)
            frame = frame.f_back
        return ""
