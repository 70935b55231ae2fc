"""A training script without ``build()``: it runs as ``python train.py --args`` would, and its steps are found.

``trace_script(Script("train.py", ("--batch-size", "8")))`` follows a script that somebody else wrote. What comes
before the first call of a module with gradients on is ``init``. A step ends at the first such call after an
optimizer's step, so that a ``zero_grad`` at the end of the loop still belongs to it. Where a script has several
optimizers, the first one counts the steps, and the script is followed until each has stepped often enough. Where it
has none, writing over the weights after a backward is the optimizer's step.

Until it is stopped the script does all that it would do otherwise; what it writes is on a scratch disk.

Of a notebook the code cells run as plain Python; what only a notebook understands and trains nothing (``%matplotlib``,
``!pip``, a cell in ``%%bash``) is left out.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from memkit.units import as_one_of
from stepscope.tracing.ranks import names_of_torchrun
from stepscope.tracing.refusals import KIT_HOME, OWN_HOME, STANDARD_HOME

LEFT_OUT = set(
    "matplotlib load_ext reload_ext autoreload config pip conda env bash sh html".split()
)
TIMED = {"time", "capture"}
"""Magics of a cell or a line around Python, which runs."""

MAGIC = re.compile(r"^(\s*)(?:(%{1,2})(\w+)|!)(.*)$")


def cells_of(path: str) -> list[tuple[str, str]]:
    """Name and Python of each code cell. Raises: ValueError: a magic that may do what the program needs."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path!r} is no notebook as Jupyter writes it since 2015 (format 4)"
        ) from None
    names = [f"{path} cell {number}" for number in range(1, len(texts) + 1)]
    return [(name, as_python(text, name)) for name, text in zip(names, texts, strict=True)]


def as_python(text: str, name: str) -> str:
    """A cell's text without magics; each line keeps its number. Raises: ValueError: as ``cells_of``."""
    with suppress(SyntaxError):
        ast.parse(text)
        return text  # as it is: where a line of Python begins with %, nobody touches it
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not (found := MAGIC.match(line)):
            continue
        indent, percents, magic, rest = found.groups()
        if magic and magic not in LEFT_OUT | TIMED:
            raise ValueError(
                f"{Path(name).name}: {percents}{magic} is not followed; write it as Python or take it out"
            )
        if percents == "%%" and magic in LEFT_OUT:
            return ""
        is_python = magic in TIMED and percents == "%"
        lines[number] = indent + (rest.strip() if is_python else "pass")
    return "\n".join(lines)


class SeenEnough(BaseException):
    """Ends the script; as a ``BaseException`` it passes the script's own ``except Exception``."""


class NotReached(ValueError):
    """A script was followed to its end and has not done what was asked; where its epoch was cut, it may within."""


UNTIL = {
    "": ("", ""),
    "eval": (
        "evaluation",
        "without an evaluation: no module ran in eval(), without gradients, after a step",
    ),
    "save": ("save", "and saved nothing after a step, by torch.save or as a file of safetensors"),
    "end": ("", ""),
}
"""How far a script may be followed: the phase beyond its steps that is waited for, if any, and what is said where it
ends before that.
"""


