from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.runs.plan import list_differences
from pipelines.runs.runner import (
    SelectionError,
    Stage,
    StageFailed,
    execute_steps,
    explain_steps,
    explanation_facts,
    plan_steps,
)
from pipelines.runs.stopping import Stop, Stopped
from pipelines.runs.store import MANIFEST, UNFINISHED, check_artifact

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    rounds: int = 10
    mu: float = 0.1


@dataclass(frozen=True)
class World:
    """Toy settings by stage, the digests of two hospitals' files, what lies on a hospital's disk, and a log of runs."""

    parts: Mapping[str, Part] = field(default_factory=lambda: dict.fromkeys("abcd", Part()))
    files: Mapping[str, str] = field(default_factory=lambda: {"north": "1", "south": "1"})
    gone: frozenset[str] = frozenset()
    fail: str = ""
    noise: str = ""
    log: list[str] = field(default_factory=list)

    def changed(self, name: str, **changes: Any) -> World:
        return replace(self, parts={**self.parts, name: replace(self.parts[name], **changes)})


def stage(name: str, *needs: str, version: int = 1, **more: Any) -> Stage[World]:
    def run(world: World, inputs: Mapping[str, Path], out: Path):
        world.log.append(name)
        assert sorted(inputs) == sorted(needs)
        assert not list(out.iterdir())
        read = {need: json.loads((folder / "result.json").read_text()) for need, folder in inputs.items()}
        if world.fail == name:
            raise ValueError(f"{name} broke")
        result = {"rounds": world.parts[name].rounds, "from": read, "noise": world.noise if name == "a" else ""}
        (out / "result.json").write_text(json.dumps(result))
        (out / "blob.bin").write_bytes(name.encode() * 1000)
        return {"rounds": world.parts[name].rounds}

    return Stage(name, version, needs, lambda world: {name: world.parts[name]}, run, **more)


def missing(world: World, artifact: Path) -> str | None:
    return "north: cohort is gone" if "a" in world.gone else None


# a -> b -> d, a -> c; the first reads hospitals' files
STAGES = (
    stage("a", outside=lambda world: world.files, intact=missing),
    stage("b", "a"),
    stage("c", "a"),
    stage("d", "b"),
)


def ran(world: World, root: Path, stages=STAGES, **options: Any) -> list[str]:
    world.log.clear()
    results = execute_steps(plan_steps(stages, world, root, **options), world, root)
    assert list(results.ran) == world.log
    assert all(check_artifact(path) is None for path in results.artifacts.values())
    return list(world.log)


def reasons(world: World, root: Path, stages=STAGES, **options: Any) -> dict[str, str]:
    return {step.stage.name: step.reason for step in plan_steps(stages, world, root, **options)}


def test_a_second_run_does_nothing_and_says_so(tmp_path):
    world = World()
    assert set(reasons(world, tmp_path).values()) == {"never ran"}
    assert ran(world, tmp_path) == ["a", "b", "c", "d"]
    assert set(reasons(world, tmp_path).values()) == {"kept: nothing changed"}
    assert ran(world, tmp_path) == []


def test_planning_writes_nothing(tmp_path):
    plan_steps(STAGES, World(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "again"), [("a", "abcd"), ("b", "bd"), ("c", "c"), ("d", "d")])
def test_a_changed_setting_runs_what_depends_on_it_only_and_going_back_runs_nothing(tmp_path, name, again):
    world = World()
    ran(world, tmp_path)
    other = world.changed(name, rounds=12)
    said = reasons(other, tmp_path)
    assert said[name] == f"settings changed: {name}.rounds 10 -> 12"
    assert {each for each, why in said.items() if why != "kept: nothing changed"} == set(again)
    assert ran(other, tmp_path) == list(again)
    assert ran(world, tmp_path) == []
    assert ran(other, tmp_path) == []


