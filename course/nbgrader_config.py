"""What nbgrader needs for the labs. ``python -m course.labs FOLDER`` puts a file there that loads this one."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "chapters")]

from nbconvert.preprocessors import ClearMetadataPreprocessor
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearOutput,
    IgnorePattern,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)

from course.labs.autograding import (
    CutOutputs,
    LinksStayLinks,
    MarkOutside,
    PutBackCells,
    RunForStudent,
    WithoutScripts,
    set_aside,
)
from course.labs.sandbox import require_sandbox

if "autograde" in sys.argv:
    try:
        require_sandbox()
    except RuntimeError as error:
        sys.exit(str(error))

c = get_config()  # noqa: F821 - nbgrader puts it there
c.CourseDirectory.course_id = "memkit"
c.ClearSolutions.code_stub = {"python": "# your lines here"}
c.ClearSolutions.text_stub = "*Your answer here.*"
c.Autograde.sanitize_preprocessors = [
    PutBackCells,
    ClearOutput,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    RunForStudent,
    IgnorePattern,
    ClearMetadataPreprocessor,
    CutOutputs,
    MarkOutside,
    SaveAutoGrades,
    ClearHiddenTests,  # what hidden tests stand in for is in the feedback as points and words
    AssignLatePenalties,
    CheckCellMetadata,
    WithoutScripts,
]
c.Autograde.pre_convert_hook = set_aside
c.ExchangeFactory.collect = LinksStayLinks
c.WithoutScripts.enabled = True
c.RunForStudent.timeout = 60
c.RunForStudent.iopub_timeout = c.RunForStudent.startup_timeout = 300  # on a busy machine
