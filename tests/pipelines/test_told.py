"""A hospital with a budget tells of its numbers of patients once. Whoever comes, leaves or moves later, shows nowhere.

The law is stated over all requests: two hospitals that told the same once, and then differ in one patient, give the
same facts afterwards, but for what carries noise that is booked, and for names made with the hospital's key.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from torch import Tensor

from federation.models.mlp import Mlp
from federation.task import Task
from harmonize.complexity import Score
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.wgan import WganGp
from pipelines.coordinator.stages.ingest import _find_delta_problems
from pipelines.data.images import Slices
from pipelines.data.sources import GlandMask, NiftiSource, TableLabels
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.released_counts import COUNTED_FILE, LEAST_NOISE, noise_of, read_released_counts
from pipelines.hospital.worker import make_worker
from pipelines.ledger import main as ledger_command
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.signed import TENSOR, to_tensor
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.requests import REQUESTS as DECLARED
from pipelines.settings.config import Config
from pipelines.settings.learning import Split
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian, list_leaves, parse_or_non_private
from privacy.dp.replacing import replaced_cost
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.build_statement import build_statement
from privacy.release.form import fields_of
from privacy.release.gate import Refused
from privacy.release.meaning import format_loss
from privacy.release.policy import REQUESTS, Budget, Policy
from privacy.release.statement_markdown import render_markdown
from signed_models import finished, public_key, signature_of

NOISED = Policy(budget=Budget(epsilon=30.0), min_patients=1, trusted_models={"owner": public_key()})
EXACT = replace(NOISED, public=("counts",))
SIZE = 16
NUMBERS = 134  # features that radiomics computes of a slice
PATIENTS = 15
EVOLUTION: dict[str, Json] = {"name": "private_evolution", "epsilon": 1.0, "candidates": 16, "rounds": 1}
EVOLUTION |= {"public": 50, "components": 5}
NAMED_BY_KEY = {"digest", "sha256", "cohort", "cut", "page", "ledger"}
"""Names that only who has the hospital's key could make; `test_names_follow_from_the_key` holds them to that."""
WITH_NOISE = {"loss", "score", "values", "spacing", "extent", "noised_patients"}
LENGTHS = {"bytes", "sent"}
"""In a report: how long earlier replies were. A noised number may have a digit more; they are compared themselves."""
OF_A_DIVISION = {"epsilon", "noised", "spent", "remaining", "meaning", "accountant", "splits", "runs"}
"""What a statement says otherwise after the list of test patients changed: another division of patients adds up."""


class Answer(NamedTuple):
    """What left in answer to a request: facts, tensors, or a code; and what the ledger says that it was."""

    facts: Mapping[str, Json]
    tensors: Mapping[str, Tensor]
    code: str | None
    event: Json


@functools.cache
def files_of(source: PhantomSource) -> dict[str, bytes]:
    """A phantom's files by name. They are drawn once."""
    with tempfile.TemporaryDirectory() as folder:
        write(source, Path(folder))
        return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


