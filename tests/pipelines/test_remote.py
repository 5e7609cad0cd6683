"""A hospital before it joins, its kit, and what a coordinator may not order; without FLARE's processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from certificates import Authority
from federation.flare_hooks import OnlyOurs
from flare_processes import PLAIN_RUN
from pipelines.coordinator.arguments import parse_arguments
from pipelines.coordinator.run import run_command, simulated_engines
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.remote import preflight as looking
from pipelines.remote.order import GONE
from pipelines.remote.preflight import check_place, list_promises, list_releases
from pipelines.remote.server import make_loss_recorder
from pipelines.remote.site_config import Place, read_place
from pipelines.remote.startup_kit import forget_jobs, is_strict, make_strict, role_of, write_job
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.config import Config
from pipelines.site import main as join
from privacy.release import ledger as ledgers
from privacy.release.policy import REQUESTS, Budget, Policy

SHARED = "/tmp/nvflare/jobs-storage"  # noqa: S108 - where FLARE would keep jobs
SOURCE = {"kind": "phantom", "scanner": "P", "patients": 8, "seed": 1, "slices": 4}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new()


def place(folder: Path, kit: Path, **changes: object) -> Place:
    said = {"name": "north", "kit": str(kit), "root": str(folder / "root"), "device": "cpu", "site": {"source": SOURCE}}
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump({**said, **changes}))
    return read_place(str(path))


def findings(made: Place) -> dict[str, tuple[bool, str]]:
    return {what: (good, text) for what, good, text in check_place(made)}


def test_settings_are_wrong_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        place(tmp_path, tmp_path, name="No rth", threads=-1, site={"source": {"kind": "elsewhere"}})
    assert [problem.path for problem in told.value.problems] == ["name", "site.source", "threads"]
    assert "elsewhere is here" in told.value.problems[1].message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"home": "/srv"}, "site.home: root is the hospital's own folder"),
        ({"part": {"kind": "even", "of": 2}}, "dealing out"),
    ],
)
def test_what_is_for_simulations_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place(tmp_path, tmp_path, site={"source": SOURCE, **changes})


def test_a_good_hospital_lacks_only_the_coordinator(tmp_path: Path, authority: Authority) -> None:
    found = findings(place(tmp_path, authority.kit(tmp_path / "kit", "north", port=9)))
    assert {what for what, (good, _) in found.items() if not good} == {"coordinator"}
    assert "one outbound TCP port is needed" in found["coordinator"][1]
    assert found["data"][1].endswith("MB") and "north" in found["certificate"][1]


def test_a_policy_by_which_no_run_could_begin_is_told(tmp_path: Path) -> None:
    found = findings(place(tmp_path, tmp_path, site={"source": SOURCE, "policy": {"requests": ["train"]}}))
    assert not found["policy"][0] and "survey (policy_request): policy.requests lacks it" in found["policy"][1]


def test_a_budget_alone_is_a_policy_by_which_a_run_can_begin(tmp_path: Path) -> None:
    found = findings(place(tmp_path, tmp_path, site={"source": SOURCE, "policy": {"budget": {"epsilon": 8.0}}}))
    assert "policy" not in found and "files" in found["data"][1], "its counts leave with noise; here they are its own"


def test_by_the_shipped_policy_a_run_can_begin(tmp_path: Path) -> None:
    shipped = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "flare" / "site.yaml").read_text())
    made = place(tmp_path, tmp_path, site={"source": SOURCE, "policy": shipped["site"]["policy"]})
    assert made.site.policy.budget is not None and "policy" not in findings(made)


@pytest.mark.parametrize(
    ("common", "after", "days", "said"),
    [
        ("north", -20, 10, "ended"),
        ("north", 2, 10, "is the clock right"),
        ("south", 0, 90, "is for 'south', and name: says 'north'"),
    ],
)
def test_a_certificate_that_will_not_do_is_told(
    tmp_path: Path, authority: Authority, common: str, after: float, days: float, said: str
) -> None:
    kit = authority.kit(tmp_path / "kit", common, port=9, after=after, days=days)
    good, text = findings(place(tmp_path, kit))["certificate"]
    assert not good and said in text


def test_a_certificate_of_another_authority_is_told(tmp_path: Path, authority: Authority) -> None:
    kit = authority.kit(tmp_path / "kit", "north", port=9)
    other = Authority.new().kit(tmp_path / "other", "north", port=9)
    (kit / "startup" / "rootCA.pem").write_bytes((other / "startup" / "rootCA.pem").read_bytes())
    good, text = findings(place(tmp_path, kit))["certificate"]
    assert not good and "ask the coordinator for a new kit" in text


def test_a_kit_that_soon_ends_and_an_open_key_are_told(tmp_path: Path, authority: Authority) -> None:
    kit = authority.kit(tmp_path / "kit", "north", port=9, days=10)
    (kit / "startup" / "client.key").chmod(0o644)
    found = findings(place(tmp_path, kit))
    assert found["certificate"][0] and "ask for a new kit soon" in found["certificate"][1]
    assert not found["private key"][0] and "chmod 600" in found["private key"][1]


def test_no_kit_no_files_and_no_room_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "NEEDED_GB", 1e9)
    source = {"kind": "table", "file": str(tmp_path / "none.csv"), "label": "y"}
    found = findings(place(tmp_path, tmp_path / "nowhere", site={"source": source}))
    assert [found[what][0] for what in ("certificate", "coordinator", "data", "disk")] == [False] * 4
    assert "none.csv" in found["data"][1] and "GB are needed" in found["disk"][1]


def test_a_ledger_from_the_future_stops_the_hospital(tmp_path: Path, authority: Authority) -> None:
    made = place(tmp_path, authority.kit(tmp_path / "kit", "north", port=9))
    assert findings(made)["clock"][0]
    from privacy.release import ledger as ledgers

    ledger = Path(made.root) / "ledger.jsonl"
    ledgers.append_line(ledger, {"time": "2100-01-01T00:00:00+00:00", "request": "survey"})
    good, text = findings(made)["clock"]
    assert not good and "2100-01-01" in text


def test_looking_writes_no_line_into_the_ledger(tmp_path: Path, authority: Authority) -> None:
    made = place(tmp_path, authority.kit(tmp_path / "kit", "north", port=9))
    check_place(made)
    assert not (Path(made.root) / "ledger.jsonl").exists()


def test_every_request_is_said_with_what_it_releases() -> None:
    whole = dict(list_releases(Policy()))
    assert set(whole) == set(REQUESTS) and whole["pool"] == "not answered"
    few = dict(list_releases(Policy(requests=("survey",))))
    assert [request for request, text in few.items() if text != "not answered"] == ["survey"]
    assert any(
        "epsilon 2, delta 1e-06" in text for text in list_promises(Policy(budget=Budget(epsilon=2.0, delta=1e-6)))
    )
    assert any("promises nothing" in text for text in list_promises(Policy()))


def test_check_over_flare_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prostate_adc_private.yaml", "--engine", "flare", "--check"]) == 2
    assert "--check: checks this machine only" in capsys.readouterr().err.replace("\n", " ")


def test_check_says_whether_the_hospital_can_join(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place(tmp_path, authority.kit(tmp_path / "kit", "north", port=9))
    assert join([str(tmp_path / "site.yaml"), "--check"]) == 4
    said = capsys.readouterr().err
    assert "cannot join yet" in said and "What this hospital would release" in said and "Traceback" not in said
    assert join([str(tmp_path / "none.yaml"), "--check"]) == 2


# Kits


CLIENT = {
    "format_version": 2,
    "servers": [{"name": "consilium", "service": {"target": "localhost:9", "scheme": "grpc"}, "identity": "localhost"}],
    "client": {"fqsn": "north", "is_leaf": True, "connection_security": "mtls"},
}


def kit(folder: Path, role: str) -> Path:
    """What FLARE provisions, as far as we touch it."""
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    (folder / "startup" / f"fed_{role}.json").write_text(json.dumps(CLIENT if role == "client" else {}))
    parts = ["resource_manager", "process_launcher", "site_log_streamer", "log_receiver", "job_manager"]
    resources = {
        "format_version": 2,
        "class_allow_list": ["everything"],
        "allow_log_streaming": True,
        "handlers": [{"path": "evil.Handler"}],
        "servers": [{"heart_beat_timeout": 600}],
        "components": [{"id": one, "path": "os.system", "args": {"uri_root": SHARED}} for one in parts],
    }
    rights = {"submit_job": "any", "byoc": "any", "shell_commands": "o:site", "clone_job": "n:submitter", "view": "any"}
    (folder / "local" / "resources.json.default").write_text(json.dumps(resources))
    permissions = {"permissions": {"project_admin": "any", "lead": rights, "member": {"view": "any"}}}
    (folder / "local" / "authorization.json.default").write_text(json.dumps(permissions))
    return folder


def read(folder: Path, name: str) -> dict[str, object]:
    return json.loads((folder / "local" / f"{name}.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_strict_kit_lets_two_classes_in_and_no_code_and_no_logs_out(tmp_path: Path, role: str) -> None:
    made = kit(tmp_path / "kit", role)
    assert not is_strict(made)
    make_strict(made)
    assert is_strict(made)
    resources, rights = read(made, "resources"), read(made, "authorization")["permissions"]
    allowed = resources["class_allow_list"]
    assert isinstance(allowed, list) and len(allowed) == 2 and resources["class_list_enforcement_mode"] == "enforce"
    assert not [one for one in resources["components"] if "log" in one["id"]]  # type: ignore[attr-defined]
    for who in rights.values():  # type: ignore[attr-defined]
        assert isinstance(who, dict) and who.get("byoc", "none") == who.get("shell_commands", "none") == "none"
    if role == "client":
        assert resources["allow_log_streaming"] is False
        assert "os.system" not in json.dumps(resources) and "handlers" not in resources, "of the kit's maker, nothing"
    else:
        assert SHARED not in json.dumps(resources)
    (made / "local" / "authorization.json").write_text("{}")
    assert not is_strict(made)


@pytest.mark.parametrize(
    "stranger",
    ["local/custom/sitecustomize.py", "local/job_resources.json", "local/privacy.json", "startup/extra.json"],
)
def test_what_no_kit_needs_stops_the_hospital(tmp_path: Path, authority: Authority, stranger: str) -> None:
    made = kit(tmp_path / "kit", "client")
    (made / stranger).parent.mkdir(exist_ok=True)
    (made / stranger).write_text("{}")
    with pytest.raises(ValueError, match="holds what no kit needs"):
        make_strict(made)
    good, text = findings(place(tmp_path, made))["kit"]
    assert not good and stranger.split("/")[1] in text


@pytest.mark.parametrize(
    "changes",
    [{"overseer_agent": {}}, {"client": {**CLIENT["client"], "connection_security": "tls"}}, {"servers": [None]}],  # type: ignore[dict-item]
)
def test_settings_that_no_kit_needs_stop_the_hospital(tmp_path: Path, changes: dict[str, object]) -> None:
    made = kit(tmp_path / "kit", "client")
    (made / "startup" / "fed_client.json").write_text(json.dumps({**CLIENT, **changes}))
    with pytest.raises(ValueError, match=r"fed_client\.json"):
        make_strict(made)


def application(folder: Path) -> Path:
    write_job(folder / "job", "far", folder / "order.json", ("a",))
    return folder / "job" / "client_app"


def test_a_hospital_takes_one_application(tmp_path: Path) -> None:
    ours = application(tmp_path)
    assert OnlyOurs().validate(str(ours)) == ("", {})
    (ours / "config" / ".__nvfl_sig.json").write_text("{}")
    assert OnlyOurs().validate(str(ours)) == ("", {})


@pytest.mark.parametrize("change", ["file", "args", "component", "filter", "props", "garbage"])
def test_a_hospital_takes_no_other_application(tmp_path: Path, change: str) -> None:
    ours = application(tmp_path)
    path = ours / "config" / "config_fed_client.json"
    said = json.loads(path.read_text())
    if change == "file":
        (ours / "custom").mkdir()
        (ours / "custom" / "code.py").write_text("")
    elif change == "args":
        said["components"][0]["args"] = {"settings": "/elsewhere"}
    elif change == "component":
        said["components"].append({"id": "more", "path": "pipelines.remote.client.client_app"})
    elif change == "filter":
        said["task_result_filters"] = []
    elif change == "props":
        said["executors"][0]["executor"]["args"]["props"] = {"a": 1}
    path.write_text("[" if change == "garbage" else json.dumps(said))
    assert OnlyOurs().validate(str(ours))[0]


def test_flares_client_knows_what_a_job_needs_and_hears_the_server_and_itself_alone() -> None:
    """In a process of its own: what is taken from FLARE is taken for good."""
    program = """
