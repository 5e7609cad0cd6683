"""What no hospital shapes is learnt while hospitals work: the same bits, and nobody depends on whoever learns it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from public_run import DETECTOR, FEATURES, START, settings

import pipelines.coordinator.ahead as learning
import pipelines.coordinator.run as running
from federation.engine import InProcess
from federation.features.detector import Detector
from pipelines.coordinator import public_features, public_starts
from pipelines.coordinator.world import World
from pipelines.hospital.public_networks import PUBLIC
from pipelines.loader.document import parse_document
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.runner import Results
from pipelines.runs.stopping import Stop
from pipelines.runs.store import DiskFolder
from pipelines.settings.image_spaces import find_starts
from pipelines.settings.load import check_config

ROOT = Path(__file__).parents[2]
UNTIL = ("tiny.yaml", "--until", "pretrain")
MADE = ("features/*/*.safetensors", "pretrain/*/start-*")


def made(folder: Path) -> dict[str, bytes]:
    root = folder / "runs" / "tiny"
    return {path.name: path.read_bytes() for pattern in MADE for path in root.glob(pattern)}


def networks(folder: Path) -> dict[str, bytes]:
    kept = DiskFolder(folder / "runs" / PUBLIC)
    return {name: kept.read(name) for name in kept.names()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The folder of a run in one process, up to its starts."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "tiny.yaml").write_text(yaml.safe_dump(settings()))
        assert main([*UNTIL]) == Exit.OK
    assert len(made(folder)) == 5 and len(networks(folder)) == 4
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings(processes=2)))
    return tmp_path


def until(found, seconds=60.0):
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.05)
    return found()


def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def test_whoever_learns_it_is_the_same_bit_for_bit_and_stages_find_it_there(alone, here, monkeypatch):
    execute = running.execute_steps

    def late(*said, **more):
        assert until(lambda: len(networks(here)) == 4), "all is learnt before any stage begins"
        for module, name in ((public_features, "train_detector_network"), (public_starts, "pretrain_network")):
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("learnt again"))
        return execute(*said, **more)

    monkeypatch.setattr(running, "execute_steps", late)
    assert main([*UNTIL]) == Exit.OK
    assert made(here) == made(alone)
    assert networks(here) == networks(alone)
    assert not [one for one in psutil.Process().children(recursive=True) if one.name() == "beside"]


@pytest.mark.slow  # a smaller case: work beside that dies, in test_processes
def test_a_learner_that_is_killed_changes_nothing(alone, here, monkeypatch):
    monkeypatch.setattr(learning, "_learn_networks", killed)
    assert main([*UNTIL]) == Exit.OK
    assert made(here) == made(alone)
    assert networks(here) == networks(alone)


def test_what_cannot_be_learnt_is_left_to_its_stage_and_what_another_process_learns_is_tried_again(here, monkeypatch):
    tried = []

    def taught(world, detector, waits):
        tried.append(detector.width)
        if detector.width == 4:
            raise MemoryError
        if detector.width == 8 and tried.count(8) < 2:
            waits()

    monkeypatch.setattr(learning, "train_detector", taught)
    monkeypatch.setattr(learning, "send_progress", lambda send: None)
    config = check_config(parse_document((here / "tiny.yaml").read_text(), environment={}))
    learning._learn_networks(config, here, [Detector(**{**DETECTOR, "width": width}) for width in (4, 8, 12)], [])
    assert tried == [4, 8, 12, 8]


def test_only_a_run_that_will_need_it_has_one(alone, here, monkeypatch):
    begun = []
    monkeypatch.setattr(learning, "run_alongside", lambda work: begun.append(work.args[2:]) or learning.nullcontext())
    monkeypatch.setattr(running, "execute_steps", lambda *_, **__: Results({}, (), (), {}))
    for options in (
        ["--check"],
        ["--explain"],
        ["--until", "translate"],
        ["--set", "processes=1", "--until", "ingest"],
    ):
        assert main(["tiny.yaml", *options]) == Exit.OK
    assert begun == []
    assert main([*UNTIL]) == Exit.OK
    ((detectors, starts),) = begun
    assert detectors == [Detector(**DETECTOR)] and len(starts) == 2
    monkeypatch.chdir(alone)
    assert main([*UNTIL, "--set", "processes=2"]) == Exit.OK
    assert len(begun) == 1, "there all is done"


def test_what_is_needed_first_comes_first_and_starts_from_the_end(tmp_path):
    said = settings()
    files = {**START, "on": "atlas"}
    said["train"]["methods"] |= {"floor": {"name": "as_begun"}, "declared": {"name": "fedavg"}}
    said["train"]["method_model"]["floor"] = {**FEATURES, "of": {**DETECTOR, "width": 8}}
    said["train"]["method_start"] |= {"floor": START, "declared": files}
    said["public_pictures"] = {"atlas": {"source": {"kind": "nifti", "folder": str(tmp_path)}, "labels": str(tmp_path)}}
    said["public_pictures"]["atlas"]["labels"] = {"kind": "mask", "folder": str(tmp_path)}
    config = check_config(parse_document(yaml.safe_dump(said), environment={}), files=False)
    one, other = Detector(**DETECTOR), Detector(**{**DETECTOR, "width": 8})
    first, second = (
        name for name, begin in find_starts(config).items() if begin.model.name == "cnn" and begin.how.on != "atlas"
    )
    detectors, starts = learning.list_needed_networks(config, {"features", "pretrain"})
    assert detectors == [one, other]
    assert starts == [second, first], "a head on features takes seconds, and declared pictures are read by the stage"
    assert learning.list_needed_networks(config, {"pretrain"}) == ([other], starts)
    assert learning.list_needed_networks(config, {"features"}) == ([one, other], [])
    assert learning.list_needed_networks(config, {"ingest", "train"}) == ([], [])


def test_hospitals_in_this_process_have_no_other_beside_them(tmp_path):
    """As those of the Python API, whatever a setting says: a new process would run the caller's script again."""
    config = check_config(parse_document(yaml.safe_dump(settings(processes=2)), environment={}))
    world = World(config, InProcess({}), tmp_path / "runs" / "tiny", Stop(), str)
    assert isinstance(learning.learn_ahead([], world), learning.nullcontext)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, Exit.STOPPED, marks=pytest.mark.slow),
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGINT, Exit.STOPPED, marks=pytest.mark.slow),
    ],
)
def test_with_a_run_that_is_stopped_or_killed_its_learner_ends(tmp_path, number, code):
    """And nothing half written is left where stages look."""
    said = settings(processes=2)
    del said["harmonize"], said["train"]["method_images"]
    said["train"]["method_model"]["detector"] = {**FEATURES, "of": {**DETECTOR, "steps": 100_000}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(said))
    command = [sys.executable, "-m", "pipelines.run", "tiny.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as run:
        for line in run.stderr:
            if "features > detector: begins" in line:
                break
        first = psutil.Process(run.pid)
        assert 3 in [len(child.children()) for child in first.children()], "two hospitals, and whoever learns"
        all_of_it = first.children(recursive=True)
        begun = time.monotonic()
        run.send_signal(number)
        run.stderr.read()
        assert run.wait(60) == code
    assert time.monotonic() - begun < 30
    assert psutil.wait_procs(all_of_it, 20)[1] == []
    assert networks(tmp_path) == {}
