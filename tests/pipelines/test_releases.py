"""Releases as laws, over the real worker: noise is what the ledger says, and no request passes by the policy.

Two hospitals with the same patients, key and seed answer the same calls of several runs. A third one answers them
without noise; what is left of an answer without it is noise alone. The noise is the operating system's own here, so
each of these tests may fail by chance, once in a million runs (`recorded_noise.ALARM`).
"""

from __future__ import annotations

import ast
import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import torch
from torch import Tensor

from evaluation.scale import cell_of, tree_levels
from evaluation.votes import bins_from, class_votes, split_noise, tree_votes
from federation.conversation import load_newest_memory
from federation.models.cnn import Cnn
from federation.task import Task
from harmonize.complexity import Outside, Score, measure_outside
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.scale import Scale
from harmonize.wgan import WganGp
from pipelines.hospital import harmonization as shaping
from pipelines.hospital import scoring as score
from pipelines.hospital import synthesis as imitate
from pipelines.hospital import worker as working
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.worker import ROUNDS
from pipelines.loader.validation import to_plain
from pipelines.runs.store import DiskFolder
from privacy.dp.access import open_access
from privacy.dp.events import NOTHING, Gaussian, Part, PoissonSampled, describe_event, parse_event
from privacy.dp.protection import Protection
from privacy.message import Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.form import Shape
from privacy.release.gate import UNDECLARED, Refused
from privacy.release.policy import COORDINATOR, OUTSIDE, REQUESTS, SITES, Budget, Policy
from recorded_noise import Piece, booked, complaints, wrong_deviations
from small_site import PATIENTS, SCALE, SIDE, ask, hospital

STEPS, RATE = 2, 1.0
TASK = Task(Cnn(widths=(8, 8), norm="group"), (1, SIDE, SIDE), 2)
torch.manual_seed(0)
MODEL = {f"model/{name}": value for name, value in TASK.network().state_dict().items()}
LOUD = Protection(clip=1e-4, sampling=1.0, views=1, noise=50.0, validation_noise=0.5, loss_bound=1.4)
RUNS = ("r/one", "r/two")


def opening(cohort: str, protection: Protection | None = LOUD) -> dict:
    work = {"optimizer": "sgd", "lr": RATE, "batch": 8, "epochs": None, "steps": STEPS}
    return {
        "label": "mine",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(TASK.model),
        "inputs": [1, SIDE, SIDE],
        "classes": 2,
        "work": work,
        "seed": 0,
        "cohort": cohort,
        "privacy": None if protection is None else to_plain(protection),
        "evaluation_noise": 50.0,
    }


def trained(own: Hospital, cohort: str, run: str, protection: Protection | None = LOUD) -> dict[str, Message]:
    """Each round's reply, all rounds beginning with the same model."""
    ask(own, "introduce", run=run, **opening(cohort, protection))
    replies = {f"train {n}": ask(own, "train", n, MODEL, run, algorithm={}, best=None) for n in (1, 2)}
    return {**replies, "finish": ask(own, "finish", 3, MODEL, run, algorithm={}, best=None)}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, tuple[Hospital, str]]:
    """Two hospitals that have trained two runs each, and one that has done it without noise."""
    root = tmp_path_factory.mktemp("releases")
    found = {name: hospital(root / name) for name in ("one", "two", "silent")}
    return found


@pytest.fixture(scope="module")
def replies(places) -> dict[tuple[str, str], dict[str, Message]]:
    quiet = Protection(**{**vars(LOUD), "noise": 0.0, "validation_noise": 0.0})
    found = {("silent", ""): trained(*places["silent"], "r/one", quiet)}
    return {**found, **{(name, run): trained(*places[name], run) for name in ("one", "two") for run in RUNS}}


def spent(own: Hospital, request: str) -> list:
    return [parse_event(line["event"]) for line in ledgers.read_lines(own.ledger) if line["request"] == request]


