"""Who may join: a client of another federation, or with a certificate that ended, is let in by nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from far_federation import LEAD, Federation, federation, provisioned, until
from federation.flare import Jobs
from pipelines.remote.kit import make_strict

pytestmark = pytest.mark.slow

SITE = {"source": {"kind": "phantom", "scanner": "P", "patients": 8, "slices": 4, "seed": 1}}


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
