"""All hospitals of a simulation in this process, each with a folder and a policy of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from federation.engine import Worker
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.public_networks import PUBLIC
from pipelines.hospital.worker import logged, worker
from pipelines.loader.document import ConfigError
from pipelines.runs.replies import on_disk
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.settings_error import Problem


def simulated(
    sites: Mapping[str, SiteSettings], root: Path, *, device: str, now: Callable[[], str], pause: Callable[[], None]
) -> dict[str, Worker]:
    """A worker for each hospital. root: the run's folder. device, now, pause: see `Hospital`.

    Raises:
        ConfigError: the settings say that some hospitals are on other machines.
    """
    if far := [name for name, site in sites.items() if isinstance(site.source, Elsewhere)]:
        text = f"elsewhere: {', '.join(far)} cannot be played here; say --engine flare --kit KIT, or where files are"
        raise ConfigError([Problem(("sites",), text)])
    public = root.parent / PUBLIC
    made = {
        name: Hospital(name, root / "sites" / name, own, now, device=device, pause=pause, public=public)
        for name, own in sites.items()
    }
    return {name: on_disk(worker(own), root / "federation", partial(logged, own)) for name, own in made.items()}
