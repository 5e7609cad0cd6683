"""Moments of a model's channels: what a hospital releases with its model, what is booked, what others make of it."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from federation.descent import Work
from federation.fedavg import FedAvg
from federation.matching import ChannelMoments, measure_channels, order_norms, weigh_rows
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import loaded, prefixed
from federation.rehearsal import initial_parameters
from federation.task import Model, Task
from pipelines.coordinator.channels import average_moments
from pipelines.coordinator.spending import matching_events
from pipelines.data.cohort import Cohort
from pipelines.data.images import Slices
from pipelines.hospital.hospital import Hospital, write_cohort_file
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.export import Exported
from pipelines.runs.store import short_digest
from pipelines.settings.config import Config
from pipelines.settings.route import Matched
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.dp.accounting import compute_cost
from privacy.dp.events import NON_PRIVATE, Declared, Event, Gaussian, Part, compose_events, parse_event
from privacy.dp.protection import Protection
from privacy.message import Call, Json, Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Policy
from route_settings import settings as route_settings

IMAGES = (1, 8, 8)
GROUP = Cnn(widths=(16, 16), norm="group")
COUNTS = Declared("counts")
PROTECTED = Protection(sampling=0.5, views=2, noise=4.0, validation_noise=4.0)


def cohort_of(images: Tensor, recipe: dict[str, Json]) -> Cohort:
    """24 patients of two images each, of whom every third is in one split."""
    patient = torch.arange(24).repeat_interleave(2)
    empty = torch.zeros(48, 0, dtype=torch.uint8)
    return Cohort(
        images=images,
        labels=(images.flatten(1).mean(dim=1) > 0).long(),
        patient=patient,
        position=torch.zeros(48),
        lesion=empty,
        gland=empty.clone(),
        split=(patient % 3).to(torch.int8),
        patients=tuple(f"p{number:02}" for number in range(24)),
        recipe=recipe,
    )


def hospital(folder: Path, **recipe: Json) -> tuple[Hospital, str, Tensor]:
    """A hospital, the name of its cohort, and its images."""
    policy = Policy(public=("counts",))
    settings = SiteSettings(source=PhantomSource(scanner="P", patients=4), policy=policy)
    made = Hospital("a", folder / "a", settings, lambda: "2026-01-01T00:00:00Z")
    images = torch.randn(48, *IMAGES, generator=torch.Generator().manual_seed(0))
    plain: dict[str, Json] = {"images": to_plain(Slices(size=8)), "independent": True, "cut": "real", **recipe}
    cohort = cohort_of(images, plain)
    return made, short_digest(write_cohort_file(made.scratch(), cohort, made.key())), images


def trained(own: Hospital, cohort: str, privacy: Protection | None, model: Model = GROUP) -> Task:
    """The hospital has trained a round of FedAvg."""
    task = Task(model, IMAGES, 2)
    opening: dict[str, Json] = {
        "label": "mine",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(model),
        "inputs": list(IMAGES),
        "classes": 2,
        "work": to_plain(Work(lr=0.05, epochs=1)),
        "seed": 0,
        "cohort": cohort,
        "privacy": None if privacy is None else to_plain(privacy),
        "evaluation_noise": 0.0 if privacy is None else 7.0,
    }
    sent = prefixed("model", initial_parameters(FedAvg(), task, seed=0))
    answer = make_worker(own)
    answer(Call("r/x", 0, "introduce", {}), Message({}, opening))
    for round_, request in ((1, "train"), (2, "finish")):
        merged = {"a": round_ - 1} if round_ > 1 else {}
        answer(Call("r/x", round_, request, merged), Message(sent, {"algorithm": {}, "best": None}))
    return task


def exported(own: Hospital, how: Matched | None, run: str = "r/e") -> tuple[Message, Event]:
    """The reply, and what the ledger says of it."""
    facts: dict[str, Json] = {"train_run": "r/x", "checkpoint": "latest", "best": None}
    facts |= {} if how is None else {"moments": to_plain(how)}
    reply = make_worker(own)(Call(run, 0, "export", {}), Message({}, facts))
    return reply, parse_event([*ledgers.read_lines(own.ledger)][-1]["event"])


def expected(task: Task, reply: Message, images: Tensor) -> ChannelMoments:
    """The moments of the exported model over the first split's patients."""
    params = {name: value for name, value in reply.tensors.items() if not name.startswith("channel_")}
    module, patient = loaded(task.network(), params), torch.arange(24).repeat_interleave(2)
    train = patient % 3 == 0
    return measure_channels(module, images[train], weigh_rows(patient[train]), order_norms(module, IMAGES))