import os
from types import SimpleNamespace
from federation import flare_hooks
from nvflare.app_common.job_launcher import client_process_launcher
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.private.fed.app.deployer.base_client_deployer import BaseClientDeployer

client_process_launcher.generate_client_command = lambda context: "python -m " + flare_hooks.PROCESSES["job"] + " -n 1"
flare_hooks.restrict_client()
names = {type(one).__name__ for one in BaseClientDeployer().req_processors}
assert names == set(flare_hooks.NEEDED), names
command = client_process_launcher.generate_client_command(None)
assert command == "python -m federation.flare_hooks job -n 1", command
cell, heard = CoreCell(fqcn="a.job", root_url="tcp://localhost:1", secure=False, credentials={}), []
cell.register_request_cb("client_command", "*", lambda request: heard.append(request.get_header(Key.ORIGIN)))
for origin in ("b", "b.job", "b.server", "a2", "servers", "server", "server.job", "a", "a.job"):
    headers = {Key.ORIGIN: origin, Key.DESTINATION: "a.job", Key.FROM_CELL: origin, Key.REQ_ID: "1"}
    headers |= {Key.MSG_TYPE: MessageType.REQ, Key.CHANNEL: "client_command", Key.TOPIC: "abort"}
    cell.process_message(SimpleNamespace(name="server"), None, 0, Message(headers, b""))
