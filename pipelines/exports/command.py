"""The work of `python -m pipelines.export`: all files are made and checked in memory, booked if they leave, written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from pipelines.batch.loop import NOTICE, print_text, run_batch
from pipelines.data.study import Rejected
from pipelines.exports.bundle import bundle_files
from pipelines.exports.card import Card, build_card, find_report, read_report
from pipelines.exports.card_markdown import render_markdown
from pipelines.exports.examples import FOLDER, Prepared, read_examples, write_examples
from pipelines.exports.leaving import STAYS, book_files, check_allowed, iso_time, policy_of, released_words
from pipelines.exports.onnx_file import onnx_bytes
from pipelines.external.adapted import read_model
from pipelines.loader.names import is_name
from pipelines.models.file import Ready
from pipelines.runs.exits import Exit
from privacy.durable import write_whole
from privacy.message import Json
from privacy.release.chain import Damaged


def export_model(options: argparse.Namespace) -> int:
    """The command; returns the exit code."""
    torch.set_num_threads(1)

    def run_work(console: Console) -> int:
        try:
            return _export_files(options, console)
        except ModuleNotFoundError as error:
            raise ValueError(str(error)) from error

    return run_batch(run_work, also={Damaged: Exit.DISK})


def _export_files(options: argparse.Namespace, console: Console) -> int:
    _check_options(options)
    path, out, now = Path(options.model), Path(options.out), iso_time()
    release_folder = None if options.release is None else Path(options.release)
    policy = None if release_folder is None else policy_of(release_folder)
    if policy is not None:
        check_allowed(policy)
    ready = read_model(path)
    if ready.task.kind == "regression":
        raise ValueError(f"{path} predicts a number, and exports are of models that give classes, findings or masks")
    if ready.largest:
        text = "keeps the largest component of a class, which no exported network does; export the method it is of"
        raise ValueError(f"{path} {text}")
    studies, refused = _read_studies(ready, options)
    real = [study.x for study in studies if len(study.x)]
    leaves = STAYS if release_folder is None else released_words(release_folder, now)
    files, checked = made_files(ready, options, real, leaves)
    if release_folder is not None and policy is not None:
        book_files(ready, files, release_folder, policy, now)
    for name, data in files.items():
        write_whole(out / name, data)
    examples = write_examples(ready, studies, out) if options.examples else 0
    facts: dict[str, Json] = {
        "model": ready.origin.label,
        "digest": ready.digest,
        "files": list(files),
        "differs": {**checked},
        "released": release_folder is not None,
        "examples": examples,
        "refused": [f"{refusal.study}: {refusal.reason}" for refusal in refused],
        "out": options.out,
        "exit": 0,
    }
    if options.json:
        print(json.dumps(facts))  # noqa: T201 - the machine's answer
    else:
        _print_summary(facts, files, checked, refused, leaves, console)
    return int(Exit.OK)


def _check_options(options: argparse.Namespace) -> None:
    out, wrong = Path(options.out), []
    if not (options.onnx or options.bundle or options.card):
        wrong.append("say what to make: --onnx, --bundle or --card, or several of them")
    if out.exists() and not out.is_dir():
        wrong.append(f"--out: {options.out!r} is a file; give a folder")
    if options.release and options.examples:
        wrong.append("--examples are patients' images, which never leave: give it without --release")
    if options.examples and out.resolve().is_relative_to(Path(options.examples).resolve()):
        wrong.append("--out must not lie in the folder of --examples; give another")
    if wrong:
        raise ValueError("; ".join(wrong))


def _read_studies(ready: Ready, options: argparse.Namespace) -> tuple[list[Prepared], list[Rejected]]:
    """The studies of `--examples`, and those that cannot be used."""
    studies: list[Prepared] = []
    refused: list[Rejected] = []
    for study in read_examples(ready, options) if options.examples else ():
        if isinstance(study, Rejected):
            refused.append(study)
        else:
            studies.append(study)
    if options.examples and not studies:
        raise ValueError(f"--examples {options.examples}: no study there can be used")
    return studies, refused


def made_files(
    ready: Ready, options: argparse.Namespace, real: Sequence[Tensor], leaves: str
) -> tuple[dict[str, bytes], dict[str, float]]:
    """The bytes of all files by their path below OUT, and by how much each kind differs from the model at most."""
    label = ready.origin.label
    if not is_name(label):  # labels come from the coordinator and become file names
        raise ValueError(f"the model's label {label[:60]!r} cannot be a file name")
    files: dict[str, bytes] = {}
    checked: dict[str, float] = {}
    card = _build_card(ready, options, leaves)
    text = render_markdown(card)
    if options.onnx:
        files[f"{label}.onnx"], checked["onnx"] = onnx_bytes(ready, real)
    if options.bundle:
        parts, checked["bundle"] = bundle_files(ready, text, options.licence, real)
        files |= {f"{label}/{name}": data for name, data in parts.items()}
    if options.card:
        files[f"{label}.card.md"] = text.encode()
        files[f"{label}.card.json"] = card.to_json().encode()
    return files, checked


def _build_card(ready: Ready, options: argparse.Namespace, leaves: str) -> Card:
    """The card, with the figures of the report that is given or lies beside the model."""
    path = find_report(Path(options.model)) if options.report is None else Path(options.report)
    report = None if path is None else read_report(path, ready)
    return build_card(ready, report, licence=options.licence, leaves=leaves)


def _print_summary(
    facts: dict[str, Json],
    files: dict[str, bytes],
    checked: dict[str, float],
    refused: Sequence[Rejected],
    leaves: str,
    console: Console,
) -> None:
    out = Path(str(facts["out"]))
    for name, data in files.items():
        print_text(console, f"{out / name}  {len(data):,} bytes")
    for what, far in checked.items():
        print_text(console, f"{what}: probabilities differ from the model's own by at most {far:.1e}")
    if facts["examples"]:
        print_text(console, f"{out / FOLDER}: {facts['examples']} examples: patients' images, which stay here")
    for refusal in refused:
        print_text(console, f"not used: {refusal.study}: {refusal.reason}: {refusal.detail}")
    print_text(console, leaves)
    print_text(console, NOTICE)
