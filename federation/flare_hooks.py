"""Restrict what FLARE's client may do at a hospital. Only this file and `flare.py` import FLARE.

By default, FLARE 2.9's client runs `cat`, `ls` and `grep` for anyone who reaches it, other hospitals included: the
sender declares whether a command needs a right. It deploys code for a signer of the role `super`, against the
authorization of the site, and it accepts messages from any other hospital. Here the client and a job's process accept
messages only from the server and each other, offer only the functions that a job needs, and accept one application.
FLARE's server ensures that no participant signs with the name of another one.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.app_common.job_launcher import client_process_launcher
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.fed.client import client_req_processors
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

SERVER = "server"
PROCESSES: Mapping[str, str] = {
    "client": "nvflare.private.fed.app.client.client_train",
    "job": "nvflare.private.fed.app.client.worker_process",
}
"""FLARE's two processes at a hospital; both are started with the restrictions of this file."""
NEEDED = (
    *("ClientStatusProcessor", "CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor"),
    *("StartJobProcessor", "AbortAppProcessor", "AbortTaskProcessor", "DeleteRunNumberProcessor"),
    "NotifyJobStatusProcessor",
)
"""The request processors, of FLARE's 21, that a job needs to start and end."""
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
CLIENT_APP = "pipelines.remote.client.client_app"
CONFIG = "config/config_fed_client.json"
APPLICATION: Mapping[str, Any] = {
    "format_version": 2,
    "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "client_app"}}}],
    "components": [{"id": "client_app", "path": CLIENT_APP, "args": {}}],
}
"""The one application that a hospital accepts: FLARE's executor, and our own worker, without arguments from the job."""
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")


class OnlyOurs(AppValidator):  # type: ignore[misc]  # FLARE has no types
    """FLARE's hook that validates applications: `APPLICATION` in one file, and signatures."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, object]]:
        """An error or an empty string, and facts of the application, which are empty."""
        root = Path(app_folder)
        files = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
        try:
            ours = {path for path in files if Path(path).name not in SIGNATURES} == {CONFIG}
            ours = ours and json.loads((root / CONFIG).read_text()) == APPLICATION
        except (OSError, ValueError):
            ours = False
        return "" if ours else "this hospital takes one application, which is not this one", {}


def reject_foreign(message: Any, own: str) -> Any:
    """FLARE's hook for incoming messages: None accepts one. own: the name of this process, such as `hospital.job`."""
    origin = str(message.get_header(MessageHeaderKey.ORIGIN) or "")
    return None if origin.split(".")[0] in (SERVER, own.split(".")[0]) else make_reply(ReturnCode.UNAUTHENTICATED)


def restrict_client() -> None:
    """Remove FLARE's functions that no job needs, and accept messages only from the server and this hospital's
    processes.
    """
    processors = [
        processor for processor in ClientRequestProcessors.request_processors if type(processor).__name__ in NEEDED
    ]
    if {type(processor).__name__ for processor in processors} != set(NEEDED):
        raise RuntimeError("this FLARE has other processors of requests than 2.9; look at federation/flare_hooks.py")
    client_req_processors.ClientRequestProcessors.request_processors = processors
    original_init, command = CoreCell.__init__, client_process_launcher.generate_client_command

    def init_with_filter(self: Any, *args: Any, **more: Any) -> None:
        original_init(self, *args, **more)
        self.add_incoming_filter(channel="*", topic="*", cb=reject_foreign, own=self.get_fqcn())

    def build_restricted_command(context: Any) -> str:
        return str(command(context)).replace(PROCESSES["job"], f"{__spec__.name} job", 1)

    CoreCell.__init__ = init_with_filter
    client_process_launcher.generate_client_command = build_restricted_command


if __name__ == "__main__":
    process = PROCESSES[sys.argv.pop(1)]
    restrict_client()
    runpy.run_module(process, run_name="__main__")
