"""Make FLARE's startup kits strict: a hospital runs only code that is installed there, and no log leaves it.

A kit as provisioned lets the job's author bring code, lets a coordinator stream a hospital's logs, and keeps jobs in
/tmp. Our files lie in the kit's `local/`, which FLARE reads before its own defaults and never signs or sends.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from federation.flare_hooks import APPLICATION, CLIENT_APP, EXECUTOR

Role = Literal["hospital", "coordinator"]
SERVER_APP = "pipelines.remote.server.server_app"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
APP = "nvflare.app_common"
HOSPITAL: Mapping[str, Any] = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": [EXECUTOR, CLIENT_APP],
    "app_validator": {"path": "federation.flare_hooks.OnlyOurs", "args": {}},
    "allow_log_streaming": False,
    "client": {"retry_timeout": 30, "compression": "Gzip"},
    "components": [
        {
            "id": "resource_manager",
            "path": f"{APP}.resource_managers.gpu_resource_manager.GPUResourceManager",
            "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
        },
        {
            "id": "resource_consumer",
            "path": f"{APP}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
            "args": {},
        },
        {
            "id": "process_launcher",
            "path": f"{APP}.job_launcher.client_process_launcher.ClientProcessJobLauncher",
            "args": {},
        },
    ],
}
"""A hospital's whole `resources.json`: nothing in it comes from the person who provisioned the kit."""
NO_RIGHTS: Mapping[str, Any] = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {"view": "any"},
        "org_admin": {"view": "any"},
        "lead": {"submit_job": "any", "manage_job": "n:submitter", "view": "any"},
        "member": {"view": "any"},
    },
}
LOG: Mapping[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(name)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stdout"}},
    "loggers": {"root": {"level": "INFO", "handlers": ["console"]}},
}
"""Log to standard output (the journal), and to no file."""
_SCRIPTS = ("start.sh", "sub_start.sh", "stop_fl.sh")
STARTUP = frozenset(("fed_client.json", "client.crt", "client.key", "rootCA.pem", "signature.json", *_SCRIPTS))
LOCAL = frozenset(
    f"{name}.json{end}" for name in ("resources", "authorization", "log_config") for end in ("", ".default")
) | {"privacy.json.sample"}
KEYS: Mapping[str, frozenset[str]] = {
    "": frozenset(("format_version", "servers", "client")),
    "servers": frozenset(("name", "service", "identity")),
    "client": frozenset(("ssl_private_key", "ssl_cert", "ssl_root_cert", "fqsn", "is_leaf", "connection_security")),
}
KEPT_COMPONENTS = (
    "resource_manager",
    "resource_consumer",
    "process_launcher",
    "job_scheduler",
    "job_manager",
    "job_store",
)
"""The server's components that stay; those that receive logs are removed."""
NOT_HERE = ("byoc", "shell_commands", "clone_job", "server-predeployed-flwr")
HEARTBEAT_S = 30
JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def role_of(kit: Path) -> Role:
    """The owner of a kit. Raises: ValueError: it is neither a hospital's nor a coordinator's server's."""
    if (kit / "startup" / "fed_client.json").is_file():
        return "hospital"
    if (kit / "startup" / "fed_server.json").is_file():
        return "coordinator"
    raise ValueError(f"kit: {kit} holds neither startup/fed_client.json nor startup/fed_server.json; unpack the kit")


def address_in(kit: Path) -> tuple[str, int]:
    """The coordinator's host and port in a hospital's kit. Raises: ValueError: the kit has no address; OSError."""
    client_file = json.loads((kit / "startup" / "fed_client.json").read_text())
    try:
        host, _, port = str(client_file["servers"][0]["service"]["target"]).rpartition(":")
        return host, int(port)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"startup/fed_client.json says no address of a server ({type(error).__name__})") from error


