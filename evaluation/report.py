"""The pages of a run as HTML: the coordinator's, made from messages only, and each hospital's own, which stays there.

Each is one text without any reference to another document. Beside a hospital's own lies what it is made of, as JSON.
"""

from __future__ import annotations

from typing import Any

from evaluation.drawing import Picture
from evaluation.records import RunPage, SitePage
from evaluation.rendering import render_page
from evaluation.rows import to_json
from evaluation.run_page import build_run_page
from evaluation.site_page import OutsideDetails, build_site_page
from privacy.release.statement import Statement
from privacy.release.statement import to_json as write_statement


def render_coordinator_page(page: RunPage) -> str:
    """The run in one page: scores, patients, what left."""
    return render_page(build_run_page(page))


def render_site_page(page: SitePage, details: OutsideDetails | None = None) -> str:
    """One hospital's page, with pictures of its patients: it is written to that hospital's disk only. details: of an
    external site.
    """
    return render_page(build_site_page(page, details))


def write_site_json(page: SitePage, details: OutsideDetails | None = None) -> str:
    """What a hospital's own page is made of, as strict JSON, for its disk only: `SitePage`, and below `outside` the
    details of an external site. NaN is null and an infinite number "Infinity", as in every statement; a picture is
    its title and caption.
    """
    content = {**vars(page), **({} if details is None else {"outside": details})}
    return to_json(content, _name_fields)


def _name_fields(value: Any) -> Any:
    """A picture without its drawing, a statement as everywhere, and the fields of a tuple by their names."""
    if isinstance(value, Picture):
        return {"title": value.title, "caption": value.caption}
    if isinstance(value, Statement):
        return write_statement(value)
    return value._asdict() if hasattr(value, "_asdict") else value