class Site:
    """A hospital with NIfTI files, and a coordinator that says to it what it likes."""

    def __init__(self, folder: Path, policy: Policy, *, patients: int = PATIENTS) -> None:
        self.folder = folder
        if not folder.exists():
            folder.mkdir()
            source = PhantomSource(scanner="P", patients=patients + 1, seed=1, slices=4, format="nifti")
            for name, data in files_of(source).items():
                (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / "files" / name).write_bytes(data)
            (folder / "later").mkdir()
            last = sorted((folder / "files" / "images").iterdir())[-1]
            last.rename(folder / "later" / last.name)
        self.settings = SiteSettings(
            source=NiftiSource(folder=str(folder / "files" / "images"), unit="1e-6 mm2/s"),
            labels=TableLabels(kind="table", file=str(folder / "files" / "labels.csv"), slice="slice"),
            gland=GlandMask(folder=str(folder / "files" / "masks" / "gland")),
            policy=policy,
            home=str(folder / "home"),
        )

    @property
    def hospital(self) -> Hospital:
        return Hospital("a", self.folder / "run", self.settings, lambda: "2026-01-01T00:00:00Z", simulation=False)

    def names(self) -> list[str]:
        return sorted(path.name.removesuffix(".nii.gz") for path in (self.folder / "files" / "images").iterdir())

    def ask(
        self, request: str, run: str, facts: Mapping[str, Json], tensors: Mapping[str, Tensor], at: int = 0
    ) -> Answer:
        """facts: more than one request knows; each is sent those that it declares."""
        call = Call(run, at, request, {"a": at - 1} if at > 1 else {})
        if request != "introduce":
            names = {field.name for field in fields_of(DECLARED[request].question)}
            facts = {name: value for name, value in facts.items() if name in names}
        try:
            reply, code = make_worker(self.hospital)(call, Message(tensors, facts)), None
        except Refused as refused:
            reply, code = Message(), refused.code
        ledger = self.hospital.ledger
        *_, line = ledgers.read_lines(ledger) if ledger.exists() else ({"event": None},)
        return Answer(reply.facts, reply.tensors, code, line["event"])

    def ingest(self, turn: str, **changes: Json) -> Answer:
        asked = {"images": to_plain(Slices(size=SIZE, spacing_mm=4.0)), "seed": 0, "independent": True}
        split = to_plain(Split(train=0.5, validation=0.2, test=0.3))
        return self.ask("ingest", f"r/ingest-{turn}", {**asked, "split": split, **changes}, {})

    @property
    def spent(self) -> float:
        return compute_cost(ledgers.spent_events(ledgers.read_lines(self.hospital.ledger)), 1e-5).epsilon


def everything(site: Site, turn: str, *, last: str = "holds") -> dict[str, Answer]:
    """The answers to every request that there is, up to the last."""
    told: dict[str, Answer] = {}
    for request, answer in asking(site, turn):
        told[request] = answer
        if request == last:
            break
    return told


