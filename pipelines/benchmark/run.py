"""The run of a benchmark: hospitals that never trained evaluate signed models, and one page shows the results.

`python -m pipelines.run BENCHMARK.yaml`, whose key `benchmark` names the models. Written into runs/<name>: the page
benchmark.html, benchmark.json, scores.csv, and each hospital's reply.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from federation.engine import Engine, InProcess
from pipelines.benchmark.asking import VERSION, HospitalAnswers, ask_hospital
from pipelines.benchmark.report import ReportFiles, build_report_files
from pipelines.hospital.files import is_unwritten
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.simulated import make_simulated_workers
from pipelines.loader.document import ConfigError, Document, problem_at
from pipelines.models.signed import Signed, read_signed, settings_of
from pipelines.requests.writing import to_message
from pipelines.runs.exits import Exit
from pipelines.runs.kept_versions import read_kept_versions, save_versions
from pipelines.runs.progress import show_progress
from pipelines.runs.stopping import RunLock, Stop, safe_stop
from pipelines.runs.store import DiskFolder
from pipelines.settings.benchmark import BenchmarkSettings
from pipelines.settings.config import select_device
from pipelines.settings.load import check_benchmark
from pipelines.settings.sites import Elsewhere
from privacy.message import Json, to_bytes
from privacy.release.signature import Unsigned, check_signature
from privacy.settings_error import Problem

PAGE, FACTS, SCORES, REPLIES = "benchmark.html", "benchmark.json", "scores.csv", "replies"


STAGE = "benchmark"
"""The benchmark's name among the versions that a run keeps."""


