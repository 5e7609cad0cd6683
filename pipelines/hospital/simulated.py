"""All hospitals of a simulation on this machine, each with a folder and a policy of its own."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from federation.engine import Engine, InProcess, Worker
from federation.processes import Processes
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.public_networks import PUBLIC
from pipelines.hospital.worker import make_worker, write_log_line
from pipelines.loader.document import ConfigError
from pipelines.runs.progress import make_message_display, send_progress
from pipelines.runs.replies import make_reply_store, store_replies
from pipelines.runs.stopping import Stop, Stopped
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.settings_error import Problem


def make_simulated_workers(
    sites: Mapping[str, SiteSettings], root: Path, *, device: str, now: Callable[[], str], pause: Callable[[], None]
) -> dict[str, Worker]:
    """A worker in this process for each hospital. root: the run's folder. device, now, pause: see `Hospital`.

    Raises:
        ConfigError: the settings say that some hospitals are on other machines.
    """
    made = _Played(sites, root, device, now).hospitals(pause)
    return {
        name: store_replies(make_worker(hospital), root / "federation", partial(write_log_line, hospital))
        for name, hospital in made.items()
    }


def make_simulation(
    sites: Mapping[str, SiteSettings],
    root: Path,
    *,
    device: str,
    now: Callable[[], str],
    stop: Stop,
    threads: int = 1,
    processes: int = 1,
) -> Engine:
    """An engine that plays these hospitals. root, device, now: as in `simulated`. stop: of the run. threads: of torch,
    in each process. processes: in which hospitals work at the same time, at most one for each. Results do not depend on
    their number, because a hospital knows nothing but its folder and the question.

    Raises:
        ConfigError: as `simulated`; or hospitals cannot be played in processes of their own.
    """
    count = min(processes, len(sites))
    if count <= 1:
        return InProcess(make_simulated_workers(sites, root, device=device, now=now, pause=stop.check))
    played = _Played(sites, root, device, now, threads)
    hospitals = played.hospitals(stop.check)  # for their logs; also says who cannot be played
    _check_portable(played)
    keep = make_reply_store(root / "federation", lambda text: logging.getLogger(__name__).error("%s", text))
    return Processes(
        *(played.workers, tuple(sites), count),
        stopping=lambda: stop.is_requested,
        keep=keep,
        log=lambda site, text: write_log_line(hospitals[site], text),
        told=make_message_display(),
        preload=[__name__],
    )


@dataclass(frozen=True)
class _Played:
    """Who is played, with the settings that each process needs: what crosses to a new one."""

    sites: Mapping[str, SiteSettings]
    root: Path
    device: str
    now: Callable[[], str]
    threads: int = 1

    def hospitals(self, pause: Callable[[], None]) -> dict[str, Hospital]:
        """Each hospital in a folder of its own. Raises: ConfigError: some are on other machines."""
        if far := [name for name, site in self.sites.items() if isinstance(site.source, Elsewhere)]:
            text = (
                f"elsewhere: {', '.join(far)} cannot be played here; say --engine flare --kit KIT, or where files are"
            )
            raise ConfigError([Problem(("sites",), text)])
        public = self.root.parent / PUBLIC
        return {
            name: Hospital(
                *(name, self.root / "sites" / name, settings, self.now), device=self.device, pause=pause, public=public
            )
            for name, settings in self.sites.items()
        }

    def workers(self, is_stopped: Callable[[], bool], tell: Callable[[object], None]) -> dict[str, Worker]:
        """The workers of a new process. asked: whether the run was asked to stop. tell: takes progress."""

        def pause() -> None:
            if is_stopped():
                raise Stopped("the run was asked to stop")

        torch.set_num_threads(self.threads)
        send_progress(tell)
        gc.freeze()  # what was imported stays
        return {name: make_worker(hospital) for name, hospital in self.hospitals(pause).items()}


def _check_portable(played: _Played) -> None:
    """Raises: ConfigError: another process could not make the same hospitals."""
    try:
        ForkingPickler.dumps(played)
    except Exception as error:  # it promises no kind of error
        why = f"a hospital's settings cannot be sent to another process ({type(error).__name__}: {error})"
        raise ConfigError([Problem(("processes",), f"must be 1, because {why}")]) from error