print(*heard, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["server", "server.job", "a", "a.job"], done.stderr


def test_whose_kit_it_is(tmp_path: Path) -> None:
    assert (
        role_of(kit(tmp_path / "a", "client")) == "hospital" and role_of(kit(tmp_path / "b", "server")) == "coordinator"
    )
    with pytest.raises(ValueError, match="unpack the kit"):
        role_of(tmp_path)


def test_what_earlier_jobs_left_in_a_kit_goes_and_nothing_else(tmp_path: Path) -> None:
    place = kit(tmp_path / "a", "client")
    (place / "65958ba8-1eb1-4d98-ad22-ec8eab8be36d" / "app_a").mkdir(parents=True)
    (place / "65958ba8-1eb1-4d98-ad22-notajob").mkdir()
    (place / "95958ba8-1eb1-4d98-ad22-ec8eab8be36d").symlink_to(tmp_path)
    before = {path.name for path in place.iterdir()}
    forget_jobs(place)
    assert before - {path.name for path in place.iterdir()} == {"65958ba8-1eb1-4d98-ad22-ec8eab8be36d"}


def test_a_job_holds_no_code(tmp_path: Path) -> None:
    write_job(tmp_path, "far", tmp_path / "order.json", ("a", "b"))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "meta.json",
        "server_app/config/config_fed_server.json",
        "client_app/config/config_fed_client.json",
    }
    client = json.loads((tmp_path / "client_app/config/config_fed_client.json").read_text())
    assert [one["args"] for one in client["components"]] == [{}], "the job tells a hospital nothing"


