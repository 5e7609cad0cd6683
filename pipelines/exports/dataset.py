"""The work of `python -m pipelines.dataset`: find a hospital of a run, write its cohort for nnU-Net, say what it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from pipelines.batch.loop import NOTICE, print_text, run_batch
from pipelines.exports.leaving import iso_time
from pipelines.exports.nnunet import SPLITS_FILE, Changed, write_nnunet_folder
from pipelines.hospital.hospital import Hospital
from pipelines.loader.command_of_file import check_training
from pipelines.loader.document import ConfigError, Document, render
from pipelines.runs.exits import Exit
from pipelines.settings.load import check_config, simulated_sites
from pipelines.settings.sites import Elsewhere
from privacy.message import Json
from privacy.release.gate import Refused
from privacy.settings_error import Problem


def write_dataset(options: argparse.Namespace, open_hospital: Callable[[], Hospital]) -> int:
    """The command; returns the exit code."""

    def run_work(console: Console) -> int:
        try:
            hospital = open_hospital()
        except ConfigError as error:
            raise ValueError(render(error, options.config)) from error
        try:
            written = write_nnunet_folder(
                hospital,
                Path(options.out),
                cohort=options.cohort,
                channel=options.channel,
                coded=options.pseudonyms,
            )
        except Refused as error:
            why = f" ({error.__cause__})" if error.__cause__ is not None else ""
            raise Changed(f"{options.config}: {error.code}{why}") from error
        counts = {split: len(cases) for split, cases in written.cases.items()}
        facts: dict[str, Json] = {
            "site": hospital.name,
            "cohort": written.cohort,
            "other_cohorts": [*written.other_cohorts],
            "patients": written.patients,
            "cases": {**counts},
            "out": options.out,
            "exit": 0,
        }
        if options.json:
            print(json.dumps(facts))  # noqa: T201 - the machine's answer
            return int(Exit.OK)
        cases = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        rest = f" (not {', '.join(written.other_cohorts)}: see --cohort)" if written.other_cohorts else ""
        print_text(console, f"{options.out}: {written.patients:,} patients of {hospital.name}; cases: {cases}")
        print_text(console, f"cohort {written.cohort}{rest}")
        if counts["train"] and counts["validation"]:
            print_text(console, f"copy {SPLITS_FILE} into nnU-Net's preprocessed folder of it, and train fold 0")
        print_text(console, "patients' images: this folder stays at the hospital")
        print_text(console, NOTICE)
        return int(Exit.OK)

    return run_batch(run_work, also={Changed: Exit.DATA})


def open_simulated(document: Document, site: str | None) -> Hospital:
    """A hospital of a run on this machine, in its folder of the run.

    Raises:
        ConfigError: settings are wrong; the run has no such hospital, or several and none is named.
    """
    check_training(document)
    config = check_config(document)
    simulated = {name: each for name, each in simulated_sites(config).items() if not isinstance(each.source, Elsewhere)}
    names = ", ".join(simulated) or "none"
    if site is None and len(simulated) != 1:
        raise ConfigError([Problem((), f"--site: missing, and these hospitals are on this machine: {names}")])
    name = next(iter(simulated)) if site is None else site
    if name not in simulated:
        raise ConfigError([Problem((), f"--site {name}: these hospitals are on this machine: {names}; name one")])
    return Hospital(name, Path(config.runs) / config.name / "sites" / name, simulated[name], iso_time)