@dataclass(frozen=True)
class Script:
    """The file of a training script and its arguments.

    ``until``: the script is followed on, to the next step after a module in evaluation has run (``"eval"``) or a file
    of tensors was written (``"save"``), or to its ``"end"``; its loader then hands out no more for training, if it
    ``cuts_epoch``. ``ranks``: it is the first of so many that ``torchrun`` would start.
    ``around``: what ``changed_build`` puts around its building, which may yield a function that is called before the
    first step, and around its steps.

    Raises: ValueError: ``path`` is no file.

    >>> Script("train.py", ("--batch-size", "8"))
    Traceback (most recent call last):
    ValueError: 'train.py' is no file
    """

    path: str
    arguments: tuple[str, ...] = ()
    until: str = ""
    cuts_epoch: bool = True
    ranks: int = 0
    around: tuple[tuple[Callable, Callable], ...] = ()

    def __post_init__(self):
        if not Path(self.path).is_file():
            raise ValueError(f"{self.path!r} is no file")
        as_one_of("until", self.until, UNTIL)

    def also(self, during_build: Callable, during_step: Callable) -> "Script":
        """The script with this, too, around its building and around its steps."""
        return replace(self, around=(*self.around, (during_build, during_step)))

    def import_libraries(self) -> None:
        """Import the libraries that the program imports, before a card is pretended; its own modules come after that.

        A library may look for a card, or make tensors, while it is imported. What cannot be imported raises its error
        later, on the program's own line.
        """
        waiting, done = [Path(self.path)], set()
        folder = str(Path(self.path).resolve().parent)
        while waiting:
            file = waiting.pop()
            if file in done or not file.is_file():
                continue
            done.add(file)
            for root, statement in imports_in(file):
                places = places_of(root, folder)
                if not any(is_own(root, str(place), folder) for place in places):
                    with suppress(Exception):
                        exec(compile(ast.Module([statement], []), str(file), "exec"), {})  # noqa: S102 - the script's own imports
                    continue
                for place in places:
                    is_package = place.name == "__init__.py"
                    waiting += place.parent.rglob("*.py") if is_package else [place]

    def run(self, steps: int, program, recorder) -> None:
        """Run the script until it has done ``steps`` steps, and tell ``recorder`` where each begins and ends.

        Raises: ValueError: the script ended, or called ``sys.exit``, before it had trained. Whatever it raises.
        """
        follower = Follower(self, steps, program, recorder)
        folder = str(Path(self.path).resolve().parent)
        ending, before, names = "", set(sys.modules), {}
        with (
            follower.contexts,
            patch.dict(os.environ, names_of_torchrun(self.ranks) if self.ranks else {}),
            patch.object(sys, "argv", [self.path, *self.arguments]),
            patch.object(sys, "path", [folder, *sys.path]),
        ):
            try:
                # they hold what is there until the last step is written down
                names = run_file(self.path)
            except SeenEnough:
                pass
            except SystemExit as error:
                ending = f" with exit code {error.code}" if error.code else ""
            finally:  # a second run makes anew what the script's own modules make when they are imported
                for name in set(sys.modules) - before:
                    file = getattr(sys.modules[name], "__file__", None)
                    if is_own(name.partition(".")[0], file, folder):
                        del sys.modules[name]
        follower.count_update()
        if recorder.is_empty and not ending:
            raise ValueError(
                f"{Path(self.path).name} put nothing on the card: it keeps its tensors in the host's memory. Give it "
                "the option by which it takes a card, after --, or move model and batch there (.to('cuda'))"
            )
        if ending or not follower.counts:
            raise ValueError(
                f"{Path(self.path).name} ended{ending} before an optimizer had stepped; a script is followed from the "
                "first call of a module with gradients on to the optimizer's step. A loader whose data make less than "
                "one batch (drop_last=True) hands out none"
            )
        if not follower.is_there and self.until != "end":
            raise NotReached(f"{Path(self.path).name} ended {UNTIL[self.until][1]}")
        if not follower.has_ended:
            follower.end_step()
        names.clear()


INSTALLED = {"site-packages", "dist-packages"}
LIBRARIES = STANDARD_HOME, OWN_HOME, KIT_HOME
"""Folders of what is installed."""


def places_of(name: str, folder: str) -> list[Path]:
    """The file of a module, as a script in this folder would import it, or ``__init__.py`` of a package's folders."""
    with patch.object(sys, "path", [folder, *sys.path]), suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            return [Path(place) / "__init__.py" for place in spec.submodule_search_locations]
        if spec is not None and spec.has_location:
            return [Path(spec.origin)]
    return []


def is_own(name: str, file: str | None, folder: str) -> bool:
    """Whether a module is the program's own, wherever it lies: what no installed library has.

    A package beside the script's folder is, and so is one that is installed from where it is written, if the script
    is in the same project. A library of a .venv is not, even below the script's folder.
    """
    if file is None or not file.endswith(".py") or not INSTALLED.isdisjoint(Path(file).parts):
        return False
    if file.startswith(LIBRARIES):
        return False
    parents = Path(file).parents
    root = next((parent.parent for parent in parents if parent.name == name), parents[0])
    if Path(file).is_relative_to(folder) or Path(folder).is_relative_to(root):
        return True
    return name not in importable_names()


importable_names = functools.cache(importlib.metadata.packages_distributions)
"""What the installed distributions let one import."""


def run_file(path: str) -> dict:
    """Run a script as ``python`` does, a notebook as *Run All* does; returns its names."""
    if not path.endswith(".ipynb"):
        return runpy.run_path(path, run_name="__main__")
    names = {"__name__": "__main__", "display": print}
    for name, text in cells_of(path):
        exec(compile(text, name, "exec"), names)  # noqa: S102 - the reader's own notebook
    return names


def imports_in(file: Path) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """The absolute imports of a file or notebook, wherever they stand, one module each, and its first name."""
    with suppress(SyntaxError, UnicodeDecodeError):
        is_notebook = file.suffix == ".ipynb"
        cells = cells_of(str(file)) if is_notebook else [("", file.read_text("utf-8"))]
        for node in ast.walk(ast.parse("\n".join(text for _, text in cells))):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    one = ast.copy_location(ast.Import([alias]), node)
                    yield alias.name.partition(".")[0], one
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module.partition(".")[0], node