def foreign_entries(kit: Path) -> list[str]:
    """Entries that do not belong in a hospital's kit: files, and keys of `fed_client.json`."""
    entries = [
        f"{folder}/{path.name}"
        for folder, known in (("startup", STARTUP), ("local", LOCAL))
        if (kit / folder).is_dir()
        for path in sorted((kit / folder).iterdir())
        if path.name not in known or not path.is_file()
    ]
    try:
        client_file = json.loads((kit / "startup" / "fed_client.json").read_text())
        groups = [
            ("", client_file),
            ("client", client_file["client"]),
            *(("servers", server) for server in client_file["servers"]),
        ]
        entries += [
            f"startup/fed_client.json: {key}" for name, group in groups for key in group if key not in KEYS[name]
        ]
        if client_file["client"].get("connection_security") != "mtls":
            entries.append("startup/fed_client.json: connection_security is not mtls")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        entries.append(f"startup/fed_client.json: cannot be read ({type(error).__name__})")
    return entries


def is_strict(kit: Path) -> bool:
    """Whether the kit is as `make_strict` left it, without foreign entries."""
    try:
        return not (role_of(kit) == "hospital" and foreign_entries(kit)) and all(
            json.loads(path.read_text()) == made for path, made in _build_strict_files(kit)
        )
    except (OSError, ValueError):
        return False


def make_strict(kit: Path) -> None:
    """Write the strict settings in `local/`, replacing the files that are there.

    Raises:
        ValueError: a hospital's kit holds files or settings that no kit needs.
        OSError: a file cannot be written.
    """
    if role_of(kit) == "hospital" and (entries := foreign_entries(kit)):
        raise ValueError(f"kit: {kit} holds what no kit needs: {', '.join(entries)}; ask why, and remove it")
    for path, made in _build_strict_files(kit):
        path.write_text(json.dumps(made, indent=1))
        path.chmod(0o600)


def forget_jobs(kit: Path) -> None:
    """Remove the folders of earlier jobs from a hospital's kit: FLARE never does."""
    for path in kit.iterdir():
        if JOB.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _build_strict_files(kit: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    local = kit / "local"
    if role_of(kit) == "hospital":
        for name, rules in (("resources", HOSPITAL), ("authorization", NO_RIGHTS), ("log_config", LOG)):
            yield local / f"{name}.json", dict(rules)
        return
    yield local / "resources.json", _build_resources(kit)
    yield local / "authorization.json", _build_authorization(local)


def _build_resources(kit: Path) -> dict[str, Any]:
    """The server's `resources.json`: in the coordinator's own kit, on the coordinator's machine."""
    resources = _read_json(kit / "local" / "resources.json.default")
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": [CONTROLLER, SERVER_APP]}
    resources["components"] = [component for component in resources["components"] if component["id"] in KEPT_COMPONENTS]
    resources["servers"] = [{**server, "heart_beat_timeout": HEARTBEAT_S} for server in resources["servers"]]
    text = json.dumps(resources).replace("/tmp/nvflare/", f"{kit.resolve() / 'kept'}/")  # noqa: S108 - the path to replace
    content: dict[str, Any] = json.loads(text)
    return content


def _build_authorization(local: Path) -> dict[str, Any]:
    rules = _read_json(local / "authorization.json.default")
    rules["permissions"] = {
        role: {**rights, **{right: "none" for right in NOT_HERE if right in rights}}
        if isinstance(rights, dict)
        else {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
        for role, rights in rules["permissions"].items()
    }
    return rules


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def write_job(folder: Path, name: str, order: Path, sites: tuple[str, ...]) -> None:
    """Write a job: the paths of our two apps, and that of the coordinator's order. It contains no code."""
    parts: dict[str, Mapping[str, Any]] = {
        "meta.json": {
            "name": name,
            "resource_spec": {},
            "min_clients": 1,
            "deploy_map": {"server_app": ["server"], "client_app": list(sites)},
        },
        "server_app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "server_app"}}],
            "components": [{"id": "server_app", "path": SERVER_APP, "args": {"order": str(order)}}],
        },
        "client_app/config/config_fed_client.json": APPLICATION,
    }
    for place, made in parts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made, indent=1))