def test_reasons_have_names(tmp_path):
    world = World()
    ran(world, tmp_path)
    assert reasons(world.changed("a", rounds=1), tmp_path)["b"] == "input changed: a"
    assert reasons(replace(world, files={"north": "2", "south": "1"}), tmp_path)["a"] == "outside input changed: north"
    assert reasons(replace(world, files={"north": "1"}), tmp_path)["a"] == "outside input changed: south"
    newer = (STAGES[0], replace(STAGES[1], version=2), *STAGES[2:])
    assert reasons(world, tmp_path, newer)["b"] == "stage version 1 -> 2"
    assert reasons(world, tmp_path, newer)["d"] == "input changed: b"
    assert reasons(world, tmp_path, fresh=True) == dict.fromkeys("abcd", "asked for: --fresh")
    both = reasons(replace(world.changed("a", rounds=1, mu=0.5), files={}), tmp_path)["a"]
    assert both == "settings changed: a.mu 0.1 -> 0.5, a.rounds 10 -> 1; outside input changed: north, south"


def test_the_newest_earlier_settings_are_the_ones_compared_with(tmp_path):
    world = World()
    for rounds in (5, 6, 7):
        ran(world.changed("d", rounds=rounds), tmp_path)
        time.sleep(0.002)
    assert reasons(world.changed("d", rounds=8), tmp_path)["d"] == "settings changed: d.rounds 7 -> 8"


@pytest.mark.parametrize("file", ["result.json", "blob.bin", MANIFEST])
@pytest.mark.parametrize("how", ["corrupt", "missing"])
def test_a_damaged_artifact_is_made_again_and_what_stands_on_it_only_if_it_differs(tmp_path, file, how):
    world = World()
    damaged = {step.stage.name: step.folder(tmp_path) for step in plan_steps(STAGES, world, tmp_path)}["b"] / file
    ran(world, tmp_path)
    if how == "corrupt":
        damaged.write_bytes(b"0" + damaged.read_bytes()[1:])
    else:
        damaged.unlink()
    said = reasons(world, tmp_path)
    assert said["b"] == f"{how}: {file}"
    assert said["d"].startswith("input made again: b")
    assert said["a"] == said["c"] == "kept: nothing changed"
    assert ran(world, tmp_path) == ["b"]
    assert ran(world, tmp_path) == []


def test_what_is_made_again_with_another_content_is_followed_by_what_stands_on_it(tmp_path):
    """The digest covers settings, not privacy noise: the same digest may come out differently."""
    world = World()
    ran(world, tmp_path)
    noisy = replace(world, noise="other")
    assert ran(noisy, tmp_path, only="a", fresh=True) == ["a"]
    said = reasons(noisy, tmp_path)
    assert said["b"] == "input changed: a (made again, with another result)"
    assert said["d"].startswith("input made again: b")
    assert ran(noisy, tmp_path) == ["b", "c", "d"]
    assert ran(noisy, tmp_path) == []


def test_a_folder_that_was_deleted_is_missing(tmp_path):
    world = World()
    ran(world, tmp_path)
    folder = plan_steps(STAGES, world, tmp_path)[3].folder(tmp_path)
    ran(world.changed("d", rounds=3), tmp_path)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert reasons(world, tmp_path)["d"] == "settings changed: d.rounds 3 -> 10"


def test_a_loss_on_a_hospitals_disk_is_a_reason(tmp_path):
    world = World()
    ran(world, tmp_path)
    assert reasons(replace(world, gone=frozenset("a")), tmp_path)["a"] == "north: cohort is gone"


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({"only": "a"}, "a"),
        ({"until": "b"}, "ab"),
        ({"until": "d"}, "abcd"),
        ({"first": "a", "until": "a"}, "a"),
        ({"first": "a"}, "abcd"),
    ],
)
def test_only_what_was_asked_for_runs(tmp_path, options, done):
    world = World()
    steps = plan_steps(STAGES, world, tmp_path, **options)
    assert [step.stage.name for step in steps if step.state == "run"] == list(done)
    assert {step.reason for step in steps if step.state == "skip"} <= {"not asked for"}
    assert ran(world, tmp_path, **options) == list(done)


def test_from_and_fresh_run_again_from_there(tmp_path):
    world = World()
    ran(world, tmp_path)
    assert ran(world, tmp_path, first="c", fresh=True) == ["c", "d"]
    assert ran(world, tmp_path, first="c") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": "x"}, ["--only x: no such stage", "a, b, c, d"]),
        ({"first": "x", "until": "y"}, ["--from x", "--until y", "a, b, c, d"]),
        ({"first": "c", "until": "b"}, ["--from c comes after --until b"]),
        ({"only": "a", "until": "b"}, ["--only goes with neither"]),
        ({"only": "d"}, ["b is needed, was not asked for, and is not there (never ran)", "run me --from b --until d"]),
        ({"first": "c"}, ["a is needed", "b is needed", "run me --from a --until d"]),
    ],
)
def test_a_selection_that_cannot_be_is_refused_with_the_remedy(tmp_path, options, words):
    with pytest.raises(SelectionError) as caught:
        plan_steps(STAGES, World(), tmp_path, command="run me", **options)
    assert all(word in str(caught.value) for word in words)


