"""Who may join, and what may be done from inside: a client of another federation, or with a certificate that ended, is
let in by nobody; a hospital that means harm to another gets no file from it, and stops nothing there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from federation.flare import Jobs
from flare_processes import LEAD, PLAIN_RUN, Federation, federation, provisioned, until
from pipelines.remote.startup_kit import make_strict

pytestmark = pytest.mark.slow

SITE = {"source": {"kind": "phantom", "scanner": "P", "patients": 8, "slices": 4, "seed": 1}}
RUN = {
    **PLAIN_RUN,
    "model": {"name": "cnn", "widths": [8, 16], "norm": "group"},
    "train": {
        "schedule": {"rounds": 10},
        "work": {"lr": 1e-2, "batch": 8, "epochs": None, "steps": 40},
        "methods": {"fedavg": {"name": "fedavg"}},
    },
}


def client(kit: Path, name: str, out: Path) -> subprocess.Popen[bytes]:
    """FLARE's client without our look-over, which would stop it before it tries."""
    make_strict(kit)
    with out.open("ab") as file:
        return subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "nvflare.private.fed.app.client.client_train"),
                *("-m", str(kit), "-s", "fed_client.json", "--set", "secure_train=true"),
                *(f"uid={name}", f"org={name}_hospital", "config_folder=config"),
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def expired(far: Federation, name: str) -> None:
    """Give a kit a certificate of the right authority that ended yesterday."""

    state = json.loads((far.folder / "workspace" / "consilium" / "state" / "cert.json").read_text())
    key = serialization.load_pem_private_key(state["root_pri_key"].encode(), password=None)
    path = far.kits / name / "startup" / "client.crt"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now - timedelta(days=1))
    )
    for one in old.extensions:
        made = made.add_extension(one.value, one.critical)
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))  # type: ignore[arg-type]


def test_only_who_was_provisioned_here_and_now_is_let_in(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    foreign = provisioned(theirs, ("b",)) / "b"
    with federation(mine, {"a": SITE, "c": SITE}, start=("server",)) as far:
        expired(far, "c")
        settings = foreign / "startup" / "fed_client.json"
        settings.write_text(settings.read_text().replace((theirs / "port").read_text(), str(far.port)))
        tries = {name: client(kit, name, tmp_path / name) for name, kit in (("b", foreign), ("c", far.kits / "c"))}
        try:
            far.start("a")
            jobs = Jobs(far.kits / LEAD)
            until(lambda: "a" in jobs.signs_of_life(), 120, 1.0)
            time.sleep(20)
            assert set(jobs.signs_of_life()) == {"a"}
            jobs.close()
        finally:
            for process in tries.values():
                process.kill()
    assert "Successfully registered" not in (tmp_path / "b").read_text() + (tmp_path / "c").read_text()


HOSTILE = Path(__file__).parents[1] / "hostile.py"


def test_a_hospital_gets_nothing_from_another_and_stops_nothing_there(tmp_path: Path) -> None:
    """The same messages fetch the file from a client of FLARE as it comes."""
    secret, out = tmp_path / "labels.csv", tmp_path / "harm.jsonl"
    secret.write_text("Mueller_Hans_1953")
    config = tmp_path / "far.yaml"
    sites = {name: {"source": {**SITE["source"], "seed": seed}} for seed, name in enumerate("ab", 1)}
    config.write_text(yaml.safe_dump({**RUN, "sites": sites}))
    with federation(tmp_path, sites, start=("server", "a")) as far:
        with (tmp_path / "b.out").open("ab") as file:
            far.running["b"] = subprocess.Popen(
                [sys.executable, "-uP", str(HOSTILE), str(far.kits / "b"), "b", "a", str(secret), str(out)],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CONSILIUM_SITE": str(far.settings("b"))},
            )
        said, _ = far.submit(config).communicate(timeout=240)
    tries = [json.loads(line) for line in out.read_text().splitlines()]
    assert {one["what"] for one in tries} == {"file", "process_info", "config_vars", "stop_cell", "abort"}
    nothing = ("None", "Messenger is not running")  # the second before it is connected
    assert not [one for one in tries if one["said"] not in nothing], tries
    assert (tmp_path / "coordinator" / "runs" / "far" / "report.html").exists(), said
    assert said.count("job ") == 1, "one job from beginning to end"