def test_without_noise_they_are_those_of_training_patients_and_booked_as_non_private(tmp_path):
    own, cohort, images = hospital(tmp_path)
    task = trained(own, cohort, None)
    reply, event = exported(own, Matched())
    truth = expected(task, reply, images)
    assert torch.allclose(reply.tensors["channel_mean"], truth.mean, atol=1e-6)
    assert torch.allclose(reply.tensors["channel_square"], truth.square, atol=1e-6)
    assert (reply.facts["channel_noise"], reply.facts["channel_patients"]) == (0.0, 8)
    assert event == NON_PRIVATE


def test_with_noise_one_gaussian_on_training_patients_is_booked_for_its_epsilon(tmp_path):
    own, cohort, images = hospital(tmp_path)
    task = trained(own, cohort, PROTECTED)
    how = Matched(release="dp", epsilon=2.0, delta=1e-5)
    reply, event = exported(own, how)
    assert how.noise is not None
    assert event == compose_events([COUNTS, Part("real", "train", Gaussian(how.noise))])
    assert compute_cost([event], 1e-5).epsilon == pytest.approx(2.0, rel=0.01)
    truth, noise = expected(task, reply, images), float(str(reply.facts["channel_noise"]))
    assert noise > 0 and not torch.allclose(reply.tensors["channel_mean"], truth.mean, atol=1e-3)
    assert float((reply.tensors["channel_mean"] - truth.mean).abs().max()) < 9 * noise
    other, _ = exported(own, how, run="r/again")
    assert not torch.equal(other.tensors["channel_mean"], reply.tensors["channel_mean"]), (
        "noise is drawn anew, and paid"
    )


def test_with_much_epsilon_noise_is_small_and_the_moments_are_near(tmp_path):
    own, cohort, images = hospital(tmp_path)
    task = trained(own, cohort, None)
    reply, _ = exported(own, Matched(release="dp", epsilon=1e3, norms=1))
    truth = expected(task, reply, images)
    assert len(reply.tensors["channel_mean"]) == 16
    assert torch.allclose(reply.tensors["channel_mean"], truth.mean[:16], atol=0.1)


def test_a_private_run_releases_no_moments_without_noise(tmp_path):
    own, cohort, _ = hospital(tmp_path)
    trained(own, cohort, PROTECTED)
    with pytest.raises(Refused, match="malformed_moments"):
        exported(own, Matched())


def test_patients_who_depend_on_each_other_get_no_noised_release(tmp_path):
    own, cohort, _ = hospital(tmp_path, independent=False)
    trained(own, cohort, None)
    with pytest.raises(Refused, match="dependent_patients"):
        exported(own, Matched(release="dp"))


def test_a_network_without_norms_has_no_moments_to_send(tmp_path):
    own, cohort, _ = hospital(tmp_path)
    trained(own, cohort, None, Mlp(hidden=(6,)))
    with pytest.raises(Refused, match="malformed_moments"):
        exported(own, Matched())


def test_a_model_alone_is_sent_as_before(tmp_path):
    own, cohort, _ = hospital(tmp_path)
    trained(own, cohort, None)
    reply, _ = exported(own, None)
    assert not reply.facts and not any(name.startswith("channel_") for name in reply.tensors)


def reply_of(moments: ChannelMoments, patients: int) -> Exported:
    return Exported(
        parameters={},
        channel_mean=moments.mean,
        channel_square=moments.square,
        channel_noise=moments.deviation,
        channel_patients=patients,
    )