def test_a_needed_artifact_that_is_corrupt_is_refused_only_where_it_is_needed(tmp_path):
    world = World()
    ran(world, tmp_path)
    (plan_steps(STAGES, world, tmp_path)[1].folder(tmp_path) / "blob.bin").write_bytes(b"")
    assert ran(world, tmp_path, only="d") == []
    assert ran(world, tmp_path, only="c", fresh=True) == ["c"]
    with pytest.raises(SelectionError, match=r"b is needed.*corrupt: blob.bin"):
        plan_steps(STAGES, world, tmp_path, only="d", fresh=True)


def test_stages_out_of_order_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'d' needs"):
        plan_steps((STAGES[3], *STAGES[:3]), World(), tmp_path)
    with pytest.raises(ValueError, match="named twice"):
        plan_steps((*STAGES, STAGES[0]), World(), tmp_path)


def test_a_failure_names_the_stage_and_ends_with_the_command_that_goes_on(tmp_path):
    world = World(fail="b")
    with pytest.raises(StageFailed) as caught:
        execute_steps(plan_steps(STAGES, world, tmp_path, until="c"), world, tmp_path, command="run me")
    assert "stage b failed: ValueError: b broke" in str(caught.value)
    assert isinstance(caught.value.cause, ValueError)
    assert str(caught.value).splitlines()[-1] == "run me --from b --until c"
    assert not [path for path in tmp_path.rglob("*") if UNFINISHED in path.name]
    assert ran(replace(world, fail=""), tmp_path, first="b", until="c") == ["b", "c"]


@pytest.mark.parametrize(
    ("options", "fails", "command"),
    [({}, "c", "--from c"), ({"only": "a"}, "a", "--only a"), ({"first": "a"}, "a", "--from a")],
)
def test_the_command_that_goes_on_works(tmp_path, options, fails, command):
    world = World(fail=fails)
    with pytest.raises(StageFailed) as caught:
        execute_steps(plan_steps(STAGES, world, tmp_path, **options), world, tmp_path, command="run me")
    assert caught.value.command == f"run me {command}"
    option, name = command.split()
    again = {"--from": "first", "--only": "only"}[option]
    assert ran(replace(world, fail=""), tmp_path, **{again: name})[0] == fails


def test_a_stop_between_stages_keeps_what_is_done(tmp_path):
    world, stop = World(), Stop()
    events = []

    def watch(event):
        events.append((event.kind, event.step.stage.name, event.index, event.total))
        if event.kind == "done" and event.step.stage.name == "b":
            stop.request("SIGTERM")

    with pytest.raises(Stopped) as caught:
        execute_steps(plan_steps(STAGES, world, tmp_path), world, tmp_path, stop=stop, on_step=watch, command="run me")
    assert world.log == ["a", "b"]
    assert str(caught.value).splitlines()[-1] == "run me --from c"
    assert events[:4] == [("begun", "a", 0, 4), ("done", "a", 0, 4), ("begun", "b", 1, 4), ("done", "b", 1, 4)]
    assert ran(world, tmp_path) == ["c", "d"]


