"""Synthesis of a hospital's images: `score`, `synthesize`, `sample`. Only synthetic images leave; the training images
themselves only in a simulation with synthesis `real`, if the policy allows pooling.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor

from federation.conversation import load_newest_memory
from federation.randomness import derive_seed
from harmonize import sampling, synthesis, wgan
from harmonize.complexity import BOUND, Outside, Score, make_imitation, measure_outside, noise_of, score_site
from harmonize.embedding import Basis, compute_basis, project_images, tsne
from harmonize.networks import Inputs
from harmonize.prior import PRIORS, draw_pictures
from harmonize.sampling import TooFew
from harmonize.scale import Progress
from harmonize.synthesis import AnySynthesis, Real
from harmonize.wgan import WganGp
from pipelines.data.cohort import Cohort
from pipelines.hospital.harmonization import (
    Copied,
    access_to,
    cohort_in,
    make_progress,
    split_rows,
    training_rows,
)
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital
from pipelines.hospital.kept import MAP, REAL_SENT, cut_of
from pipelines.hospital.private_limits import check_affordable, check_paid
from pipelines.hospital.public_networks import WAITING, learnt_once
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.training import RECIPIENT
from pipelines.hospital.withdrawn import looked_at
from pipelines.loader.validation import to_plain
from pipelines.requests import score as request
from pipelines.requests.sample import MOST_SHARED, Sample, Sampled, Shared
from pipelines.requests.synthesize import Synthesize, Synthesized
from pipelines.runs.progress import show_progress
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, NOTHING, Event, Gaussian, Part, compose_events, describe_event
from privacy.dp.protection import Protection
from privacy.message import Call, Json, Message, Params, as_mapping, to_bytes
from privacy.release.form import ABSENT, value_or_none
from privacy.release.gate import Refused
from privacy.release.policy import COORDINATOR, OUTSIDE

SYNTHESIS: TypeAdapter[AnySynthesis] = TypeAdapter(AnySynthesis)
PUBLIC = 1000  # images of the public prior that make the public basis
SCORED = "how hard images are to imitate was measured on theirs"
SYNTHESIZED = "synthetic images were made from theirs"
SENT = "synthetic images made from theirs were sent"


def score_images(hospital: Hospital, context: Context[request.Score]) -> Done[request.Scored]:
    """The complexity of this hospital's images: how hard they are to synthesize, and its deviation over seeds."""
    call, question, settings = context.call, context.question, context.question.score
    cohort = cohort_in(hospital, question.cohort)
    inputs = inputs_of(cohort)
    seed = derive_seed(question.seed, hospital.name, "score")
    memory = Message({}, looked_at(question.cohort, {"train": SCORED}))
    public = _public_basis(question.prior, inputs, settings.components)
    rows = split_rows(cohort, question.scale, "train")
    if settings.release == "dp":
        noise = noise_of(settings)
        need_counts(hospital, settings.delta)
        check_affordable(hospital, [Part(cut_of(cohort), "train", Gaussian(noise))], call)
        protection = Protection(validation_noise=noise, loss_bound=BOUND)
        access = access_to(hospital, cohort, rows, protection, batch=1, seed=seed)
        value = access.measure(Outside(public).to(hospital.device), measure_outside, "train")
        noised = request.Scored(score=value, deviation=None, values=[value])
        return Done(noised, describe_event(compose_events(access.events)), memory)
    check_affordable(hospital, [NON_PRIVATE], call)
    images = value_or_none(question.images)
    if images is None or not 8 <= images <= 10**5:
        raise Refused("malformed_settings") from ValueError(f"images must be in [8, 100000], found {images}")
    gan = make_imitation(settings)
    made = []
    with show_progress(f"{hospital.name}") as step:
        for turn in range(settings.seeds):
            access = access_to(
                hospital, cohort, training_rows(cohort, question), None, batch=gan.batch, seed=seed + turn
            )
            params = wgan.train(
                gan, access, inputs, start=None, seed=seed + turn, progress=make_progress(hospital, step)
            )
            made.append(wgan.draw_images(gan, inputs, params, rows.y, seed=seed + turn).cpu())
        make_progress(hospital, step)(0, 0, "maps")
        compared = replace(settings, images=images)
        complexity = score_site(compared, rows.x, made, public, seed=seed)
    _write_map(hospital, rows.x, made[0], settings, seed)
    deviation = None if len(complexity.values) < 2 else complexity.deviation
    reply = request.Scored(score=complexity.mean, deviation=deviation, values=list(complexity.values))
    return Done(reply, describe_event(NON_PRIVATE), memory)