class Follower:
    """Finds the steps of a script; ``counts`` says how often each optimizer has stepped."""

    def __init__(self, script: Script, steps: int, program, recorder):
        self.script, self.steps, self.program, self.recorder = script, steps, program, recorder
        self.counts: Counter[int] = Counter()
        self.step, self.is_over, self.has_ended = 0, False, False
        self.has_optimizer = self.is_updating = False
        self.is_there, self.sampler = not script.until, None
        self.contexts = ExitStack()
        recorder.on_update, recorder.on_file = self.update_begins, self.between_steps
        self.contexts.enter_context(
            patch.object(Optimizer, "add_param_group", self.adding(Optimizer.add_param_group))
        )
        self.made = [self.contexts.enter_context(building()) for building, _ in script.around]
        if script.until and script.cuts_epoch:
            ask = self.asking(_BaseDataLoaderIter.__next__)
            self.contexts.enter_context(patch.object(_BaseDataLoaderIter, "__next__", ask))
        for handle in (
            register_module_forward_pre_hook(self.before_call),
            register_optimizer_step_post_hook(self.after_optimizer),
        ):
            self.contexts.callback(handle.remove)

    def before_call(self, module, args) -> None:
        """A module is called: this may be the start of the next step, or after enough of them the end."""
        if not torch.is_grad_enabled() and not module.training:
            self.between_steps("evaluation")
        if self.program.is_in_backward or not torch.is_grad_enabled():
            return
        self.count_update()
        if self.step == 0:
            for made in filter(None, self.made):
                made()
            self.program.report_weights()
            self.recorder.now("mark", "init")
            for _, stepping in self.script.around:
                self.contexts.enter_context(stepping())
        else:
            self.has_ended = self.has_stepped and self.is_there
            if not self.has_ended and not self.is_over:
                return
            self.end_step()
            if self.has_ended:
                raise SeenEnough
        self.step, self.is_over = self.step + 1, False
        self.recorder.now("start_step", self.step)

    def between_steps(self, phase: str) -> None:
        """After a step the script evaluates, saves or loads; files that a plain run reads may be its batches."""
        until = self.script.until
        if self.is_over and (until or phase == "evaluation"):
            self.is_there = self.is_there or phase == UNTIL[until][0]
            if hasattr(self.recorder.log, "start_between"):
                self.recorder.now("start_between", phase)

    def after_optimizer(self, optimizer, args, kwargs) -> None:
        """An optimizer has stepped; the first one of all ends the training step."""
        self.counts[id(optimizer)] += 1
        self.is_over = self.is_over or id(optimizer) == next(iter(self.counts))

    @property
    def has_stepped(self) -> bool:
        """Whether every optimizer has stepped often enough."""
        return bool(self.counts) and min(self.counts.values()) >= self.steps

    def asking(self, ask: Callable) -> Callable:
        """The loader's next batch: of the loader that trains, each epoch's last comes after enough steps.

        A loader's epochs have one sampler. Where no gradients are made, such as in an evaluation, nothing is cut.
        """

        def next_batch(loader):
            if self.step == 0:
                self.sampler = loader._index_sampler
            elif self.cuts(loader):
                raise StopIteration
            return ask(loader)

        return next_batch

    def cuts(self, loader) -> bool:
        """Whether the epoch of the loader that trains ends: there were enough steps, and what is asked is to come."""
        is_asked = loader._index_sampler is self.sampler and torch.is_grad_enabled()
        return is_asked and self.has_stepped and not self.is_there

    def adding(self, add_group: Callable) -> Callable:
        """``Optimizer.add_param_group``, which every optimizer of torch's calls when it is made."""

        def add(optimizer, group):
            self.has_optimizer = True
            return add_group(optimizer, group)

        return add

    def update_begins(self) -> None:
        """The script writes over a weight itself: where it has no optimizer, this is the step of one."""
        if self.has_optimizer or self.is_updating:
            return
        self.is_updating = True
        if not self.program.is_in_backward:
            self.recorder.now("start_update")

    def count_update(self) -> None:
        """What the script did by hand to its weights counts as an optimizer's step once the next forward begins."""
        if not self.is_updating:
            return
        self.is_updating = False
        if self.recorder.log.phase == "optimizer":
            self.recorder.now("end_optimizer")
        self.after_optimizer(self, (), {})

    def end_step(self) -> None:
        """A training step is over: what was seen of it is written down."""
        self.program.report_weights()
        self.recorder.now("end_step")
