"""Read a memory snapshot without trusting it.

``torch.cuda.memory._dump_snapshot`` writes a pickle, and a pickle is a program: loading one from a stranger can
run any code, or ask for any amount of memory. A snapshot needs neither. It holds nothing but dicts, lists, tuples
of numbers, texts and numbers, so this reader admits exactly these, looks the whole file over before it builds
anything, and refuses a file that names something before the named thing is looked up. What is read costs at most
about 25 times the bytes of the unpacked file, which are bounded.
"""

import gzip
import io
import json
import pickle
import re
import zlib
from pathlib import Path

from memkit.units import GIB, MIB, format_bytes

MAX_BYTES = 2 * GIB
"""The largest file that is read, unpacked."""
MAX_RATIO = 200
"""How many times larger than its file a packed snapshot may be (and ``MIB`` more); real ones reach 54."""


def load_snapshot(path: str | Path) -> dict:
    """The snapshot in a ``.pickle``, ``.json`` or ``.json.gz`` file, in torch's own layout.

    Raises: ValueError: the file is no snapshot, is too large, or is a pickle with anything in it but plain
    containers and numbers. FileNotFoundError: there is no such file.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
    except ValueError:  # a null byte, or half a letter
        raise ValueError(f"path={str(path)!r} cannot be a file's name") from None
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, not a snapshot's file")
    content = path.read_bytes() if size <= MAX_BYTES else b""
    if not content:
        raise ValueError(f"{path.name} has {size} B; 1 to {MAX_BYTES} are read as a snapshot")
    try:
        return as_torch_layout(plain_data(content))
    except RecursionError:
        raise ValueError(f"{path.name} is not read as a snapshot: it is nested too deeply") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, OSError, OverflowError) as error:
        raise ValueError(f"{path.name} is not read as a snapshot: {error}") from error
    except (pickle.UnpicklingError, zlib.error, MemoryError) as error:
        raise ValueError(f"{path.name} is neither JSON nor a pickle: {error}") from error


def plain_data(content: bytes) -> object:
    """What a JSON text or a pickle says, packed by gzip or not, if it says nothing but plain data.

    Raises: ValueError, or what the reader of a broken file raises.
    """
    if content[:2] == b"\x1f\x8b":
        most = min(MAX_BYTES, MAX_RATIO * len(content) + MIB)
        with gzip.open(io.BytesIO(content)) as packed:
            content = packed.read(most + 1)
        if len(content) > most:
            raise ValueError(f"unpacked it has more than {format_bytes(most)}")
    if content.lstrip()[:1] in (b"{", b"["):
        return json.loads(content)
    look_over(content)
    return _PlainUnpickler(io.BytesIO(content)).load()


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that can build plain containers and nothing else."""

    def find_class(self, module, name):
        raise ValueError(f"it names {module}.{name}; a snapshot names nothing, and what is named can be run")

    def persistent_load(self, pid):
        raise ValueError(f"it refers to the outside object {pid!r}, which no snapshot needs")


_LONG = b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(11))
_NUMBER = rb"(?:K.|M..|J.{4}|G.{8}|N|\x88|\x89|[IFL][-+.\deL]{1,40}\n|\x8a(?:" + _LONG + rb"))"
_HARMLESS = re.compile(
    rb"(?:" + _NUMBER + rb"{1,3}[\x85-\x87]|\(" + _NUMBER + rb"*+t|" + _NUMBER
    + rb"|h.|j.{4}|q.|[\x94}\]()aesu]|\x80.)++",
    re.DOTALL,
)
"""Opcodes of a fixed length that a plain pickle is mostly made of. A tuple is made of numbers only: tuples of
tuples are keys that take a time to hash which doubles with each level."""
_TEXT_OPS = b"ILVFSpg"  # an argument up to the end of the line
_SIZED_OPS = {0x8D: 8} | dict.fromkeys(b"\x8cU\x8a", 1) | dict.fromkeys(b"XT\x8b", 4)
"""Opcodes with a length of so many bytes and then so many bytes."""
_FIXED_OPS = {ord("r"): 4, 0x95: 8} | dict.fromkeys(b"dl.201", 0)
_NAMING_OPS = b"c\x93ioR\x81\x92PQ\x82\x83\x84"


def look_over(content: bytes) -> None:
    """Follow a pickle's opcodes without running them.

    Raises: ValueError: a length or a place in the memo that the file is too short for, a tuple of anything but
    numbers, an opcode that no plain pickle has.
    """
    position, end = 0, len(content)
    while position < end:
        if harmless := _HARMLESS.match(content, position):
            position = harmless.end()
            continue
        op, position = content[position], position + 1
        if op in _NAMING_OPS:
            return  # what names something is refused where it is read
        if op in _SIZED_OPS:
            width = _SIZED_OPS[op]
            length = int.from_bytes(content[position : position + width], "little")
            if length > end - position - width:
                raise ValueError(f"at byte {position} it announces {length} B, more than it has")
            position += width + length
        elif op in _FIXED_OPS:
            argument = int.from_bytes(content[position : position + _FIXED_OPS[op]], "little")
            if argument > end:
                raise ValueError(f"at byte {position} it points to {argument}, beyond its own {end} B")
            position += _FIXED_OPS[op]
            if op == ord("."):
                return
        elif op in _TEXT_OPS:
            line_end = content.find(b"\n", position)
            text = content[position : line_end if line_end >= 0 else end]
            if op in b"pg" and not (text.isdigit() and len(text) < 10 and int(text) <= end):
                raise ValueError(f"at byte {position} it points to {text[:20]!r}, beyond its own {end} B")
            position += len(text) + 1
        else:
            words = "a tuple of more than numbers" if op in b"t\x85\x86\x87" else f"opcode {bytes([op])!r}"
            raise ValueError(f"at byte {position - 1} it has {words}, which no snapshot needs")


def as_torch_layout(data: object) -> dict:
    """The same snapshot with the keys ``segments`` and ``device_traces``; older files are the list of segments."""
    if isinstance(data, list):
        data = {"segments": data}
    if not isinstance(data, dict) or "segments" not in data:
        keys = ", ".join(str(key)[:40] for key in list(data)[:5]) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"no key 'segments' in it, only {keys or 'nothing'}")
    return {**data, "device_traces": data.get("device_traces", [])}