@pytest.mark.chance(4e-7, "four groups of exact tests of noise, each at 1e-7")
def test_parameters_that_leave_have_the_noise_of_all_their_steps_in_every_run_round_and_hospital(places, replies):
    silent, pieces = replies["silent", ""], []
    unit = RATE * LOUD.clip * STEPS**0.5 / (PATIENTS / 3)
    for place, said in replies.items():
        for name in ("train 1", "train 2") if place[0] != "silent" else ():
            exact = silent[name].tensors
            parts = {key: ((value - exact[key]) / unit).numpy().ravel() for key, value in said[name].tensors.items()}
            pieces.append(Piece((*place, name), ("train", 1.0), parts))
    for name in ("one", "two"):
        paid = Counter(one for one in booked(spent(places[name][0], "train")) if one[0] == "train")
        assert paid == {("train", 1.0, 50.0): 2 * 2 * STEPS}
    alone = Part("real", "train", PoissonSampled(1.0, Gaussian(50.0)))  # an answer is counted as one, in its unit
    assert complaints(pieces, [alone] * len(pieces)) == []


@pytest.mark.chance(2e-7, "two exact tests of noise, each at 1e-7")
def test_validation_losses_that_leave_have_the_noise_that_is_booked(replies):
    unit, silent = LOUD.loss_bound / 2 / (PATIENTS / 3) * 0.5, replies["silent", ""]
    away = [
        (float(str(said[name].facts["loss"])) - float(str(silent[name].facts["loss"]))) / unit
        for place, said in replies.items()
        for name in ("train 2", "finish")
        if place[0] != "silent"
    ]
    assert len(away) == 8
    assert wrong_deviations([Piece((), ("", 1.0), {"loss": torch.tensor(away).numpy()})]) == []
    assert wrong_deviations([Piece((), ("", 1.0), {"sum": torch.tensor([sum(away) / 8**0.5]).numpy()})]) == []
    assert len(set(away)) == 8


@pytest.mark.chance(8e-7, "eight groups of exact tests of noise, each at 1e-7")
def test_histograms_of_scores_that_leave_have_the_noise_that_is_booked(places, replies):
    bins: list[Piece] = []
    levels: list[Piece] = []
    for name in ("one", "two"):
        own, cohort = places[name]
        for turn in range(4):
            facts = {"train_run": RUNS[0], "label": "mine", "checkpoint": "latest", "best": None, "copies": 2}
            told = ask(own, "evaluate", run=f"r/evaluate-{turn}", cohort=cohort, **facts)
            home = from_bytes(DiskFolder(own.root / "scores").read(score.scores_name(RUNS[0], "latest", None))).tensors
            y, p, who = (home[key].numpy() for key in ("y", "probabilities", "patient"))
            scale = told.tensors["scale"].double().numpy()
            edges = bins_from(scale, int(str(told.facts["patients"])), told.facts["class_patients"])
            away = told.tensors["noised"].double().numpy().ravel() - shares(class_votes(y, p, who, edges))
            bins.append(Piece((name, turn), ("test", 1.0), {"histogram": away}))
            for level, noised in enumerate(tree_levels(scale[0]), 1):
                away = noised - shares(tree_votes(cell_of(p[:, 1]), who, level))
                levels.append(Piece((name, turn, level), ("test", 1.0), {f"level {level}": away}))
    paid = Counter(booked([event for name in ("one", "two") for event in spent(places[name][0], "evaluate")]))
    how = split_noise(1.0, 2)
    by_noise = {noise: [Part("real", what, Gaussian(noise))] * times for (what, _, noise), times in paid.items()}
    finest, coarsest = min(by_noise), max(by_noise)
    assert len(paid) == len(by_noise) == 2 and coarsest / finest == pytest.approx(how.scale / how.own)
    assert complaints(bins, by_noise[finest]) == [] and complaints(levels, by_noise[coarsest]) == []


def shares(votes):
    """What patients add to a histogram."""
    return (votes / votes.sum(axis=1, keepdims=True)).sum(axis=0)


