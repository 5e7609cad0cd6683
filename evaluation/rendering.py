"""Renders a page from one of the templates in `evaluation/templates`."""

from __future__ import annotations

import base64
import functools
import hashlib
import shlex
from typing import TYPE_CHECKING

from evaluation.attacks import REMEDY, find_strongest_attack, membership_outcome
from evaluation.wording import (
    format_count,
    format_decibel,
    format_duration,
    format_figures,
    format_hundredths,
    format_list,
    format_moment,
    format_number,
    format_signed,
    format_size,
    format_span,
    format_whole,
)
from privacy.release.meaning import format_loss

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def _make_environment() -> Environment:
    """The Jinja environment of all templates, with the filters that they use."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # slow to import
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=format_number,
        decibel=format_decibel,
        figures=format_figures,
        signed=format_signed,
        hundredths=format_hundredths,
        size=format_size,
        duration=format_duration,
        whole=format_whole,
        moment=format_moment,
        counted=format_count,
        loss=format_loss,
        quoted=shlex.quote,
        listed=format_list,
        spanned=format_span,
    )
    environment.filters.update(verdict=membership_outcome, strongest=find_strongest_attack)
    environment.globals["remedy"] = REMEDY
    environment.filters["drawn"] = lambda picture: Markup(picture.html)  # noqa: S704
    return environment


def render_template(template: str, **values: object) -> str:
    """A page from a template and its values. Its one script is `page.js`, and the page's policy allows no other and no
    request to anywhere.
    """
    from markupsafe import Markup

    environment = _make_environment()
    style, script = environment.get_template("style.css").render(), read_script("page.js")
    parts = {"style": Markup(style), "script": Markup(script), "policy": write_policy(script)}  # noqa: S704
    return environment.get_template(template).render(**parts, **values)


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