def asking(site: Site, turn: str) -> Iterator[tuple[str, Answer]]:
    """Every request that there is, as a private run with harmonization asks it."""
    yield "survey", site.ask("survey", f"r/survey-{turn}", {}, {})
    measured: dict[str, Json] = {"images": "slices", "values": "adc", "target": "gland", "classes": ["gland"]}
    yield "fingerprint", site.ask("fingerprint", f"r/fingerprint-{turn}", measured, {})
    images, split = to_plain(Slices(size=SIZE, spacing_mm=4.0)), to_plain(Split(train=0.5, validation=0.2, test=0.3))
    read: dict[str, Json] = {"images": images, "split": split, "seed": 0, "independent": True}
    yield "moments", site.ask("moments", f"r/ingest-{turn}", read, {})
    ingested = site.ingest(turn)
    yield "ingest", ingested
    cohort = str(ingested.facts["cohort"])
    common: dict[str, Json] = {"cohort": cohort, "scale": {"low": 0.0, "high": 3.5}, "copies": 2, "seed": 0}
    common |= {"private": True, "prior": "prostate_adc"}
    score: Json = {"release": "dp", "components": 5, "epsilon": 0.5}
    yield "score", site.ask("score", f"r/score-{turn}", {**common, "score": score, "images": 8}, {})
    yield "synthesize", site.ask("synthesize", f"r/synth-{turn}", {**common, "synthesis": EVOLUTION}, {})
    surrogate: Json = {"name": "surrogate", "closeness": 1.0, "spacing": 0.0}
    sample: dict[str, Json] = {"synthesis_run": "r/synth-first", "sampling": surrogate, "shared": 2}
    yield "sample", site.ask("sample", f"r/sample-{turn}", {**common, **sample}, {})
    shared = {"images": torch.rand(8, 1, SIZE, SIZE) * 2 - 1, "labels": torch.arange(8) % 2}
    curve: dict[str, Json] = {"space": "s", "translator": {"name": "identity"}, "veto": {}, "is_target": False}
    yield "translate", site.ask("translate", f"r/translate-{turn}", {**common, **curve, "scanner": "P"}, shared)
    balanced: Json = {"synthesis": {"name": "fitted_prior", "epsilon": 0.5, "pictures": 60}, "copies": 1}
    yield "augment", site.ask("augment", f"r/augment-{turn}", {**common, "copies": 1, "augment": balanced}, {})
    features: Json = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "components": 2}
    scale = {"mean": torch.zeros(NUMBERS), "spread": torch.ones(NUMBERS), "axes": torch.eye(NUMBERS)[:, :2]}
    scale = {name: part.double() for name, part in scale.items()}
    asked: dict[str, Json] = {
        "cohort": cohort,
        "model": features,
        "public": {"prior": "prostate_adc", "pictures": 1200},
    }
    yield "extract", site.ask("extract", f"r/extract-{turn}", asked, scale)
    run, private = f"r/train-{turn}", {"clip": 1.0, "sampling": 1.0, "views": 2, "noise": 8.0, "validation_noise": 20.0}
    opening: dict[str, Json] = {"label": "x", "algorithm": {"name": "fedavg"}, "model": {"name": "mlp", "hidden": [2]}}
    opening |= {"inputs": [1, SIZE, SIZE], "classes": 2, "seed": 0, "cohort": cohort, "evaluation_noise": 20.0}
    work: Json = {"optimizer": "sgd", "lr": 0.1, "steps": 1, "epochs": None, "augment": "none"}
    opening |= {"work": work, "privacy": {**private, "counts_noise": 20.0}}
    yield "introduce", site.ask("introduce", run, opening, {})
    network = Task(Mlp(hidden=(2,)), (1, SIZE, SIZE), 2).network().state_dict()
    model = {f"model/{name}": torch.zeros_like(value) for name, value in network.items()}
    said: dict[str, Json] = {"algorithm": {}, "best": None}
    yield "train 1", site.ask("train", run, said, model, 1)
    yield "train", site.ask("train", run, said, model, 2)
    yield "finish", site.ask("finish", run, said, model, 3)
    yield "figures", site.ask("figures", f"r/figures-{turn}", {"train_run": run, "last": 2}, {})
    own: dict[str, Json] = {"label": "x", "train_run": run, "checkpoint": "latest", "best": None, "cohort": cohort}
    yield "export", site.ask("export", f"r/export-{turn}", own, {})
    yield "evaluate", site.ask("evaluate", f"r/evaluate-{turn}", {**own, "copies": 3}, {})
    yield "audit", site.ask("audit", f"r/audit-{turn}", own, {})
    yield "pool", site.ask("pool", f"r/pool-{turn}", {"cohort": cohort}, {})
    yield "route", site.ask("route", f"r/route-{turn}", own, {})
    data = finished(model=Mlp(hidden=(2,)), images=Slices(size=SIZE, spacing_mm=4.0), source=site.settings.source)
    signature: Json = to_plain(signature_of(site.folder, data))
    theirs: dict[str, Json] = {"cohort": cohort, "copies": 3, "epsilon": 1.0, "signature": signature}
    named = f"r/{hashlib.sha256(data).hexdigest()}-{turn}"
    yield "benchmark", site.ask("benchmark", named, theirs, {TENSOR: to_tensor(data)})
    page: dict[str, Json] = {"title": "t", "cohort": cohort, "reference": None, "copies": 3}
    yield "compare", site.ask("compare", f"r/compare-{turn}", {"methods": [own]}, {})
    copied: dict[str, Json] = {"places": ["TensorBoard"], "server": False, "rests_on": "0" * 64}
    yield "track", site.ask("track", f"r/track-{turn}", copied, {})
    yield "report", site.ask("report", f"r/report-{turn}", {**page, "methods": [own]}, {})
    sha = ingested.facts["sha256"]
    yield "holds", site.ask("holds", f"r/holds-{turn}", {"cohort": cohort, "sha256": sha, "runs": {run: 1}}, {})


