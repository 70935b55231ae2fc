"""One self-contained HTML page: a title, pictures with their words, and text as it would be printed."""

import base64
import html
from collections.abc import Iterable

from memkit.pictures.picture import Picture

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "img{max-width:100%;height:auto}pre{font:13px/1.45 ui-monospace,monospace;overflow-x:auto;background:#f6f6f6;"
    "padding:1rem}@media(prefers-color-scheme:dark){body{background:#fff}}"
)


def html_page(title: str, pictures: Iterable[Picture], texts: Iterable[tuple[str, str]]) -> str:
    """A page that needs no other file: each picture with its ``alt``, each text under its heading."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    for picture in pictures:
        png = base64.b64encode(picture.png()).decode()
        body.append(f'<p><img alt="{html.escape(picture.alt)}" src="data:image/png;base64,{png}"></p>')
    for heading, text in texts:
        body.append(f"<h2>{html.escape(heading)}</h2>\n<pre>{html.escape(text)}</pre>")
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"
