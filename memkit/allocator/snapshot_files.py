"""Read a memory snapshot without trusting it.

``torch.cuda.memory._dump_snapshot`` writes a pickle, and a pickle is a program: loading one from a stranger
can run any code. A snapshot needs none. It holds nothing but dicts, lists, tuples, texts and numbers, so this
reader admits exactly these and refuses a file that names anything else, before the named thing is looked up.
"""

import gzip
import io
import json
import pickle
from pathlib import Path

PLAIN_TYPES = (dict, list, tuple, str, int, float, bool, type(None))
SNAPSHOT_KEYS = ("segments", "device_traces")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that can build plain containers and nothing else."""

    def find_class(self, module, name):
        raise ValueError(f"it names {module}.{name}; a snapshot names nothing, and what is named can be run")

    def persistent_load(self, pid):
        raise ValueError(f"it refers to the outside object {pid!r}, which no snapshot needs")


def load_snapshot(path: str | Path) -> dict:
    """The snapshot in a ``.pickle``, ``.json`` or ``.json.gz`` file, in torch's own layout.

    Raises: ValueError: the file is no snapshot, or is a pickle with anything in it but plain containers and
    numbers.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        text_like = content.lstrip()[:1] in (b"{", b"[")
        data = json.loads(content) if text_like else _PlainUnpickler(io.BytesIO(content)).load()
        _require_plain(data)
        return as_torch_layout(data)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, OSError) as error:
        raise ValueError(f"{path.name} is not read as a snapshot: {error}") from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path.name} is neither JSON nor a pickle: {error}") from error


def _require_plain(data: object) -> None:
    """Refuse bytes, sets and whatever else a pickle can build without naming it."""
    waiting, seen = [data], set()
    while waiting:
        value = waiting.pop()
        if type(value) not in PLAIN_TYPES:
            raise ValueError(f"it holds a {type(value).__name__}, which no snapshot needs")
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value)
            if isinstance(value, dict):
                waiting.extend(value.values())


def as_torch_layout(data: object) -> dict:
    """The same snapshot as torch lays it out: ``segments`` with their blocks, ``device_traces`` with their
    events.

    Older files lack a block's address; compact ones (``events`` and ``events_fields``) hold rows instead of
    dicts.
    """
    if isinstance(data, list):
        data = {"segments": data, "device_traces": []}
    if not isinstance(data, dict) or "segments" not in data:
        keys = ", ".join(map(str, list(data)[:5])) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"no key 'segments' in it, only {keys or 'nothing'}")
    data = dict(data)
    if "events" in data:
        fields = data.pop("events_fields")
        data["device_traces"] = [[dict(zip(fields, row, strict=True)) for row in data.pop("events")]]
    block_fields = data.pop("blocks_fields", None)
    segments = []
    for segment in data["segments"]:
        address, blocks = segment["address"], []
        for block in segment["blocks"]:
            block = dict(zip(block_fields, block, strict=True)) if isinstance(block, list) else dict(block)
            block["address"] = block.get("address", address)
            address = block["address"] + block["size"]
            blocks.append(block)
        segments.append({**segment, "blocks": blocks})
    return {**data, "segments": segments, "device_traces": data.get("device_traces", [])}
