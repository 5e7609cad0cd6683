"""Renders a page: its records by `templates/page.html`."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from evaluation.page import Bar, Cell, Column, Curve, Page, Row, Text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

ELEMENTS = ("strong", "b", "em", "code", "sup")
"""Looks of words that are elements of HTML; others are classes of the style sheet."""
BAR_GROUND = (
    '<svg width="180" height="12" role="img" aria-label="{}">'
    '<rect width="180" height="12" fill="var(--band)"></rect>{}</svg>'
)
BAR = '<rect width="{:.0f}" height="12" fill="var(--{})"></rect><path d="M{:.1f} 6H{:.1f}" stroke="var(--ink)"></path>'
CURVE = (
    '<svg width="124" height="24" viewBox="-2 -2 124 24" role="img" aria-label="{}">'
    '<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5"></polyline></svg>'
)


@functools.cache
def _make_environment() -> Environment:
    """The Jinja environment of all templates, with what they use."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(words=write_text, cells=_pair_cells, kind=lambda record: type(record).__name__)
    environment.filters["drawn"] = lambda picture: Markup(picture.html)  # noqa: S704
    return environment


def render_page(page: Page) -> str:
    """A page from its records. Its one script is `page.js`, and the page's policy allows no other and no request to
    anywhere.
    """
    from markupsafe import Markup

    environment = _make_environment()
    style, script = environment.get_template("style.css").render(), read_script("page.js")
    parts = {"style": Markup(style), "script": Markup(script), "policy": write_policy(script)}  # noqa: S704
    return environment.get_template("page.html").render(**parts, page=page)


def write_text(text: Text) -> Markup:
    """A text of a page as HTML between tags, not for an attribute. What it holds is escaped."""
    from markupsafe import Markup

    return Markup(_write_part(text))  # noqa: S704


def _write_part(text: Text) -> str:
    """The same as a plain string: a page has tens of thousands of parts."""
    if isinstance(text, str):
        return html.escape(text, quote=False)
    if isinstance(text, tuple):
        return "".join(map(_write_part, text))
    if isinstance(text, Bar):
        return _draw_bar(text)
    if isinstance(text, Curve):
        return CURVE.format(html.escape(text.label), html.escape(text.points))
    inner = _write_part(text.text)
    if text.look in ELEMENTS:
        inner = f"<{text.look}>{inner}</{text.look}>"
    elif text.look:
        inner = f'<span class="{html.escape(text.look)}">{inner}</span>'
    return f'<a href="{html.escape(text.href)}">{inner}</a>' if text.href else inner


def _draw_bar(bar: Bar) -> str:
    """A bar of 180 pixels, with a line over its interval."""
    drawn = ""
    if bar.share is not None:
        value, low, high = (180 * share for share in bar.share)
        drawn = BAR.format(value, "bad" if bar.is_bad else "accent", low, high)
    return BAR_GROUND.format(html.escape(bar.label), drawn)


def _pair_cells(row: Row, columns: Sequence[Column]) -> Iterator[tuple[Cell, Column]]:
    """Each cell of a row with the column in which it begins."""
    place = 0
    for each in row.cells:
        cell = each if isinstance(each, Cell) else Cell(each)
        yield cell, columns[place]
        place += cell.width


def write_policy(*scripts: str) -> str:
    """The content security policy of a page with these scripts. Pictures lie in the page; styles stand in it."""
    allowed = " ".join(map(write_digest, scripts))
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def write_digest(script: str) -> str:
    """What a policy says of a script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def read_script(name: str) -> str:
    """A script of `evaluation/templates`, as pages have it."""
    return _make_environment().get_template(name).render()
