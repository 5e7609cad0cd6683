"""Every file of a finished run is there again after the same command, or its loss is named: none is lost in silence.

Each is deleted once and cut in half once; without `--thorough` some are, in one of the ways. It comes back as it was,
byte by byte. The exceptions are below, by patterns of names, and there are no others. Nothing is paid for twice: a
private run's hospitals are not charged.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
from fault_sweep import epsilon
from limited import in_copy
from small_run import PRIVATE, SMALL

from pipelines.run import main
from pipelines.runs.exits import Exit

SETTINGS: dict[str, dict[str, Any]] = {"plain": SMALL, "private": PRIVATE, "harmonized": harmonized_run.settings()}
LOST = r"sites/\w+/ledger\.(jsonl|head)"
"""What cannot be made again: the command says so, with the code `SITE`."""
DATED = (
    r"\w+/\w{12}/manifest\.json|(report/\w{12}|sites/\w+)/(report|statement|ledgers|sites|promises)\.\w+"
    r"|(report|statement)\.\w+"
)
"""What tells when it was made, or how many messages there were: made again, and complete."""
RENEWED = r"sites/\w+/(models|conversations)/\w+/\w+-\w{12}/(\d+|finish-\d+|introduce-0)|witness\.json"
"""What a training needs: it is trained again, under another name. The witness is written with the next question."""
SPENT = r"\.lock|progress\.html|sites/\w+/(phantom/.*|ledger\.lock|conversations/.*|maps/.*|fitting/.*)|federation/.*"
"""What nobody needs any more: replies that were merged, a method's or a translator's state after its last step.
Sources, and locks."""


def files(done: Path, thorough: bool) -> list[str]:
    """Files of a run; unless thorough, those that no manifest of a stage covers, and a few of the others."""
    found = sorted(path.relative_to(done).as_posix() for path in done.rglob("*") if path.is_file())
    found = [name for name in found if not re.fullmatch(SPENT, name) or re.fullmatch(RENEWED, name)]
    own = [name for name in found if re.match(r"sites/a/(ready|scores|translators|qualities|linkage|ledger\.h)", name)]
    return found if thorough else [*own, *found[::17]]


def spent(root: Path) -> dict[str, float]:
    return {site: epsilon(root / "sites" / site / "ledger.jsonl") for site in "ab"}


@pytest.mark.parametrize("kind", ["plain", pytest.param("harmonized", marks=pytest.mark.slow), "private"])
def test_a_file_that_is_gone_or_cut_off_comes_back_or_is_named(kind, finished_run, tmp_path, monkeypatch, thorough):
    done = finished_run(SETTINGS[kind])
    names, paid = files(done / "runs" / "tiny", thorough), spent(done / "runs" / "tiny")
    if kind == "private" and not thorough:
        names = [name for name in names if "/ready/" in name or "/scores/" in name][:2]
    for name, cut in [(name, k) for at, name in enumerate(names) for k in ((0, 1) if thorough else (at % 2,))]:
        here = tmp_path / "here"
        shutil.copytree(done, here)
        monkeypatch.chdir(here)
        path = here / "runs" / "tiny" / name
        before = path.read_bytes()
        path.write_bytes(before[: len(before) // 2]) if cut else path.unlink()
        code, said = in_copy(lambda: main(["tiny.yaml"]))
        now = path.read_bytes() if path.exists() else None
        if re.fullmatch(LOST, name):
            assert (code, "damaged_ledger" in said) == (Exit.SITE, True), f"{name}, cut {cut}: {said}"
        elif re.fullmatch(RENEWED, name):
            assert code == Exit.OK, f"{name}, cut {cut}: {said}"
        else:
            dated = re.fullmatch(DATED, name) and now and len(now) > len(before) * 0.9
            assert code == Exit.OK and (now == before or dated), f"{name}, cut {cut}: {said}"
            assert spent(here / "runs" / "tiny") == paid, f"{name}, cut {cut}: paid for again"
        shutil.rmtree(here)
