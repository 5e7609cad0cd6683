"""A coordinator that cheats at harmonization."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harmonize import synthesis
from harmonize.evolution import PrivateEvolution
from harmonize.game import make_critic_losses
from harmonize.intensity import ZScore
from harmonize.networks import Critic, initialise_module
from harmonize.scale import Scale
from harmonize.wgan import WganGp, compute_true_cost
from pipelines.data.cohort import Cohort
from pipelines.data.images import Slices
from pipelines.hospital import kept, public_networks
from pipelines.hospital import model_file as ready
from pipelines.hospital import statement as stated
from pipelines.hospital import synthesis as imitate
from pipelines.hospital import translation as handler
from pipelines.hospital import worker as way_in
from pipelines.hospital.harmonization import training_rows
from pipelines.hospital.hospital import SPLITS, Hospital, read_cohort_file, write_cohort_file
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.statement import AS_THEY_ARE, FORGOTTEN, build_own_statement, describe_contents, list_left
from pipelines.hospital.worker import make_worker
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.check import parse_question
from pipelines.requests.sample import SAMPLE
from pipelines.runs.store import short_digest
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from privacy.dp.access import Rows
from privacy.dp.accounting import compute_cost
from privacy.dp.events import parse_event
from privacy.dp.private_access import PrivateAccess, open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Json, Message, number_of, to_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

BUDGET = Policy(budget=Budget(epsilon=4.0), public=("counts",))
ADC: dict[str, Json] = {"low": 0.0, "high": 3.5}
EVOLUTION: dict[str, Json] = {
    "name": "private_evolution",
    "epsilon": 1.0,
    "candidates": 16,
    "rounds": 2,
    "public": 50,
    "components": 5,
}
WGAN: dict[str, Json] = {"name": "wgan_gp", "epsilon": None, "steps": 1, "prior": None, "batch": 4, "width": 4}
SURROGATE: dict[str, Json] = {"name": "surrogate", "closeness": 1.0, "spacing": 0.0}


class Site:
    """A hospital of 12 phantoms, and a coordinator that says to it what it likes."""

    def __init__(self, folder: Path, policy: Policy = BUDGET) -> None:
        source = PhantomSource(scanner="P", patients=12, seed=1, slices=4)
        settings = SiteSettings(source=source, policy=policy)
        self.hospital = Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")
        self._cohort = ""
        self._asked = 0

    @property
    def cohort(self) -> str:
        """The name of the raw cohort, which is read when it is first asked for."""
        if not self._cohort:
            asked: dict[str, Json] = {"images": to_plain(Slices(size=32, spacing_mm=2.0)), "seed": 0}
            asked |= {"split": to_plain(Split(train=0.5, validation=0.2, test=0.3)), "independent": True}
            self._cohort = str(self.ask("ingest", asked, run="r/ingest").facts["cohort"])
        return self._cohort

    def ask(
        self, request: str, facts: Mapping[str, Json], tensors: Mapping[str, Tensor] | None = None, run: str = ""
    ) -> Message:
        self._asked += 1
        call = Call(run or f"r/{request}-{self._asked}", 0, request, {})
        return make_worker(self.hospital)(call, Message(tensors or {}, facts))

    def code(self, *arguments, **options) -> str:
        with pytest.raises(Refused) as caught:
            self.ask(*arguments, **options)
        return caught.value.code

    def facts(self, **more: Json) -> dict[str, Json]:
        return {"cohort": self.cohort, "scale": ADC, "copies": 2, "seed": 0, "private": True, **more}

    def translation(self, name: str = "identity", **more: Json) -> dict[str, Json]:
        said: dict[str, Json] = {"space": "s", "translator": {"name": name}, "veto": {}, "is_target": False}
        return self.facts(scanner="P", **{**said, **more})

    @property
    def spent(self) -> float:
        return compute_cost(ledgers.spent_events(ledgers.read_lines(self.hospital.ledger)), 1e-5).epsilon

    @property
    def last(self) -> Mapping[str, Json]:
        *_, line = ledgers.read_lines(self.hospital.ledger)
        return line


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path / "a")


def shared(channels: int = 1) -> dict[str, Tensor]:
    images = torch.rand(8, channels, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return {"images": images, "labels": torch.arange(8) % 2}


def told_or_code(site: Site, *arguments, **options) -> Message | str:
    """A reply, or the code that leaves instead."""
    try:
        return site.ask(*arguments, **options)
    except Refused as refused:
        return refused.code


def without(cohort: Cohort, patient: int) -> Cohort:
    """The same hospital, had this patient never come."""
    stay = cohort.patient != patient
    rows = {name: getattr(cohort, name)[stay] for name in ("images", "labels", "patient", "split", "position")}
    return replace(cohort, **rows)


# What works


def test_the_deformed_copies_of_a_patient_depend_on_nobody_else(site):
    cohort = cohort_of(site.hospital, site.cohort)
    train = cohort.patient[cohort.split == SPLITS.index("train")].unique().tolist()
    question = parse_question("synthesize", Message({}, site.facts(synthesis=EVOLUTION)))
    all_, fewer = (training_rows(one, question) for one in (cohort, without(cohort, train[0])))
    for patient in train[1:]:
        assert torch.equal(all_.x[all_.patient == patient], fewer.x[fewer.patient == patient])


def test_no_patient_moves_the_critic_by_more_than_the_clip(monkeypatch):
    """Whoever sends the seed knows the fakes. With noise for C, a sum that moves by several C is not what is booked.

    Each patient's set of fakes is drawn by itself (tests/privacy/test_wiring.py), so the others keep theirs.
    """
    theirs = torch.tensor([3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 7])
    monkeypatch.setattr(PrivateAccess, "_draw_set_numbers", lambda self, patients, sets: theirs[-patients:])
    g = torch.Generator().manual_seed(0)
    x, y, patient = torch.rand(12, 1, 32, 32, generator=g) * 2 - 1, torch.arange(12) % 2, torch.arange(12)
    critic, fakes = (
        initialise_module(lambda: Critic((1, 32, 32), 4), 0),
        torch.rand(8, 2, 2 * 1024 + 1, generator=g) * 2 - 1,
    )

    def added(rows: slice) -> Tensor:
        access = open_private(
            {"train": Rows(x[rows], y[rows], patient[rows])}, Protection(sampling=1.0, views=2, noise=0.0)
        )
        found = access.gradient(critic, make_critic_losses((1, 32, 32), 10.0), access.draw(), fakes).gradient
        return torch.cat([part.flatten() for part in found.values()]) * len(x[rows])

    assert float((added(slice(0, 12)) - added(slice(1, 12))).norm()) <= 1.0 + 1e-4


def test_names_of_translated_cohorts_do_not_tell_the_brightest_pixel(site):
    """What is below `low` becomes `low`: names of two ranges agree if and only if no pixel of any patient is above."""
    brightest = float(cohort_of(site.hospital, site.cohort).images.max())

    def agree(low: float) -> bool:
        names = [
            site.ask("translate", site.translation(scale={"low": low, "high": low + span}), shared()).facts["cohort"]
            for span in (0.001, 0.002)
        ]
        return names[0] == names[1]

    told = agree(brightest - 0.01), agree(brightest + 0.01)
    assert site.spent == 0
    assert told[0] == told[1]


def test_whether_malformed_shared_images_fail_depends_on_no_patient(site):
    """Without channels there is no curve: that is noticed only if some patient has a pixel above `low`."""
    brightest = float(cohort_of(site.hospital, site.cohort).images.max())

    def answer(low: float) -> str:
        asked = site.translation("z_score", scale={"low": low, "high": low + 1.0})
        outcome = told_or_code(site, "translate", asked, shared(channels=0))
        return outcome if isinstance(outcome, str) else "answered"

    assert answer(brightest - 0.01) == answer(brightest + 0.01)


def test_images_that_may_not_leave_any_more_do_not_leave(tmp_path):
    """A policy that grew stricter holds for what was learnt before."""
    site = Site(tmp_path / "a", Policy(pooling=True))
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    strict = Site(tmp_path / "a", Policy())
    asked = site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=4)
    assert strict.code("sample", asked) == "policy_pooling"


def test_a_ready_model_takes_the_translator_of_its_own_cohort(site):
    """Asked again under the same name, another translation takes the place of the one in which a model learns."""
    first = site.ask("translate", site.translation("z_score"), shared())
    site.ask("translate", site.translation("percentile"), shared())
    cohort = cohort_of(site.hospital, str(first.facts["cohort"]))
    assert cohort.recipe["translator"] == to_plain(ZScore())
    said, _, _ = ready._read_translator(site.hospital, str(first.facts["cohort"]), cohort)
    assert isinstance(said, dict) and said["settings"] == cohort.recipe["translator"]


def test_a_ready_model_holds_no_network_that_it_does_not_use(tmp_path):
    site = Site(tmp_path / "a", Policy())
    learner: dict[str, Json] = {"name": "cyclegan", "steps": 1, "width": 4, "critic": 4, "classifier": 4, "batch": 2}
    asked = site.translation(translator={**learner, "copies": 0}, private=False)
    site.ask("translate", {**asked, "veto": NO_LIMITS}, shared())
    (name,) = [n for n in (path.name for path in (site.hospital.root / "cohorts").iterdir()) if n != site.cohort]
    _, tensors, _ = ready._read_translator(site.hospital, name, _translated(site))
    assert tensors and not [name for name in tensors if name.startswith(f"{ready.PREFIX}back/")]


def test_the_statement_does_not_call_patients_images_made_up(tmp_path):
    site = Site(tmp_path / "a", Policy(pooling=True))
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    sent = site.ask("sample", site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=1)).tensors["images"]
    own = Scale(low=0.0, high=3.5).into(cohort_of(site.hospital, site.cohort).images)
    assert (own - sent[0]).abs().flatten(1).mean(dim=1).min() < 0.06  # a patient's own
    assert "synthetic" not in describe_contents(site.hospital, list(ledgers.read_lines(site.hospital.ledger)))["sample"]


def _statement_lines(site: Site, *, forget: str = "") -> tuple[str, str]:
    """What the statement and the list of what left call the shared images: both must say the same."""
    if forget:
        for name in (folder := site.hospital.conversation(forget)).names():
            folder.remove(name)
    lines = list(ledgers.read_lines(site.hospital.ledger))
    (listed,) = [entry.content for entry in list_left(site.hospital, lines, delta=1e-5) if entry.request == "sample"]
    return describe_contents(site.hospital, lines)["sample"], listed


def test_images_that_were_made_up_stay_so_beside_a_run_that_sent_patients_own(tmp_path):
    for place in ("one", "two", "three"):  # its noise is secret, and once in a while no image passes the rule
        site = Site(tmp_path / place, Policy(pooling=True))
        site.ask("synthesize", site.facts(synthesis=EVOLUTION), run="r/paid")
        with suppress(Refused):
            site.ask("sample", site.facts(synthesis_run="r/paid", sampling=SURROGATE, shared=2), run="r/made-up")
            break
    assert set(_statement_lines(site)) == {SAMPLE.says}
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    assert set(_statement_lines(site)) == {SAMPLE.says}, "put aside, and not sent"
    site.ask("sample", site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=1), run="r/own")
    (said,) = set(_statement_lines(site))
    assert said == f"{SAMPLE.says} (r/made-up); {AS_THEY_ARE} (r/own)"


def test_images_of_which_nothing_is_remembered_are_not_called_made_up(tmp_path):
    site = Site(tmp_path / "a", Policy(pooling=True))
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    site.ask("sample", site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=1), run="r/own")
    assert set(_statement_lines(site)) == {AS_THEY_ARE}
    (said,) = set(_statement_lines(site, forget="r/own"))
    assert said == FORGOTTEN and "synthetic" not in said.partition(":")[0]


def test_refused_samples_are_no_images(tmp_path):
    site = Site(tmp_path / "a", Policy(pooling=True))
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    strict = Site(tmp_path / "a", Policy())
    assert strict.code("sample", site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=4)) == "policy_pooling"
    assert set(_statement_lines(strict)) == {SAMPLE.says}


def test_a_statement_reads_what_each_conversation_remembers_once(tmp_path, monkeypatch):
    site, read = Site(tmp_path / "a", Policy(pooling=True)), []
    for name in ("r/one", "r/two"):
        site.ask("synthesize", site.facts(synthesis=EVOLUTION), run=name)
    site.ask("translate", site.translation(), shared())
    newest = stated.load_newest_memory
    monkeypatch.setattr(stated, "load_newest_memory", lambda folder: read.append(folder.root) or newest(folder))
    build_own_statement(site.hospital, list(ledgers.read_lines(site.hospital.ledger)))
    assert len(read) == len(set(read)) == 4  # the intake too: packages may have a part in any run


def test_real_images_are_drawn_as_every_other_candidate_and_none_twice(tmp_path):
    site = Site(tmp_path / "a", Policy(pooling=True))
    site.ask("synthesize", site.facts(synthesis={"name": "real"}), run="r/real")
    sent = site.ask("sample", site.facts(synthesis_run="r/real", sampling=SURROGATE, shared=1000))
    cohort = cohort_of(site.hospital, site.cohort)
    train = cohort.split == SPLITS.index("train")
    own = Scale(low=0.0, high=3.5).into(cohort.images[train])
    images, labels = sent.tensors["images"], sent.tensors["labels"]
    assert labels.tolist() == sorted(cohort.labels[train].tolist())
    whose = [int((own == one).flatten(1).all(dim=1).nonzero()[0, 0]) for one in images]
    assert sorted(whose) == list(range(len(own)))
    assert torch.equal(cohort.labels[train][whose], labels)


def test_every_file_of_the_room_makes_another_public_start(tmp_path, monkeypatch):
    for path in Path(synthesis.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(public_networks.wgan, "__file__", str(tmp_path / "wgan.py"))
    before = public_networks._digest_code()
    for path in sorted(tmp_path.iterdir()):
        kept = path.read_bytes()
        path.write_bytes(kept + b"#")
        assert public_networks._digest_code() != before, path.name
        path.write_bytes(kept)
    assert public_networks._digest_code() == before


def test_a_translation_reads_the_cohort_once(site, monkeypatch):
    asked, read = site.translation("z_score"), []
    cohort_in = handler.cohort_in
    monkeypatch.setattr(handler, "cohort_in", lambda *a: read.append(a) or cohort_in(*a))
    monkeypatch.setattr(kept, "read_cohort_file", lambda path: read.append(path) or read_cohort_file(path))
    site.ask("translate", asked, shared())
    assert len(read) == 2  # one call, which read one file


@pytest.mark.parametrize(
    "said",
    [
        {"name": "dp_wgan_gp", "steps": 10**12},
        {"name": "dp_wgan_gp", "prior_images": 10**12},
        {"name": "dp_wgan_gp", "width": 10**9},
        {"name": "dp_wgan_gp", "latent": 10**9},
        {"name": "dp_wgan_gp", "batch": 10**12},
        {"name": "cyclegan", "steps": 10**12},
        {"name": "cyclegan", "copies": 10**9},
        {"name": "cyclegan", "width": 4 * 10**9},
    ],
)
def test_work_without_end_is_refused(said):
    name = "translator" if said["name"] == "cyclegan" else "synthesis"
    request = "translate" if name == "translator" else "synthesize"
    facts = {"scale": ADC, "copies": 2, "seed": 0, "cohort": "c", name: said}
    facts |= {"space": "s", "veto": {}, "is_target": False, "scanner": None} if name == "translator" else {}
    with pytest.raises(Refused, match="malformed_settings"):
        parse_question(request, Message({}, facts))
    first, *_ = said
    fitting = {key: value for key, value in said.items() if key == first}
    parse_question(request, Message({}, {**facts, name: fitting}))


def test_an_exact_score_compares_as_many_images_as_were_asked_for(tmp_path, monkeypatch):
    site, seen = Site(tmp_path / "a", Policy()), []

    def looked(settings, *arguments, **options):
        seen.append(settings.images)
        raise RuntimeError("seen")

    monkeypatch.setattr(imitate, "score_site", looked)
    asked: dict[str, Json] = {"score": {"release": "exact", "steps": 1, "seeds": 1, "components": 5}, "images": 9}
    site.code("score", site.facts(prior="prostate_adc", **asked))
    assert seen == [9]


# What does not work


def _translated(site: Site) -> Cohort:
    names = [path.name for path in (site.hospital.root / "cohorts").iterdir()]
    (found,) = [one for one in (cohort_of(site.hospital, name) for name in names) if "space" in one.recipe]
    return found


NO_LIMITS: dict[str, Json] = {}


def test_a_budget_pays_for_nothing_without_noise(site):
    paid: dict[str, Json] = {**EVOLUTION}
    site.ask("synthesize", site.facts(synthesis=paid), run="r/paid")
    before = site.spent
    assert 0.9 < before <= 1.0
    learner: Json = {"name": "cyclegan", "steps": 1}
    codes = [
        site.code("synthesize", site.facts(synthesis={"name": "real"})),
        site.code("synthesize", site.facts(synthesis=WGAN)),
        site.code("synthesize", site.facts(synthesis={**EVOLUTION, "epsilon": None})),
        site.code("synthesize", site.facts(synthesis={**EVOLUTION, "epsilon": 100.0})),
        site.code("sample", site.facts(synthesis_run="r/paid", sampling={"name": "raw"}, shared=4)),
        site.code("score", site.facts(score={"release": "exact", "components": 5}, prior="prostate_adc")),
    ]
    assert codes == ["policy_pooling", *["budget"] * 5]
    for private in (True, False):
        for is_target in (True, False):
            asked = site.translation(translator=learner, private=private, is_target=is_target)
            assert site.code("translate", asked, shared()) == "unprotected_translation"
    for private in (None, 0):
        asked = site.translation(translator=learner, private=private)
        assert site.code("translate", asked, shared()) == "malformed_request"
    paper = {"name": "dp_wgan_gp", "variant": "paper", "critic_steps": 5, "clip": 1.0, "steps": 2000}
    assert site.code("synthesize", site.facts(synthesis={**paper, "epsilon": 100.0})) == "budget"
    assert site.spent == before


def test_samples_of_what_was_paid_for_are_free_however_often_and_look_at_nobody(site):
    site.ask("synthesize", site.facts(synthesis=EVOLUTION), run="r/paid")
    before = site.spent
    asked = site.facts(synthesis_run="r/paid", sampling=SURROGATE, shared=4)
    one, other = (site.ask("sample", {**asked, "seed": seed}) for seed in (0, 1))
    assert not torch.equal(one.tensors["images"], other.tensors["images"]) and site.spent == before
    cohort = cohort_of(site.hospital, site.cohort)
    stranger = replace(cohort, images=torch.rand_like(cohort.images), labels=1 - cohort.labels)
    name = short_digest(write_cohort_file(site.hospital.root / "cohorts", stranger, site.hospital.key()))
    assert to_bytes(site.ask("sample", {**asked, "cohort": name})) == to_bytes(one)


def test_what_was_learnt_and_not_booked_makes_no_images(site, monkeypatch):
    """Killed between the commit of a synthesis and its line; asked again, it is charged and learnt no second time."""
    site.ask("translate", site.translation(), shared())  # there is a ledger

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    facts = site.facts(synthesis=EVOLUTION)
    with monkeypatch.context() as patch:
        patch.setattr(way_in, "release_reply", killed)
        with pytest.raises(KeyboardInterrupt):
            site.ask("synthesize", facts, run="r/killed")
    asked = site.facts(synthesis_run="r/killed", sampling=SURROGATE, shared=4)
    assert site.code("sample", asked) == "unpaid_memory" and site.spent == 0
    monkeypatch.setattr(imitate.synthesis, "synthesize", killed)
    site.ask("synthesize", facts, run="r/killed")
    assert 0.9 < site.spent <= 1.0 and site.last["again"] is False
    site.ask("synthesize", facts, run="r/killed")
    assert 0.9 < site.spent <= 1.0 and site.last["again"] is True
    assert len(site.ask("sample", asked).tensors["images"]) == 8


def test_only_a_synthesis_is_sampled(site):
    site.ask("translate", site.translation(), shared(), run="r/other")
    for run in ("r/other", "r/nothing"):
        assert site.code("sample", site.facts(synthesis_run=run, sampling=SURROGATE, shared=4)) == "not_synthesized"


def test_nothing_private_is_learnt_from_images_that_were_translated_by_a_learner(tmp_path):
    """Made without a budget; a budget came later. Each image then hangs on all patients, and no clip bounds one."""
    free = Site(tmp_path / "a", Policy())
    learner: dict[str, Json] = {"name": "cyclegan", "steps": 1, "width": 4, "critic": 4, "classifier": 4, "batch": 2}
    asked = free.translation(translator={**learner, "copies": 0}, private=False, veto=NO_LIMITS)
    free.ask("translate", asked, shared())
    assert free.last["event"] == {"kind": "non_private"}
    cohorts = (free.hospital.root / "cohorts").iterdir()
    (name,) = [path.name for path in cohorts if "space" in cohort_of(free.hospital, path.name).recipe]
    site = Site(tmp_path / "a")
    assert site.cohort == free.cohort, "asked again, it counts what its budget now lets it tell"
    score: dict[str, Json] = {"release": "dp", "components": 5}
    facts: dict[str, Json] = {"cohort": name, "scale": ADC, "copies": 1, "seed": 0, "private": True}
    assert site.code("synthesize", {**facts, "synthesis": EVOLUTION}) == "dependent_patients"
    assert site.code("score", {**facts, "score": score, "prior": "prostate_adc"}) == "dependent_patients"
    again = site.ask("translate", {**site.translation(), "cohort": name}, shared()).facts["cohort"]
    assert site.code("synthesize", {**facts, "cohort": again, "synthesis": EVOLUTION}) == "dependent_patients"


def test_a_noised_score_and_a_synthesis_cost_what_was_planned(site):
    from harmonize.complexity import Score, noise_of
    from privacy.dp.events import Gaussian, Part

    site.ask("score", site.facts(score={"release": "dp", "components": 5, "epsilon": 0.5}, prior="prostate_adc"))
    planned = compute_cost([Part("", "train", Gaussian(noise_of(Score(release="dp", epsilon=0.5))))], 1e-5).epsilon
    assert compute_cost([parse_event(site.last["event"])], 1e-5).epsilon == pytest.approx(planned)
    wgan = WganGp(steps=2, prior=None, width=4, epsilon=1.0, views=2, batch=4)
    for settings in (wgan, PrivateEvolution(**{k: v for k, v in EVOLUTION.items() if k != "name"})):
        site.ask("synthesize", site.facts(synthesis=to_plain(settings)))
        events = synthesis.list_events(settings, synthesis.make_protection(settings, patients=1))
        booked = compute_cost([parse_event(site.last["event"])], 1e-5).epsilon
        assert booked == pytest.approx(compute_cost(events, 1e-5).epsilon) and booked <= 1.0


@pytest.mark.parametrize(
    "scale", [{"low": 0.0, "high": 1e-320}, {"low": -1e308, "high": 1e308}, {"low": 0.0, "high": 1e-30}]
)
def test_an_absurd_scale_shows_nobody_past_the_noise(site, scale):
    """Images that are not finite change nothing: each such patient's part is left out, and the noise stays."""
    assert Scale(**scale)
    score: dict[str, Json] = {"release": "dp", "components": 5, "epsilon": 0.5}
    asked = site.facts(score=score, prior="prostate_adc", scale=scale)
    outcome = told_or_code(site, "score", asked)
    if isinstance(outcome, str):
        assert outcome in ("failed", "malformed_settings") and site.spent == 0
    else:
        assert 0 <= float(str(outcome.facts["score"])) <= 1 and 0 < site.spent <= 0.5