def synthesize_images(hospital: Hospital, context: Context[Synthesize]) -> Done[Synthesized]:
    """Train a synthesis of this hospital's training images. Its networks stay here.

    The privacy cost is charged now, whatever is shared later.
    """
    question, settings = context.question, context.question.synthesis
    if settings.name == "real" and not hospital.policy.pooling:
        raise Refused("policy_pooling")
    cohort = cohort_in(hospital, question.cohort)
    generator = learn_generator(hospital, cohort, settings, context.call, question, "synthesize")
    memory_facts = {**looked_at(question.cohort, {"train": SYNTHESIZED}), **generator.facts}
    return Done(
        Synthesized(), describe_event(compose_events(generator.events)), Message(generator.params, memory_facts)
    )


class LearntGenerator(NamedTuple):
    """A synthesis that stays here. params: for `harmonize.synthesis.draw_candidates`. events: what it cost, to be
    booked whatever becomes of it. facts: its settings and protection, for the hospital's statement.
    """

    settings: AnySynthesis
    params: Params
    events: list[Event]
    facts: dict[str, Json]


def learn_generator(
    hospital: Hospital, cohort: Cohort, settings: AnySynthesis, call: Call, how: Copied, purpose: str
) -> LearntGenerator:
    """Train a synthesis on a cohort's training images, with private access if its settings promise that.

    Raises:
        Refused: the policy does not allow what it costs, or as `need_counts`.
    """
    inputs = inputs_of(cohort)
    seed = derive_seed(how.seed, hospital.name, purpose)
    protection = None
    if settings.private:
        check_affordable(hospital, [], call)  # the paper's noise depends on the number of patients
        known = need_counts(hospital, getattr(settings, "delta", None))
        patients = len(torch.unique(cohort.patient[cohort.split == SPLITS.index("train")]))
        patients = patients if known is None else known.patients("train")
        settings = settings.at(patients) if isinstance(settings, WganGp) else settings
        protection = synthesis.make_protection(settings, patients=patients, cut=cut_of(cohort))
    check_affordable(hospital, synthesis.list_events(settings, protection) if protection else [NON_PRIVATE], call)
    real = settings.name == "real"
    rows = split_rows(cohort, how.scale, "train") if real else training_rows(cohort, how)
    access = access_to(hospital, cohort, rows, protection, batch=synthesis.draw_size(settings), seed=seed)
    with show_progress(hospital.name) as step:
        report_progress = make_progress(hospital, step)
        start = _public_start(hospital, settings, inputs, how.seed, report_progress)
        params = synthesis.synthesize(settings, access, inputs, start=start, seed=seed, progress=report_progress)
    facts: dict[str, Json] = {
        "synthesis": to_plain(settings),
        "protection": None if protection is None else to_plain(protection),
    }
    parameters = {name: tensor.detach().cpu() for name, tensor in params.items()}
    return LearntGenerator(settings, parameters, access.events, facts)


