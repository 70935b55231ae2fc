"""How much RAM a new program can have on this machine, a container's limit counted."""

import re
from pathlib import Path


def available_ram_bytes(system: Path = Path("/")) -> int | None:
    """Bytes of RAM a new program can have, a container's limit counted; ``None`` where nothing tells."""
    found = []
    try:
        text = (system / "proc/meminfo").read_text()
        found += [int(kib) * 1024 for kib in re.findall(r"^MemAvailable: *(\d+) kB", text, re.MULTILINE)]
        limit = int((system / "sys/fs/cgroup/memory.max").read_text())
        found.append(limit - int((system / "sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(found, default=None)