def test_names_that_would_leave_the_folder_are_refused(site):
    for space in ("../../ready/x", "..", "/x/y", ""):
        assert site.code("translate", site.translation(space=space), shared()) in ("failed", "malformed_settings")
    assert site.code("synthesize", site.facts(synthesis=EVOLUTION, cohort="../x")) == "malformed_cohort"
    assert site.code("synthesize", site.facts(synthesis=EVOLUTION), run="r/../x") == "malformed_run"
    for more in ({"copies": 10**6}, {"copies": True}, {"seed": -1}, {"seed": 1.5}):
        assert site.code("synthesize", site.facts(synthesis=EVOLUTION, **more)) == "malformed_settings"


def test_the_papers_sampling_shares_as_many_images_as_the_target_trains_on_without_classes(tmp_path):
    site = Site(tmp_path / "open", Policy())
    site.ask("synthesize", site.facts(synthesis={**EVOLUTION, "epsilon": None}), run="r/made")
    paper: Json = {"name": "raw", "variant": "paper", "doublings": 3}
    sent = site.ask("sample", site.facts(synthesis_run="r/made", sampling=paper, shared=1))
    trained = int((cohort_of(site.hospital, site.cohort).split == 0).sum())
    assert len(sent.tensors["images"]) == trained and sent.tensors["labels"].tolist() == [0] * trained
    assert site.last["event"]["kind"] == "non_private"


