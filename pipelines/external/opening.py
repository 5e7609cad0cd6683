"""Check an external site's settings, models and folder against each other, before any image is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from federation.registry import permit_packages
from pipelines.batch.loop import NOTICE, print_text
from pipelines.batch.prediction import open_unlabelled
from pipelines.data.images import Features
from pipelines.data.intake import Intake
from pipelines.data.sources import Files
from pipelines.data.taking import natural_key
from pipelines.external.models_file import Models, read_models, shown_names
from pipelines.external.settings import ExternalSettings, files_of, missing_models, place_of, source_problems
from pipelines.loader.document import ConfigError, Document, problem_at
from pipelines.runs.exits import Exit
from pipelines.settings.route import PERSONAL, SHARED, find_patch_problem
from privacy.message import Json
from privacy.settings_error import Problem


class Job(NamedTuple):
    """The settings, the models, and the studies to read. document: of the settings."""

    settings: ExternalSettings
    document: Document
    models: Models
    source: Files
    opened: Intake


def open_job(settings: ExternalSettings, document: Document) -> Job:
    """Open models and folder; only headers of images are read.

    Raises:
        ConfigError: all that does not go together.
    """
    problems: list[Problem] = []

    def add(key: str, text: str) -> None:
        problems.append(problem_at(document, Problem((key,), text.removeprefix(f"{key}."))))

    models, waiting, source = None, None, files_of(settings.source)
    try:
        with permit_packages(settings.plugins):
            models = read_models(Path(settings.models))
    except OSError as error:
        add("models", f"{settings.models!r} cannot be read ({error.strerror or type(error).__name__})")
    except ValueError as error:
        add("models", str(error))
    if models is not None:
        problems += [problem_at(document, each) for each in _problems(settings, models)]
    if models is not None and not problems:
        try:
            waiting = _open_waiting(settings, models, source)
        except (ValueError, OSError) as error:
            add("source", str(error))
    elif not Path(place_of(settings.source)).exists():
        add("source", f"{place_of(settings.source)!r} does not exist; give one that does")
    if models is None or waiting is None:
        raise ConfigError(problems)
    return Job(settings, document, models, source, waiting)


def _problems(settings: ExternalSettings, models: Models) -> list[Problem]:
    """Problems of settings that do not fit the models."""
    described, images = models.described, models.described.images
    parts = {PERSONAL: described.personal, SHARED: described.shared}
    problems = [*source_problems(settings.source, images), *missing_models(settings.how, parts)]
    patched = any(getattr(part.model, "patch", None) is not None for part in parts.values() if part is not None)
    if patched and (text := find_patch_problem(settings.how)):
        problems.append(Problem(("how",), f"the models are trained on patches, and {text}"))
    if described.gland and not settings.gland and not settings.no_gland:
        text = "missing; the models learnt from images cut about the gland: give the folder of your own gland masks, "
        text += "<patient>.nii.gz, or say no_gland: true to cut about the image's middle"
        problems.append(Problem(("gland",), text))
    if settings.gland and not described.gland:
        problems.append(Problem(("gland",), "the models did not learn from images cut about gland masks; remove it"))
    if settings.threshold is not None and shown_names(described):
        several = "of more than two classes the most probable is told, of grades the median"
        masks = "a mask shows the most probable class of each pixel"
        text = f"is for scores; {masks if described.kind == 'segmentation' else several}: remove it"
        problems.append(Problem(("threshold",), text))
    if described.kind == "segmentation" and isinstance(images, Features):
        text = "they are of features, which cannot be segmented; give models of images"
        problems.append(Problem(("models",), text))
    return problems


def _open_waiting(settings: ExternalSettings, models: Models, source: Files) -> Intake:
    """The studies to read, in the order in which models are adapted to them. Raises: ValueError: nothing fits."""
    intake = open_unlabelled(models.described.images, source, settings.gland)
    ordered = sorted(intake.waiting, key=lambda study: (study.patient, natural_key(study.study)))
    return replace(intake, waiting=tuple(ordered))


def print_check(job: Job, console: Console, *, as_json: bool) -> int:
    """--check: describe the models and count the studies, without reading pixels; returns the exit code."""
    described, waiting = job.models.described, len(job.opened.waiting)
    code = Exit.OK if waiting else Exit.DATA
    facts: dict[str, Json] = {
        "exit": int(code),
        "models": job.models.digest,
        "run": described.run,
        "title": described.title,
        "kind": described.kind,
        "names": [*described.names],
        "experts": [*described.experts],
        "how": job.settings.how.name,
        "studies": waiting,
        "unusable": len(job.opened.rejected),
    }
    if as_json:
        print(json.dumps(facts))  # noqa: T201 - the machine's answer
        return int(code)
    print_text(
        console,
        f"Models of {described.title or described.run}: {', '.join(described.experts)}; digest {job.models.digest}.\n"
        f"{described.kind} of {', '.join(described.names)}, on {described.images.kind} {list(described.inputs)}, by "
        f"{job.settings.how.name}.\n{waiting} studies wait, {len(job.opened.rejected)} cannot be used.\n{NOTICE}",
    )
    return int(code)
