"""What a coordinator may say: checked on arrival, before anything is done, written or counted against a hospital."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import methods
from consilium.testing import testbed
from federation import wire
from federation.descent import Work
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.task import Task
from pipelines.data.images import Slices
from pipelines.hospital import rehearsal as rehearsed
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import ROUNDS as OF_ROUNDS
from pipelines.hospital.worker import make_worker
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.requests import REQUESTS as DECLARED
from pipelines.requests.check import parse_question
from pipelines.requests.report import OutsideReport
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from privacy.dp.protection import Protection
from privacy.message import Call, Json, Message
from privacy.release import bounds
from privacy.release.bounds import FACTS, TEXT, check_request, remove_controls, show_value
from privacy.release.form import fields_of
from privacy.release.gate import Refused
from privacy.release.policy import REQUESTS, Budget, Policy
from privacy.release.refusals import DECIDED, UNDECIDED, may_tell

ROOM = Path(__file__).parents[2]
BUDGET = Policy(budget=Budget(epsilon=4.0), public=("counts",), max_failures=2)
OPEN = BUDGET
LEAST = 400
"""The most that a refused question may leave in a hospital's log, in bytes."""
PRIVATE = {"clip": 1.0, "sampling": 1.0, "views": 2, "noise": 8.0, "validation_noise": None}
OPENING: dict[str, Json] = {
    "label": "x",
    "algorithm": {"name": "fedavg"},
    "model": {"name": "mlp", "hidden": [2]},
    "inputs": [1, 16, 16],
    "classes": 2,
    "work": {"optimizer": "sgd", "lr": 1.0, "steps": 1, "epochs": None, "augment": "none"},
    "seed": 0,
    "privacy": dict(PRIVATE),
    "evaluation_noise": 50.0,
}


def made(folder: Path, policy: Policy = BUDGET) -> Hospital:
    source = PhantomSource(scanner="P", patients=12, seed=1, slices=4)
    return Hospital("a", folder / "a", SiteSettings(source=source, policy=policy), lambda: "2026-01-01T00:00:00Z")


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> tuple[Hospital, str]:
    """A hospital with a budget that has read its patients and trained a round."""
    hospital = made(tmp_path_factory.mktemp("questions"))
    said = {"images": to_plain(Slices(size=16, spacing_mm=4.0)), "split": to_plain(Split()), "seed": 0}
    ask = make_worker(hospital)
    facts = ask(Call("r/ingest", 0, "ingest", {}), Message({}, {**said, "independent": True})).facts
    ask(Call("r/x", 0, "introduce", {}), Message({}, {**OPENING, "cohort": facts["cohort"]}))
    ask(Call("r/x", 1, "train", {}), start())
    return hospital, str(facts["cohort"])


def patient(hospital: Hospital) -> Hospital:
    """The same hospital, which never locks: what counts is seen by its codes."""
    assert hospital.settings is not None
    return replace(hospital, settings=replace(hospital.settings, policy=replace(OPEN, max_failures=10**6)))


def start() -> Message:
    network = Task(Mlp(hidden=(2,)), (1, 16, 16), 2).network().state_dict()
    return Message({f"model/{name}": value for name, value in network.items()}, {"algorithm": {}, "best": None})


def state(hospital: Hospital) -> dict[str, bytes]:
    """All that a hospital holds, but its log."""
    files = (path for path in hospital.root.rglob("*") if path.is_file() and path.suffix not in (".txt", ".lock"))
    return {str(path.relative_to(hospital.root)): path.read_bytes() for path in files}


def logged(hospital: Hospital) -> bytes:
    path = hospital.root / "log.txt"
    return path.read_bytes() if path.exists() else b""


def code(hospital: Hospital, call: Call, message: Message) -> str | None:
    """The code that leaves; the same in process and over a wire."""
    try:
        make_worker(hospital)(call, message)
    except Refused as refused:
        return refused.code
    return None


DEEP: Json = {}
for _ in range(200):
    DEEP = {"x": DEEP}

