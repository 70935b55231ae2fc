"""One panel for a page: how it opens, as HTML, and what each single move from there changes.

``python ahead.py NAME ARGUMENTS FILE`` runs without torch, numpy and ipywidgets, as the page itself will. It ends with
code 3 and the reason where the panel needs more than that.
"""

import gzip
import json
import sys
from pathlib import Path


def main(name: str, arguments: str, file: str) -> None:
    """Write the panel's opening and its moves. A slider's value that leaves all as it is changes nothing."""
    for heavy in ("torch", "numpy", "matplotlib", "ipywidgets", "anywidget", "IPython"):
        sys.modules[heavy] = None  # an import of it fails, as it will in the page
    from page_host import Host

    try:
        host = Host(name, json.loads(arguments))
    except ImportError as error:
        print(error)
        sys.exit(3)
    changes = {
        f"{control} {json.dumps(value)}": Host(name, json.loads(arguments)).move(
            control, value, rests=True
        )
        for control, value in host.single_moves()
    }
    made = {"html": host.html(), "opening": host.told, "moves": changes}
    Path(file).write_bytes(gzip.compress(json.dumps(made).encode(), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
