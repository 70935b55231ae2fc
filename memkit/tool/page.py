"""One self-contained HTML page: a title, pictures with their words, and text as it would be printed."""

import html
from collections.abc import Iterable

from memkit.pictures.svg import Chart

STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "pre{font:13px/1.45 ui-monospace,monospace;overflow-x:auto;background:color-mix(in srgb,CanvasText 6%,Canvas);"
    "padding:1rem}"
)


def html_page(title: str, pictures: Iterable[Chart], texts: Iterable[tuple[str, str]]) -> str:
    """A page that needs no other file: each picture with its words, each text under its heading."""
    body = [f"<h1>{html.escape(title)}</h1>", *(picture.page_html() for picture in pictures)]
    for heading, text in texts:
        body.append(f'<h2>{html.escape(heading)}</h2>\n<pre tabindex="0">{html.escape(text)}</pre>')
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n'
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )
