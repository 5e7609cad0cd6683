"""A private training, finished or not, is never paid again unasked, whatever becomes of one of the files of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_sweep import epsilon
from small_run import smallest

import federation.rounds
from federation.conversation import load_newest_intact_memory
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from privacy.dp.accounting import compute_cost
from privacy.message import as_mapping
from privacy.release import ledger as ledgers

SETTINGS = smallest(
    privacy={"epsilon": 3.0, "sampling": 0.5, "views": 2},
    pooling="refused",
    audit={"membership": False, "canaries": 0},
    evaluate={"copies": 2, "checkpoint": "latest", "public": False, "reference": None},
)
SETTINGS["train"] |= {"methods": {"fedavg": {"name": "fedavg"}, "local": {"name": "local"}}, "schedule": {"rounds": 2}}
WAYS: Mapping[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda whole: None,
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "a bit": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
}
LABELS = ("fedavg", "local")


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run was stopped before the last question of its first training."""
    folder = tmp_path_factory.mktemp("cut_off")
    (folder / "tiny.yaml").write_text(json.dumps(SETTINGS))
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        changed.setattr(federation.rounds, "finish_training", interrupt)
        assert main(["tiny.yaml"]) != Exit.OK
    return folder


def interrupt(*arguments: object, **more: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def half(cut_off: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(cut_off, tmp_path / "copy"))
    monkeypatch.chdir(folder)
    return folder / "runs" / "tiny"


@pytest.fixture
def root(finished_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(finished_run(SETTINGS), tmp_path / "copy"))
    monkeypatch.chdir(folder)
    return folder / "runs" / "tiny"


def spent(root: Path) -> dict[str, float]:
    return {site: epsilon(root / "sites" / site / "ledger.jsonl") for site in "ab"}


def of_a_patient(root: Path) -> dict[str, float]:
    """In the split that was charged most."""
    books = {site: root / "sites" / site / "ledger.jsonl" for site in "ab"}
    return {
        site: compute_cost(ledgers.spent_events(ledgers.read_lines(book)), 1e-5).epsilon for site, book in books.items()
    }


def trained(root: Path) -> int:
    lines = [line for site in "ab" for line in ledgers.read_lines(root / "sites" / site / "ledger.jsonl")]
    return sum(line["request"] == "train" for line in lines)


def files(root: Path, kind: str, label: str) -> list[Path]:
    """The files of a hospital's finished training."""
    found = sorted(path for path in (root / "sites" / "a" / kind / "tiny").glob(f"{label}-*/*") if path.is_file())
    assert len(found) >= 2
    return found


def change(path: Path, way: str) -> None:
    damaged = WAYS[way](path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("label", LABELS)
def test_no_committed_reply_that_is_damaged_or_gone_costs_anything(
    label: str, way: str, root: Path, capsys: Any
) -> None:
    before = spent(root), trained(root)
    for path in files(root, "conversations", label):
        whole = path.read_bytes()
        change(path, way)
        shutil.rmtree(root / "report")  # its pages read the memories anew
        assert main(["tiny.yaml"]) == Exit.OK, capsys.readouterr().err
        assert (spent(root), trained(root)) == before, path.name
        path.write_bytes(whole)


@pytest.mark.repeats(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("label", LABELS)
def test_a_lost_model_stops_the_run_with_the_price_before_anything_is_charged(
    label: str, way: str, root: Path, capsys: Any
) -> None:
    before = spent(root), trained(root)
    needed = 0
    for path in files(root, "models", label):
        whole = path.read_bytes()
        change(path, way)
        capsys.readouterr()
        code = main(["tiny.yaml"])
        said = " ".join(capsys.readouterr().err.split())
        assert (spent(root), trained(root)) == before, path.name
        if code != Exit.OK:
            needed += 1
            assert code == Exit.CONFIG and not (root / "trace.txt").exists()
            words = ("a: a model or a memory of", "a: models of")
            assert any(f"{label}: {one}" in said for one in words), said
            assert "would cost a patient ε = " in said and "nothing was charged" in said and "--spend" in said, said
        path.write_bytes(whole)
        assert main(["tiny.yaml"]) == Exit.OK, "put back, all is well"
        assert (spent(root), trained(root)) == before
    assert needed, "nothing was lost that anybody needs"


@pytest.mark.repeats(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_training_that_was_cut_off_is_not_paid_again_unasked(
    way: str, half: Path, tmp_path: Path, capsys: Any
) -> None:
    """It goes on for what was left to be paid, or stops with the price, which --explain names too."""
    before, asked = spent(half), repeated(half)
    stopped = 0
    lost = [*(half / "sites" / "a" / "conversations" / "tiny").glob("fedavg-*/*")]
    lost += [path for path in (half / "federation").glob("fedavg-*/*") if path.name != "begun" or way == "gone"]
    assert len(lost) >= 4 and asked == set(), "an introduction, two rounds, and what the coordinator has of them"
    for path in lost:
        kept = Path(shutil.copytree(half, tmp_path / "kept" / path.parent.parent.name / path.name))
        whole = path.read_bytes()
        change(path, way)
        capsys.readouterr()
        assert main(["tiny.yaml", "--explain"]) == Exit.OK
        explained = capsys.readouterr().out
        code, said = main(["tiny.yaml"]), capsys.readouterr().err
        assert repeated(half) == set(), (path.name, said)
        assert ("It would stop at train" in explained) is (code == Exit.CONFIG), (path.name, explained, said)
        if code != Exit.OK:
            stopped += code == Exit.CONFIG
            assert spent(half) == before, (path.name, said)
            named = "nothing was charged" in said and "--spend" in said
            assert named is (code == Exit.CONFIG), "else a hospital says what it misses, and the run waits for it"
            path.write_bytes(whole)
        else:
            shutil.rmtree(half)
            shutil.copytree(kept, half)
    assert stopped, "nothing was lost that anybody needs"
    change(lost[-1], "empty")
    assert main(["tiny.yaml", "--spend"]) == Exit.OK, capsys.readouterr().err


def repeated(root: Path) -> set[tuple[str, str, int, str]]:
    """What was charged twice: hospital, training by its first name, round and request."""
    charged: list[tuple[str, str, int, str]] = []
    for site in "ab":
        for line, _ in ledgers.charged_lines(ledgers.read_lines(root / "sites" / site / "ledger.jsonl")):
            costs = as_mapping(line["event"])["kind"] not in ("nothing", "declared")
            if line["request"] in ("introduce", "train", "finish") and costs:
                name = "-".join(str(line["run"]).split("-")[:2])
                charged.append((site, name, int(str(line["round"])), str(line["request"])))
    return {each for each in charged if charged.count(each) > 1}


def test_what_two_methods_lost_is_told_at_once_with_the_price_of_both(root: Path, capsys: Any) -> None:
    one = prices(root, capsys, "local")
    assert prices(root, capsys, "fedavg") > one > 1  # the copy has both now


def prices(root: Path, capsys: Any, label: str) -> float:
    files(root, "models", label)[-1].unlink()
    capsys.readouterr()
    assert main(["tiny.yaml"]) == Exit.CONFIG
    said = " ".join(capsys.readouterr().err.split())
    assert f"{label}: a: models of" in said
    return float(said.partition("would cost a patient ε = ")[2].split()[0])


def test_a_person_pays_with_spend_once_and_no_more_than_was_said(root: Path, capsys: Any) -> None:
    price, before, dearest = prices(root, capsys, "local"), spent(root), of_a_patient(root)
    assert main(["tiny.yaml", "--spend"]) == Exit.OK, capsys.readouterr().err
    after, number = spent(root), trained(root)
    assert all(before[site] < after[site] for site in "ab")
    assert all(of_a_patient(root)[site] <= dearest[site] + price for site in "ab")
    assert main(["tiny.yaml"]) == Exit.OK and main(["tiny.yaml", "--spend"]) == Exit.OK
    assert (spent(root), trained(root)) == (after, number), "once asked is once paid"


def test_a_policy_that_pays_once_refuses_to_spend(root: Path, capsys: Any) -> None:
    prices(root, capsys, "local")
    before = spent(root)
    said = yaml.safe_load(Path("tiny.yaml").read_text())
    for site in said["sites"].values():
        site["policy"] = {**site.get("policy", {}), "spend_again": False}
    Path("tiny.yaml").write_text(json.dumps(said))
    assert main(["tiny.yaml"]) == Exit.CONFIG and main(["tiny.yaml", "--spend"]) == Exit.CONFIG
    assert "spend_again" in capsys.readouterr().err and spent(root) == before


@pytest.mark.parametrize("way", WAYS)
def test_the_latest_model_is_the_latest_though_its_reply_is_lost(way: str, root: Path) -> None:
    from federation.participant import load_checkpoint  # its law is here, where a run is

    (folder,) = (root / "sites" / "a" / "conversations" / "tiny").glob("local-*")
    models = DiskFolder(root / "sites" / "a" / "models" / "tiny" / folder.name)
    before = load_checkpoint(models, load_newest_intact_memory(DiskFolder(folder)), "latest", best=None)
    change(folder / "finish-3", way)
    after = load_checkpoint(models, load_newest_intact_memory(DiskFolder(folder)), "latest", best=None)
    assert before[0] == after[0] == 2 and all((before[1][name] == after[1][name]).all() for name in before[1])
