"""A newer program spends nothing that nobody asked for: what patients paid for once is kept, whatever was raised."""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
from small_run import smallest

from federation.descent import Work
from pipelines.coordinator import run as coordinator
from pipelines.coordinator import stages as rooms
from pipelines.coordinator.paying import FREE
from pipelines.coordinator.run import STAGES
from pipelines.coordinator.stages import train
from pipelines.loader import validation
from pipelines.loader.first_fields import FIRST
from pipelines.loader.validation import to_plain
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.kept_versions import FILE, UNRECORDED_VERSIONS
from pipelines.runs.plan import have_same_meaning
from privacy.release import ledger as ledgers

NOISED = {"epsilon": 3.0, "sampling": 0.5, "views": 2}
PAYING = [stage.name for stage in STAGES if stage.name not in FREE]
SOURCES = {path.stem: path for path in Path(str(rooms.__file__)).parent.glob("[a-z]*.py")}
QUICK = {"privacy": NOISED, "pooling": "refused", "audit": {"membership": False, "canaries": 0}}
AUGMENTED = smallest(
    **QUICK,
    images={"kind": "slices", "size": 32, "spacing_mm": 2.0},
    augment={"synthesis": {"name": "fitted_prior", "epsilon": 2.0, "pictures": 60}, "copies": 1},
)
AUGMENTED["train"] |= {"methods": {"fedavg": {"name": "fedavg"}}, "method_images": {"fedavg": "augmented"}}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "private": smallest(**QUICK),
    "augmented": AUGMENTED,
    "harmonized": harmonized_run.settings(),  # only its synthesis is noised
}


def charged(root: Path) -> dict[str, list[str]]:
    """What each hospital's patients were charged, event for event, in the ledger's own words."""
    paths = sorted(root.glob("sites/*/ledger.jsonl"))
    events = {path.parent.name: ledgers.charged_lines(ledgers.read_lines(path)) for path in paths}
    return {
        site: [json.dumps(line, sort_keys=True) for line, _ in each if costs(line)] for site, each in events.items()
    }


def costs(line: Any) -> bool:
    """Where nothing is promised, comparisons and pages are asked for anew each time, and no ε is counted."""
    kind = line["event"]["kind"]
    asked_anew = kind == "non_private" and line["request"] in ("compare", "report")
    return kind not in ("nothing", "declared") and not asked_anew


def again(after: list[str], before: list[str]) -> list[str]:
    assert after[: len(before)] == before
    return [json.loads(line)["request"] for line in after[len(before) :]]