def test_a_stop_inside_a_stage_leaves_nothing_of_it(tmp_path):
    stop = Stop()

    def run(world, inputs, out):
        (out / "half").write_text("x")
        stop.request("SIGINT")
        stop.check()

    stages = (replace(STAGES[0], run=run),)
    with pytest.raises(Stopped, match="run me --from a"):
        execute_steps(plan_steps(stages, World(), tmp_path), World(), tmp_path, stop=stop, command="run me")
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_explanation_is_an_aligned_table_and_plain_data(tmp_path):
    world = World()
    ran(world, tmp_path, until="b")
    steps = plan_steps(STAGES, world.changed("b", mu=0.2), tmp_path, until="c")
    rows = explain_steps(steps).splitlines()
    assert [row.split(None, 3)[:2] for row in rows] == [["a", "keep"], ["b", "run"], ["c", "run"], ["d", "skip"]]
    assert len({row.index(step.reason) for row, step in zip(rows, steps, strict=True)}) == 1
    told = json.loads(json.dumps(explanation_facts(steps)))
    assert told[1] == {
        "stage": "b", "state": "run", "digest": steps[1].digest, "reason": "settings changed: b.mu 0.1 -> 0.2"
    }  # fmt: skip


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.integers(1, 3)),
        st.tuples(st.just("files"), st.sampled_from(["north", "south"]), st.integers(1, 2)),
        st.tuples(st.just("damage"), st.sampled_from("abcd"), st.sampled_from(["result.json", "blob.bin", MANIFEST])),
        st.tuples(st.just("fail"), st.sampled_from("abcd"), st.just(0)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(ACTIONS)
def test_law_a_resumed_run_equals_a_fresh_one(tmp_path_factory, actions):
    """Whatever was changed, damaged or failed before, a run's results are those of an empty folder."""
    root, world = tmp_path_factory.mktemp("run"), World()
    for what, name, value in actions:
        if what == "set":
            world = world.changed(name, rounds=value)
        elif what == "files":
            world = replace(world, files={**world.files, name: str(value)})
        elif what == "damage":
            folder = {step.stage.name: step.folder(root) for step in plan_steps(STAGES, world, root)}[name]
            if (folder / value).exists():
                (folder / value).write_bytes(b"damaged")
        else:
            with suppress(StageFailed):  # not where that stage is kept
                execute_steps(plan_steps(STAGES, world, root), replace(world, fail=name), root)
        if what != "damage":
            execute_steps(plan_steps(STAGES, world, root), world, root)
    results = execute_steps(plan_steps(STAGES, world, root), world, root)
    empty = tmp_path_factory.mktemp("empty")
    expected = execute_steps(plan_steps(STAGES, world, empty), world, empty)
    for name, folder in expected.artifacts.items():
        assert results.artifacts[name].name == folder.name
        assert (results.artifacts[name] / "result.json").read_bytes() == (folder / "result.json").read_bytes()
    assert ran(world, root) == []


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from([0.0, 1.0, 2.5]) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a b"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(PLAIN, PLAIN)
def test_settings_that_differ_as_json_are_told_to_differ(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (list_differences(one, other) == []) == same


def test_differences_are_named():
    before = {"train": {"rounds": 10, "list": [1, 2]}, "old": 1}
    now = {"train": {"rounds": 12, "list": [1]}, "new": {"x": "y"}}
    assert list_differences(before, now) == [
        "old 1 removed", "train.list[1] 2 removed", "train.rounds 10 -> 12", 'new.x "y" added'
    ]  # fmt: skip


KILLED = """
import os, signal, sys, time
from pathlib import Path
from pipelines.runs.runner import Stage, execute_steps, plan_steps
root, how = Path(sys.argv[1]), sys.argv[2]
def first(world, inputs, out):
    (out / "result").write_text("1")
    return {}
def second(world, inputs, out):
    (out / "half").write_text("x" * 100000)
    if how == "exit": os._exit(9)
    if how == "wait":
        print("ready", flush=True)
        time.sleep(60)
    (out / "result").write_text((inputs["first"] / "result").read_text() + "2")
    return {}
stages = (Stage("first", 1, (), lambda w: {}, first), Stage("second", 1, ("first",), lambda w: {}, second))
results = execute_steps(plan_steps(stages, None, root), None, root)
print(",".join(results.ran), results.artifacts["second"].joinpath("result").read_text())
"""


@pytest.mark.parametrize("how", ["exit", "wait"])
def test_a_killed_run_leaves_no_half_artifact_and_goes_on(tmp_path, how):
    arguments = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen([*arguments, how], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        if how == "wait":
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == (9 if how == "exit" else -signal.SIGKILL)
    (artifact,) = (tmp_path / "first").iterdir()
    assert check_artifact(artifact) is None
    assert all(path.name.startswith(UNFINISHED) for path in (tmp_path / "second").iterdir())
    again = subprocess.run([*arguments, "go"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout.split() == ["second", "12"]
    assert not [path for path in tmp_path.rglob("*") if UNFINISHED in path.name]
