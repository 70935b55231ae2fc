"""The twin in pixels of a picture, for viewers that draw no SVG: GitHub, a notebook that nobody has trusted yet.

``resvg-py`` is one wheel without dependencies; where it is missing a picture has no twin, and its words say what it
shows. The font is DejaVu Sans, which matplotlib carries, so that the pixels are the same on every machine.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def fonts() -> tuple[str, ...]:
    """The files of DejaVu Sans beside matplotlib; none without it."""
    spec = find_spec("matplotlib")
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" if spec else Path()
    return tuple(str(folder / name) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf") if (folder / name).exists())


def png_of(svg: str, zoom: float = 1.0) -> bytes | None:
    """An SVG as a PNG on white, ``zoom`` times its size; ``None`` without ``resvg-py``."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        return None
    return bytes(
        svg_to_bytes(
            svg_string=svg,
            background="#ffffff",
            zoom=zoom,
            skip_system_fonts=bool(fonts()),
            font_files=list(fonts()),
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
        )
    )
