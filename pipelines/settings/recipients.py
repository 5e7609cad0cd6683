"""Who receives what a hospital sends, besides the coordinator: what a run needs the hospital's policy to name."""

from __future__ import annotations

from collections.abc import Iterator

from federation.algorithm import recipient_of
from pipelines.settings.run_settings import RunSettings
from privacy.release.policy import OUTSIDE, SITES


def list_needed_recipients(run: RunSettings, site: str) -> Iterator[tuple[str, str]]:
    """The recipients that a run needs at a hospital inside the federation, each with what goes to them. Overrides that
    are wrong are left out: `checks.sites` reports them.
    """
    if run.route is not None and run.outside:
        yield OUTSIDE, "route hands this site's models to external sites"
    for label, method in run.train.methods.items():
        try:
            site_method = run.method(label, site)
        except ValueError:
            continue
        if SITES in (recipient_of(method), recipient_of(site_method)):
            yield SITES, f"train.methods.{label} ({method.name}) hands what this site says on to all other sites"
