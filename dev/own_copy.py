"""What ``make lab`` opens: the reader's own copy of the chapters, with the book's style for JupyterLab.

JupyterLab saves a notebook seconds after it was opened, so that reading alone would change the book's files, and the
next ``git pull`` would stop at them. A copy that a reader has is never written again.
"""

import shutil
import sys
from pathlib import Path

from jupyter_server import DEFAULT_STATIC_FILES_PATH

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dev.notebooks import notebooks, place_of

NAME = "my_chapters"
STYLE = Path(__file__).with_name("jupyterlab") / "custom.css"


def copy_chapters(root: Path = ROOT) -> list[str]:
    """Copy the notebooks that the reader does not have yet; returns the names of those that the book has changed since.

    ``.base`` beside the copies has each notebook as it was copied.
    """
    own, changed = root / NAME, []
    for chapter in notebooks(root / "chapters"):
        name = place_of(chapter)
        copy, base = own / name, own / ".base" / name
        for place in (copy, base):
            place.parent.mkdir(parents=True, exist_ok=True)
        is_untouched = copy.exists() and base.exists() and copy.read_bytes() == base.read_bytes()
        if not copy.exists() or is_untouched:
            shutil.copyfile(chapter, copy)
            shutil.copyfile(chapter, base)
        elif not base.exists() or base.read_bytes() != chapter.read_bytes():
            changed.append(name)
    for ledger in (root / "chapters").glob("*.toml"):
        shutil.copyfile(ledger, own / ledger.name)
    return changed


def main() -> None:
    changed = copy_chapters()
    print(f"Your copy of the chapters is {NAME}/: what you write there stays yours.", flush=True)
    if changed:
        print(
            f"The book's {', '.join(changed)} changed after you began; delete your copy to read the new one."
        )
    custom = Path(DEFAULT_STATIC_FILES_PATH) / "custom"
    custom.mkdir(exist_ok=True)
    shutil.copyfile(STYLE, custom / "custom.css")


if __name__ == "__main__":
    sys.exit(main())
