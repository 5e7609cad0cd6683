"""Fifty rounds over NVIDIA FLARE in which every hospital fails in one round of five: most hang, some lose their power.
What struck and what it cost is logged: pytest -m slow --log-cli-level INFO.

Slow: five processes on one machine, for minutes. What fails is drawn from a seed; when it strikes, the machine decides.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from federation.outcome import load_outcome
from flare_processes import PLAIN_RUN, Federation, federation, until
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes, unseal_parts
from privacy.release import ledger as ledgers

pytestmark = pytest.mark.slow

ROUNDS, CHANCE, KILLED = 50, 0.2, 0.2  # the last: of the failures
DEADLINE_S = 5.0
SITES = {
    name: {"source": {"kind": "phantom", "scanner": "P", "patients": 12, "slices": 4, "seed": seed}}
    for seed, name in enumerate("abcd", 1)
}
CONFIG = {
    **PLAIN_RUN,
    "sites": SITES,
    "model": {"name": "cnn", "widths": [8, 16], "norm": "group"},
    "train": {
        "schedule": {"rounds": ROUNDS, "quorum": 0.5, "deadline_s": DEADLINE_S},
        "work": {"lr": 1e-2, "batch": 8, "epochs": None, "steps": 8},
        "methods": {"fedper": {"name": "fedper"}},
    },
}


@dataclass
class Weather:
    """Strikes hospitals whenever a round begins. struck: how often, by what."""

    far: Federation
    random: random.Random
    seen: int = 0
    thaw: dict[str, float] = field(default_factory=dict)
    rise: dict[str, float] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)

    def look(self) -> None:
        now = time.monotonic()
        for site in [one for one, at in self.thaw.items() if now > at]:
            del self.thaw[site]
            self.far.freeze(site, False)
        for site in [one for one, at in self.rise.items() if now > at]:
            del self.rise[site]
            self.far.start(site)
        state = saved(self.far)
        if state is None or state["round"] == self.seen or not 0 < state["round"] < ROUNDS:
            return
        self.seen = state["round"]
        for site in SITES:
            if site not in self.thaw and site not in self.rise and self.random.random() < CHANCE:
                if self.random.random() < KILLED:
                    self.far.kill(site)
                    self.rise[site] = now + 2
                    self.struck["killed"] += 1
                else:
                    self.far.freeze(site, True)
                    self.thaw[site] = now + DEADLINE_S + 1
                    self.struck["hung"] += 1


def saved(far: Federation) -> dict[str, object] | None:
    """What the coordinator's state says."""
    for path in (far.folder / "coordinator" / "runs" / "far").glob("federation/**/state"):
        return dict(from_bytes(unseal_parts(path.read_bytes())).facts)
    return None


def test_fifty_rounds_in_which_hospitals_fail(tmp_path: Path) -> None:
    config = tmp_path / "far.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    begun, commands, told = time.monotonic(), 0, ""
    with federation(tmp_path, SITES) as far:
        weather = Weather(far, random.Random(8))
        while time.monotonic() - begun < 2400:
            commands += 1
            with (tmp_path / f"operator{commands}").open("w+") as out:
                operator = far.submit(config, "--silence", "20", out=out)
                try:
                    until(lambda: weather.look() or operator.poll() is not None, 2400, 0.1)  # noqa: B023
                finally:
                    operator.kill()
                out.seek(0)
                told += out.read()
            if operator.returncode != Exit.SITE:  # too few answered in one round: the same command goes on
                break
        assert operator.returncode == 0, told
        runs = tmp_path / "coordinator" / "runs" / "far"
        (folder,) = (path.parent for path in runs.glob("federation/**/state"))
        outcome = load_outcome(DiskFolder(folder), f"far/{folder.name}")  # records of early rounds have their own files
    assert outcome is not None and outcome.round == ROUNDS + 1
    assert (runs / "report.html").exists()
    missing = {(number, site): code for number, site, code in outcome.missing}
    jobs = len(re.findall(r"^job [0-9a-f-]{36} of ", told, re.MULTILINE))
    seconds = time.monotonic() - begun
    what = (dict(weather.struck), Counter(missing.values()), commands, jobs, seconds)
    logging.getLogger(__name__).info("struck %s, missing %s, %d commands, %d jobs, %.0f s", *what)
    assert weather.struck["hung"] > 20 and weather.struck["killed"] > 2, "there was no weather"
    assert set(missing.values()) <= {"late", "gone", "busy"}
    for site in SITES:
        ledger = far.home(site) / "ledger.jsonl"
        assert not ledgers.verify_ledger(ledger)
        left = [
            line for line in ledgers.read_lines(ledger) if line.get("refused") is None and line["request"] == "train"
        ]
        fresh = Counter(int(str(line["round"])) for line in left if not line.get("again"))
        assert set(fresh.values()) == {1}, "each round is trained and booked once"
        answered = {number for number in range(1, ROUNDS + 1) if (number, site) not in missing}
        assert answered <= set(fresh), "what was merged was booked"
        assert outcome.merged[site] == max(answered)
        assert list(far.home(site).glob("ready/*.safetensors")), "its own model is there"
