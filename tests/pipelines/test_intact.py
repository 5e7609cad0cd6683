"""Whether a stage's promises still hold is answered by a sentence or by none, whatever became of the files."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
import yaml
from small_run import smallest

import route_settings
from federation.engine import Answers, InProcess
from federation.outcome import STATE
from pipelines.coordinator.run import make_world, select_stages
from pipelines.coordinator.stages.train import MEMBERS
from pipelines.coordinator.world import SitesMissing, World
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.requests.holds import Holds
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.plan import Step, plan_steps
from pipelines.runs.stopping import Stop
from pipelines.settings.config import Config
from privacy.message import Call, Message

SEPARABLE = smallest(pooling="refused", audit={"membership": False, "canaries": 0})
SEPARABLE["train"] |= {"methods": {"moments": {"name": "moments"}}}
SETTINGS: dict[str, Mapping[str, Any]] = {
    "separable": SEPARABLE,
    "harmonized": harmonized_run.settings(),
    "route": route_settings.settings(),
    "augmented": smallest(
        pooling="refused",
        audit={"canaries": 0},
        images={"kind": "slices", "size": 32, "spacing_mm": 2.0},
        augment={"synthesis": {"name": "fitted_prior", "epsilon": None, "pictures": 60}, "copies": 1},
        train={**copy.deepcopy(smallest()["train"]), "method_images": {"fedavg": "augmented"}},
    ),
}
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda whole: None,
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "a bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]) if whole else b"\1",
    "a list": lambda whole: b"[]",
    "nothing": lambda whole: b"null",
    "a group": lambda whole: b'{"answers": [], "files": 3}',
    "no text": lambda whole: b"\xff\xfe",
}
NAMED = frozenset({"damaged_key", "lost_key", "damaged_ledger", "lost_ledger", "damaged_counts"})
"""Codes with which a hospital answers nothing at all. `failed` is none: it says that nobody thought of it."""


def opened(folder: Path) -> tuple[World, Sequence[Step[World]]]:
    """The run in a folder, and its steps."""
    config = validate_settings(read_yaml((folder / "tiny.yaml").read_text(), environment={}), Config)
    world = make_world(config, folder / "runs" / "tiny", Stop())
    return world, plan_steps(select_stages(config), world, world.root)


def asked(step: Step[World], world: World) -> tuple[str | None, frozenset[str]]:
    """The stage's complaint, and the codes of hospitals that did not answer it."""
    try:
        return step.stage.intact(world, step.folder(world.root)), frozenset()
    except SitesMissing as missing:
        return None, frozenset(missing.missing.values())


def elsewhere(root: Path) -> list[Path]:
    """Files that no artifact holds."""
    held = {path.parent for path in root.glob("*/*/manifest.json")}
    found = sorted(path for path in root.rglob("*") if path.is_file() and "phantom" not in path.parts)
    return [path for path in found if not held & {*path.parents}]


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_stage_answers_with_a_complaint_or_none_whatever_is_damaged(
    kind, finished_run, tmp_path, monkeypatch, thorough
):
    folder = tmp_path / "here"
    shutil.copytree(finished_run(SETTINGS[kind], figures=kind == "harmonized"), folder)  # as others do
    monkeypatch.chdir(folder)
    world, steps = opened(folder)
    assert all(step.stage.intact(world, step.folder(world.root)) is None for step in steps)
    complained, tried, files = set[str](), set[str](), elsewhere(world.root)
    chosen = files if thorough else [path for path in files if path.suffix != ".safetensors"][::30]
    # Hospitals book refusals while a file is damaged: a ledger and its head go back together, or they do not fit.
    ledgers = {path: path.read_bytes() for path in files if path.name in ("ledger.jsonl", "ledger.head")}
    always = {path for path in files if path.name in (STATE, MEMBERS, "promises.json", "linkage.json")}
    for number, path in enumerate(sorted({*chosen, *always})):
        whole = path.read_bytes()
        whole_list = thorough or (path in always and path.name not in tried)
        tried.add(path.name)
        ways = DAMAGE if whole_list else [list(DAMAGE)[number % len(DAMAGE)]]
        for way in ways:
            damaged = DAMAGE[way](whole)
            path.unlink() if damaged is None else path.write_bytes(damaged)
            for step in steps:
                said, codes = asked(step, world)
                assert codes <= NAMED, f"{step.stage.name}, {path}, {way}: {codes}"
                assert said is None or (said and "\n" not in said), f"{step.stage.name}, {path}, {way}"
                complained |= {step.stage.name} if said else set()
            for file, before in {**ledgers, path: whole}.items():
                file.write_bytes(before)
    assert complained, "nothing was damaged that anybody looks at"
    assert all(step.stage.intact(world, step.folder(world.root)) is None for step in steps)


@pytest.mark.parametrize("name", [STATE, MEMBERS])
@pytest.mark.parametrize("way", ["half", "empty", "gone"])
def test_a_run_whose_records_are_damaged_is_made_again_by_the_same_command(
    name, way, finished_run, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "here"
    shutil.copytree(finished_run(SEPARABLE), folder)
    monkeypatch.chdir(folder)
    (path,) = (folder / "runs" / "tiny").glob(f"federation/moments-*/{name}")
    damaged = DAMAGE[way](path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    assert main(["tiny.yaml", "--until", "train"]) == Exit.OK, capsys.readouterr().err
    assert main(["tiny.yaml", "--fresh", "--from", "train", "--until", "train"]) == Exit.OK, capsys.readouterr().err
    assert main(["tiny.yaml"]) == Exit.OK, capsys.readouterr().err
    _, steps = opened(folder)
    assert {step.state for step in steps} == {"keep"}


def test_the_settings_are_those_of_runs(tmp_path, monkeypatch):
    """Else a kind above would be the same as another, and its stages never asked."""
    names = set[str]()
    for said in SETTINGS.values():
        config = validate_settings(read_yaml(yaml.safe_dump(dict(said)), environment={}), Config)
        names |= {stage.name for stage in select_stages(config)}
    assert names >= {
        "ingest",
        "score",
        "sample",
        "translate",
        "augment",
        "train",
        "evaluate",
        "audit",
        "route",
        "report",
    }


def test_all_hospitals_are_asked_at_once_what_they_hold_and_one_that_left_is_not_asked(tmp_path):
    asked: list[list[str]] = []

    class Heard(InProcess):
        def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
            asked.append(sorted(messages))
            return super().ask(call, messages, deadline_s=deadline_s)

    def worker(call: Call, message: Message) -> Message:
        assert call.request == "holds"
        if message.facts["page"] == "broken":
            raise RuntimeError
        return Message({}, {"complaint": "gone" if message.facts["page"] == "gone" else None, "known": []})

    inside, outside = Heard(dict.fromkeys("abc", worker)), Heard({"z": worker})
    config = validate_settings(read_yaml(yaml.safe_dump(smallest()), environment={}), Config)
    world = World(config, inside, tmp_path, Stop(), str, outside=outside)
    assert world.find_complaint({site: Holds(page="here") for site in ("a", "b", "left", "z")}) is None
    assert asked == [["a", "b"], ["z"]], "one question inside, one outside, and none that nobody answers"
    here, gone = Holds(page="here"), Holds(page="gone")
    assert world.find_complaint({"a": here, "b": gone, "z": gone}) == "b: gone"
    assert world.find_complaint({"left": gone}) is None
    with pytest.raises(SitesMissing, match="b: failed"):
        world.find_complaint({"b": Holds(page="broken")})
