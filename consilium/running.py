"""Run from Python what the command line runs: `train` on arrays, `run` by settings."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias

import torch
from rich.console import Console

from consilium.errors import build_run_failed
from consilium.examples import Examples
from consilium.far import Flare, far_problems, run_far
from consilium.reading import read_results
from consilium.registering import is_registered
from consilium.results import Results
from consilium.settings import (
    ALL,
    Plain,
    common_names,
    file_of,
    mapping_or_plain,
    merge_groups,
    methods_of,
    named_or_plain,
    parse_hospitals,
    policies_by_site,
    sites_of,
    task_of,
    text_of,
    to_yaml_values,
    training_of,
    transforms_of,
)
from federation.descent import Work
from federation.engine import InProcess, Worker
from federation.origins import list_origins
from federation.remote import Pending, Reach, Remote
from pipelines.coordinator.run import Engines, run_config, simulated_workers
from pipelines.coordinator.world import OnRound, ignore_round
from pipelines.data.tensors.file import write_private
from pipelines.external.settings import is_external
from pipelines.hospital.hospital import KEY
from pipelines.loader.document import ConfigError, Document, parse_document
from pipelines.loader.files import read_document
from pipelines.loader.validation import validate_settings
from pipelines.runs.runner import CALL
from pipelines.runs.stopping import Stop, Stopped, safe_stop
from pipelines.settings.config import Config
from pipelines.settings.learning import Split
from pipelines.settings.load import check_config
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.run_settings import list_works
from privacy.message import Call, Message
from privacy.release.policy import Policy
from privacy.settings_error import Problem

Engine: TypeAlias = Literal["in process", "wire"] | Flare
SETTINGS = "settings.yaml"
SIMULATED = (
    "that hospitals are apart: they are simulated in this process, which reads all their patients; policy, gate, "
    "ledger and noise are those of each hospital"
)
DERIVED = (
    "that pseudonyms hide a patient from who guesses the name: their keys follow from the seed, so that equal calls "
    "give equal models; with `privacy`, keys are secret and drawn at random"
)
UNREVIEWED = (
    "it was registered in this process and nobody reviewed it; the gate checks what leaves, and ε holds as far as it "
    "reaches patients through `site` only. Hospitals on other machines do not know it, and `python -m pipelines.run` "
    "cannot repeat this run, until it is an installed package (docs/how-to/extend.md)"
)


HEAD = (
    "Written by consilium.train. `python -m pipelines.run` runs the same, but for code that only a process from Python "
    "registers."
)


def not_guaranteed(config: Config, shared_names: int = 0) -> tuple[str, ...]:
    """What a run in this process does not promise. shared_names: how many names occur at several hospitals."""
    sentences = [SIMULATED]
    if code := registered_code(config):
        sentences.append(f"what {', '.join(code)} computes: {UNREVIEWED}")
    if unknown := [
        origin.what for origin in list_origins(config.train, config.model) if origin.offer is None and not origin.digest
    ]:
        sentences.append(
            f"that a change in {', '.join(unknown)} is noticed: Python has no source of it; use a new folder"
        )
    if shared_names:
        sentences.append(
            f"that no patient is at two hospitals: {shared_names} names occur at several, with different examples; "
            "where such a name is one person, a test patient may be trained on elsewhere, and ε adds up"
        )
    return tuple(sentences)


def registered_code(config: Config) -> list[str]:
    """The methods, networks and transforms of a run that this process registered, and that no command knows."""
    names = [origin.what for origin in list_origins(config.train, config.model) if origin.offer is None]
    views = {f"transform {work.transform.function}" for _, _, work in list_works(config) if work.transform is not None}
    return [*names, *sorted(views)]


def train(
    hospitals: Mapping[str, object],
    *,
    model: object,
    method: object,
    rounds: int,
    folder: str | Path,
    name: str = "run",
    work: Work | Mapping[str, Any] | None = None,
    privacy: PatientLevel | None = None,
    policy: Policy | Mapping[str, Policy] | None = None,
    split: Split | Mapping[str, Any] | None = None,
    start: object = None,
    classes: Sequence[str] = (),
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    engine: Engine = "in process",
    quiet: bool = False,
    on_round: OnRound = ignore_round,
) -> Results:
    """Train, evaluate and attack models of simulated hospitals, and write all pages; or go on with an earlier call.

    Args:
        hospitals: name -> `Examples`, a Dataset of (x, y, patient), or settings of files as `sites` in YAML has them.
        model: settings as `Cnn()`, a name as "mlp", {"name": "mlp", "hidden": [8]}, or a network of one's `own`.
        method: likewise, as `Fenda()` or "fenda"; or a list of them, or label -> method.
        rounds: of communication. work: each hospital's local work. seed: of splits, networks and batches.
        folder: for the settings, the examples and the run `name`. The same call again repeats nothing that is done.
        privacy: patient-level differential privacy; None = none. policy: of each hospital, or one for all.
        start: the weights with which networks begin, as the path of a safetensors file or `Weights(file=...)`; None =
            random numbers.
        split: shares of the patients; not used where examples name their own. classes: names, the first = 0;
            of findings their names, in the order of their columns.
        settings: any further keys of the YAML, laid over the rest, as {"evaluate": {"copies": 500}}.
        engine: "wire" makes every message cross as bytes, by the adapter that serves FLARE; `Flare(kit=...)` asks
            hospitals on their own machines.
        quiet: no progress on the standard error stream.
        on_round: called after each round of training with a `RoundEnded`, in this process, where the coordinator is;
            it sees what hospitals released and nothing else. Rounds of an earlier call are not repeated.

    Raises:
        ConfigError: all that is wrong with the arguments; nothing was run.
        RunFailed: the run ended early, by an error of `on_round` too; the same call goes on with it.
        Stopped: Ctrl-C; likewise.
    """
    _check_engine(engine, on_round)
    have, methods, place = parse_hospitals(hospitals), methods_of(method), Path(folder)
    register_classes([*methods.values(), model])
    task, names = task_of(have.examples, classes)
    views = transforms_of(have.examples, methods)
    document_of_run: Plain = {
        "name": name,
        "privacy": "none" if privacy is None else to_yaml_values(privacy),
        "seed": seed,
        "runs": str(place),
        "sites": {**sites_of(have.examples, place, views), **have.settings},
        **_list_forms(have.examples, task),
        **({} if split is None else {"split": mapping_or_plain(split)}),
        "model": named_or_plain(model, "model"),
        "train": training_of(methods, rounds, work, start, views.get(ALL)),
    }
    for site, site_policy in policies_by_site(policy, list(document_of_run["sites"])).items():
        document_of_run["sites"][site] = {**document_of_run["sites"][site], "policy": site_policy}
    text = text_of(merge_groups(document_of_run, settings or {}), HEAD)
    config = _check_document(parse_document(text, environment=os.environ), engine, have.examples)
    with _private_files():
        for site, own_examples in have.examples.items():
            write_private(file_of(place, site), own_examples.data(names))
        write_private(place / SETTINGS, text.encode())
        if repeats := privacy is None:
            _put_keys(config, have.examples)
    remarks = (*not_guaranteed(config, common_names(have.examples)), *([DERIVED] if repeats and have.examples else []))
    return _run_stages(
        config, place / SETTINGS, remarks, "consilium.train", engine=engine, quiet=quiet, on_round=on_round
    )


def run(
    settings: str | Path | Mapping[str, Any],
    *,
    engine: Engine = "in process",
    quiet: bool = False,
    on_round: OnRound = ignore_round,
) -> Results:
    """The command `python -m pipelines.run` as a function. settings: the path of a YAML file, or what it would hold.
    engine, quiet, on_round: as of `train`.

    Raises:
        ConfigError, RunFailed, Stopped: as `train`.
    """
    _check_engine(engine, on_round)
    path = None if isinstance(settings, Mapping) else Path(settings)
    document = read_document(path) if path is not None else _build_document(settings)
    if is_external(document.data):
        text = "these are settings of an external site; python -m pipelines.run runs them"
        raise ConfigError([Problem(("models",), text)])
    config = _check_document(document, engine, {})
    return _run_stages(
        config, path, not_guaranteed(config), "consilium.run", engine=engine, quiet=quiet, on_round=on_round
    )


def _check_engine(engine: object, on_round: OnRound) -> None:
    """Raises: ConfigError: there is none of this name, or a function waits for rounds that end in another process."""
    if isinstance(engine, Flare) and on_round is not ignore_round:
        text = "is called in the coordinator's process, which over FLARE is another; leave it out"
        raise ConfigError([Problem(("on_round",), text)])
    if not isinstance(engine, Flare) and engine not in ("in process", "wire"):
        text = f'must be "in process", "wire" or Flare(kit=FOLDER), found {engine!r}'
        raise ConfigError([Problem(("engine",), text)])


def _check_document(document: Document, engine: Engine, examples: Mapping[str, Examples]) -> Config:
    """The settings. Files that are not written yet, or lie on hospitals' own machines, are not looked for. Raises:
    ConfigError.
    """
    if not isinstance(engine, Flare):
        return check_config(document, files=not examples)
    config = validate_settings(document, Config)
    if problems := far_problems(config, engine, examples):
        raise ConfigError(problems)
    return config


def _build_document(settings: object) -> Document:
    """A mapping of settings as a document. Raises: ConfigError: it is no mapping."""
    if not isinstance(settings, Mapping):
        raise ConfigError([Problem((), f"must be a path or a mapping, found {type(settings).__name__}")])
    return parse_document(text_of(settings, "settings"), environment=os.environ)


def _list_forms(examples: Mapping[str, Examples], task: Plain | None) -> Plain:
    """`images` and `task`; empty for hospitals with files, where `settings` says both."""
    if not examples:
        return {}
    inputs = next(iter(examples.values())).inputs
    images = {"images": {"kind": "tensors", "inputs": [*inputs]}}
    segments = task is not None and task.get("kind") == "segmentation"
    return {
        **images,
        **({} if task is None else {"task": task}),
        **({"audit": {"membership": False}} if segments else {}),
    }


def derived_key(seed: int, site: str) -> bytes:
    """A hospital's key in a run without guarantee: it orders patients, so that equal calls train equal models."""
    return hashlib.sha256(f"examples {seed} {site}".encode()).digest()


