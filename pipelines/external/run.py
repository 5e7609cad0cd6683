"""A hospital that never was in the federation comes to a model: from exported models and its own unlabelled images.

`python -m pipelines.run ROUTE.yaml`, whose key `models` names the file that a run's stage `route` wrote. Images are
read as `pipelines.predict` reads them, the models become one network for them, and what it finds is written as
`predict` writes it: predictions.csv, quarantine.csv, accounted.csv and masks. Beside these lie adaptation.json and
adaptation.png, how it went, and routed.safetensors, with which `predict` serves later patients. All of it stays in the
hospital.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from federation.randomness import derived
from personalize.adaptation import Adapted
from personalize.routing_outside import Routing
from pipelines.data.accounts import accounted, as_facts, in_words
from pipelines.data.admission import Admitted, admitted
from pipelines.data.images import Features
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.study import Rejected, Unusable
from pipelines.data.writing.masks import maker_of, open_masking
from pipelines.external.adapted import (
    LARGEST_KEPT,
    adapted_bytes,
    adapted_to,
    digest_of,
    kept_of,
    networks,
    ready_of,
    shares_of_experts,
)
from pipelines.external.opening import Job, looked, open_job
from pipelines.external.picture import loss_curve
from pipelines.external.settings import Outside, place_of
from pipelines.hospital.model_file import Ready
from pipelines.loader.document import ConfigError, Document, Problem, problem_at
from pipelines.loader.validation import to_plain
from pipelines.predict import NOTICE, THRESHOLD, Desk, Line, header, line_of, said_of, write_tables
from pipelines.runs.exits import Exit
from pipelines.runs.progress import shown
from pipelines.runs.stopping import RunLock, Stop, Stopped, safe_stop
from pipelines.runs.store import DiskFolder, clean
from pipelines.settings.route import AsTrained
from privacy.message import Json

ACCOUNT, CURVE, ROUTED = "adaptation.json", "adaptation.png", "routed.safetensors"


class Served(NamedTuple):
    """What predicts here. account: how it came about. seen: (n, classes, *spatial) where predictions were made already,
    on the way.
    """

    ready: Ready
    account: dict[str, Json]
    seen: Tensor | None


def run_outside(settings: Outside, document: Document, options: argparse.Namespace, console: Console) -> int:
    """Do what the document's settings say, or with --check only look; returns the exit code.

    Raises:
        ConfigError: everything that is wrong with settings, models and folder.
        LockedError, Stopped: as in a run.
        OSError: the disk.
    """
    if options.only or options.first or options.until or options.explain:
        said = "--only, --from, --until and --explain choose stages, and a file with models: has none; remove them"
        raise ConfigError([Problem("", None, said)])
    job = open_job(settings, document)
    torch.set_num_threads(settings.threads)
    if options.check:
        return looked(job, console, as_json=options.json)
    out = Path(settings.out)
    with RunLock(out), safe_stop() as stop:
        clean(out)
        try:
            return _done(job, stop, console, as_json=options.json)
        except Stopped as error:
            raise Stopped(error.reason, f"python -m pipelines.run {shlex.quote(options.config)}") from None


def _done(job: Job, stop: Stop, console: Console, *, as_json: bool) -> int:
    settings, described = job.settings, job.models.described
    out = Path(settings.out)
    studies, refused = _read(job, stop, console)
    names = described.names[1:] if described.kind == "segmentation" else ()
    lines: list[Line] = []
    told: dict[str, Json] = {"models": job.models.digest}
    words = "No image could be read, so nothing was adapted."
    if studies:
        served = _served(job, studies, console)
        stop.check()
        desk = _desk(job, served.ready)
        with shown("write", console=console) as step:
            for number, result in enumerate(_lines(desk, studies, served.seen, settings.computes_on)):
                step(number, len(studies))
                stop.check()
                if isinstance(result, Rejected):
                    refused.append(result)
                else:
                    lines.append(result)
        told |= {key: served.account[key] for key in ("epoch", "why") if key in served.account}
        words = str(served.account.get("why", "nothing was adapted"))
    else:
        for name in (ACCOUNT, CURVE, ROUTED):  # of an earlier run
            DiskFolder(out).remove(name)
    accounts = accounted(job.opened.items, refused)
    write_tables(out, header(described.kind, described.images, names), lines, refused, accounts)
    code = Exit.OK if lines or not refused else Exit.DATA
    positive = sum(line.positive for line in lines)
    told |= {"studies": len(lines), "positive": positive, "quarantined": len(refused), "out": settings.out}
    told |= as_facts(accounts)
    if as_json:
        print(json.dumps({**told, "exit": int(code)}))  # noqa: T201 - the machine's answer
    else:
        text = said_of(described.kind, _threshold(settings), lines, refused, settings.out)
        _say(console, f"{settings.how.name}: {words}\n{text}\n{in_words(accounts, job.opened.of)}")
    return int(code)


def _read(job: Job, stop: Stop, console: Console) -> tuple[list[Admitted], list[Rejected]]:
    """Every study, in order; all of them are needed at once."""
    studies, refused = list[Admitted](), list(job.opened.rejected)
    with shown("read", console=console) as step:
        for number, result in enumerate(admitted(job.opened.waiting, readers=job.settings.readers)):
            step(number, len(job.opened.waiting))
            stop.check()
            if isinstance(result, Rejected):
                refused.append(result)
            else:
                studies.append(result)
    return studies, refused


def _served(job: Job, studies: Sequence[Admitted], console: Console) -> Served:
    """Adapt, and keep what it came to.

    Raises:
        ConfigError: the models do not go with the way.
    """
    settings, described, how = job.settings, job.models.described, job.settings.how
    device, seed = settings.computes_on, derived(settings.seed, settings.name, settings.how.name)
    x = torch.cat([torch.from_numpy(study.examples.images) for study in studies]).to(device)
    with shown("adapt", console=console):
        try:
            experts = networks(job.models, how, device)
            module, adapted = adapted_to(experts, x, how, kind=described.kind, seed=seed)
        except ValueError as error:
            raise ConfigError([problem_at(job.document, ("how",), str(error))]) from error
    served = AsTrained() if adapted is not None and adapted.epoch is None else how
    label = f"{served.name} of {described.run}"
    kept = kept_of(job.models, label, served, job.source, gland=settings.gland is not None)
    data = adapted_bytes(kept, job.models.experts, {} if adapted is None else adapted.state)
    batch = how.batch if isinstance(how, Routing) else 1
    account: dict[str, Json] = {
        "notice": NOTICE,
        "name": settings.name,
        "run": described.run,
        "models": job.models.digest,
        "how": to_plain(how),
        "seed": settings.seed,
        "experts": [*kept.models.experts],
        "classes": [*described.names],
        "studies": len(studies),
        "images": len(x),
        **_told(adapted),
        "coefficients": to_plain(shares_of_experts(module, x, kept.models.experts, batch=batch)),
        "kept": len(data) <= LARGEST_KEPT,
    }
    _write(Path(settings.out), account, adapted, described.names, data)
    return Served(ready_of(kept, module, digest_of(data)), account, None if adapted is None else adapted.probabilities)


def _told(adapted: Adapted | None) -> dict[str, Json]:
    """How an adaptation went; null stands for a loss that is no number."""
    if adapted is None:
        return {}
    losses: list[Json] = [loss if math.isfinite(loss) else None for loss in adapted.losses]
    shares: list[Json] = [list(one) for one in adapted.shares]
    return {"losses": losses, "shares": shares, "epoch": adapted.epoch, "why": adapted.why}


def _write(out: Path, account: dict[str, Json], adapted: Adapted | None, names: tuple[str, ...], data: bytes) -> None:
    """Before any mask: adapting took the longest. What an earlier run left, and this one does not make, goes."""
    folder = DiskFolder(out)
    made = {ACCOUNT: json.dumps(account, indent=1, allow_nan=False).encode()}
    made |= {} if adapted is None else {CURVE: loss_curve(adapted, names)}
    made |= {ROUTED: data} if account["kept"] else {}
    for name in (ACCOUNT, CURVE, ROUTED):
        if name in made:
            folder.write(name, made[name])
        else:
            folder.remove(name)


def _desk(job: Job, ready: Ready) -> Desk:
    settings, images, out = job.settings, ready.images, Path(job.settings.out)
    if ready.task.kind == "classification" or isinstance(images, Features):
        return Desk(ready, _threshold(settings), out)
    maker = maker_of(str(ready.facts["label"]), ready.digest, datetime.now(UTC).replace(microsecond=0))
    source = job.source if isinstance(job.source, DicomSource | NiftiSource) else None
    place = Path(place_of(settings.source))
    masking = open_masking(images, ready.names, maker, out, folder=place, source=source, gland=settings.gland)
    return Desk(ready, THRESHOLD, out, masking)


def _lines(desk: Desk, studies: Sequence[Admitted], seen: Tensor | None, device: str) -> Iterator[Line | Rejected]:
    """A line of each study, its mask written; or why there is none."""
    begin = 0
    for study in studies:
        end = begin + len(study.examples.images)
        x = torch.from_numpy(study.examples.images).to(device)
        found = desk.ready.task.probabilities(desk.ready.module, x) if seen is None else seen[begin:end]
        found, begin = found.cpu(), end
        try:
            yield line_of(desk, study, found)
        except Unusable as error:
            yield Rejected(study.study, error.reason, error.detail)


def _threshold(settings: Outside) -> float:
    return THRESHOLD if settings.threshold is None else settings.threshold


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