def sample_shared_images(hospital: Hospital, context: Context[Sample]) -> Done[Sampled | Shared]:
    """Synthetic images that the sampling rule accepts, for every hospital; with synthesis `real` the training images
    themselves, unselected.

    Returns:
        `images` (n, C, H, W) in [-1, 1] and `labels`; how many candidates were tried and refused.

    Raises:
        Refused: `not_synthesized`; `unpaid_memory`; `too_few_images`; `policy_recipient`: external sites would get
            them.
    """
    call, question, settings, count = context.call, context.question, context.question.sampling, context.question.shared
    recipient = OUTSIDE if question.recipient == OUTSIDE else COORDINATOR
    if recipient == OUTSIDE and OUTSIDE not in hospital.policy.recipients:
        raise Refused("policy_recipient") from ValueError(
            "images like this hospital's shall go to external sites, and its policy does not allow that: "
            f"say recipients: [coordinator, {OUTSIDE}] in the policy"
        )
    generator_memory = load_newest_memory(hospital.conversation(question.synthesis_run))
    if "synthesis" not in generator_memory.facts:
        raise Refused("not_synthesized")
    check_paid(hospital, generator_memory)
    made_by = SYNTHESIS.validate_json(json.dumps(generator_memory.facts["synthesis"]), strict=True)
    if made_by.name == "real" and not hospital.policy.pooling:  # the policy may have changed since the synthesis
        raise Refused("policy_pooling")
    cohort = cohort_in(hospital, question.cohort)
    inputs = inputs_of(cohort)
    seed = derive_seed(question.seed, hospital.name, "sample")
    rows = split_rows(cohort, question.scale, "train")

    def draw(y: Tensor, turn: int) -> Tensor:
        y = torch.arange(len(y)) % 2 if settings.variant == "paper" else y
        return synthesis.draw_candidates(
            made_by, inputs, generator_memory.tensors, y, seed=derive_seed(seed, turn)
        ).cpu()

    private = generator_memory.facts["protection"] is not None
    if settings.name == "raw" or not private:
        check_affordable(hospital, [NON_PRIVATE], call)
    shaped = question.cohort if settings.name == "raw" else generator_memory.facts.get("looked_at", question.cohort)
    memory_facts = looked_at(str(shaped), {"train": REAL_SENT if made_by.name == "real" else SENT})
    memory = Message({}, {**memory_facts, RECIPIENT: recipient})
    if made_by.name == "real":
        return _share_real_images(made_by, inputs, generator_memory.tensors, count, seed)._replace(memory=memory)
    with show_progress(hospital.name) as step:
        counts_by_class = {0: count, 1: count}
        if settings.variant == "paper":  # no classes: as many images as the target has, of either kind alike
            reference, labels, patient = rows.x, torch.zeros_like(rows.y), rows.patient
            counts_by_class = {0: min(len(rows.x), MOST_SHARED)}
        elif settings.name == "raw":
            reference, labels, patient = rows.x, rows.y, rows.patient
        else:  # another draw of the same generator reveals nothing further about patients
            labels, patient = torch.arange(2).repeat_interleave(2 * count), None
            reference = draw(labels, -1)
        try:
            samples = sampling.sample_images(
                settings,
                draw,
                reference,
                labels,
                patient,
                count=counts_by_class,
                seed=seed % 2**31,
                progress=make_progress(hospital, step),
            )
        except TooFew as error:
            raise Refused("too_few_images") from error
    reply = Sampled(
        images=samples.images,
        labels=samples.labels,
        tried=samples.tried,
        far=samples.far,
        near=samples.near,
        same=samples.same,
        doubled=samples.doubled or ABSENT,
    )
    event = NOTHING if private and settings.name == "surrogate" else NON_PRIVATE
    return Done(reply, describe_event(event), memory)


def inputs_of(cohort: Cohort) -> Inputs:
    """(C, H, W) of a cohort's images."""
    _, channels, height, width = cohort.images.shape
    return channels, height, width


def _share_real_images(settings: Real, inputs: Inputs, params: Params, count: int, seed: int) -> Done[Sampled | Shared]:
    """At most `count` of the target's own training images per class, for simulations."""
    counts = [min(count, int((params["labels"] == label).sum())) for label in (0, 1)]
    y = torch.arange(2).repeat_interleave(torch.tensor(counts))
    images = synthesis.draw_candidates(settings, inputs, params, y, seed=seed)
    return Done(Shared(images=images, labels=y, tried=len(y)), describe_event(NON_PRIVATE))


def _public_basis(name: str, inputs: Inputs, components: int) -> Basis:
    prior = PRIORS.get(name)
    if prior is None:
        raise Refused("malformed_settings") from ValueError(f"prior {name!r}; known are {', '.join(PRIORS)}")
    return compute_basis(draw_pictures(prior, torch.arange(PUBLIC) % 2, inputs, seed=0), components)


def _public_start(
    hospital: Hospital, settings: AnySynthesis, inputs: Inputs, seed: int, report_progress: Progress
) -> Params | None:
    """Networks pretrained on public images only; made once and shared by all runs of the folder."""
    if not isinstance(settings, WganGp) or settings.prior is None:
        return None
    about = {
        name: value
        for name, value in vars(settings).items()
        if name in ("critic_steps", "batch", "views", "latent", "width", "ema", "gp_weight") or name.startswith("prior")
    }
    if settings.generator == "drawn":  # kept out otherwise: starts that were made before serve on
        about["generator"] = settings.generator
    plain_settings = as_mapping(to_plain({**about, "inputs": list(inputs), "seed": seed}))
    folder = DiskFolder(hospital.for_all)
    return learnt_once(
        folder,
        plain_settings,
        lambda: wgan.pretrain_networks(settings, inputs, seed=seed, progress=report_progress),
        waits=lambda: report_progress(0, settings.prior_steps, WAITING),
    )


def _write_map(hospital: Hospital, real: Tensor, made: Tensor, settings: Score, seed: int) -> None:
    """Write a 2D map of real and synthetic images for the hospital's own page (the paper's figure 7, row 2)."""
    number = min(len(real), len(made), 500)
    both = torch.cat([real[:number], made[:number]])
    points = tsne(
        project_images(compute_basis(both, settings.components), both),
        perplexity=settings.perplexity,
        seed=seed % 2**31,
    )
    DiskFolder(hospital.root / "maps").write(MAP, to_bytes(Message({"real": points[:number], "made": points[number:]})))