MANY = 1000  # stands for `bounds.TENSORS`, of which one more takes seconds to pack
ATTACKS = {
    "a run's name of 30 MB": (Call("r/" + "x" * 30_000_000, 0, "survey", {}), Message()),
    "a run's name that forges a line of the log": (Call("r/x\n2026-01-01 all is well", 0, "survey", {}), Message()),
    "a run's name that moves a terminal": (Call("r/\x1b[2J", 0, "survey", {}), Message()),
    "a run's name that is a path": (Call("../..", 0, "survey", {}), Message()),
    "a round that makes all others stale": (Call("r/x", 10**18, "train", {}), Message()),
    "a round far off": (Call("r/x", 5000, "train", {}), start()),
    "a negative round": (Call("r/x", -1, "train", {}), Message()),
    "an introduction in a later round": (Call("r/x", 7, "introduce", {}), Message()),
    "no request": (Call("r/x", 0, "x" * 10_000_000, {}), Message()),
    "a crowd in merged": (Call("r/x", 1, "train", {f"s{i}": 0 for i in range(20_000)}), Message()),
    "a round in merged": (Call("r/x", 1, "train", {"a": 10**18}), Message()),
    "20 MB of facts": (Call("r/s", 0, "survey", {}), Message({}, {"junk": "x" * 20_000_000})),
    "a million facts": (Call("r/s", 0, "survey", {}), Message({}, {"junk": [0] * 1_000_000})),
    "facts a thousand deep": (Call("r/s", 0, "survey", {}), Message({}, {"junk": DEEP})),
    "a number without end": (Call("r/s", 0, "survey", {}), Message({}, {"junk": 10**400})),
    "no number": (Call("r/s", 0, "survey", {}), Message({}, {"junk": float("nan")})),
    "a fact that clears a screen": (Call("r/s", 0, "report", {}), Message({}, {"title": "\x1b[2J"})),
    "half a character": (Call("r/s", 0, "report", {}), Message({}, {"title": "\ud800"})),
    "a tensor with a line in its name": (Call("r/x", 2, "train", {}), Message({"a\nb": torch.zeros(1)})),
    "many tensors": (Call("r/x", 2, "train", {}), Message({f"t{i}": torch.zeros(0) for i in range(MANY + 1)})),
    "tensors where none belong": (Call("r/s", 0, "survey", {}), Message({"x": torch.zeros(1)})),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_question_beyond_bounds_is_refused_and_leaves_nothing_behind(started, name, monkeypatch):
    hospital, _ = started
    monkeypatch.setattr(bounds, "TENSORS", MANY)
    call, message = ATTACKS[name]
    before, log = state(hospital), len(logged(hospital))
    found = code(hospital, call, message)
    # Other tests ask the same hospital, and some of them fail there.
    allowed = ("unknown_request", *(("too_many_failures",) if name == "a round far off" else ()))
    assert found is not None and (found.startswith("malformed_") or found in allowed)
    if name != "a round far off":  # it was compared with the run's memory, so it is in the ledger
        assert state(hospital) == before
    tail = logged(hospital)[log:]
    assert len(tail) < LEAST and tail.count(b"\n") == 1 and tail.isascii() and b"\x1b" not in tail
    if name not in ("half a character", "no number"):  # such a question cannot be put on a wire
        far = wire.read_answer(wire.answer(make_worker(hospital), wire.build_question(call, message)))
        assert far in (found, "malformed"), "what is refused in process is refused over a wire"


def test_a_header_beyond_bounds_is_not_read():
    data = (2**27).to_bytes(8, "little") + b"{" * 100
    assert wire.read_answer(wire.answer(lambda call, message: pytest.fail("asked"), data)) == "malformed"


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=8),
    st.sampled_from(["x" * 2_000_000, "a\nb", "\x1b]0;x\x07", "../../x", "\u202e", 10**400, -(10**18)]),
)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD, inner, max_size=4), max_leaves=8
)
RUNS = st.one_of(ODD, st.sampled_from(["r/x", "r/ingest", "r/new"]))
REQUESTED = st.one_of(ODD, st.sampled_from(REQUESTS))
ROUNDS = st.one_of(ODD, st.integers(0, 5))
NAMES = st.sampled_from(sorted({one.name for request in DECLARED.values() for one in fields_of(request.question)}))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    run=RUNS,
    round_=ROUNDS,
    request_=REQUESTED,
    merged=st.one_of(ODD, st.dictionaries(ODD, ODD, max_size=3)),
    facts=st.one_of(ODD, st.dictionaries(st.one_of(ODD, NAMES), JSON, max_size=6)),
    tensors=st.one_of(ODD, st.dictionaries(ODD, st.one_of(ODD, st.just(torch.zeros(2))), max_size=2)),
)
def test_bounds_hold_whatever_is_said(run, round_, request_, merged, facts, tensors):
    """A question is within bounds, or it is refused by a code with a short reason: never another exception."""
    call, message = Call(run, round_, request_, merged), Message(tensors, facts)
    refused = refusal(call, message)
    if refused is None:
        assert call.request in REQUESTS and len(json.dumps(dict(message.facts))) < 12 * TEXT + 8 * FACTS
    else:
        said = str(refused.__cause__)
        assert refused.code in UNDECIDED and len(said) < LEAST and said.isascii() and said.isprintable()


