"""Markdown to one self-contained HTML page, and text from the data made harmless in both."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from markdown_it import MarkdownIt

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&$])")
_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 50rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
img { width: 100%; max-width: 29rem; display: block; margin: 1rem auto; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.85rem; margin: 1rem 0; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
td:first-child { white-space: nowrap; }
th { white-space: nowrap; }
code { overflow-wrap: anywhere; }
"""


def escape(text: object) -> str:
    """Text from the data as Markdown that shows it and does nothing else; one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the cells are data and are escaped. Columns that are empty in every row are left out."""
    body = [[escape(cell) for cell in row] for row in rows]
    shown = [i for i in range(len(header)) if any(row[i] for row in body)]
    lines = [[header[i] for i in shown], ["---"] * len(shown), *([row[i] for i in shown] for row in body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure_link(path: Path, alternative: str) -> str:
    """A figure in Markdown, referred to by path."""
    return f"![{alternative}]({path.as_posix()})"


def to_html(markdown: str, title: str, folder: Path) -> str:
    """The page with its images inside.

    Args:
        markdown: the page; images are paths relative to `folder`.
        title: title of the window, escaped here.
        folder: where the images are.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for token in tokens:
        for child in token.children or []:
            if child.type == "image":
                data = base64.b64encode((folder / str(child.attrs["src"])).read_bytes()).decode()
                child.attrs["src"] = f"data:image/png;base64,{data}"
    body = parser.renderer.render(tokens, parser.options, {})
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_CSS}</style></head>\n<body>\n{body}</body></html>\n'
