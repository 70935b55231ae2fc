"""What the outside sees of a student's notebook: values, and functions that run on the other side."""

import ast
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from course.labs.passing import LONGEST_LINE, NotPassed, from_line, to_line
from course.labs.sandbox import HOME, PROGRAMS, ROOT, sandboxed

CPU_SECONDS = 60
"""What a notebook's cells and the calls of its functions may compute together, whatever else the machine does."""
SECONDS_FOR_CELLS, SECONDS_FOR_A_CALL = 600, 300
MEMORY_BYTES = 3 * 2**30
"""What a process that runs a student's cells may take, as on the hub; macOS does not enforce it."""


def plain_environment() -> dict[str, str]:
    """What a student's process is told of the teacher's environment: no tokens, keys or settings."""
    kept = (
        "PATH",
        "LANG",
        "LC_ALL",
        "VIRTUAL_ENV",
        "OMP_NUM_THREADS",
    )
    return {name: os.environ[name] for name in kept if name in os.environ}


class Answers:
    """The answers of one notebook. Its cells run once, in a process of their own that ends with the ``with``.

    A cell is its source, or a list of one name, which is read there.
    """

    def __init__(self, cells: list[str | list[str]], folder: Path, student: str):
        self.cells, self.folder, self.student = cells, Path(folder), student

    def __enter__(self) -> Self:
        paths = [PROGRAMS, str(ROOT), str(ROOT / "chapters"), HOME]
        ours = [Path(__file__).with_name(name) for name in ("child.py", "passing.py")]
        child = [sys.executable, "-P", f"{PROGRAMS}/child.py", str(CPU_SECONDS), str(MEMORY_BYTES)]
        self.process = subprocess.Popen(
            sandboxed(child, self.folder, programs=ours),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=plain_environment()
            | {"MEMKIT_STUDENT": self.student, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.buffer = b""
        self.problem = None
        try:
            self._ask(json.dumps(self.cells), SECONDS_FOR_CELLS)
        except (TimeoutError, ChildProcessError) as error:
            self.problem = error
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()  # and with it all that it has started
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # a line that nobody read is still in it
                end.close()

    def answer(self, name: str) -> object:
        """The value of ``name`` where it was read; a function is one that runs in the other process."""
        reply = self.ask({"name": name})
        if "raised" in reply:
            raise ChildProcessError(f"its cell raised {reply['raised']} {reply['words']}".strip())
        value = reply.get("value", ...)
        return (
            Remote(self, name)
            if isinstance(value, NotPassed) and value.shown == "a function"
            else value
        )

    def ask(self, request: dict) -> dict:
        """The reply to one request. Raises: TimeoutError, ChildProcessError: the notebook is stuck or gone."""
        if self.problem:
            raise self.problem
        try:
            line = self._ask(json.dumps(request), SECONDS_FOR_A_CALL)
        except (TimeoutError, ChildProcessError) as error:
            self.problem = error
            raise
        try:
            return dict(from_line(line))
        except Exception as error:  # a line that a student's code wrote in our place
            raise ChildProcessError("the notebook's process answered out of turn") from error

    def _ask(self, line: str, seconds: float) -> str:
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._end() from None
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0, deadline - time.monotonic())
            )
            if not ready:
                raise TimeoutError(f"no end within {seconds} seconds")
            more = os.read(self.process.stdout.fileno(), 2**20)
            if not more or len(self.buffer) > LONGEST_LINE:
                raise self._end()
            self.buffer += more
        reply, _, self.buffer = self.buffer.partition(b"\n")
        return reply.decode(errors="replace")

    def _end(self) -> Exception:
        """Ends the process, and says why it gives no answers."""
        self.process.kill()  # of no effect on one that has ended
        if self.process.wait() == 128 + signal.SIGXCPU:  # as bubblewrap says it
            return TimeoutError(
                f"after {CPU_SECONDS} seconds of computing the notebook was stopped"
            )
        return ChildProcessError("the notebook ended its own process")


class Remote:
    """A student's function: called here, run there. Its code is that of the cells, for checks that read names."""

    def __init__(self, answers: Answers, name: str):
        self.answers, self.__name__ = answers, name
        self.__code__ = code_of(answers.cells, name)

    def __call__(self, *arguments: object, **named: object) -> object:
        reply = self.answers.ask({"name": self.__name__, "arguments": to_line(list(arguments))})
        if "raised" in reply:
            raise type(str(reply["raised"]), (Exception,), {})(reply["words"])
        copy_into(arguments, reply.get("arguments", ()))
        result = reply.get("value")
        if result is ... or result is None and is_blank(self.answers.cells, self.__name__):
            raise NotImplementedError
        return result


def code_of(cells: list, name: str) -> object:
    """The compiled cell that defines ``name``, unrun; ``None`` if no cell does."""
    for source in (cell for cell in reversed(cells) if isinstance(cell, str)):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        if name in bound_in(tree):
            return compile(tree, "cell", "exec")
    return None


def is_blank(cells: list, name: str) -> bool:
    """Whether the last function of that name has no line of a student's: its words alone, or ``pass``."""
    for source in (cell for cell in reversed(cells) if isinstance(cell, str)):
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return all(isinstance(line, ast.Pass) or is_words(line) for line in node.body)
    return True


def is_words(line: ast.stmt) -> bool:
    """A constant that stands alone: a docstring, or three dots."""
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def bound_in(tree: ast.Module) -> set[str]:
    """Names that the cell's own statements bind."""
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return stored | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def copy_into(arguments: tuple, changed: list) -> None:
    """What a function did to its tensors in place, done to ours."""
    for mine, theirs in zip(arguments, changed, strict=True):
        if (
            hasattr(mine, "copy_")
            and getattr(theirs, "shape", None) == mine.shape
            and theirs.dtype == mine.dtype
        ):
            mine.copy_(theirs)
