"""Steps for nbgrader's autograder: make it whole, run it for show, mark outside of its kernel, drop scripts."""

import os
import resource
import shutil
import stat
import tempfile
import textwrap
from functools import partial
from pathlib import Path
from threading import Timer

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat.v4 import new_output
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.preprocessors import Execute, LimitOutput, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_locked, is_solution

from course.labs import load_lab
from course.labs.answers import MEMORY_BYTES, SECONDS_FOR_CELLS, Answers, plain_environment
from course.labs.draws import same_name
from course.labs.sandbox import ROOT, sandboxed
from course.labs.sources import notebook_of
from course.labs.tasks import Lab, Mark, Task

COLUMNS = 90
"""Of a line in nbgrader's page for students, which cuts off what is longer."""
MOST_BYTES = 20 * 2**20
"""What a file that is handed in may take, and what a notebook may show."""
LONGEST_OUTPUT = 20_000
"""Letters of an output that are kept: a browser cannot open the page of who prints 100 MB."""


def set_aside(assignment: str, student: str, notebooks: list[str]) -> None:
    """Before a submission is read: what in it is a link, no plain file or too large goes to the folder ``set_aside``.

    nbgrader copies what a link points to, such as the solutions, opens a pipe, which waits for ever, and loads a file
    of any size. What then misses its notebook is an error of that student's alone.
    """
    folder = Path(notebooks[0]).parent
    for path in [folder.parent, folder, *sorted(folder.rglob("*"))]:
        mode, size = (told := path.lstat()).st_mode, told.st_size
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) and size <= MOST_BYTES):
            target = Path("set_aside", path.absolute().relative_to(Path.cwd()))
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            print(
                f"{path} is a link, no plain file or larger than {MOST_BYTES:,} bytes: it is in {target} now"
            )
            if path in (folder.parent, folder):
                return


class LinksStayLinks(ExchangeCollect):
    """nbgrader's own step copies what a link in the exchange points to, as the teacher, who may read more.

    It collects nothing more after a file that cannot be copied.
    """

    def do_copy(self, src, dest, log=None):
        try:
            shutil.copytree(src, dest, symlinks=True)
        except shutil.Error as error:
            self.log.error("%s: %s", src, error)


class PutBackCells(NbGraderPreprocessor):
    """Puts an empty cell where a student deleted one of the lab's; nbgrader's own step fails at the next one missing.

    What a cell is, is as in the lab, whatever the submission says of it: nbgrader stops grading the whole class at one
    cell whose settings claim another version. Of two copies of a cell the second is a student's own.
    """

    def preprocess(self, nb, resources):
        whole = notebook_of(load_lab(resources["nbgrader"]["notebook"])).cells
        labs = {name: cell for cell in whole if (name := grade_id_of(cell))}
        there, place = [], 0
        for cell in nb.cells:
            name = grade_id_of(cell)
            cell.metadata.pop("nbgrader", None)
            if is_first := name in labs and name not in there:
                cell.metadata["nbgrader"] = labs[name].metadata["nbgrader"]
            there.append(name if is_first else None)
        for name, cell in labs.items():
            if name in there:
                place = there.index(name)
            elif is_grade(cell) or is_solution(cell):
                place += 1
                cell.source = ""
                nb.cells.insert(place, cell)
                there.insert(place, name)
        return nb, resources


def grade_id_of(cell) -> str | None:
    """The name under which nbgrader knows a cell; ``None`` for a student's own, which are in no lab."""
    settings = cell.metadata.get("nbgrader")
    return settings.get("grade_id") if isinstance(settings, dict) else None


class SandboxedKernel(AsyncKernelManager):
    """A kernel in a sandbox, which it meets over Unix sockets, as there is no network inside."""

    handed_in: Path

    def format_kernel_cmd(self, extra_arguments=None):
        sockets = Path(self.connection_file).parent
        return sandboxed(
            super().format_kernel_cmd(extra_arguments), self.handed_in, sockets=sockets
        )


