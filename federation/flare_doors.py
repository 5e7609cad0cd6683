"""Restrict what FLARE's client may do at a hospital. Beside `flare.py`, the only file that imports FLARE.

As it comes, FLARE 2.9's client runs `cat`, `ls` and `grep` for whoever reaches it, other hospitals too: whether a
command needs a right is what its sender says. It deploys code for a signer of the role `super`, whatever the site's
authorization says; and whatever any other hospital sends reaches it. Here the client and the process of a job hear the
server and each other alone, know what a job needs and nothing else, and take one application. FLARE's server sees to it
that nobody signs with another's name.
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
"""FLARE's two processes at a hospital, which we begin narrowed."""
NEEDED = (
    *("ClientStatusProcessor", "CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor"),
    *("StartJobProcessor", "AbortAppProcessor", "AbortTaskProcessor", "DeleteRunNumberProcessor"),
    "NotifyJobStatusProcessor",
)
"""Of FLARE's 21 processors of requests: those without which no job begins or ends."""
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
WARD = "pipelines.remote.client.ward"
CONFIG = "config/config_fed_client.json"
APPLICATION: Mapping[str, Any] = {
    "format_version": 2,
    "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "ward"}}}],
    "components": [{"id": "ward", "path": WARD, "args": {}}],
}
"""The one application that a hospital takes: FLARE's executor, and our own worker, which is told nothing by the job."""
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")


class OnlyOurs(AppValidator):  # type: ignore[misc]  # FLARE has no types
    """FLARE's hook for what may be deployed: `APPLICATION` in one file, and signatures."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, object]]:
        """An error, or an empty string; and facts of the application, of which there are none."""
        root = Path(app_folder)
        files = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
        try:
            ours = {one for one in files if Path(one).name not in SIGNATURES} == {CONFIG}
            ours = ours and json.loads((root / CONFIG).read_text()) == APPLICATION
        except (OSError, ValueError):
            ours = False
        return "" if ours else "this hospital takes one application, which is not this one", {}


def reject_foreign(message: Any, own: str) -> Any:
    """FLARE's hook for what arrives: None lets it in. own: this process's name, of the kind `hospital.job`."""
    origin = str(message.get_header(MessageHeaderKey.ORIGIN) or "")
    return None if origin.split(".")[0] in (SERVER, own.split(".")[0]) else make_reply(ReturnCode.UNAUTHENTICATED)


def narrow() -> None:
    """Take from FLARE in this process what no job needs, and let it hear the server and its own hospital alone."""
    kept = [one for one in ClientRequestProcessors.request_processors if type(one).__name__ in NEEDED]
    if {type(one).__name__ for one in kept} != set(NEEDED):
        raise RuntimeError("this FLARE has other processors of requests than 2.9; look at federation/flare_doors.py")
    client_req_processors.ClientRequestProcessors.request_processors = kept
    begun, command = CoreCell.__init__, client_process_launcher.generate_client_command

    def begin(self: Any, *args: Any, **more: Any) -> None:
        begun(self, *args, **more)
        self.add_incoming_filter(channel="*", topic="*", cb=reject_foreign, own=self.get_fqcn())

    def narrowed(context: Any) -> str:
        return str(command(context)).replace(PROCESSES["job"], f"{__spec__.name} job", 1)

    CoreCell.__init__ = begin
    client_process_launcher.generate_client_command = narrowed


if __name__ == "__main__":
    process = PROCESSES[sys.argv.pop(1)]
    narrow()
    runpy.run_module(process, run_name="__main__")
