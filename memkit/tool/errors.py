"""What a program that was traced raised, in one line that names the program's own line."""

import sysconfig
import traceback
from pathlib import Path


def in_words(error: BaseException) -> str:
    """What happened in one line, with the program's own line at which it did, where there is one."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
    others = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "site-packages" not in f.filename]
    return words if not places or places[-1] in words else f"{words} ({places[-1]})"
