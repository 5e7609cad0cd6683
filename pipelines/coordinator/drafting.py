"""Inspect a folder of studies, write a configuration for it, and validate it. See `pipelines.init`."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelines.coordinator.check import check_run
from pipelines.coordinator.run import make_world
from pipelines.discovery.draft import draft_yaml
from pipelines.discovery.found import Discovery, Site
from pipelines.discovery.look import discover_folder
from pipelines.discovery.nnunet import is_ct
from pipelines.loader.names import FILL_IN
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.load import load_config


def init_command(options: argparse.Namespace, console: Console) -> int:
    """Run `pipelines.init` with these options; return the exit code: 0, or 3 if something must be filled in."""
    try:
        survey = discover_folder(Path(options.folder), None if options.labels is None else Path(options.labels))
    except ValueError as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return int(Exit.DATA)
    if survey.sort is None:
        text = "holds no DICOM image, no NIfTI image and no pictures that a table names; give the folder of the images"
        console.print("; ".join([f"{options.folder} {text}", *survey.doubts]), markup=False, soft_wrap=True)
        return int(Exit.DATA)
    places = [place for place in (options.folder, options.labels) if place is not None]
    name = run_name(survey, places)
    text = draft_yaml(survey, folder=options.folder, file=shlex.quote(options.out or "my.yaml"), name=name)
    if not _is_utf8(text):
        odd = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        line_of = next(line for line in odd.splitlines() if "\ufffd" in line)
        console.print(f"a name is not UTF-8, which a configuration must be: {line_of.strip()}; rename it", markup=False)
        return int(Exit.DATA)
    _show_survey(survey, console)
    if options.out is None:
        print(text, end="")  # noqa: T201 - the configuration is the answer
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return int(_finish_draft(survey, text, options.out, console))


def _is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def run_name(survey: Discovery, places: Sequence[str]) -> str:
    """A name for the run from the sites' names and a digest of the folders, so that other folders get another."""
    text = survey.sites[0].name if len(survey.sites) == 1 else f"{len(survey.sites)}_sites"
    joined_places = "\0".join(str(Path(place).resolve()) for place in places)
    return f"{text}_{hashlib.sha256(joined_places.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def find_draft_problem(text: str) -> str:
    """The error that `python -m pipelines.run --check` would give for a configuration; empty if it is valid."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            config = dataclasses.replace(load_config(str(path)), runs=folder)
            check_run(make_world(config, Path(folder) / config.name, Stop()), Console(quiet=True), as_json=False)
        except Exception as error:
            return str(error) or type(error).__name__
    return ""


def _show_survey(survey: Discovery, console: Console) -> None:
    """Print sites, kinds of series and uncertainties."""
    sites = Table("site", "patients", "studies", "images", "labels", title="Sites", title_justify="left")
    for site in survey.sites:
        inside = "masks" if survey.of_masks else "column" if _has_label_column(survey, site) else "[bold]none[/bold]"
        labels = str(site.labels["kind"]) if site.labels else inside
        sites.add_row(site.name, f"{site.patients:,}", f"{site.studies:,}", f"{site.images:,}", labels)
    kinds = Table("what is said", "modality", "taken as", "b-values", "series", "images", title_justify="left")
    kinds.title = "Kinds of images"
    for row in survey.rows:
        kinds.add_row(*(cell.replace("[", r"\[") for cell in row))
    for table in (sites, kinds):
        console.print(table)
    for doubt in survey.doubts:
        console.print(f"doubt: {doubt}", markup=False, soft_wrap=True)


def _has_label_column(survey: Discovery, site: Site) -> bool:
    """Whether the labels stand in the table of the pictures."""
    return survey.sort == "pictures" and bool(site.source.get("label"))


def _finish_draft(survey: Discovery, text: str, out: str | None, console: Console) -> Exit:
    """Print what is left to do, after validating the configuration as --check does."""
    where = out or "the configuration"
    if not survey.complete:
        lines = [number for number, line in enumerate(text.splitlines(), 1) if FILL_IN in line]
        for sentence in dict.fromkeys(sentence for site in survey.sites for sentence in site.missing):
            console.print(f"missing: {sentence}", markup=False, soft_wrap=True)
        console.print(f"fill in {where} at lines {', '.join(map(str, lines))} (marked {FILL_IN}), then --check it")
        return Exit.DATA
    if problem := find_draft_problem(text):
        console.print(f"--check would not accept {where}: {problem}", markup=False, soft_wrap=True)
        return Exit.DATA
    file = shlex.quote(out or "my.yaml")
    plan = f"python -m pipelines.plan {file} -o planned.yaml{' --ct' if is_ct(survey) else ''}"
    then = plan if survey.of_masks else f"python -m pipelines.run {file} --check"
    console.print(f"{where} is accepted by --check; now: {then}")
    return Exit.OK
