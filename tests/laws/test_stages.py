"""A stage has its places: in the run, in docs/reference/stages.md, and in each table of what hospitals are asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from asking import requests_in

from pipelines.coordinator.arguments import STAGE_NAMES
from pipelines.coordinator.run import STAGES
from pipelines.hospital.worker import HANDLERS
from pipelines.requests import REQUESTS as DECLARED
from privacy.release.policy import REQUESTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "pipelines" / "coordinator" / "stages"
FILES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
TABLES = {
    "REQUESTS of privacy/release/policy.py, so that a hospital can refuse it": REQUESTS,
    "HANDLERS of pipelines/hospital/worker.py, with its handler": HANDLERS,
    "REQUESTS of pipelines/requests/__init__.py, with its declaration in a file of its own": DECLARED,
}


def asked() -> set[str]:
    """Every request that the coordinator's code asks."""
    return {request for path in FOLDER.parent.rglob("*.py") for request in requests_in(path)}


def test_every_file_of_a_stage_is_in_the_run_and_named_for_its_stage():
    names = [stage.name for stage in STAGES]
    lost = [name for name in FILES if name not in names]
    assert not lost, (
        f"give the stages {lost} their place in STAGES of pipelines/coordinator/run.py, each after what it needs"
    )
    for place, stage in enumerate(STAGES):
        late = sorted({*stage.needs} - {*names[:place]})
        assert not late, f"{stage.name} needs {late}: in STAGES of pipelines/coordinator/run.py it comes after them"
    assert tuple(FILES) == STAGE_NAMES
    assert sorted(names) == FILES, "a stage lies in pipelines/coordinator/stages/<its name>.py"


def test_the_page_of_stages_has_a_line_for_each_in_the_order_of_the_run():
    section = (ROOT / "docs/reference/stages.md").read_text().partition("\n## ")[0]
    told = re.findall(r"^\| ([a-z]+) \|[^|]{10,}\|[^|]{5,}.*\|$", section, re.MULTILINE)[1:]
    names = [stage.name for stage in STAGES]
    assert told == names, (
        f"{sorted({*told} ^ {*names}) or told}: the table in docs/reference/stages.md has a line for each, in the "
        "order of the run: what happens, and what leaves a site"
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: re.split(r"[ ,]", table)[0])
def test_every_request_has_its_line_in_every_table_of_the_hospital(table):
    wanted = {*asked(), *REQUESTS}
    lost = sorted(wanted - {*TABLES[table]})
    assert not lost, f"{lost}: add to {table}"
    gone = sorted({*TABLES[table]} - wanted)
    assert not gone, f"{gone}: nobody asks it; take it out of {table}"


def test_the_requests_that_are_looked_for_are_found():
    assert {"ingest", "score", "translate", "evaluate", "audit", "holds"} <= asked()


def test_what_a_stage_reads_is_among_its_needs():
    """Else the folder is not there, or an old one is kept."""
    for stage in STAGES:
        text = (FOLDER / f"{stage.name}.py").read_text()
        read = set(re.findall(r"inputs\[\"(\w+)\"\]", text)) - {*stage.needs}
        assert not read, f"{stage.name} reads {sorted(read)}: add it to its needs, in STAGE = Stage(...)"
