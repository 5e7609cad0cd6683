"""Networks that drawn pictures taught are kept for all runs of a folder: what they are known by, and who waits."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock
from public_run import DETECTOR, settings

import pipelines.coordinator.public_features as detectors
import pipelines.coordinator.public_kept as keeping
import pipelines.coordinator.public_starts as starts
import pipelines.hospital.public_networks as networks
from federation.engine import InProcess
from federation.features.detector import Detector
from pipelines.coordinator.public_features import train_detector
from pipelines.coordinator.stages import pretrain
from pipelines.coordinator.world import World
from pipelines.hospital.public_networks import PUBLIC, WAITING, learnt_once
from pipelines.loader.document import parse_document
from pipelines.runs.progress import send_progress
from pipelines.runs.stopping import Stop, Stopped
from pipelines.runs.store import UNFINISHED, DiskFolder
from pipelines.settings.image_spaces import find_starts
from pipelines.settings.load import check_config

ROOT = Path(__file__).parents[2]
OURS = ("federation", "harmonize", "personalize", "privacy", "pipelines", "evaluation", "consilium")
NOT_DECISIVE = {
    "pipelines/coordinator/stages/pretrain.py": "asks for a start and writes it",
    "pipelines/data": "the shape of images, which is in the key",
    "pipelines/hospital/public_networks.py": "keeps",
    "pipelines/loader": "settings as plain values, which are the key",
    "pipelines/models/fixed_features.py": "bytes as a tensor and back",
    "pipelines/runs": "files, digests, progress",
    "pipelines/settings": "settings, which are in the key",
}


@pytest.fixture
def world(tmp_path):
    config = check_config(parse_document(yaml.safe_dump(settings()), environment={}))
    return World(config, InProcess({}), tmp_path / "runs" / "tiny", Stop(), str)


def kept(world) -> set[str]:
    return set(DiskFolder(world.root.parent / PUBLIC).names())


def learnt_starts(world, waits=lambda: None):
    return [pretrain.learn_start(world, begin, begin.how, waits).data for begin in find_starts(world.config).values()]


def test_what_was_kept_is_what_was_learnt_and_nobody_learns_it_again(world, monkeypatch):
    detector = Detector(**DETECTOR)
    first = [train_detector(world, detector), *learnt_starts(world)]
    assert len(kept(world)) == 4, "a detector, two starts, and the translator that one goes through"
    for module, name in ((detectors, "train_detector_network"), (starts, "pretrain_network")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("learnt again"))
    assert [train_detector(world, detector), *learnt_starts(world)] == first


@pytest.mark.parametrize(
    "other",
    [
        lambda patch: patch.setattr(keeping, "CODE", "of another version"),
        lambda patch: patch.setattr(keeping, "library_versions", lambda: {"torch": "9"}),
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 7),
        lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS"),
    ],
)
def test_what_other_code_or_another_machine_learnt_is_not_taken(world, monkeypatch, other):
    train_detector(world, Detector(**DETECTOR))
    (before,) = kept(world)
    other(monkeypatch)
    train_detector(world, Detector(**DETECTOR))
    assert len(kept(world)) == 2 and before in kept(world)


def test_each_setting_of_a_detector_and_a_start_makes_another(world, monkeypatch):
    asked = []
    for module in (detectors, starts):
        monkeypatch.setattr(module, "learn_or_load", lambda root, about, learn, waits: asked.append(about) or learn())
    for change in ({}, {"steps": 4}, {"pictures": 18}, {"window": (0.0, 3.0)}):
        train_detector(world, Detector(**{**DETECTOR, **change}))
    translated = settings()
    translated["harmonize"]["translate"]["nobody"]["seed"] = 5
    for change in (
        {},
        {"images": {"kind": "slices", "size": 40, "spacing_mm": 2.0}},
        {"model": {"name": "cnn", "widths": [8, 16], "norm": "group"}},
        {"harmonize": translated["harmonize"]},
    ):
        config = check_config(parse_document(yaml.safe_dump({**settings(), **change}), environment={}))
        learnt_starts(World(config, InProcess({}), world.root, Stop(), str))
    about = [str(one) for one in asked]
    assert len(about) == 4 + 4 * 2
    same = about[4]  # begun, of the first settings
    assert about.count(same) == 2, "the start that goes through no translator does not ask which one there is"
    assert len(set(about)) == len(about) - 1


def test_a_start_is_known_by_the_translator_that_its_pictures_went_through(world, monkeypatch):
    learnt_starts(world)
    before = kept(world)
    found = networks.learn_translation
    other = {}

    def changed(*said, **more):
        params = found(*said, **more)
        other.update({name: value + 1 for name, value in params.items()})
        return other

    monkeypatch.setattr(starts, "learn_translation", changed)
    learnt_starts(world)
    assert other and len(kept(world)) == len(before) + 1


def test_all_code_that_runs_while_something_is_learnt_is_in_the_key(world):
    ran: set[str] = set()

    def note(frame, event, argument):
        ran.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        train_detector(world, Detector(**DETECTOR))
        learnt_starts(world)
    finally:
        sys.setprofile(None)
    paths = {Path(name) for name in ran}
    own = {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT) and ".venv" not in path.parts}
    own = {name for name in own if name.split("/")[0] in OURS}
    known = {str(path.relative_to(ROOT)) for path in keeping.list_decisive_files()}
    assert {"federation/features/detector.py", "harmonize/prior.py", "federation/descent.py"} <= own & known
    assert not [name for name in own - known if not name.startswith(tuple(NOT_DECISIVE))]


def test_each_byte_of_that_code_is_in_the_key(tmp_path):
    files = []
    for name in ("a/x.py", "b/x.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
        files.append(tmp_path / name)
    digests = {keeping.code_of(files)}
    for path in files:
        path.write_text("other")
        digests.add(keeping.code_of(files))
    assert len(digests) == 3
    assert keeping.code_of(keeping.list_decisive_files()) == keeping.CODE


def test_who_waits_says_so_and_can_be_stopped(world, monkeypatch):
    """A stage that waits for another process is not dead, and no Ctrl-C has to wait for that process."""
    monkeypatch.setattr(networks, "TELL_S", 0.05)
    train_detector(world, Detector(**DETECTOR))
    (name,) = kept(world)
    lock = FileLock(world.root.parent / PUBLIC / f"{UNFINISHED}{name}.lock", thread_local=False)
    told: list[object] = []

    def hear(progress):
        told.append(progress)
        if len(told) > 3:
            world.stop.request("SIGINT")

    def waiting():
        send_progress(hear)
        monkeypatch.setattr("pipelines.runs.progress.SENT_S", 0.0)
        with pytest.raises(Stopped):
            train_detector(world, Detector(**DETECTOR))
        told.append("stopped")

    with lock:
        thread = threading.Thread(target=waiting)  # progress is a thread's own
        thread.start()
        thread.join(20)
    assert told[-1] == "stopped"
    assert any(WAITING in str(one) for one in told)


@pytest.mark.parametrize("what", ["no folder", "full"])
def test_where_nothing_can_be_kept_it_is_learnt_all_the_same(tmp_path, monkeypatch, what):
    folder, learnt = DiskFolder(tmp_path / "public"), []
    if what == "no folder":
        folder.root.write_text("a file has its name")
    else:
        monkeypatch.setattr(DiskFolder, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    for _ in range(2):
        params = learnt_once(folder, {"a": 1}, lambda: learnt.append(1) or {"w": torch.ones(2)})
        assert torch.equal(params["w"], torch.ones(2))
    assert len(learnt) == 2


def test_a_damaged_file_is_learnt_again(tmp_path):
    folder, learnt = DiskFolder(tmp_path), []

    def learn():
        learnt.append(time.monotonic())
        return {"w": torch.ones(2)}

    learnt_once(folder, {}, learn)
    (name,) = folder.names()
    folder.write(name, folder.read(name)[:-1])
    for _ in range(2):
        learnt_once(folder, {}, learn)
    assert len(learnt) == 2
