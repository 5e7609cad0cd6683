"""python -m pipelines.remote.serve KIT: the coordinator's FLARE server. A hospital's client is started here, too.

FLARE's own `start.sh` restarts its process in a loop. Here FLARE's process replaces ours instead, so that systemd sees
it and does all restarts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.x509.oid import NameOID

from pipelines.remote.client import SETTINGS
from pipelines.remote.site_config import Place
from pipelines.remote.startup_kit import forget_jobs, make_strict, role_of
from pipelines.runs.exits import Exit, end_process

NARROWED = ("federation.flare_hooks", "client")
FEW_HEAPS = ("MALLOC_ARENA_MAX", "2")
"""glibc gives threads heaps of their own, up to eight a core, and each keeps what its largest moment needed."""
SERVER = ("nvflare.private.fed.app.server.server_train",)


def become_client(place: Place, settings: Path) -> NoReturn:
    """Replace this process by the hospital's FLARE client, with a strict kit and these settings."""
    os.environ.setdefault(*FEW_HEAPS)
    os.environ[SETTINGS] = str(settings.resolve())
    forget_jobs(Path(place.kit))
    _become_process(Path(place.kit), NARROWED, "fed_client.json", "client.crt", f"uid={place.name}")


def become_server(kit: Path) -> NoReturn:
    """Replace this process by FLARE's server, with a strict kit."""
    os.environ.setdefault(*FEW_HEAPS)
    _become_process(kit, SERVER, "fed_server.json", "server.crt")


def _become_process(kit: Path, module: Sequence[str], config: str, certificate: str, *more: str) -> NoReturn:
    os.umask(0o077)
    make_strict(kit)
    kit = kit.resolve()
    certificate_of_kit = x509.load_pem_x509_certificate((kit / "startup" / certificate).read_bytes())
    (org,) = (
        str(attribute.value)
        for attribute in certificate_of_kit.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    )
    (kit / "transfer").mkdir(exist_ok=True)
    options = ["secure_train=true", *more, f"org={org}", "config_folder=config"]
    os.execv(sys.executable, [sys.executable, "-u", "-m", *module, "-m", str(kit), "-s", config, "--set", *options])  # noqa: S606


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the server; returns only if that fails."""
    line = argparse.ArgumentParser(prog="python -m pipelines.remote.serve", description=__doc__.splitlines()[0])
    line.add_argument("kit", help="folder of the server's startup kit")
    kit = Path(line.parse_args(arguments).kit)
    try:
        if role_of(kit) != "coordinator":
            raise ValueError(f"kit: {kit} is a hospital's; hospitals join with python -m pipelines.site SITE.yaml")
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return int(Exit.CONFIG)
    become_server(kit)


if __name__ == "__main__":
    end_process(main)