def refusal(call: Call, message: Message) -> Refused | None:
    try:
        check_request(call, message, OF_ROUNDS)
    except Refused as refused:
        return refused
    return None


OTHER = st.one_of(
    st.sampled_from(["r/x", "r/none", "x", "latest", "global", "begun", "", "a", None, True, 0, 1, 7, 2000, -1, 0.5]),
    st.sampled_from([[], {}, ["a"], [["a"]], {"name": "fedavg"}, {"r/x": 1}, {"r/x": "begun"}, [{"label": "x"}]]),
)
MODEL: dict[str, Json] = {"train_run": "r/x", "checkpoint": "latest", "best": None}
READ: dict[str, Json] = {"images": to_plain(Slices(size=16, spacing_mm=4.0)), "split": to_plain(Split()), "seed": 0}
SHAPED: dict[str, Json] = {"scale": {"low": 0.0, "high": 3.0}, "seed": 0}
WHOLE: dict[str, dict[str, Json]] = {
    "survey": {},
    "fingerprint": {"images": "volumes", "values": "standardized", "target": "gland", "classes": ["gland"]},
    "holds": {"sha256": "x", "page": "x", "runs": {"r/x": "begun"}},
    "moments": READ,
    "ingest": {**READ, "independent": True},
    "introduce": OPENING,
    "train": {"algorithm": {}, "best": None},
    "finish": {"algorithm": {}, "best": None},
    "figures": {"train_run": "r/x", "last": 1},
    "export": MODEL,
    "evaluate": {**MODEL, "label": "x", "copies": 3, "opening": {}, "central": True, "floor": True, "window": [1, 1]},
    "audit": {**MODEL, "membership": True, "inversion": {}},
    "pool": {},
    "score": {**SHAPED, "score": {"release": "dp", "epsilon": 1.0}, "images": 8, "prior": "prostate", "copies": 1},
    "synthesize": {**SHAPED, "synthesis": {"name": "private_evolution"}, "copies": 1},
    "sample": {**SHAPED, "synthesis_run": "r/s", "sampling": {"name": "surrogate"}, "shared": 2},
    "translate": {
        **SHAPED,
        **{"space": "s", "translator": {"name": "z_score"}, "veto": {}, "is_target": False, "scanner": "P"},
    },
    "augment": {
        **{**SHAPED, "private": True, "prior": "prostate_adc", "copies": 1},
        **{"augment": {"synthesis": {"name": "private_evolution", "candidates": 4, "rounds": 1, "public": 16}}},
    },
    "extract": {
        **{"cohort": "c", "model": {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc"}},
        **{"public": {"prior": "prostate_adc", "pictures": 1200}},
    },
    "route": {"experts": ["a"], "line": "x", "how": {"name": "average"}, "copies": 3, "seed": 0},
    "benchmark": {"copies": 3, "epsilon": 1.0, "signature": {"statement": {}, "key": "", "signature": ""}},
    "compare": {"methods": [{**MODEL, "label": "x", "cohort": "c"}], "variants": []},
    "track": {"places": ["MLflow at https://mlflow.example"], "server": True, "rests_on": "0" * 64},
    "report": {
        **{"title": "t", "run": "r", "date": "d", "reference": None, "copies": 3},
        **{"methods": [{**MODEL, "label": "x", "cohort": "c"}]},
        **{"excluded": 0, "unmatched_exclusions": 0, "spaces": ["s"], "lines": [{"label": "x", "run": "r/x"}]},
        **{"names": ["a", "b"], "field": "", "structures": ["s"], "target": "gland", "window": None},
    },
}
"""Facts of each request that a hospital would work on, and some that do not go together."""


def test_every_request_has_facts_that_a_hospital_would_work_on():
    lost = sorted({*REQUESTS} - {*WHOLE})
    assert not lost, f"{lost}: add its facts to WHOLE above, so that malformed ones are tried"


def facts_known_to(request: str, cohort: str, *, outside: bool = False) -> dict[str, Json]:
    """Of the facts above those that a request knows, with this cohort where it takes one. outside: of the report of a
    hospital outside the federation.
    """
    form = OutsideReport if request == "report" and outside else DECLARED[request].question
    known = {field.name for field in fields_of(form)}
    facts = {"cohort": cohort, **WHOLE[request]}
    return {name: value for name, value in facts.items() if name in known}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_a_hospital_does_not_know_it_refuses_by_name_and_never_ignores(started, name):
    """A later version's coordinator may ask for more protection: an older hospital must not answer without it."""
    locked, cohort = started
    assert locked.settings is not None
    hospital = replace(locked, settings=replace(locked.settings, policy=Policy(pooling=True)))
    before = hospital.ledger.read_bytes()
    facts = {**facts_known_to(name, cohort), "of_tomorrow": True}
    round_ = 2 if name in ("train", "finish") else 0
    assert code(hospital, Call("r/tomorrow", round_, name, {}), Message({}, facts)) == "unknown_setting"
    assert b"of_tomorrow" in logged(hospital).splitlines()[-1]
    assert hospital.ledger.read_bytes() == before


def parsing_code(name: str, facts: dict[str, Json]) -> str | None:
    """The code with which a question of these facts is refused before any work."""
    try:
        parse_question(name, Message({}, facts))
    except Refused as refused:
        return refused.code
    return None


def test_a_fact_that_is_not_known_is_refused_however_deep_it_lies():
    line = {**MODEL, "label": "x", "cohort": "c"}
    assert parsing_code("compare", {"methods": [line]}) is None
    assert parsing_code("compare", {"methods": [{**line, "of_tomorrow": True}]}) == "unknown_setting"
    asked = {**WHOLE["ingest"], "images": {"kind": "volumes", "values": "standardized"}}
    assert parsing_code("ingest", asked) is None
    for images in ({"kind": "volumes"}, {"kind": "slices"}, {"kind": "pictures"}):
        assert parsing_code("ingest", {**asked, "images": {**images, "of_tomorrow": True}}) == "unknown_setting"


@pytest.mark.parametrize("name", sorted({*REQUESTS} - {"introduce"}))
def test_a_question_of_what_is_declared_is_never_refused_as_unknown(name):
    for outside in (False, True):
        assert parsing_code(name, facts_known_to(name, "c", outside=outside)) != "unknown_setting"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_malformed_request_counts_against_a_hospital_and_none_ends_in_an_exception(started, data):
    """Facts that are almost right, of every request: nothing counts against a hospital but what patients decide."""
    locked, cohort = started
    hospital = patient(locked)
    request = data.draw(st.sampled_from(REQUESTS))
    whole = facts_known_to(request, cohort, outside=data.draw(st.booleans()))
    for name in data.draw(st.lists(st.sampled_from(sorted(whole) or ["of_tomorrow"]), max_size=4, unique=True)):
        if name in whole and data.draw(st.booleans()):
            del whole[name]
        else:
            whole[name] = data.draw(OTHER)
    if request == "evaluate" and data.draw(st.booleans()):
        whole["opening"] = {**OPENING, "cohort": cohort}
    round_ = data.draw(st.integers(2, 3)) if request in ("train", "finish") else 0
    tensors = data.draw(st.sampled_from([{}, {}, {"model/x": torch.zeros(2)}, {"images": torch.zeros(4, 1, 16, 16)}]))
    run = data.draw(st.sampled_from(["r/x", "r/other", "r/third"]))
    found = code(hospital, Call(run, round_, request, {}), Message(tensors, whole))
    assert not may_tell(found), f"{request} with {whole} and {list(tensors)}"


SIX: Json = {"name": "cnn", "widths": [8] * 6, "norm": "group"}
"""A network that halves images of 16 x 16 six times: nothing is left of them, whoever the patients are."""
TRAINED: dict[str, Json] = {**MODEL, "train_run": "r/done"}
EVALUATED: dict[str, Json] = {**TRAINED, "label": "x", "copies": 3}
PAGE: dict[str, Json] = {"title": "t", "reference": None, "copies": 3}
ODDLY: dict[str, tuple[str, dict[str, Json], dict[str, torch.Tensor]]] = {
    "other tensors for reading": ("ingest", WHOLE["ingest"], {"x": torch.zeros(3)}),
    "sums for reading": ("ingest", WHOLE["ingest"], {n: torch.ones(2) for n in ("count", "total", "squares")}),
    "batch norm": ("introduce", {**OPENING, "model": {"name": "cnn", "norm": "batch"}}, {}),
    "masks that were not read": (
        "introduce",
        {
            **OPENING,
            "target": "lesion",
            "model": {"name": "unet", "width": 4, "levels": 1, "norm": "group"},
        },
        {},
    ),
    "images that vanish": ("introduce", {**OPENING, "model": SIX}, {}),
    "a visitor for whom images vanish": (
        "evaluate",
        {**EVALUATED, "opening": {**OPENING, "model": SIX}},
        {"visitor": torch.zeros(0)},
    ),
    "a window that is none": ("evaluate", {**EVALUATED, "window": [{}, 8]}, {}),
    "a window on labels": ("evaluate", {**EVALUATED, "window": [8, 8]}, {}),
    "a calibrated attack": ("audit", {**TRAINED, "calibration": {"calibration": "../x", "quantile": 1}}, {}),
    "lines without names": ("report", {**PAGE, "lines": []}, {}),
    "a path as calibration": (
        "report",
        {**PAGE, "variants": [{**TRAINED, "label": "v", "calibration": {"calibration": "../x"}}]},
        {},
    ),
    "structures of labels": ("report", {**PAGE, "structures": ["a"]}, {}),
    "a sentence as a structure": ("report", {**PAGE, "structures": ["This hospital promises all"]}, {}),
    "a sentence as a reference": ("report", {**PAGE, "reference": "This hospital promises all"}, {}),
}


@pytest.fixture(scope="module")
def finished(started) -> tuple[Hospital, str]:
    """The same, with a run that is finished and scored."""
    locked, cohort = started
    hospital = patient(locked)
    ask = make_worker(hospital)
    ask(Call("r/done", 0, "introduce", {}), Message({}, {**OPENING, "cohort": cohort}))
    ask(Call("r/done", 1, "train", {}), start())
    ask(Call("r/done", 2, "finish", {"a": 1}), start())
    ask(Call("r/scored", 0, "evaluate", {}), Message({}, {**EVALUATED, "cohort": cohort}))
    return hospital, cohort


@pytest.mark.parametrize("name", ODDLY)
def test_what_fails_whoever_the_patients_are_does_not_count_against_a_hospital(finished, name):
    """Each of these once ended in `failed`, so that a coordinator could lock a hospital, or wrote a page's words."""
    hospital, cohort = finished
    request, facts, tensors = ODDLY[name]
    if request == "report":
        facts = {**facts, "methods": [{**TRAINED, "label": "x", "cohort": cohort}], "spaces": []}
    if request != "ingest":
        facts = {**facts, "cohort": cohort}
    if tensors.keys() == {"visitor"}:
        tensors = Task(Cnn(widths=(8,) * 6, norm="group"), (1, 16, 16), 2).network().state_dict()
    call = Call(f"r/odd-{list(ODDLY).index(name)}", 0, request, {})
    found = code(hospital, call, Message(tensors, facts))
    assert found is not None and not may_tell(found), found


def test_malformed_requests_do_not_lock_a_hospital_and_failures_that_patients_decide_do(started, monkeypatch):
    hospital, _ = started
    for _ in range(5):
        for request in REQUESTS:
            code(hospital, Call("r/lock", int(request in ("train", "finish")), request, {}), Message({}, {"x": 1}))
    assert code(hospital, Call("r/survey", 0, "survey", {}), Message()) is None
    from pipelines.hospital import worker as way_in

    def failing(*arguments, **options):
        raise RuntimeError("a patient made it fail")

    monkeypatch.setitem(way_in.HANDLERS, "survey", failing)
    codes = [code(hospital, Call("r/survey", 0, "survey", {}), Message()) for _ in range(5)]
    assert codes == ["failed"] * 3 + ["too_many_failures"] * 2


def codes_raised() -> set[str]:
    """Every text that stands as a code in our source: `Refused("...")`, and what functions return to be one."""
    found = set()
    for path in [p for room in ("privacy", "federation", "pipelines") for p in (ROOM / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
                "Refused",
                "coded",
            ):
                found |= {
                    one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    return {one for one in found if one.replace("_", "").isalpha() and one.islower()}


def test_every_code_is_either_a_patients_or_not_and_an_unknown_one_counts():
    """Which of them depend on data is said for each, in one table; what is in none counts, to be safe."""
    assert not DECIDED & set(UNDECIDED)
    engine = {"gone", "late", "unknown_site", "working", "unknown_question"}
    assert codes_raised() - engine - set(UNDECIDED) - DECIDED == set()
    assert may_tell("a_code_of_tomorrow") and not may_tell(None) and all(map(may_tell, DECIDED))


def test_what_others_wrote_is_shown_in_one_short_line():
    assert show_value("a\nb\x1b[2J\u202e") == r"'a\nb\x1b[2J\u202e'"
    assert len(show_value("x" * 10**6)) < 120 and show_value({"a": 1}) == "a value of type dict"
    assert remove_controls("a\nb\x1b[2J\u202ec") == "a b [2J c"


def test_a_reason_in_the_log_is_one_line_whoever_is_quoted_in_it(tmp_path):
    hospital = made(tmp_path, replace(BUDGET, budget=None))
    said = {**OPENING, "cohort": "x", "model": {"name": "mlp\n2026-01-01 forged"}}
    assert code(hospital, Call("r/x", 0, "introduce", {}), Message({}, said)) == "malformed_message"
    said["model"] = {"name": "mlp", **{f"wrong{i}": "x" for i in range(2000)}}
    assert code(hospital, Call("r/x", 0, "introduce", {}), Message({}, said)) == "malformed_opening"
    lines = logged(hospital).splitlines()
    assert len(lines) == 2 and all(len(line) < 1200 for line in lines)


DIGEST = "0" * 64
OF_FILE = {"weights": {"public": True, "head": "kept"}, "sha256": DIGEST}
OF_PICTURES = {"public": {"prior": "prostate_adc", "pictures": 24}, "sha256": DIGEST}
STARTS = {
    "weights of a file": (OF_FILE, None),
    "public pictures": (OF_PICTURES, None),
    "no group": ("public", "malformed_opening"),
    "neither": ({"sha256": DIGEST}, "malformed_opening"),
    "a file without a digest": ({"weights": OF_FILE["weights"]}, "malformed_opening"),
    "a digest that is none": ({**OF_PICTURES, "sha256": "../x"}, "malformed_opening"),
    "fewer pictures than none": ({**OF_PICTURES, "public": {"pictures": -1}}, "malformed_opening"),
    "another kind of head": ({**OF_FILE, "weights": {"public": True, "head": "lost"}}, "malformed_opening"),
    "both": ({**OF_FILE, **OF_PICTURES}, "unknown_setting"),
    "a fact of tomorrow": ({**OF_PICTURES, "noise": 1.0}, "unknown_setting"),
    "a fact of tomorrow, inside": ({**OF_PICTURES, "public": {"pictures": 3, "by": "x"}}, "unknown_setting"),
}


@pytest.mark.parametrize("name", STARTS)
def test_what_is_not_known_of_the_weights_of_a_start_is_refused(name):
    """As every fact of an opening: the hospital writes it beside its model, and must know what it says."""
    start_facts, code_of_refusal = STARTS[name]
    facts = {**OPENING, "cohort": "x", "start": start_facts}
    if code_of_refusal is None:
        assert parse_question("introduce", Message({}, facts)).start == start_facts
        return
    with pytest.raises(Refused) as caught:
        parse_question("introduce", Message({}, facts))
    assert caught.value.code == code_of_refusal


@pytest.mark.parametrize("method", methods.ALL, ids=lambda method: f"{method.name}")
def test_a_method_that_cannot_be_private_is_refused_before_it_is_tried(method):
    """Whatever a coordinator sends: else it would fail at patients, and count as if one of them had decided it."""
    task, work = testbed.make_task(), Work(optimizer="sgd", lr=0.1, epochs=None, steps=1)
    complaints = method.complaints(method.network(task), work, True)
    if complaints:
        with pytest.raises(Refused) as caught:
            rehearsed.rehearse_private_events(method, task, work, Protection(noise=1.0))
        assert caught.value.code == "malformed_opening"
    else:
        rehearsed.rehearse_private_events(method, task, work, Protection(noise=1.0))


def test_moments_are_of_columns_and_never_of_images(started) -> None:
    """A sum over a hospital's images is an image."""
    hospital, cohort = started
    asked = Message({}, {**READ, "cohort": cohort})
    assert code(hospital, Call("r/moments", 0, "moments", {}), asked) == "unknown_setting"
