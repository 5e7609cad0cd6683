"""The pages of a run as HTML: the coordinator's, made from messages only, and each hospital's own, which stays there.

Each is one text without any reference to another document.
"""

from __future__ import annotations

from evaluation.records import RunPage, SitePage
from evaluation.rendering import render_page
from evaluation.run_page import build_run_page
from evaluation.site_page import OutsideDetails, build_site_page


def render_coordinator_page(page: RunPage) -> str:
    """The run in one page: scores, patients, what left."""
    return render_page(build_run_page(page))


def render_site_page(page: SitePage, details: OutsideDetails | None = None) -> str:
    """One hospital's page, with pictures of its patients: it is written to that hospital's disk only. details: of an
    external site.
    """
    return render_page(build_site_page(page, details))