def test_the_papers_two_kinds_of_noise_are_booked_as_what_they_are(tmp_path):
    site = Site(tmp_path / "open", Policy())
    small: Json = {"variant": "paper", "steps": 2, "width": 2, "latent": 3}
    site.ask("synthesize", site.facts(synthesis={"name": "dp_wgan_gp", **small}), run="r/clipped")
    clipped = site.last["event"]
    site.ask("synthesize", site.facts(synthesis={"name": "wgan_gp", **small}), run="r/printed")
    assert site.last["event"]["kind"] == "non_private" and clipped["kind"] != "non_private"
    said = WganGp(name="dp_wgan_gp", variant="paper", steps=2, width=2, latent=3)
    cohort = cohort_of(site.hospital, site.cohort)
    patients = len(cohort.patient[cohort.split == SPLITS.index("train")].unique())
    noise = synthesis.make_protection(said, patients=patients).noise
    assert compute_cost([parse_event(clipped)], 1e-5).epsilon == pytest.approx(
        compute_true_cost(said.at(patients), noise).epsilon
    )


def test_the_papers_score_is_told_through_the_hospital(tmp_path):
    """Its t-SNE takes a seed of the hospital's 62 bits."""
    site = Site(tmp_path / "open", Policy())
    asked: Json = {"release": "exact", "variant": "paper", "steps": 1, "seeds": 1, "perplexity": 5.0, "components": 5}
    said = site.ask("score", site.facts(score=asked, images=8, prior="prostate_adc"))
    assert number_of(said.facts, "score") >= 0 and site.last["event"]["kind"] == "non_private"
