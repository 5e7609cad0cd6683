"""Power cuts over NVIDIA FLARE: whoever is killed, whenever, the run ends as if nobody had been.

Slow: each case starts a federation of five processes, kills some of them at a moment of round 2, starts them again, and
compares states, scores and ledgers with a run in one process.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flare_processes import PLAIN_RUN, Federation, federation, until
from pipelines.run import main
from pipelines.runs.store import UNFINISHED
from privacy.release import ledger as ledgers

pytestmark = pytest.mark.slow

SITES = {
    name: {"source": {"kind": "phantom", "scanner": "P", "patients": 12, "slices": 4, "seed": seed}}
    for seed, name in enumerate("abcd", 1)
}
CONFIG = {
    **PLAIN_RUN,
    "sites": SITES,
    "model": {"name": "cnn", "widths": [16, 32], "norm": "group"},
    "train": {
        "schedule": {"rounds": 4},
        "work": {"lr": 1e-2, "batch": 24, "epochs": None, "steps": 40},
        "methods": {"fedper": {"name": "fedper"}},
    },
}
WHO = {"coordinator": ("server",), "one site": ("a",), "two of four sites": ("a", "c")}


def outcome(runs: Path) -> dict[str, object]:
    (state,) = runs.glob("federation/**/state")
    (scores,) = runs.glob("report/*/scores.json")
    return {"state": hashlib.sha256(state.read_bytes()).hexdigest(), "scores": json.loads(scores.read_text())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("near")
    (folder / "far.yaml").write_text(yaml.safe_dump({**CONFIG, "runs": str(folder / "runs")}))
    assert main([str(folder / "far.yaml")]) == 0
    return outcome(folder / "runs" / "far")


def answers(far: Federation, site: str, name: str) -> Iterator[Path]:
    """Committed answers of a name at a hospital."""
    return far.home(site).glob(f"conversations/far/*/{name}")


def unfinished(far: Federation, who: tuple[str, ...]) -> list[Path]:
    """What is being committed: a file that is not yet under its name."""
    if who == ("server",):
        return list((far.folder / "coordinator" / "runs" / "far" / "federation").glob(f"**/{UNFINISHED}*"))
    return list(answers(far, who[0], f"{UNFINISHED}*"))


def moment(far: Federation, who: tuple[str, ...], when: str) -> None:
    """Wait for it."""
    site = who[0] if who[0] != "server" else "a"
    if when == "before training":
        until(lambda: list(answers(far, site, "introduce-0")), 400, 0.002)
    elif when == "during training":
        until(lambda: list(answers(far, site, "train-1")), 400, 0.002)
        time.sleep(0.5)
    elif when == "after training":
        until(lambda: list(answers(far, site, "train-2")), 400, 0.002)
    else:
        until(lambda: list(answers(far, site, "train-1")), 400, 0.002)
        far.catch(who, lambda: unfinished(far, who), 120)


@pytest.mark.parametrize("when", ["before training", "during training", "after training", "during commit"])
@pytest.mark.parametrize("who", WHO.values(), ids=WHO.keys())
def test_a_power_cut_changes_nothing(
    tmp_path: Path, undisturbed: dict[str, object], who: tuple[str, ...], when: str
) -> None:
    config = tmp_path / "far.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    # A commit is over within milliseconds, which a busy machine does not catch: it is made to last.
    with federation(tmp_path, SITES, fsync_s=0.2 if when == "during commit" else 0.0) as far:
        operator = far.submit(config, "--silence", "10")
        try:
            moment(far, who, when)
            far.kill(*who)
            if when == "during commit":
                assert unfinished(far, who), "it was killed a moment too late"
            time.sleep(2)
            far.start(*who)
            said, _ = operator.communicate(timeout=900)
        finally:
            operator.kill()
    assert operator.returncode == 0, said
    assert "[ME=" not in said, "what FLARE writes of a server that is gone is nothing to read"
    assert outcome(tmp_path / "coordinator" / "runs" / "far") == undisturbed
    for site in SITES:
        ledger = far.home(site) / "ledger.jsonl"
        assert not ledgers.verify_ledger(ledger)
        left = [line for line in ledgers.read_lines(ledger) if line.get("refused") is None and not line.get("again")]
        times = Counter((line["run"], line["round"], line["request"]) for line in left if line["request"] == "train")
        assert len(times) == 4 and set(times.values()) == {1}, "each round leaves once: none twice, none uncounted"
