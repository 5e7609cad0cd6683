"""FLARE's startup kits, made strict: nothing runs at a hospital but what is installed there, and no log leaves it.

A kit as provisioned lets the job's author bring code, lets a coordinator stream a hospital's logs, and keeps jobs in
/tmp. What we write lies in the kit's `local/`, which FLARE reads before its own defaults and never signs or sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

Role = Literal["hospital", "coordinator"]
RUNTIME = "nvflare.collab.runtime"
WARD, BUREAU = "pipelines.remote.ward.ward", "pipelines.remote.bureau.bureau"
ALLOWED: Mapping[Role, tuple[str, ...]] = {
    "hospital": (f"{RUNTIME}.executor.CollabExecutor", WARD),
    "coordinator": (f"{RUNTIME}.controller.CollabController", BUREAU),
}
"""All that a job may build on either side."""
KEPT = ("resource_manager", "resource_consumer", "process_launcher", "job_scheduler", "job_manager", "job_store")
"""Of FLARE's own parts; those that send or receive logs are not among them."""
NOT_HERE = ("byoc", "shell_commands", "clone_job", "server-predeployed-flwr")
HEARTBEAT_S = 30


def role_of(kit: Path) -> Role:
    """Whose kit it is. Raises: ValueError: no kit of a hospital or a coordinator's server."""
    if (kit / "startup" / "fed_client.json").is_file():
        return "hospital"
    if (kit / "startup" / "fed_server.json").is_file():
        return "coordinator"
    raise ValueError(f"kit: {kit} holds neither startup/fed_client.json nor startup/fed_server.json; unpack the kit")


def address_in(kit: Path) -> tuple[str, int]:
    """Where the coordinator is, by a hospital's kit."""
    said = json.loads((kit / "startup" / "fed_client.json").read_text())
    host, _, port = str(said["servers"][0]["service"]["target"]).rpartition(":")
    return host, int(port)


def strict(kit: Path) -> bool:
    """Whether `make_strict` was here, and nobody after it."""
    try:
        return all(json.loads(path.read_text()) == made for path, made in _made(kit))
    except (OSError, ValueError):
        return False


def make_strict(kit: Path) -> None:
    """Write `local/resources.json` and `local/authorization.json`; what a person wrote there is replaced."""
    for path, made in _made(kit):
        path.write_text(json.dumps(made, indent=1))
        path.chmod(0o600)


def _made(kit: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    local = kit / "local"
    yield local / "resources.json", _resources(kit, role_of(kit))
    yield local / "authorization.json", _authorization(local)


def _resources(kit: Path, role: Role) -> dict[str, Any]:
    said = _read(kit / "local" / "resources.json.default")
    said |= {"class_list_enforcement_mode": "enforce", "class_allow_list": list(ALLOWED[role])}
    said["components"] = [one for one in said["components"] if one["id"] in KEPT]
    if role == "hospital":
        return said | {"allow_log_streaming": False}
    said["servers"] = [{**one, "heart_beat_timeout": HEARTBEAT_S} for one in said["servers"]]
    text = json.dumps(said).replace("/tmp/nvflare/", f"{kit.resolve() / 'kept'}/")  # noqa: S108 - what it must not be
    whole: dict[str, Any] = json.loads(text)
    return whole


def _authorization(local: Path) -> dict[str, Any]:
    said = _read(local / "authorization.json.default")
    said["permissions"] = {
        role: {**rights, **{right: "none" for right in NOT_HERE if right in rights}}
        if isinstance(rights, dict)
        else {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
        for role, rights in said["permissions"].items()
    }
    return said


def _read(path: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(path.read_text())
    return whole


def write_job(folder: Path, name: str, order: Path, sites: tuple[str, ...]) -> None:
    """A job that says which of our two functions to start, and where the coordinator's order lies. No code is in it."""
    parts: dict[str, dict[str, Any]] = {
        "meta.json": {
            "name": name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"bureau": ["server"], "ward": list(sites)},
        },
        "bureau/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "controller", "path": ALLOWED["coordinator"][0], "args": {"server_obj_id": "bureau"}}],
            "components": [{"id": "bureau", "path": BUREAU, "args": {"order": str(order)}}],
        },
        "ward/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [
                {"tasks": ["*"], "executor": {"path": ALLOWED["hospital"][0], "args": {"client_obj_id": "ward"}}}
            ],
            "components": [{"id": "ward", "path": WARD, "args": {}}],
        },
    }
    for place, made in parts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made, indent=1))