def flat(facts: Json, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every single value, with where it stands."""
    if isinstance(facts, Mapping):
        for name, value in facts.items():
            yield from flat(value, (*place, name))
    elif isinstance(facts, list):
        for number, value in enumerate(facts):
            yield from flat(value, (*place, str(number)))
    else:
        yield place, facts


def visible(answer: Answer, hidden: set[str]) -> dict[tuple[str, ...], Json]:
    """The facts that a coordinator can compare."""
    return {place: value for place, value in flat(dict(answer.facts)) if not hidden & set(place)}


def withdrawn(site: Site) -> None:
    site.settings = replace(site.settings, exclude=(site.names()[3],))


def pinned(site: Site) -> None:
    (train, *_) = split_of(site)["train"]
    site.settings = replace(site.settings, test=(train,))


def deleted(site: Site) -> None:
    (site.folder / "files" / "images" / f"{site.names()[5]}.nii.gz").unlink()


def arrived(site: Site) -> None:
    (late,) = (site.folder / "later").iterdir()
    late.rename(site.folder / "files" / "images" / late.name)


def relabelled(site: Site) -> None:
    table, name = site.folder / "files" / "labels.csv", site.names()[2]
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{a[:-1]}{1 - int(a[-1])}" if a.startswith(name) else a for a in lines) + "\n")


def unreadable(site: Site) -> None:
    (site.folder / "files" / "images" / f"{site.names()[7]}.nii.gz").write_bytes(b"nothing")


def relabelled_and_unreadable(site: Site) -> None:
    """Two changes of which none hides the other: of the examples by label, and of the number of patients."""
    relabelled(site)
    unreadable(site)


CHANGES: tuple[Callable[[Site], None], ...] = (withdrawn, pinned, deleted, arrived, relabelled, unreadable)
# What only the noise could hide is seen where a patient goes and where one comes.
USUAL = {
    "noised": (withdrawn, arrived),
    "declared": (pinned, deleted, relabelled_and_unreadable),
}


def split_of(site: Site) -> dict[str, list[str]]:
    (path, *_) = (site.folder / "run" / "cohorts").glob("*/split.json")
    found: dict[str, list[str]] = json.loads(path.read_text())
    return found


POLICIES = {"noised": NOISED, "declared": EXACT}


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Callable[[str], tuple[Site, dict[str, Answer]]]:
    """By policy: a hospital that told its counts once, and what the same hospital says when nothing changed."""

    @functools.cache  # and no `params`: pytest would make it anew for every change
    def told(policy: str) -> tuple[Site, dict[str, Answer]]:
        site = Site(tmp_path_factory.mktemp("told") / "h", POLICIES[policy])
        (key := site.folder / "home" / "pseudonym.key").parent.mkdir()
        key.write_bytes(hashlib.sha256(b"told 0").digest())  # 10 train; with a random key noise may tell of none
        key.chmod(0o600)
        first = site.ingest("first")
        asked: dict[str, Json] = {
            "cohort": first.facts["cohort"],
            "scale": {"low": 0.0, "high": 3.5},
            "copies": 2,
            "seed": 0,
        }
        synthesis = {**asked, "private": True, "synthesis": EVOLUTION}
        assert site.ask("synthesize", "r/synth-first", synthesis, {}).code is None
        same = copied(site, "same")
        return site, everything(same, "later")

    return told


def copied(site: Site, name: str) -> Site:
    folder = site.folder.parent / name
    shutil.copytree(site.folder, folder)
    return Site(folder, site.settings.policy)


@pytest.mark.chance(1e-8, "noise leaves none of 10 training patients in three cells")
@pytest.mark.parametrize(
    ("policy", "change"),
    [
        pytest.param(
            *(policy, change),
            id=f"{policy}-{change.__name__}",
            marks=[] if change in USUAL[policy] else [pytest.mark.slow],
        )
        for policy in POLICIES
        for change in dict.fromkeys((*USUAL[policy], *CHANGES))
    ],
)
def test_no_request_tells_who_came_left_or_moved(before, policy, change):
    site, same = before(policy)
    other = copied(site, change.__name__)
    change(other)
    changed = everything(other, "later")
    lost = sorted(set(REQUESTS) - {name.split()[0] for name in changed})
    assert not lost, f"{lost}: ask it in asking() above, so that this law holds for it too"
    cohorts = [
        cohort_of(one.hospital, str(said["ingest"].facts["cohort"]))
        for one, said in ((copied_view(site, "same"), same), (other, changed))
    ]
    assert not torch.equal(*(counts_of(cohort) for cohort in cohorts)), "the change is one that counts would show"
    hidden = NAMED_BY_KEY | (OF_A_DIVISION if change is pinned else set())
    for request, answer in changed.items():
        twin, seen = same[request], hidden | (LENGTHS if request == "report" else set())
        assert answer.code == twin.code, request
        assert anonymous(answer.event) == anonymous(twin.event), request
        noised = any(
            getattr(leaf, "noise_multiplier", 0) > 0 for leaf in list_leaves(parse_or_non_private(answer.event))
        )
        mine, theirs = (visible(one, seen | (WITH_NOISE if noised else set())) for one in (answer, twin))
        assert mine == theirs, request
        # A model that is exported was paid for by the rounds that trained it, which had noise of their own.
        if not noised and request != "export":
            assert answer.tensors.keys() == twin.tensors.keys(), request
            assert all(torch.equal(value, twin.tensors[name]) for name, value in answer.tensors.items()), request


def copied_view(site: Site, name: str) -> Site:
    return Site(site.folder.parent / name, site.settings.policy)


def counts_of(cohort) -> Tensor:
    """(3, 2) examples by split and label."""
    found = torch.zeros(3, 2)
    for split, label in zip(cohort.split.tolist(), cohort.labels.tolist(), strict=True):
        found[split, label] += 1
    return found


def anonymous(event: Json) -> Json:
    """An event without the name of the division."""
    if isinstance(event, dict):
        return {name: anonymous(value) for name, value in event.items() if name != "cut"}
    return [anonymous(one) for one in event] if isinstance(event, list) else event


@pytest.mark.chance(1e-8, "noise leaves none of 10 training patients in three cells")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_answered_is_answered(before, policy):
    """The law says nothing of what is refused: these are refused, and nothing else is."""
    _, same = before(policy)
    refused = {request: answer.code for request, answer in same.items() if answer.code}
    expected = {"moments": "malformed_request", "pool": "policy_request", "figures": "unprotected_figures"}
    assert refused == {**expected, "route": refused["route"]}


def test_names_follow_from_the_key(tmp_path):
    """The same files at two hospitals with keys of their own: no name of one is a name of the other."""
    one, other = Site(tmp_path / "a", NOISED), Site(tmp_path / "b", NOISED)
    found = []
    for site in (one, other):
        said = [site.ask("survey", "r/survey", {}, {}), site.ingest("x")]
        found.append({(place[-1], value) for answer in said for place, value in flat(dict(answer.facts))})
    assert {name for name, _ in found[0] & found[1]}.isdisjoint(NAMED_BY_KEY)
    assert {name for name, _ in found[0]} >= {"digest", "sha256", "cohort", "cut"}


@pytest.mark.chance(6e-9, "one of three counts is six deviations away")
def test_noised_counts_are_near_the_truth_paid_once_and_written_in_the_ledger(tmp_path):
    site = Site(tmp_path / "h", NOISED)
    first = site.ingest("one")
    noise = noise_of(NOISED.budget)
    assert noise >= LEAST_NOISE
    assert first.event == {"kind": "gaussian", "noise_multiplier": noise}
    paid = site.spent
    assert paid == pytest.approx(compute_cost([Gaussian(noise)], 1e-5).epsilon)
    told, truth = first.facts["splits"], {split: len(names) for split, names in split_of(site).items()}
    for split in ("train", "validation", "test"):
        assert abs(told[split]["patients"] - truth[split]) <= 6 * noise * 3**0.5 + 3
    again = site.ingest("two")
    assert again.facts["splits"] == told and again.event == {"kind": "nothing"} and site.spent == paid


@pytest.mark.chance(3e-9, "a mean of 200 is six deviations away, or their deviation 40 % off")
def test_the_noise_of_counts_is_that_which_is_booked(tmp_path, monkeypatch):
    """The mechanism against a slow count: the deviation of 200 releases of one cell is the booked one."""
    from pipelines.hospital import released_counts as told

    site = Site(tmp_path / "h", NOISED)
    cohort = cohort_of(site.hospital, str(site.ingest("one").facts["cohort"]))
    cells = told._patient_cells(cohort)
    assert cells.sum(dim=1).tolist() == [1.0] * len(cohort.patients), "a patient is in one cell, once"
    by_hand = [0] * 9
    for number in range(len(cohort.patients)):
        own = [
            (int(s), int(y)) for s, y, p in zip(cohort.split, cohort.labels, cohort.patient, strict=True) if p == number
        ]
        kinds = {y > 0 for _, y in own}
        by_hand[own[0][0] * 3 + (2 if len(kinds) == 2 else int(kinds == {True}))] += 1
    assert cells.sum(dim=0).tolist() == by_hand
    drawn = []
    for _ in range(200):
        (site.folder / "home" / COUNTED_FILE).unlink()
        drawn.append(site_count(told, site, cohort))
    most = max(range(9), key=by_hand.__getitem__)  # where clamping at 0 hardly happens
    values = torch.tensor([float(one[most]) for one in drawn])
    noise = noise_of(NOISED.budget)
    if by_hand[most] > 3 * noise:
        assert values.mean().item() == pytest.approx(by_hand[most], abs=6 * noise / 200**0.5)
        assert values.std().item() == pytest.approx((noise**2 + 1 / 12) ** 0.5, rel=0.4)


def site_count(told, site: Site, cohort) -> list[int]:
    found = told._count_patients(site.hospital, Call("r/x", 0, "ingest", {}), cohort)
    (site.folder / "home" / COUNTED_FILE).write_text("{}")
    return [number for split in ("train", "validation", "test") for number in found.cells[split]]


def test_a_count_that_never_left_is_paid_when_it_does(tmp_path, monkeypatch):
    """Killed between writing the numbers down and the ledger: the next reply that tells them is charged."""
    from pipelines.hospital import worker as way_in

    site = Site(tmp_path / "h", NOISED)
    site.ask("survey", "r/survey", {}, {})
    with monkeypatch.context() as patch:

        def killed(*arguments, **options):
            raise KeyboardInterrupt

        patch.setattr(way_in, "release_reply", killed)
        with pytest.raises(KeyboardInterrupt):
            site.ingest("one")
    assert read_released_counts(site.hospital) is not None and site.spent == 0
    assert site.ingest("two").event == {"kind": "gaussian", "noise_multiplier": noise_of(NOISED.budget)}


def test_without_the_file_patients_are_counted_anew_and_paid_anew(tmp_path):
    site = Site(tmp_path / "h", NOISED)
    first = site.ingest("one")
    paid = site.spent
    (site.folder / "home" / COUNTED_FILE).unlink()
    held = {"cohort": first.facts["cohort"], "sha256": first.facts["sha256"]}
    assert "counted anew" in str(site.ask("holds", "r/holds", held, {}).facts["complaint"])
    again = site.ingest("one")  # the very same conversation: its old answer tells old numbers
    assert again.event == first.event and site.spent > paid
    assert site.ask("holds", "r/holds", held, {}).facts["complaint"] is None


def test_a_file_that_nobody_can_read_stops_the_hospital(tmp_path):
    site = Site(tmp_path / "h", NOISED)
    site.ingest("one")
    (site.folder / "home" / COUNTED_FILE).write_text('{"digest": "x", "counted": {"cells": 3}}')
    assert site.ingest("two").code == "damaged_counts"


def test_another_question_needs_a_persons_consent(tmp_path):
    site = Site(tmp_path / "h", NOISED)
    site.ingest("one")
    assert site.ingest("two", seed=1).code == "another_cohort"
    assert site.ingest("three", split=to_plain(Split())).code == "another_cohort"


def test_patients_who_move_others_are_not_counted_with_noise(tmp_path):
    assert Site(tmp_path / "h", NOISED).ingest("one", independent=False).code == "dependent_patients"


def test_too_few_patients_train_nothing(tmp_path):
    site = Site(tmp_path / "h", replace(NOISED, min_patients=1000))
    told = everything(site, "x", last="introduce")
    assert told["ingest"].code is None and told["ingest"].facts["min_patients"] == 1000
    for request in ("score", "synthesize", "introduce"):
        assert told[request].code == "too_few_patients", request
    shutil.rmtree(site.folder)
    declared = Site(tmp_path / "h", replace(EXACT, min_patients=None), patients=10)  # 11 by default
    assert declared.ingest("one").code == "too_few_patients"


def test_a_delta_near_one_patient_in_so_many_is_refused_where_it_counts(tmp_path):
    """Settings cannot know how many patients there are; the hospital does."""
    site = Site(tmp_path / "h", replace(EXACT, budget=Budget(epsilon=30.0, delta=1e-3)), patients=120)
    told = everything(site, "x", last="introduce")
    assert {told[request].code for request in ("score", "synthesize", "introduce")} == {"delta_too_large"}
    for made in ("run", "home"):  # the hospital is a new one, with the same files
        shutil.rmtree(site.folder / made)
    site = Site(tmp_path / "h", EXACT, patients=120)
    cohort = site.ingest("x").facts["cohort"]
    facts: dict[str, Json] = {"cohort": cohort, "scale": {"low": 0.0, "high": 3.5}, "copies": 2, "seed": 0}
    loose: Json = {"release": "dp", "components": 5, "epsilon": 0.5, "delta": 1e-3}
    assert site.ask("score", "r/s", {**facts, "score": loose, "prior": "prostate_adc"}, {}).code == "delta_too_large"


def test_the_hospitals_own_page_says_the_true_numbers_and_those_that_others_hear(tmp_path):
    site = Site(tmp_path / "h", NOISED)
    site.ingest("one")
    withdrawn(site)
    cohort = site.ingest("two").facts["cohort"]
    page: dict[str, Json] = {"title": "t", "cohort": cohort, "reference": None, "copies": 0}
    reply = site.ask("report", "r/report", {**page, "methods": []}, {})
    assert reply.facts["knew"] == []
    text = " ".join((site.folder / "run" / "report.html").read_text().split())
    told = read_released_counts(site.hospital)
    assert f"train {told.patients('train')}, validation {told.patients('validation')}" in text
    assert "1 study left out" in text.replace("<b>", "").replace("</b>", "") or "left out" in text


@pytest.mark.parametrize("delta", [0.0, 1.001e-3, 0.1, 0.99])
@pytest.mark.parametrize(
    "settings",
    [
        lambda delta: PatientLevel(epsilon=3.0, delta=delta),
        lambda delta: Budget(epsilon=3.0, delta=delta),
        lambda delta: Score(release="dp", delta=delta),
        lambda delta: WganGp(delta=delta),
        lambda delta: PrivateEvolution(delta=delta),
        lambda delta: FittedPrior(delta=delta),
    ],
    ids=["privacy", "budget", "score", "dp_wgan_gp", "private_evolution", "fitted_prior"],
)
def test_no_settings_name_a_delta_that_lets_a_record_be_published(settings, delta):
    with pytest.raises(ValueError, match="delta must be in"):
        settings(delta)
    settings(1e-5)


def test_a_floor_belongs_to_a_budget():
    with pytest.raises(ValueError, match=r"min_patients must be at least 1, found 0"):
        Policy(budget=Budget(epsilon=1.0), min_patients=0)
    with pytest.raises(ValueError, match=r"left out without policy.budget"):
        Policy(min_patients=5)


def private_settings(**changes) -> dict[str, Json]:
    made = copy.deepcopy(BASE) | {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    for site in made["sites"].values():
        site["policy"] = {}
    return made | {"audit": {"canaries": 100}} | changes


def test_a_run_stops_where_a_hospital_has_too_few_patients_for_its_delta(tmp_path):
    made = private_settings(privacy={"epsilon": 3.0, "delta": 1e-3})
    config = validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)
    assert not _find_delta_problems(config, "a", 100)
    (said,) = _find_delta_problems(config, "a", 101)
    assert "a: privacy.delta is 0.001, and its 101 patients allow 0.00099 at most" in said


def test_the_statement_and_the_ledger_tell_epsilon_for_a_replaced_patient_too(tmp_path, capsys):
    site = Site(tmp_path / "h", NOISED)
    site.ingest("one")
    lines = list(ledgers.read_lines(site.hospital.ledger))
    wanted = replaced_cost(ledgers.spent_events(lines), 1e-5).epsilon
    said = build_statement(lines, site="a", delta=1e-5)
    assert said.noised < wanted <= said.replaced <= 1.01 * wanted
    assert f"where neighbours differ by replacing one patient | {format_loss(said.replaced)} |" in render_markdown(said)
    assert ledger_command(["sum", str(site.hospital.ledger)]) == 0
    assert f"where neighbours differ by replacing one patient: ε = {format_loss(wanted)}" in capsys.readouterr().out
    assert ledger_command(["sum", str(site.hospital.ledger), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["replaced"] == wanted