# The coordinator


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "--kit: missing"),
        ({"methods": {"c": {"name": "central"}}, "pooling": "allowed"}, "pools the images of all hospitals"),
        ({"pooling": "allowed"}, "images stay at the hospitals"),
    ],
)
def test_what_only_a_simulation_can_is_refused_by_name(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    methods = changes.get("methods", {"fedavg": {"name": "fedavg"}})
    site = {"source": {"kind": "elsewhere"}, "policy": {"pooling": "pooling" in changes}}
    config = {
        "name": "far",
        "privacy": "none",
        "pooling": changes.get("pooling", "refused"),
        "sites": {"a": site, "b": site},
        "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
        "model": {"name": "cnn"},
        "train": {"schedule": {"rounds": 1}, "work": {"lr": 0.1, "batch": 4}, "methods": methods},
        "evaluate": {"reference": None},
    }
    Path("far.yaml").write_text(yaml.safe_dump(config))
    assert main(["far.yaml", "--engine", "flare"]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_hospitals_elsewhere_cannot_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "name": "far",
        "privacy": "none",
        "sites": {"a": {"source": {"kind": "elsewhere"}}},
        "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
        "model": {"name": "cnn"},
        "train": {"schedule": {"rounds": 1}, "work": {"lr": 0.1, "batch": 4}, "methods": {"f": {"name": "fedavg"}}},
        "evaluate": {"reference": None},
    }
    Path("far.yaml").write_text(yaml.safe_dump(config))
    assert main(["far.yaml"]) == 2
    assert "a cannot be played here; say --engine flare" in capsys.readouterr().err


def test_hospitals_that_are_lost_at_one_moment_are_all_written_down_and_never_half(tmp_path: Path) -> None:
    lost, over = make_loss_recorder(tmp_path), threading.Event()
    texts: list[str] = []

    def read() -> None:
        while not over.is_set():
            with suppress(FileNotFoundError):
                texts.append((tmp_path / GONE).read_text())

    reader = threading.Thread(target=read)
    reader.start()
    sites = [f"hospital-{number:03d}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lost, sites))
    over.set()
    reader.join()
    assert json.loads((tmp_path / GONE).read_text()) == sites
    seen = [json.loads(text) for text in texts]
    assert all(len(one) <= len(later) for one, later in pairwise(seen)) and seen, "nobody is forgotten"


def test_what_a_far_hospital_will_not_answer_is_told_before_anything_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's YAML says nothing of policies; hospitals say with their survey what they answer."""
    monkeypatch.chdir(tmp_path)
    source = {"kind": "phantom", "scanner": "P", "patients": 8, "slices": 4}
    sites: dict[str, Any] = {name: {"source": {**source, "seed": seed}} for seed, name in enumerate("ab", 1)}
    train = {"schedule": {"rounds": 1}, "methods": {"fedavg": {"name": "fedavg"}}}
    run = {**PLAIN_RUN, "sites": sites, "model": {"name": "cnn", "widths": [8, 16]}, "train": train}
    run["evaluate"] = {"copies": 5, "public": True, "reference": None}
    (tmp_path / "far.yaml").write_text(yaml.safe_dump(run))
    silent = [request for request in Policy().requests if request not in ("export", "audit")]
    sites["a"]["policy"] = {"requests": silent}
    at_home = validate_settings(read_yaml(yaml.safe_dump(run), environment={}), Config)
    engines = simulated_engines(at_home, tmp_path / "homes", Stop())._replace(far="python -m pipelines.run far.yaml")
    shown = io.StringIO()
    console = Console(file=shown, width=300)
    assert run_command(parse_arguments(["far.yaml"]), console, engines=engines) == Exit.CONFIG
    assert "a: its policy does not answer export" in shown.getvalue() and "b: its" not in shown.getvalue()
    lines = list(ledgers.read_lines(tmp_path / "homes" / "sites" / "a" / "ledger.jsonl"))
    assert {line["request"] for line in lines} == {"survey"}