@pytest.mark.chance(4e-7, "four groups of exact tests of noise, each at 1e-7")
def test_scores_of_images_that_leave_have_the_noise_that_is_booked(places, monkeypatch):
    monkeypatch.setattr(imitate, "PUBLIC", 40)
    settings = Score(release="dp", epsilon=100.0, components=5)
    said = {"score": to_plain(settings), "images": 8, "prior": "prostate_adc", "scale": SCALE, "copies": 1, "seed": 0}
    pieces, events = [], []
    for name in ("one", "two"):
        own, cohort = places[name]
        rows = shaping.split_rows(cohort_of(own, cohort), Scale(**SCALE), "train")
        public = Outside(imitate._public_basis("prostate_adc", (1, SIDE, SIDE), 5))
        exact = open_access({"train": rows}, batch=1, seed=0).measure(public, measure_outside, "train")
        for turn in range(12):
            told = ask(own, "score", run=f"r/score-{turn}", cohort=cohort, **said).facts["score"]
            assert isinstance(told, float) and 0 < told < 1
            away = torch.tensor([(told - exact) / (0.5 / (PATIENTS / 3))], dtype=torch.float64)
            pieces.append(Piece((name, turn), ("train", 1.0), {"score": away.numpy()}))
        events += spent(own, "score")
    assert complaints(pieces, events) == []
    assert len({float(piece.parts["score"][0]) for piece in pieces}) == 24


IMITATIONS = [
    PrivateEvolution(candidates=16, rounds=2, public=50, components=5, epsilon=1.0),
    FittedPrior(pictures=16, squared=4, epsilon=1.0),
    WganGp(learns="whole", steps=2, critic_steps=1, batch=8, latent=4, width=2, views=2, prior=None),
    WganGp(prior_steps=4, prior_images=20, steps=2, batch=8, latent=4, width=2, prior_components=5),
]


def name_of(settings) -> str:
    if isinstance(settings, WganGp):
        return "head" if settings.head else "critic"
    return settings.name


@pytest.mark.chance(1e-12, "two of a few hundred answers in float64 are equal")
@pytest.mark.parametrize("settings", IMITATIONS, ids=name_of)
def test_what_is_learnt_of_the_same_patients_from_the_same_seed_is_never_the_same(places, settings, monkeypatch):
    answers = []
    ask_access = shaping.access_to

    def heard(*arguments, **named):
        access = ask_access(*arguments, **named)
        assert type(access).__name__ == "PrivateAccess"
        for name in ("gradient", "votes"):
            object.__setattr__(access, name, _noting(getattr(access, name), answers))
        return access

    monkeypatch.setattr(imitate, "access_to", heard)
    for name in ("one", "two"):
        own, cohort = places[name]
        for turn in range(2):
            run = f"r/{name_of(settings)}-{turn}"
            facts = {"synthesis": to_plain(settings), "cohort": cohort, "scale": SCALE, "copies": 1, "seed": 0}
            ask(own, "synthesize", run=run, **facts)
            assert load_newest_memory(own.conversation(run)).tensors
    flat = [answer.double().numpy().tobytes() for answer in answers]
    assert len(flat) >= 8 and len(set(flat)) == len(flat)


def _noting(ask, answers: list):
    def noted(*arguments, **named):
        found = ask(*arguments, **named)
        parts = [found] if isinstance(found, torch.Tensor) else list(found.gradient.values())
        answers.append(torch.cat([part.detach().flatten() for part in parts]))
        return found

    return noted


ROOT = Path(__file__).parents[2]
MAY = {"privacy/attacks/audit.py", "privacy/attacks/inversion.py"}
"""They attack data accesses of their own, whose patients nobody hears of."""


NOISED = ("open_private", "bounded_mean", "vote_histogram", "noisy_max", "analytic_gaussian")


