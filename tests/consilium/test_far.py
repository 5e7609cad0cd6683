"""Hospitals on their own machines, from Python: the same bits, and what cannot go there is told before a run."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import yaml
from api_pictures import PARTS, dense, train
from nvflare.collab import CollabCallError
from rich.console import Console

import consilium
from consilium import ConfigError, Flare, RunFailed, Work, running
from federation.flare import COORDINATOR, ClientApp, build_reach
from flare_in_process import InProcessProxy
from flare_processes import LEAD, federation
from pipelines.coordinator.arguments import transport_free_arguments
from pipelines.coordinator.run import simulated_workers
from pipelines.hospital.hospital import KEY
from pipelines.loader.document import Document
from pipelines.loader.validation import validate_settings
from pipelines.remote import operate
from pipelines.remote.order import DONE, Ended, Order, write_order
from pipelines.remote.server import execute_order
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.config import Config
from pipelines.settings.load import load_config
from pipelines.settings.sites import SiteSettings

MLP = {"name": "mlp", "hidden": [4]}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "fed_admin.json").write_text("{}")
    return tmp_path / "kit"


def job(place: Path, monkeypatch: pytest.MonkeyPatch, sites: Mapping[str, SiteSettings] | None = None) -> None:
    """In place of FLARE: the job that it would start, in this process, with hospitals whose folders lie at `place`.
    sites: what their own site.yaml say; None: as in the run's settings.
    """

    def operated(said: Document, options: argparse.Namespace, console: Console) -> Ended:
        config, turn = validate_settings(said, Config), Lock()
        config = config if sites is None else replace(config, sites=sites)
        workers = simulated_workers(config, place, Stop())
        clients = {
            site: build_reach(InProcessProxy(ClientApp(running._in_turn(worker, turn), lambda: COORDINATOR)))
            for site, worker in workers.items()
        }
        (place / "job").mkdir(parents=True, exist_ok=True)
        path = place / "job" / "order.json"
        write_order(
            path, Order(tuple(transport_free_arguments(options)), os.getcwd(), {}, tuple(clients), (), 60.0, "again")
        )
        execute_order(path, clients)
        done = json.loads((path.parent / DONE).read_text())
        return Ended(done["exit"], done["said"])

    monkeypatch.setattr(operate, "execute_remotely", operated)


def elsewhere(near: consilium.Results, folder: Path, place: Path, **changes: Any) -> Path:
    """The same settings in another folder, for hospitals with the same keys, which order their patients."""
    for site in ("north", "south"):
        (place / "sites" / site).mkdir(parents=True)
        shutil.copy(near.folder / "sites" / site / KEY, place / "sites" / site / KEY)
    assert near.yaml is not None
    said = {**yaml.safe_load(near.yaml.read_text()), "runs": str(folder), **changes}
    (folder / "far.yaml").write_text(yaml.safe_dump(said))
    return folder / "far.yaml"


def test_hospitals_elsewhere_train_the_same_models(
    tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    near = train(tmp_path / "near", MLP)
    monkeypatch.chdir(tmp_path)
    job(tmp_path / "hospitals", monkeypatch)
    path = elsewhere(near, tmp_path, tmp_path / "hospitals")
    capfd.readouterr()
    far = consilium.run(path, engine=Flare(kit=kit), quiet=True)
    assert capfd.readouterr().out == ""
    assert str(far.rows) == str(near.rows) and far.losses == near.losses and far.rows
    assert far.statements["north"].epsilon == near.statements["north"].epsilon
    assert set(far.ran) == set(near.ran) and not far.kept
    assert far.not_guaranteed == () != near.not_guaranteed, "nobody reads all patients"
    assert far.page.is_file() and not (far.folder / "sites").exists()
    with pytest.raises(KeyError, match="no model of 'fedavg' at 'north'"):
        far.model("fedavg", "north")
    with pytest.raises(KeyError, match="no ledger of 'north'"):
        far.ledger("north")
    again = consilium.run(path, engine=Flare(kit=kit), quiet=True)
    assert not again.ran and str(again.rows) == str(far.rows)


def test_hospitals_may_be_named_with_nothing_of_theirs(
    tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = train(tmp_path / "near", MLP)
    assert near.yaml is not None
    elsewhere(near, tmp_path, tmp_path / "hospitals")
    job(tmp_path / "hospitals", monkeypatch, load_config(str(near.yaml)).sites)
    far = consilium.train(
        {site: {"source": {"kind": "elsewhere"}} for site in ("north", "south")},
        model=MLP,
        method=["fedavg", "fenda"],
        rounds=1,
        work=Work(batch=8, lr=0.01),
        settings={
            "images": {"kind": "tensors", "inputs": [1, 8, 8]},
            "evaluate": {"copies": 0},
            "audit": {"membership": False, "canaries": 0},
        },
        folder=tmp_path / "far",
        engine=Flare(kit=kit),
        quiet=True,
    )
    assert str(far.rows) == str(near.rows) and far.losses == near.losses
    assert not (tmp_path / "far" / "data").exists() and not (far.folder / "sites").exists()


def test_a_run_that_failed_there_is_told_with_its_code(
    tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = train(tmp_path / "near", MLP)
    monkeypatch.chdir(tmp_path)
    job(tmp_path / "hospitals", monkeypatch)
    path = elsewhere(near, tmp_path, tmp_path / "hospitals")
    (tmp_path / "near" / "data" / "south.safetensors").unlink()
    with pytest.raises(RunFailed, match="south") as caught:
        consilium.run(path, engine=Flare(kit=kit), quiet=True)
    assert caught.value.code == Exit.DATA
    monkeypatch.setattr(operate, "execute_remotely", lambda *_: Ended(int(Exit.FAILED)))
    with pytest.raises(RunFailed, match="gave no results"):
        consilium.run(path, engine=Flare(kit=kit), quiet=True)

    def lost(*_: object) -> Ended:
        raise CollabCallError("far", "answer", TimeoutError("nothing came"))

    monkeypatch.setattr(operate, "execute_remotely", lost)
    with pytest.raises(RunFailed):
        consilium.run(path, engine=Flare(kit=kit), quiet=True)


def test_what_cannot_go_there_is_told_before_anything_runs(tmp_path: Path, kit: Path) -> None:
    def refused(model: object, engine: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            train(tmp_path / "run", model, engine=engine)
        return str(caught.value)

    assert "examples of north, south lie on this machine" in refused(MLP, Flare(kit=kit))
    assert "has no startup/fed_admin.json" in refused(MLP, Flare(kit=tmp_path / "nowhere"))
    assert "silence_s: must be a finite number > 0, found 0" in refused(MLP, Flare(kit=kit, silence_s=0))
    assert "patience_min: must be a finite number > 0, found '5'" in refused(MLP, Flare(kit=kit, patience_min="5"))  # type: ignore[arg-type]
    assert "kit: must be the path of a folder, found None" in refused(MLP, Flare(kit=None))  # type: ignore[arg-type]
    own = consilium.own(dense, **PARTS)
    assert "is known in this process only" in refused(own, Flare(kit=kit))
    assert 'must be "in process", "wire" or Flare(kit=FOLDER), found \'flare\'' in refused(MLP, "flare")
    assert not (tmp_path / "run").exists()


def test_settings_without_a_file_and_a_missing_package_are_told(
    tmp_path: Path, kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = train(tmp_path / "near", MLP)
    assert near.yaml is not None
    with pytest.raises(ConfigError, match="write it into a file, and give its path"):
        consilium.run(yaml.safe_load(near.yaml.read_text()), engine=Flare(kit=kit))
    monkeypatch.setitem(__import__("sys").modules, "pipelines.remote.operate", None)
    with pytest.raises(ConfigError, match=r"not installed; pip install consilium\[flare\]"):
        consilium.run(near.yaml, engine=Flare(kit=kit))


@pytest.mark.slow  # without processes and certificates: the first of these tests
def test_a_run_over_flares_processes_is_the_run_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = train(tmp_path / "near", MLP)
    path = elsewhere(near, tmp_path, tmp_path / "unused")
    sites = yaml.safe_load(path.read_text())["sites"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").mkdir()
    with federation(tmp_path / "f", sites, start=()) as made:
        made.start("server")
        for site in sites:
            made.home(site).mkdir(parents=True)
            shutil.copy(near.folder / "sites" / site / KEY, made.home(site) / KEY)
        made.start()
        far = consilium.run(path, engine=Flare(kit=made.kits / LEAD, patience_min=3), quiet=True)
    assert str(far.rows) == str(near.rows) and far.losses == near.losses and far.rows
    assert not (far.folder / "sites").exists()