def _put_keys(config: Config, sites: Iterable[str]) -> None:
    """Write the derived key of each site that has neither a home of its own nor a key yet."""
    for site in sites:
        path = Path(config.runs) / config.name / "sites" / site / KEY
        if config.sites[site].home is None and not path.exists():
            write_private(path, derived_key(config.seed, site))


def register_classes(settings: Iterable[object]) -> None:
    """Register the classes of one's own among these. Raises: ConfigError: what they lack, all of it."""
    problems: list[Problem] = []
    for value in settings:
        if isinstance(value, str | Mapping):
            continue
        try:
            is_registered(value)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _run_stages(
    config: Config,
    yaml: Path | None,
    remarks: tuple[str, ...],
    call: str,
    *,
    engine: Engine,
    quiet: bool,
    on_round: OnRound,
) -> Results:
    """Run all stages, or go on with them. call: the function that was called."""
    if isinstance(engine, Flare):
        return run_far(config, yaml, engine, quiet=quiet)
    root = Path(config.runs) / config.name
    command = f"python -m pipelines.run {shlex.quote(str(yaml))}"
    if yaml is None or registered_code(config):
        command = f"{CALL}{call}"
    logs = [root / "sites" / site / "log.txt" for site in config.sites]
    threads = torch.get_num_threads()
    with _private_files(), safe_stop() as stop:
        try:
            engines = (_over_the_wire if engine == "wire" else _engines_in_process)(config, root, stop)
            console = Console(stderr=True, quiet=quiet, emoji=False)
            ended = run_config(config, stop, console, command=command, engines=engines, on_round=on_round)
        except (Stopped, ConfigError):
            raise
        except Exception as error:
            raise build_run_failed(error, logs) from error
        finally:
            torch.set_num_threads(threads)
    return read_results(ended, root, yaml, remarks, config.sites)