def test_no_room_but_the_audits_gives_data_access_or_a_mechanism_another_source_than_the_operating_systems():
    found = set()
    for room in ("federation", "personalize", "harmonize", "evaluation", "pipelines", "privacy"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if any(name in text for name in NOISED) else ():
                name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
                if name in NOISED:
                    found |= {
                        (str(path.relative_to(ROOT)), ast.unparse(word.value))
                        for word in node.keywords  # type: ignore[attr-defined]
                        if word.arg == "source"
                    }
    assert {path for path, _ in found if path not in MAY} == {"privacy/dp/private_access.py"}
    assert {given for path, given in found if path == "privacy/dp/private_access.py"} == {"self.source"}


# The policy


def without(request: str) -> Policy:
    """A policy that answers everything but this request, `pool` included."""
    return Policy(
        requests=tuple(one for one in REQUESTS if one != request),
        pooling=request != "pool",
        recipients=(COORDINATOR, SITES, OUTSIDE),
        public=("counts",),
    )


def files_in(own: Hospital) -> dict[str, bytes]:
    """All that lies at a hospital but its ledger and its log."""
    files = (path for path in own.root.rglob("*") if path.is_file())
    return {
        str(p.relative_to(own.root)): p.read_bytes() for p in files if "ledger" not in p.name and p.suffix != ".txt"
    }


@dataclass(frozen=True, kw_only=True)
class Secret:
    """What no request declares."""

    secret: Annotated[Tensor, Shape(axes=4)]


SECRET = Secret(secret=torch.ones(2, 1, 8, 8))
ANY_NAMES = ("export",)
"""Requests whose replies hold nothing but parameters of any name."""


@pytest.fixture
def called(monkeypatch) -> list[str]:
    """Names of the requests that a handler began to work on; each replies with a tensor that few requests declare."""
    begun: list[str] = []

    def noting(request: str):
        def handler(*_):
            begun.append(request)
            return working.admit.Done(SECRET, describe_event(NOTHING), Message())

        return handler

    monkeypatch.setattr(working, "HANDLERS", {name: noting(name) for name in working.HANDLERS})
    # What a question must hold is looked at before the policy's own part of the work, and is not what is asked here.
    monkeypatch.setattr(working, "parse_question", lambda request, message: None)
    return begun


def test_every_request_that_a_policy_can_name_has_a_handler_and_every_handler_a_name_in_the_policy():
    assert set(REQUESTS) == {*working.HANDLERS}


def round_of(request_: str) -> int:
    return 1 if ROUNDS[request_] else 0


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("budget", [None, Budget(epsilon=9.0)])
def test_a_request_that_the_policy_leaves_out_is_refused_with_nothing_done(tmp_path, called, request_, budget):
    policy = without(request_)
    if budget is not None:
        policy = Policy(**{**vars(policy), "budget": budget, "pooling": False})
    own, cohort = hospital(tmp_path / "a", policy)
    before = files_in(own)
    facts = {"cohort": cohort, "recipient": "outside", "train_run": "r/one", "checkpoint": "latest", "best": None}
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            ask(own, request_, round_of(request_), MODEL, run="r/asked", **facts)
        assert caught.value.code == "policy_request"
    assert called == [] and files_in(own) == before
    lines = list(ledgers.read_lines(own.ledger))
    assert len(lines) == 2
    for line in lines:
        assert (line["request"], line["refused"], line["bytes"]) == (request_, "policy_request", 0)
        assert parse_event(line["event"]) == NOTHING and line["again"] is False and "commit" not in line


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_that_the_policy_names_is_worked_on_and_no_other_is(tmp_path, called, request_):
    only = Policy(requests=(request_,), pooling=request_ == "pool", public=("counts",))
    own, _ = hospital(tmp_path / "a", only)
    for name in REQUESTS:
        if name == request_ and name in ANY_NAMES:
            assert ask(own, name, round_of(name), run="r/asked").tensors
        else:
            with pytest.raises(Refused) as caught:
                ask(own, name, round_of(name), run="r/asked")
            assert caught.value.code == (UNDECLARED if name == request_ else "policy_request")
    assert called == [request_]
    leaves = [
        (line["refused"], line["bytes"] > 0) for line in ledgers.read_lines(own.ledger) if line["request"] == request_
    ]
    assert leaves == [(None, True) if request_ in ANY_NAMES else (UNDECLARED, False)]
    log = (own.root / "log.txt").read_text()
    assert request_ in ANY_NAMES or "the reply is not what its request declares" in log, "the log says which field"


def test_an_answer_that_was_committed_before_the_policy_changed_does_not_leave_after_it(tmp_path, called):
    for name in REQUESTS:
        own, _ = hospital(tmp_path / name, Policy(pooling=True, public=("counts",)))
        with contextlib.suppress(Refused):
            ask(own, name, round_of(name), run="r/asked")
        now, _ = hospital(tmp_path / name, without(name))
        with pytest.raises(Refused) as caught:
            ask(now, name, round_of(name), run="r/asked")
        assert caught.value.code == "policy_request"