def raised(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A program whose stages of these names are newer."""
    newer = tuple(dataclasses.replace(one, version=one.version + 100 * (one.name in names)) for one in STAGES)
    monkeypatch.setattr(coordinator, "STAGES", newer)
    for name in names:
        module = __import__(f"pipelines.coordinator.stages.{name}", fromlist=["VERSION"])
        monkeypatch.setattr(module, "VERSION", module.VERSION + 100)
    if "train" in names:
        monkeypatch.setattr(train, "LEARNING", train.LEARNING + 1)


@pytest.fixture
def place(finished_run, tmp_path, monkeypatch) -> Iterator[Any]:
    """Copies a finished run, and gives its folder."""

    def copied(kind: str) -> Path:
        shutil.copytree(finished_run(RUNS[kind]), tmp_path / kind)
        monkeypatch.chdir(tmp_path / kind)
        return tmp_path / kind / "runs" / "tiny"

    return copied


@pytest.mark.repeats(5)
@pytest.mark.parametrize("stage", [stage.name for stage in STAGES])
def test_a_raised_version_of_any_stage_charges_nobody(stage, place, monkeypatch):
    root = place("private")
    before = charged(root)
    assert all(before.values())
    raised(monkeypatch, stage)
    assert main(["tiny.yaml"]) == Exit.OK
    assert charged(root) == before


@pytest.mark.parametrize("kind", RUNS)
def test_a_program_newer_in_every_stage_charges_nobody_even_where_no_artifact_was_finished(kind, place, monkeypatch):
    root = place(kind)
    before = charged(root)
    raised(monkeypatch, *(stage.name for stage in STAGES))
    assert main(["tiny.yaml"]) == Exit.OK
    assert charged(root) == before
    for stage in STAGES:  # as if it had been killed before the end of each stage
        shutil.rmtree(root / stage.name, ignore_errors=True)
    assert main(["tiny.yaml"]) == Exit.OK
    assert charged(root) == before


def test_a_person_may_spend_again_and_is_told_the_price_before(place, monkeypatch, capsys):
    root = place("private")
    before = charged(root)
    raised(monkeypatch, "train", "evaluate")
    capsys.readouterr()
    assert main(["tiny.yaml", "--explain", "--json"]) == Exit.OK
    said = {one["stage"]: one for one in json.loads(capsys.readouterr().out)}
    assert said["train"]["state"] == said["evaluate"]["state"] == "keep"
    assert all(0 < said[stage]["epsilon"][site] < 20 for stage in ("train", "evaluate") for site in "ab")
    assert "epsilon" not in said["audit"] and "--spend" in said["train"]["reason"]
    assert main(["tiny.yaml", "--check"]) == Exit.OK
    told = " ".join(capsys.readouterr().err.split())
    assert "To make them again would cost a patient train ε" in told and "--spend does" in told
    assert main(["tiny.yaml", "--explain", "--spend"]) == Exit.OK
    assert "To be paid by a patient: train ε" in capsys.readouterr().out
    assert charged(root) == before, "nothing was asked for yet"
    assert main(["tiny.yaml", "--spend"]) == Exit.OK
    after = charged(root)
    new = {site: again(lines, before[site]) for site, lines in after.items()}
    assert new == {site: again(lines, []) for site, lines in before.items()} and all(
        "train" in one for one in new.values()
    )
    assert main(["tiny.yaml"]) == Exit.OK
    assert charged(root) == after, "once asked is once paid"


def test_a_policy_may_forbid_to_pay_twice_whatever_the_coordinator_says(place, monkeypatch, capsys):
    root = place("private")
    before = charged(root)
    made = {**RUNS["private"], "sites": {name: dict(site) for name, site in dict(RUNS["private"]["sites"]).items()}}
    for site in made["sites"].values():
        site["policy"] = {**site["policy"], "spend_again": False}
    Path("tiny.yaml").write_text(json.dumps(made))
    raised(monkeypatch, "train", "evaluate")
    assert main(["tiny.yaml"]) == Exit.OK, "what is kept needs no permission"
    assert main(["tiny.yaml", "--spend"]) == Exit.CONFIG
    assert "spend_again" in capsys.readouterr().err
    monkeypatch.setattr(coordinator, "check_may_spend", lambda *_: None)  # as a coordinator elsewhere might
    for option in ("--spend", "--fresh"):
        assert main(["tiny.yaml", option]) == Exit.SITE
        assert "policy_again" in capsys.readouterr().err
    assert charged(root) == before


def test_spend_moves_only_what_is_selected(place, monkeypatch):
    root = place("private")
    raised(monkeypatch, "train", "evaluate")
    before = charged(root)
    assert main(["tiny.yaml", "--only", "evaluate", "--spend"]) == Exit.OK
    kept = json.loads((root / FILE).read_text())["stages"]
    assert kept["train"] == UNRECORDED_VERSIONS["train"] and kept["evaluate"] == UNRECORDED_VERSIONS["evaluate"] + 100
    new = {site: again(lines, before[site]) for site, lines in charged(root).items()}
    assert new == {"a": ["evaluate"], "b": ["evaluate"]}


def test_a_run_that_nobody_pays_for_follows_the_program(place, finished_run, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished_run(smallest(**QUICK | {"privacy": "none"})), tmp_path / "free")
    monkeypatch.chdir(tmp_path / "free")
    capsys.readouterr()
    raised(monkeypatch, "evaluate")
    assert main(["tiny.yaml", "--explain", "--json"]) == Exit.OK
    states = {one["stage"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert states["train"] == "keep" and states["evaluate"] == "run"
    assert not (tmp_path / "free" / "runs" / "tiny" / FILE).exists()


@pytest.mark.parametrize("stage", sorted(SOURCES.keys() - {"__init__", *FREE}))
def test_no_stage_names_anything_by_its_version_but_through_the_world(stage):
    """Else a raised version would be another question, and be paid again."""
    tree = ast.parse(SOURCES[stage].read_text())
    through = [
        node.args
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("world.name_question", "world.version", "Stage")
    ]
    good = {id(arg) for args in through for arg in args}
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in ("VERSION", "LEARNING")]
    read = [node for node in used if isinstance(node.ctx, ast.Load)]
    assert read and all(id(node) in good for node in read)
    names = [args[1] for args in through if len(args) == 4]  # world.name_question(prefix, stage, today, about)
    assert all(isinstance(name, ast.Constant) and name.value == stage for name in names)


def test_the_first_versions_are_known_of_every_stage_that_pays():
    assert UNRECORDED_VERSIONS.keys() >= {*PAYING, "learning"}


def younger(kind: type, default: object = "new") -> type:
    """The class with one field more, as a newer program might have it."""
    made = dataclasses.make_dataclass(
        kind.__name__,
        [("added_later", object, dataclasses.field(default=default))],
        bases=(kind,),
        frozen=True,
        kw_only=True,
    )
    made.__module__ = kind.__module__
    return made


def settings_classes() -> list[type]:
    from pipelines.settings.config import Config

    seen: dict[str, type] = {}
    waiting: list[Any] = [Config]
    while waiting:
        kind = waiting.pop()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            if kind.__qualname__ in seen or kind.__module__.partition(".")[0] not in validation.ROOMS:
                continue
            seen[kind.__qualname__] = kind
            import typing

            waiting += typing.get_type_hints(kind, include_extras=True).values()
        else:
            waiting += getattr(kind, "__args__", ())
    return sorted(seen.values(), key=lambda one: one.__name__)


@pytest.mark.repeats(40)
@pytest.mark.parametrize("kind", settings_classes(), ids=lambda one: one.__name__)
def test_a_field_that_is_added_to_any_settings_changes_no_digest_while_it_has_its_default(kind):
    one, more = object.__new__(kind), object.__new__(younger(kind))
    for field in dataclasses.fields(kind):
        for each in (one, more):
            object.__setattr__(each, field.name, "said")
    object.__setattr__(more, "added_later", "new")
    assert to_plain(more) == to_plain(one)
    object.__setattr__(more, "added_later", "other")
    assert to_plain(more) == {**to_plain(one), "added_later": "other"}


def test_every_field_of_the_first_programs_counts_even_with_its_default():
    """Their digests hold all of them."""
    assert to_plain(Work()).keys() == {*FIRST["Work"].split()}
    assert len(settings_classes()) > 60, "this law would look at nothing"


def test_settings_mean_the_same_only_if_what_was_added_has_its_default():
    assert have_same_meaning({"work": {"lr": 1}}, {"work": {"lr": 1, "precision": "float32"}})
    assert not have_same_meaning({"work": {"lr": 1}}, {"work": {"lr": 1, "precision": "bfloat16"}})
    assert not have_same_meaning({"work": {"lr": 1}}, {"work": {"lr": 1, "anything": None}})
    assert not have_same_meaning({"work": {"lr": 1}}, {"work": {}})
    assert not have_same_meaning([1], [1, 2]) and not have_same_meaning(1, True)
