"""Quantized uploads as hospitals and runs have them: settings, openings, bytes in the ledger, ε, digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_run import PRIVATE, smallest

import small_site
from federation.conversation import load_stored_reply
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.task import Task
from federation.upload import SCALES, Int8
from pipelines.hospital.opening import parse_opening
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.config import Config
from privacy.message import from_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused

UPLOAD = {"name": "int8"}


def uploading(base: dict[str, Any], **train: Any) -> dict[str, Any]:
    """Settings with quantized uploads."""
    return {**base, "train": {**base["train"], "upload": UPLOAD, **train}}


def check(made: dict[str, Any]) -> Config:
    """The settings, as YAML has them."""
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def problems(made: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        check(made)
    return "; ".join(f"{one.path}: {one.message}" for one in caught.value.problems)


def run(made: dict[str, Any], folder: Path, *options: str) -> Path:
    """The folder of a finished run."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{made['name']}.yaml"
    path.write_text(yaml.safe_dump(made))
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        assert main([str(path), *options]) == Exit.OK
    return folder / "runs" / made["name"]


@pytest.fixture(scope="module")
def private_runs(tmp_path_factory) -> dict[str, Path]:
    """Finished private runs whose replies cross as they are, and quantized."""
    made = {"plain": PRIVATE, "packed": uploading(PRIVATE)}
    return {name: run({**each, "name": name}, tmp_path_factory.mktemp("uploads")) for name, each in made.items()}


def trained_line(folder: Path) -> dict[str, Any]:
    """The ledger's line of the only round of training at hospital a."""
    lines = ledgers.read_lines(folder / "sites" / "a" / "ledger.jsonl")
    return next(dict(line) for line in lines if line["request"] == "train")


def test_what_crosses_is_packed_and_booked_with_its_own_bytes(private_runs):
    (kept,) = (private_runs["packed"] / "sites" / "a" / "conversations").glob("*/fedavg-*")
    reply = from_bytes(data := load_stored_reply(DiskFolder(kept), "train-1"))
    quantized = {name: value for name, value in reply.tensors.items() if value.dtype == torch.int8}
    assert quantized and SCALES in reply.tensors
    lines = {name: trained_line(folder) for name, folder in private_runs.items()}
    assert lines["packed"]["bytes"] == len(data)
    saved = sum(3 * value.numel() for value in quantized.values())
    assert lines["plain"]["bytes"] - lines["packed"]["bytes"] > 0.8 * saved > 1000


def test_it_costs_no_privacy(private_runs):
    assert trained_line(private_runs["packed"])["event"] == trained_line(private_runs["plain"])["event"]


def test_the_page_says_how_replies_cross(private_runs):
    said = {
        name: "in eight bits a number (train.upload)" in (f / "report.html").read_text()
        for name, f in private_runs.items()
    }
    assert said == {"plain": False, "packed": True}


def test_a_check_says_the_bytes_that_will_cross(tmp_path, capfd):
    sizes = {}
    for name, made in {"plain": smallest(name="plain"), "packed": uploading(smallest(name="packed"))}.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(made))
        assert main([str(path), "--check", "--json"]) == Exit.OK
        sizes[name] = json.loads(capfd.readouterr().out)["methods"]["fedavg"]["bytes"]
    network = FedAvg().network(check(smallest()).task_of("fedavg"))
    numbers = sum(value.numel() for value in network.state_dict().values() if value.dim() > 1)
    assert 3 * numbers - 150 < sizes["plain"] - sizes["packed"] < 3 * numbers


def test_without_it_no_digest_changes():
    plain = to_plain(check(smallest()).train)
    assert "upload" not in plain and to_plain(check(uploading(smallest())).train)["upload"] == UPLOAD


def test_sums_are_refused_with_what_they_would_need():
    told = problems(uploading(smallest(pooling="refused"), secure_sum=True))
    assert "train.upload: int8, and masked sums add words of one grid" in told
    assert "all would have to agree on them first; say secure_sum: false, or leave upload out" in told


@pytest.mark.parametrize("name", ["apple", "fedfomo", "fedsgd", "moments"])
def test_a_method_without_a_difference_to_send_is_refused_by_name(name):
    policy = {"recipients": ["coordinator", "sites"]}
    made = uploading(smallest(model={"name": "mlp", "hidden": []}), methods={"m": {"name": name}})
    for site in made["sites"].values():
        site["policy"] = policy
    assert f"train.methods.m: {name} sends no matrix of floating-point numbers" in problems(made)


def test_another_name_is_refused_with_those_that_there_are():
    made = smallest()
    made["train"]["upload"] = {"name": "int4"}
    told = problems(made)
    assert "train.upload.name" in told and "int8" in told


def opening(hospital, cohort: str, **more: Any) -> Any:
    """What a hospital makes of an introduction."""
    task = Task(Cnn(widths=(8, 8), norm="group"), (1, small_site.SIDE, small_site.SIDE), 2)
    facts = {"label": "m", "algorithm": to_plain(FedAvg()), "model": to_plain(task.model), "inputs": [*task.inputs]}
    work = {"work": {}, "classes": 2, "seed": 0, "cohort": cohort}
    return parse_opening(hospital, {**facts, **work, **more})


def test_a_hospital_packs_only_as_it_knows_and_never_in_a_sum(tmp_path):
    hospital, cohort = small_site.hospital(tmp_path)
    assert opening(hospital, cohort).upload is None
    assert opening(hospital, cohort, upload=UPLOAD).upload == Int8()
    wrong: list[dict[str, Any]] = [{"name": "int4"}, {"name": "int8", "bits": 4}, "int8", 8]
    for upload in wrong:
        with pytest.raises(Refused, match="malformed_opening"):
            opening(hospital, cohort, upload=upload)
    with pytest.raises(Refused, match="malformed_opening") as caught:
        opening(hospital, cohort, upload=UPLOAD, secure_sum=True)
    assert "masked sums add words of one grid" in str(caught.value.__cause__)
