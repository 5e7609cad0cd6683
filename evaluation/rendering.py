"""Renders a page from one of the templates in `evaluation/templates`."""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING

from evaluation.attacks import REMEDY, membership_verdict, strongest
from evaluation.wording import (
    counted,
    decibel,
    duration,
    figures,
    hundredths,
    listed,
    moment,
    number,
    signed,
    size,
    spanned,
    whole,
)
from privacy.release.meaning import loss

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def _environment() -> Environment:
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
        number=number,
        decibel=decibel,
        figures=figures,
        signed=signed,
        hundredths=hundredths,
        size=size,
        duration=duration,
        whole=whole,
        moment=moment,
        counted=counted,
        loss=loss,
        quoted=shlex.quote,
        listed=listed,
        spanned=spanned,
    )
    environment.filters.update(verdict=membership_verdict, strongest=strongest)
    environment.globals["remedy"] = REMEDY
    environment.filters["drawn"] = lambda picture: Markup(picture.html)  # noqa: S704
    return environment


def rendered(template: str, **values: object) -> str:
    """A page from a template and its values."""
    from markupsafe import Markup

    environment = _environment()
    style = environment.get_template("style.css").render()
    return environment.get_template(template).render(style=Markup(style), **values)  # noqa: S704
