"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .changed import (
    PROGRAM_CHANGES as PROGRAM_CHANGES,
    changed_build as changed_build,
)
from .program_report import (
    Report as Report,
    report_on as report_on,
)
from .script import Script as Script
