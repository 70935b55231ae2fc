"""What a program that was traced raised, in one line that names the program's own line."""

import sysconfig
import traceback
from pathlib import Path

import memkit
from stepscope.tool.sealing import FREE, SWITCH


def root_of(error: BaseException) -> BaseException:
    """The first of the errors from which this one was raised, as a traceback would print them."""
    chain = [error]
    while cause := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
        if cause in chain:  # raised from itself
            break
        chain.append(cause)
    return chain[-1]


def in_words(error: BaseException) -> str:
    """What happened in one line, with the program's own line at which it did, where there is one."""
    words = " ".join(str(error).split()) or type(error).__name__
    words = words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"
    own = str(Path(__file__).parents[1]), str(Path(memkit.__file__).parent)
    others = (*own, sysconfig.get_path("stdlib"), "<")
    frames = traceback.extract_tb(error.__traceback__)
    if FREE and "Permission denied" in words:
        words += f": a report leaves the disk as it found it; leave this out where os.environ has {SWITCH}"
    root = error if frames[-1].filename.startswith(own) else root_of(error)
    if root is not error:
        words = f"{words} (from {' '.join(f'{type(root).__name__}: {root}'.split()).removesuffix(':')})"
    frames = [f for f in frames if not f.filename.startswith(others)]
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "site-packages" not in f.filename]
    return words if not places or places[-1] in words else f"{words} ({places[-1]})"
