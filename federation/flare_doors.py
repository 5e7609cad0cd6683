"""What FLARE's client may do at a hospital: less than FLARE lets it. The other file that imports it.

As it comes, FLARE 2.9's client runs `cat`, `ls` and `grep` for whoever reaches it, other hospitals too: whether a
command needs a right is what its sender says. It deploys code for a signer of the role `super`, whatever the site's
authorization says. Here it hears the server alone, knows what a job needs and nothing else, and takes one application.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.client import admin, client_req_processors
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

SERVER = "server"
NEEDED = (
    *("ClientStatusProcessor", "CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor"),
    *("StartJobProcessor", "AbortAppProcessor", "AbortTaskProcessor", "DeleteRunNumberProcessor"),
    "NotifyJobStatusProcessor",
)
"""Of FLARE's 21 processors of requests: those without which no job begins or ends."""
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
WARD = "pipelines.remote.ward.ward"
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


def narrow() -> None:
    """Take from FLARE's client in this process what no job needs, and let it hear the server alone."""
    kept = [one for one in ClientRequestProcessors.request_processors if type(one).__name__ in NEEDED]
    if {type(one).__name__ for one in kept} != set(NEEDED):
        raise RuntimeError("this FLARE has other processors of requests than 2.9; look at federation/flare_doors.py")
    client_req_processors.ClientRequestProcessors.request_processors = kept
    heard = FedAdminAgent._dispatch_request

    def dispatch(self: Any, request: Any) -> Any:
        if request.get_header(MessageHeaderKey.ORIGIN) != SERVER:
            return new_cell_message({}, admin.error_reply("invalid_request"))
        return heard(self, request)

    FedAdminAgent._dispatch_request = dispatch


def run_client() -> None:
    """Be FLARE's client, narrowed; the command line is its own."""
    narrow()
    runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__")


if __name__ == "__main__":
    run_client()
