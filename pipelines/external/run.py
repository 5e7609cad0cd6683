"""The run of an external site: adapt exported models of a federation to its own unlabelled images.

`python -m pipelines.run ROUTE.yaml`, whose key `models` names the file that a run's stage `route` wrote. Images are
read as by `pipelines.predict`, the models are adapted into one network, and its predictions are written as `predict`
does: predictions.csv, quarantine.csv, accounted.csv and masks. Further files are adaptation.json and adaptation.png,
the course of the adaptation, and routed.safetensors, the model for `predict` on later patients. All of it stays in the
hospital.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from federation.randomness import derive_seed
from federation.windows import cut_windows
from personalize.adaptation import Adapted
from personalize.routing_outside import Routing
from pipelines.batch.loop import NOTICE, Results, collect_results, finish_batch
from pipelines.batch.prediction import (
    THRESHOLD,
    describe_predictions,
    open_predictor,
    prediction_facts,
    write_predictions,
)
from pipelines.batch.scoring import Prediction, Predictor, build_prediction, list_columns
from pipelines.data.accounts import list_accounts
from pipelines.data.intake import ReadStudy, read_studies
from pipelines.data.study import Rejected, Unusable
from pipelines.external.adapted import (
    LARGEST_KEPT,
    adapt_network,
    adapted_bytes,
    build_networks,
    describe_adapted,
    digest_of,
    ready_of,
    shares_of_experts,
)
from pipelines.external.models_file import shown_names
from pipelines.external.opening import Job, open_job, print_check
from pipelines.external.picture import loss_curve
from pipelines.external.settings import ExternalSettings
from pipelines.loader.document import ConfigError, Document, problem_at
from pipelines.loader.validation import to_plain
from pipelines.models.file import Ready
from pipelines.runs.progress import show_progress
from pipelines.runs.stopping import RunLock, Stop, Stopped, safe_stop
from pipelines.runs.store import DiskFolder, remove_unfinished
from pipelines.settings.route import AsTrained
from privacy.message import Json
from privacy.settings_error import Problem

ACCOUNT, CURVE, ROUTED = "adaptation.json", "adaptation.png", "routed.safetensors"


class Served(NamedTuple):
    """The network that predicts here. account: how it was made. probabilities: (n, classes, *spatial), if the
    adaptation has already predicted all images.
    """

    ready: Ready
    account: dict[str, Json]
    probabilities: Tensor | None


def run_external_site(
    settings: ExternalSettings, document: Document, options: argparse.Namespace, console: Console
) -> int:
    """Run with the document's settings, or only check them with --check; returns the exit code.

    Raises:
        ConfigError: everything that is wrong with settings, models and folder.
        LockedError, Stopped: as in a run.
        OSError: the disk.
    """
    if options.only or options.first or options.until or options.explain:
        problem = "--only, --from, --until and --explain choose stages, and a file with models: has none; remove them"
        raise ConfigError([Problem((), problem)])
    job = open_job(settings, document)
    torch.set_num_threads(settings.threads)
    if options.check:
        return print_check(job, console, as_json=options.json)
    out = Path(settings.out)
    with RunLock(out, tidy=True), safe_stop() as stop:
        remove_unfinished(out)
        try:
            return _adapt_and_predict(job, stop, console, as_json=options.json)
        except Stopped as error:
            raise Stopped(error.reason, f"python -m pipelines.run {shlex.quote(options.config)}") from None


def _adapt_and_predict(job: Job, stop: Stop, console: Console, *, as_json: bool) -> int:
    settings, described, waiting = job.settings, job.models.described, job.opened.waiting
    out, threshold = Path(settings.out), THRESHOLD if settings.threshold is None else settings.threshold
    studies = Results[ReadStudy]([], [*job.opened.rejected])
    reading = read_studies(waiting, readers=settings.readers)  # adaptation needs all of them at once
    collect_results("read", reading, len(waiting), studies, console, check=stop.check)
    results = Results[Prediction]([], studies.refused)
    facts: dict[str, Json] = {"models": job.models.digest}
    words = "No image could be read, so nothing was adapted."
    if studies.done:
        served = _serve_model(job, studies.done, console)
        stop.check()
        predictor = open_predictor(served.ready, threshold, out, job.source, settings.gland)
        predictions = _predict_studies(predictor, studies.done, served.probabilities, settings.computes_on)
        collect_results("write", predictions, len(studies.done), results, console, check=stop.check)
        facts |= {key: served.account[key] for key in ("epoch", "why") if key in served.account}
        words = str(served.account.get("why", "nothing was adapted"))
    else:
        for name in (ACCOUNT, CURVE, ROUTED):  # of an earlier run
            DiskFolder(out).remove(name)
    accounts = list_accounts(job.opened.items, results.refused)
    names = shown_names(described)
    write_predictions(out, list_columns(described.kind, described.images, names), results, accounts)
    facts |= prediction_facts(results, settings.out)
    words = f"{settings.how.name}: {words}\n{describe_predictions(described.kind, threshold, results, settings.out)}"
    return finish_batch(
        console, results.code, as_json=as_json, facts=facts, words=words, accounts=accounts, of=job.opened.of
    )


def _serve_model(job: Job, studies: Sequence[ReadStudy], console: Console) -> Served:
    """Adapt the models to the images, and write the result.

    Raises:
        ConfigError: the models cannot be adapted in this way.
    """
    settings, described, how = job.settings, job.models.described, job.settings.how
    device, seed = settings.computes_on, derive_seed(settings.seed, settings.name, settings.how.name)
    x = torch.cat([torch.from_numpy(study.examples.images) for study in studies]).to(device)
    with show_progress("adapt", console=console):
        try:
            experts = build_networks(job.models, how, device)
            pieces = cut_windows(x, described.task(described.part_of(described.experts[-1])).patch)
            module, adapted = adapt_network(experts, pieces, how, kind=described.kind, seed=seed)
        except ValueError as error:
            raise ConfigError([problem_at(job.document, Problem(("how",), str(error)))]) from error
    served = AsTrained() if adapted is not None and adapted.epoch is None else how
    label = f"{served.name} of {described.run}"
    description = describe_adapted(job.models, label, served, job.source, gland=settings.gland is not None)
    data = adapted_bytes(description, job.models.experts, {} if adapted is None else adapted.state)
    batch = how.batch if isinstance(how, Routing) else 1
    account: dict[str, Json] = {
        "notice": NOTICE,
        "name": settings.name,
        "run": described.run,
        "models": job.models.digest,
        "how": to_plain(how),
        "seed": settings.seed,
        "experts": [*description.models.experts],
        "classes": [*described.names],
        "studies": len(studies),
        "images": len(x),
        **_course_of(adapted),
        "coefficients": to_plain(shares_of_experts(module, pieces, description.models.experts, batch=batch)),
        "kept": len(data) <= LARGEST_KEPT,
    }
    _write_results(Path(settings.out), account, adapted, described.names, data)
    return Served(
        ready_of(description, module, digest_of(data)), account, None if adapted is None else adapted.probabilities
    )


def _course_of(adapted: Adapted | None) -> dict[str, Json]:
    """Losses and predicted classes of each epoch; null stands for a loss that is not finite."""
    if adapted is None:
        return {}
    losses: list[Json] = [loss if math.isfinite(loss) else None for loss in adapted.losses]
    shares: list[Json] = [list(share) for share in adapted.shares]
    return {"losses": losses, "shares": shares, "epoch": adapted.epoch, "why": adapted.why}


def _write_results(
    out: Path, account: dict[str, Json], adapted: Adapted | None, names: tuple[str, ...], data: bytes
) -> None:
    """Write the account, the curve and the model before any mask, because adaptation took the longest. Files of an
    earlier run that this one does not make are removed.
    """
    folder = DiskFolder(out)
    made = {ACCOUNT: json.dumps(account, indent=1, allow_nan=False).encode()}
    made |= {} if adapted is None else {CURVE: loss_curve(adapted, names)}
    made |= {ROUTED: data} if account["kept"] else {}
    for name in (ACCOUNT, CURVE, ROUTED):
        if name in made:
            folder.write(name, made[name])
        else:
            folder.remove(name)


def _predict_studies(
    predictor: Predictor, studies: Sequence[ReadStudy], made: Tensor | None, device: str
) -> Iterator[Prediction | Rejected]:
    """A prediction for each study, with its mask written. made: (n, classes, *spatial) of all studies, if known."""
    task, module, begin = predictor.ready.task, predictor.ready.module, 0
    for study in studies:
        end = begin + len(study.examples.images)
        x = torch.from_numpy(study.examples.images).to(device)
        probabilities = task.probabilities(module, x) if made is None else made[begin:end]
        begin = end
        try:
            yield build_prediction(predictor, study, probabilities.cpu())
        except Unusable as error:
            yield Rejected(study.study, error.reason, error.detail)