class RunForStudent(Execute):
    """nbgrader's own step, in a sandbox and with the numbers of who handed in.

    A kernel that a student kills or fills is not the end. One that shows without end, or never ends, is ended: nbgrader
    would keep all that it shows, and wait for minutes at each of its cells.
    """

    def create_kernel_manager(self):
        self.kernel_manager_class = SandboxedKernel
        manager = super().create_kernel_manager()
        manager.handed_in = Path(self.resources["metadata"]["path"]).resolve()
        manager.transport = "ipc"
        manager.connection_file = f"{self.sockets}/kernel.json"
        return manager

    def start_new_kernel(self, **options):
        limits = partial(resource.setrlimit, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        paths = os.pathsep.join((str(ROOT), str(ROOT / "chapters")))
        known = {"MEMKIT_STUDENT": self.student, "PYTHONPATH": paths}
        return super().start_new_kernel(
            preexec_fn=limits, env=plain_environment() | known, **options
        )

    def preprocess(self, nb, resources):
        self.student, self.num_shown = resources["nbgrader"]["student"], 0
        watch = Timer(SECONDS_FOR_CELLS, self.end_kernel)
        watch.start()
        with tempfile.TemporaryDirectory(dir="/tmp") as self.sockets:
            try:
                return super().preprocess(nb, resources)
            except DeadKernelError:
                self.log.warning("The kernel of %s died; its cells have no outputs.", self.student)
                return nb, resources
            finally:
                watch.cancel()

    def process_message(self, msg, cell, cell_index):
        self.num_shown += len(str(msg["content"]))
        if self.num_shown <= MOST_BYTES:
            return super().process_message(msg, cell, cell_index)
        self.end_kernel()
        return None

    def end_kernel(self):
        self.km.provisioner.process.kill()


class CutOutputs(LimitOutput):
    """nbgrader's own step counts lines; this one cuts what is printed in one."""

    def preprocess_cell(self, cell, resources, cell_index):
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = output.text[:LONGEST_OUTPUT]
        return super().preprocess_cell(cell, resources, cell_index)


class MarkOutside(NbGraderPreprocessor):
    """Replaces what stands under every test cell by the points and words of the judge."""

    def preprocess(self, nb, resources):
        lab, student = load_lab(resources["nbgrader"]["notebook"]), resources["nbgrader"]["student"]
        folder = Path((resources.get("metadata") or {}).get("path") or ".").resolve()
        marks = marks_of(lab, cells_of(nb, lab), folder, student)
        for cell in nb.cells:
            if is_test(cell):
                mark = marks[grade_id_of(cell).removesuffix("-test")]
                cell.outputs = [
                    new_output(
                        "stream", name="stdout", text=f"{textwrap.fill(str(mark), COLUMNS)}\n"
                    ),
                    new_output(
                        "execute_result", {"text/plain": f"{mark.points:g}"}, execution_count=None
                    ),
                ]
                cell.execution_count = None
        return nb, resources


def is_test(cell) -> bool:
    """Whether nbgrader gives this cell's points by its outputs."""
    return cell.cell_type == "code" and is_grade(cell) and not is_solution(cell)


def cells_of(nb, lab: Lab) -> list:
    """What runs in the other process: the code, with the name of an answer where its test stood."""
    names = {f"{task.grade_id}-test": [task.answer] for task in lab.tasks}
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    cells = [names.get(grade_id_of(cell), "") if is_test(cell) else cell.source for cell in code]
    return [*cells, ["STUDENT"]]


def marks_of(lab: Lab, cells: list, folder: Path, student: str) -> dict[str, Mark]:
    """Marks by grade id."""
    numbers = lab.numbers(student)
    with Answers(cells, folder, student) as answers:
        named = read(answers, "STUDENT")
        marks = {task.grade_id: mark_of(task, answers, numbers) for task in lab.tasks}
    if isinstance(named, str) and same_name(named) != same_name(student):
        told = f"(The first cell names {named!r}. This was handed in by {student!r}, whose numbers count.)"
        marks = {
            name: Mark(points=mark.points, of=mark.of, text=f"{mark.text} {told}")
            for name, mark in marks.items()
        }
    return marks


def mark_of(task: Task, answers: Answers, numbers: dict) -> Mark:
    """The mark of one task, whatever its answer does."""
    answer = read(answers, task.answer)
    if isinstance(answer, Exception):
        return Mark(points=0, of=task.points, text=f"Nothing could be read: {answer}.")
    return task.mark(answer, numbers)


def read(answers: Answers, name: str) -> object:
    """An answer, or why there is none."""
    try:
        return answers.answer(name)
    except (TimeoutError, ChildProcessError) as error:
        return error


class WithoutScripts(SanitizeHTML):
    """What a student wrote and what her cells show, without anything that runs in the browser of who reads it.

    nbgrader's pages show text cells and HTML outputs as they are. Locked cells are the lab's own.
    """

    def preprocess_cell(self, cell, resources, cell_index):
        if cell.cell_type == "markdown" and is_locked(cell):
            return cell, resources
        return super().preprocess_cell(cell, resources, cell_index)