def run_benchmark(
    document: Document,
    options: argparse.Namespace,
    console: Console,
    *,
    command: str,
    engine: Engine | None = None,
    stop: Stop | None = None,
) -> int:
    """Run a benchmark, or only check it with --check; returns the exit code: `SITE` if no hospital gave a score.

    command: to run it again. engine: to hospitals on other machines; None = simulate all on this machine.

    Raises:
        ConfigError: everything that is wrong with settings and models.
        LockedError, Stopped: as in a run.
        OSError: the disk.
    """
    if options.only or options.first or options.until or options.explain or options.fresh:
        text = "--only, --from, --until, --fresh and --explain choose stages, and a benchmark has none; remove them"
        raise ConfigError([Problem((), text)])
    settings = check_benchmark(document, files=engine is None)
    models = open_models(settings, document)
    torch.set_num_threads(settings.threads)
    root = Path(settings.runs) / settings.name
    with RunLock(root), safe_stop() if stop is None else nullcontext(stop) as stopping:
        if options.check or options.headers:
            return _print_check(settings, models, root, console, as_json=options.json)
        engines = engine or _make_simulation(settings, root, stopping)
        save_versions(root, versions := read_kept_versions(root, {STAGE: VERSION}, spend=[STAGE] * options.spend))
        answers = _ask_hospitals(settings, models, engines, root, stopping.check, console, versions[STAGE])
        files = build_report_files(settings, models, answers, now=_iso_time(), command=command, far=engine is not None)
        _write_files(root, files, answers)
    code = Exit.OK if any(site_answers.evidence for site_answers in answers) else Exit.SITE
    if options.json:
        facts = json.loads(files.facts)
        print(json.dumps({"exit": int(code), "page": str(root / PAGE), **facts}))  # noqa: T201 - the machine's answer
        return int(code)
    for line in (*files.lines, f"page: {root / PAGE}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return int(code)


def open_models(settings: BenchmarkSettings, document: Document) -> dict[str, Signed]:
    """The models by label, each with a signature that fits it.

    Raises:
        ConfigError: all problems of all models.
    """
    models: dict[str, Signed] = {}
    problems: list[Problem] = []
    for label, file in settings.benchmark.models.items():
        try:
            models[label] = model = read_signed(Path(file))
            _check_own_signature(model)
        except (ValueError, OSError) as error:
            problems.append(Problem(("benchmark", "models", label), str(error)))
    kinds = {json.dumps(_model_kind(model), sort_keys=True) for model in models.values()}
    if len(kinds) > 1:
        text = f"the models predict different things ({'; '.join(sorted(kinds))}); compare those of one kind"
        problems.append(Problem(("benchmark", "models"), text))
    if problems:
        raise ConfigError([problem_at(document, problem) for problem in problems])
    return models


def _check_own_signature(model: Signed) -> None:
    """Raise ValueError if the signature is not of this model, so that every hospital would refuse it."""
    key = model.signature.key
    try:
        check_signature(model.data, model.signature, {"its signer": key}, today=datetime.now(UTC).date())
    except Unsigned as error:
        raise ValueError(f"{error.code}: {error}; sign the model again") from error
    if dict(model.signature.statement.settings) != settings_of(model.ready):
        raise ValueError("its signature names other settings than the file holds; sign the model again")


def _model_kind(model: Signed) -> Json:
    """The facts that must be equal for models to be compared."""
    return {key: settings_of(model.ready).get(key) for key in ("kind", "classes", "names", "target")}


def _make_simulation(settings: BenchmarkSettings, root: Path, stop: Stop) -> Engine:
    """An engine that simulates all hospitals in this process."""
    device = select_device(settings.device)
    return InProcess(make_simulated_workers(settings.sites, root, device=device, now=_iso_time, pause=stop.check))


def _ask_hospitals(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    engine: Engine,
    root: Path,
    check: Callable[[], None],
    console: Console,
    version: int,
) -> list[HospitalAnswers]:
    """The answers of the hospitals, in the order of their names. version: see `ask_hospital`."""
    answers: list[HospitalAnswers] = []
    with show_progress(settings.title or settings.name, console=console) as step:
        for index, site in enumerate(sorted(engine.sites)):
            step(index, len(engine.sites), site)
            answers.append(ask_hospital(settings, models, engine, site, root, check, version))
    return answers


def _write_files(root: Path, files: ReportFiles, answers: Sequence[HospitalAnswers]) -> None:
    """Write replies first, and the page last."""
    replies = DiskFolder(root / REPLIES)
    replies_by_file = {
        f"{label}.{site_answers.site}.safetensors": reply
        for site_answers in answers
        for label, reply in site_answers.replies.items()
    }
    for name in set(replies.names()) - set(replies_by_file):  # of models or hospitals that are not asked any more
        replies.remove(name)
    for name, reply in replies_by_file.items():
        replies.write(name, to_bytes(to_message(reply)))
    folder = DiskFolder(root)
    for name, text in ((SCORES, files.scores), (FACTS, files.facts), (PAGE, files.page)):
        folder.write(name, text.encode())


def _print_check(
    settings: BenchmarkSettings, models: Mapping[str, Signed], root: Path, console: Console, *, as_json: bool
) -> int:
    """Print, for --check, what would be sent to which hospital; nothing is sent, and no pixel is read."""
    facts: dict[str, Json] = {"exit": int(Exit.OK), "models": {}, "sites": {}}
    lines = []
    signed: dict[str, Json] = {}
    for label, model in models.items():
        statement = model.signature.statement
        signed[label] = {"sha256": model.sha256, "bytes": len(model.data), "key": model.signature.key}
        lines.append(
            f"{label}: {model.ready.task.kind} of {model.ready.images.kind} {list(model.ready.task.inputs)},"
            f" {len(model.data):,} bytes, sha256 {model.sha256}, signed by {model.signature.key} until"
            f" {statement.expires}"
        )
    sites: dict[str, Json] = {}
    for name, site in settings.sites.items():
        trusts = [
            label for label, model in models.items() if model.signature.key in site.policy.trusted_models.values()
        ]
        far = isinstance(site.source, Elsewhere)
        unwritten = not far and is_unwritten(Hospital(name, root / "sites" / name, site, _iso_time))
        sites[name] = {"elsewhere": far, "trusts": None if far else [*trusts]}
        words = "its own policy says whom it trusts" if far else f"trusts the signer of {', '.join(trusts) or 'none'}"
        lines.append(f"{name}: {words}{'; its patients will be simulated' if unwritten else ''}")
    if as_json:
        print(json.dumps({**facts, "models": signed, "sites": sites}))  # noqa: T201 - the machine's answer
        return int(Exit.OK)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("Models and signatures are in order. Nothing was sent.")
    return int(Exit.OK)


def _iso_time() -> str:
    """The time now in UTC, as ISO 8601 text."""
    return datetime.now(UTC).isoformat(timespec="seconds")