def test_the_mean_over_hospitals_is_that_of_all_their_patients():
    module = Task(GROUP, IMAGES, 2).network()
    x, norms = torch.randn(9, *IMAGES, generator=torch.Generator().manual_seed(2)), order_norms(module, IMAGES)
    parts = [measure_channels(module, part, weigh_rows(torch.arange(len(part))), norms) for part in (x[:3], x[3:])]
    found = average_moments({"a": reply_of(parts[0], 3), "b": reply_of(parts[1], 6)})
    together = measure_channels(module, x, weigh_rows(torch.arange(9)), norms)
    assert torch.allclose(found.mean, together.mean, atol=1e-6)
    assert torch.allclose(found.square, together.square, atol=1e-6)


def test_noise_of_several_hospitals_is_less():
    one = ChannelMoments(torch.zeros(4).double(), torch.ones(4).double(), 0.3)
    assert average_moments({"a": reply_of(one, 5), "b": reply_of(one, 5)}).deviation == pytest.approx(
        0.3 / math.sqrt(2)
    )


def test_moments_that_did_not_come_or_are_of_two_networks_are_refused():
    one = ChannelMoments(torch.zeros(4).double(), torch.ones(4).double())
    two = ChannelMoments(torch.zeros(6).double(), torch.ones(6).double())
    with pytest.raises(ValueError, match="b sent its model without the moments"):
        average_moments({"a": reply_of(one, 5), "b": Exported(parameters={})})
    with pytest.raises(ValueError, match=r"moments of .4, 6. channels for one model"):
        average_moments({"a": reply_of(one, 5), "b": reply_of(two, 5)})


def test_in_a_run_a_model_of_ones_own_stays_and_what_is_shared_or_carried_is_matched(finished_run):
    made = copy.deepcopy(BASE) | {"model": {"name": "cnn", "widths": [16, 16], "norm": "group"}}
    made["audit"] = {"membership": False}
    methods = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    made["train"] = {"schedule": {"rounds": 1}, "work": {"lr": 0.01}, "methods": methods}
    variants = {f"{label}_matched": {"of": label, "calibration": "matched"} for label in methods}
    made["evaluate"] = {"copies": 3, "variants": variants, "public": True, "checkpoint": "latest"}
    (index,) = (finished_run(made) / "runs" / "tiny").glob("evaluate/*/index.json")
    scores = {
        (line["label"], line["model_site"], line["test_site"]): from_bytes((index.parent / line["file"]).read_bytes())
        for line in json.loads(index.read_text())
    }

    def is_same(label: str, model_site: str, test_site: str) -> bool:
        before, after = (scores[name, model_site, test_site].tensors for name in (label, f"{label}_matched"))
        return all(torch.equal(before[name], after[name]) for name in before)

    assert is_same("local", "a", "a") and is_same("local", "b", "b")
    assert not is_same("local", "a", "b") and not is_same("local", "b", "a")
    assert not is_same("fedavg", "a", "a") or not is_same("fedavg", "b", "b")


def test_in_a_run_noised_moments_are_priced_before_they_leave_and_reach_the_hospital_outside(finished_run):
    lines = {"first": {"how": {"name": "matched", "release": "dp", "norms": 1, "epsilon": 2.0}}}
    made = route_settings(audit={"membership": False}, route={"shared": "fedavg", "personal": "iopfl", "lines": lines})
    made["train"]["methods"] = {"fedavg": {"name": "fedavg"}, "iopfl": {"name": "iopfl"}}
    for site in ("north", "south", "west"):
        made["sites"][site]["source"]["patients"] = 16  # each split is drawn without looking at others
    config = validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)
    assert config.independent, "no patient's split hangs on others"
    assert compute_cost(matching_events(config), 1e-5).epsilon == pytest.approx(2.0, rel=0.01)
    root = finished_run(made) / "runs" / "tiny"
    (stored,) = (root / "sites" / "west" / "scores").glob("route-*.safetensors")
    assert from_bytes(stored.read_bytes()).facts["way"] == "matched"
    for site in ("north", "south"):
        left = [
            line for line in ledgers.read_lines(root / "sites" / site / "ledger.jsonl") if line["request"] == "export"
        ]
        # The model itself is without noise in such a run.
        assert len(left) == 2 and {parse_event(line["event"]) for line in left} == {NON_PRIVATE}