def _engines_in_process(config: Config, root: Path, stop: Stop) -> Engines:
    """Hospitals in this process, whatever `processes` says: others would run the caller's script again."""
    workers = simulated_workers(config, root, stop)
    inside = {site: worker for site, worker in workers.items() if site not in config.outside}
    return Engines(InProcess(inside), InProcess({site: workers[site] for site in config.outside}))


def _over_the_wire(config: Config, root: Path, stop: Stop) -> Engines:
    """Engines whose messages cross as bytes. Hospitals take turns: torch's generator is one for the whole process."""
    turn = Lock()

    def build_remote(workers: Mapping[str, Worker]) -> Remote:
        return Remote(
            {site: _make_reach(Pending(_in_turn(worker, turn))) for site, worker in workers.items()}, tuple(workers)
        )

    workers = simulated_workers(config, root, stop)
    inside = {site: worker for site, worker in workers.items() if site not in config.outside}
    return Engines(build_remote(inside), InProcess({site: workers[site] for site in config.outside}))


def _make_reach(pending: Pending) -> Reach:
    """A way to ask the hospital behind `pending`, without a network."""
    return lambda key, question, wait_s, timeout_s: pending.answer(key, question, wait_s)


def _in_turn(worker: Worker, turn: Lock) -> Worker:
    """The worker, which answers only while it holds the lock."""

    def answer(call: Call, message: Message) -> Message:
        with turn:
            return worker(call, message)

    return answer


@contextmanager
def _private_files() -> Iterator[None]:
    """Files that are written inside can be read by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
