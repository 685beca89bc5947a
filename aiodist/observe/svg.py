"""Pieces of an SVG picture."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, even escaped."""


def picture(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a whole picture on a white ground."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def rectangle(x: float, y: float, width: float, height: float, fill: str, **more: str) -> str:
    """Return a rectangle. ``more``: attributes, and ``title``, which appears under the pointer."""
    title = more.pop("title", "")
    rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    start = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"'
    return f"{start}{rest}><title>{_escaped(title)}</title></rect>" if title else f"{start}{rest}/>"


def words(x: float, y: float, text: str, **more: str) -> str:
    """Return a line of text that begins, or as ``text_anchor`` says, at a point of its base line."""
    rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:.2f}" y="{y:.2f}"{rest}>{_escaped(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """Return a straight line."""
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}"/>'


def _escaped(text: str) -> str:
    """Return ``text`` as XML can hold it; the error of an operation may have any characters."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
