"""Generative augmentation at the hospital: `augment`. Synthetic images of the smaller class join its training split.

The images stay. Where nothing promises privacy a name, counts and distances leave; otherwise only the name of the new
cohort and counts that follow from released ones. What patients are charged is the synthesis: with its parameters given,
synthetic images depend on nobody, so that training on them beside real ones costs what training on the real ones does,
and both are added up in the ledger. Therefore a cohort that was augmented without noise cannot be trained on privately.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from federation.features.encoder import file_digest
from federation.features.inception import Network, inception_features, load_network
from federation.randomness import derive_seed
from harmonize import synthesis
from harmonize.balancing import Features, Lack, compute_distance, find_lack, near_copies
from harmonize.networks import Inputs
from harmonize.prior import PRIORS, Prior, draw_pictures
from harmonize.public_features import compute_features, make_view
from harmonize.scale import Scale
from pipelines.data.cohort import Cohort
from pipelines.data.stored import label_names
from pipelines.hospital.harmonization import cohort_in, split_rows
from pipelines.hospital.hospital import COHORT, SPLITS, Context, Done, Hospital, keyed_digest, write_cohort_file
from pipelines.hospital.kept import REJECTED, SPLIT, digest_of, split_of
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.synthesis import inputs_of, learn_generator
from pipelines.hospital.withdrawn import looked_at
from pipelines.models.fixed_features import WEIGHTS
from pipelines.requests import augment as request
from pipelines.runs.store import DiskFolder, short_digest
from pipelines.settings.augment import Augment
from pipelines.settings.harmonization import Public
from privacy.dp.access import Rows, Split
from privacy.dp.events import NON_PRIVATE, Event, compose_events, describe_event
from privacy.message import Call, Json, Message, Params, to_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

AUGMENTED, BALANCED, ONE_CLASS, COPIES = "augmented", "balanced", "one_class", "copies"
"""What became of a hospital: synthetic images joined it; nothing was lacking; there is nothing to imitate of a class;
the synthetic images copied training images, and are not used."""
SHAPED, COMPARED_WITH = "synthetic training images were made from theirs", "synthetic images were compared with theirs"
_MASKS = ("lesion", "gland", "mask")
SEED, PUBLIC, COMPONENTS, ROUGHNESS = 0, 2000, 40, 1.0  # of the features of distances: the same at all hospitals


class _Made(NamedTuple):
    """Synthetic images (n, C, H, W) in [-1, 1]. guaranteed: whether they cost patients a finite epsilon at most."""

    images: Tensor
    events: list[Event]
    guaranteed: bool
    facts: dict[str, Json]


class Figures(TypedDict):
    """How far synthetic images are from held-back ones: see `pipelines.requests.augment.Judged`."""

    distance: float | None
    distance_real: float | None
    compared: int | None
    features: str
    near_copies: float | None


def augment_cohort(hospital: Hospital, context: Context[request.Augment]) -> Done[request.Augmented]:
    """Synthesize images of the smaller class, and write the cohort with them.

    Returns:
        `cohort` and `sha256` of the cohort to be used in this space, with synthetic images or as it was; `state`;
        `label` and `made`, which class got how many images; `distance` and `distance_real` to held-back images, of
        `compared` images each, by `features`; and `near_copies`. The last five are missing where privacy is promised.

    Raises:
        Refused: `malformed_settings`; or what the policy does not allow of a synthesis.
    """
    call, question, settings = context.call, context.question, context.question.augment
    network = _network(question, context.message.tensors)
    quiet = question.private is not False or hospital.policy.promises
    cohort = cohort_in(hospital, question.cohort)
    if len(label_names(cohort)) != 2:
        raise Refused("malformed_settings") from ValueError("augment balances two classes; this cohort has others")
    _check_priors(settings, question.prior, inputs_of(cohort)[0])
    class_counts, count_event = (
        _released_class_counts(hospital, cohort) if quiet else (_count_classes(cohort), NON_PRIVATE)
    )
    lack = find_lack(class_counts, settings.balanced_at)
    if lack is None or not class_counts[lack.label]:
        return _keep_cohort(hospital, question.cohort, BALANCED if lack is None else ONE_CLASS, count_event)
    made = _synthesize_images(hospital, cohort, call, question, lack)
    event = describe_event(compose_events([count_event, *made.events]))
    how: dict[Split, str] = {"train": SHAPED} if quiet else {"train": SHAPED, "validation": COMPARED_WITH}
    memory = Message({}, {**looked_at(question.cohort, how), **made.facts})
    figures = None if quiet else _compute_figures(cohort, made.images, lack, question, network)
    copied = None if figures is None else figures["near_copies"]
    if settings.near_copies is not None and copied is not None and copied > settings.near_copies:
        return Done(_build_reply(hospital, question.cohort, COPIES, None, 0, figures), event, memory)
    digest_of_question = hashlib.sha256(to_bytes(context.message)).hexdigest()
    name = _write_cohort(hospital, _join_cohort(cohort, question.scale, lack.label, made, digest_of_question))
    return Done(_build_reply(hospital, name, AUGMENTED, lack.label, len(made.images), figures), event, memory)


def _network(question: request.Augment, tensors: Params) -> Network | None:
    """The network of the FID, if it was sent, checked before a patient is read.

    Raises:
        Refused: `malformed_settings`.
    """
    fid = value_or_none(question.fid)
    if tensors.keys() != ({WEIGHTS} if fid is not None else set()):
        raise Refused("malformed_settings") from ValueError("weights go with their digest, as fid")
    if not tensors:
        return None
    data = tensors[WEIGHTS].to(torch.uint8).numpy().tobytes()
    try:
        if file_digest(data) != fid:
            raise ValueError(f"the weights have the SHA-256 {file_digest(data)}, and {fid} is named")
        return load_network(data)
    except ValueError as error:
        raise Refused("malformed_settings") from error


def _check_priors(settings: Augment, prior: str, channels: int) -> None:
    """Check that the priors of distances and of the synthesis draw such images. Raises: Refused: they do not."""
    prior_of_synthesis = getattr(settings.synthesis, "prior", None)
    for name in (prior, *([] if prior_of_synthesis is None else [str(prior_of_synthesis)])):
        if name not in PRIORS or PRIORS[name].channels != channels:
            text = f"the prior {name!r} draws no images of {channels} channels; known are {', '.join(PRIORS)}"
            raise Refused("malformed_settings") from ValueError(text)


def _released_class_counts(hospital: Hospital, cohort: Cohort) -> tuple[tuple[int, ...], Event]:
    """Training patients with an example of each class, as the hospital released them, and the event of telling them."""
    counts = need_counts(hospital)
    if counts is not None:
        return counts.of_classes("train"), hospital.counts
    rows = cohort.split == SPLITS.index("train")
    whose = [torch.unique(cohort.patient[rows & (cohort.labels == label)]) for label in range(2)]
    return tuple(map(len, whose)), hospital.counts


def _count_classes(cohort: Cohort) -> tuple[int, ...]:
    """Training images of each class."""
    rows = cohort.split == SPLITS.index("train")
    return tuple(torch.bincount(cohort.labels[rows], minlength=2).tolist())


def _synthesize_images(hospital: Hospital, cohort: Cohort, call: Call, question: request.Augment, lack: Lack) -> _Made:
    """As many synthetic images as are wanted."""
    inputs, y = inputs_of(cohort), torch.full((lack.number,), lack.label)
    seed = derive_seed(question.seed, hospital.name, "augment", "images")
    how = question.augment.synthesis
    if isinstance(how, Public):
        prior = PRIORS[question.prior]
        return _Made(
            draw_pictures(prior, y, inputs, seed), [], True, {"synthesis": {"name": how.name, "prior": prior.name}}
        )
    generator = learn_generator(hospital, cohort, how, call, question, "augment")
    images = synthesis.draw_candidates(generator.settings, inputs, generator.params, y, seed=seed).cpu().float()
    return _Made(images, generator.events, generator.settings.private, generator.facts)


def _compute_figures(
    cohort: Cohort, made: Tensor, lack: Lack, question: request.Augment, network: Network | None
) -> Figures:
    """Distances and copies, by validation patients, whom no synthesis saw. Test patients are not looked at."""
    prior = PRIORS[question.prior]
    train, validation = (split_rows(cohort, question.scale, split) for split in ("train", "validation"))
    features = _public_features(prior, inputs_of(cohort)) if network is None else partial(inception_features, network)
    distances = compute_distance(features, made, _select_class(validation, lack), _select_class(train, lack), seed=SEED)
    copied = near_copies(made, train.x, validation.x)
    return {
        "distance": None if distances is None else distances.made,
        "distance_real": None if distances is None else distances.real,
        "compared": None if distances is None else distances.images,
        "features": prior.name if network is None else "inception",
        "near_copies": None if math.isnan(copied) else copied,
    }


def _public_features(prior: Prior, inputs: Inputs) -> Features:
    """Features of images by public pictures alone."""
    return partial(compute_features, make_view(prior, inputs, PUBLIC, COMPONENTS, ROUGHNESS, seed=SEED))


def _select_class(rows: Rows, lack: Lack) -> Tensor:
    """The images of the class that lacks some."""
    return rows.x[rows.y == lack.label]


def _join_cohort(cohort: Cohort, scale: Scale, label: int, made: _Made, question: str) -> Cohort:
    """The cohort with synthetic images after its own examples, each as a training patient's of its own."""
    images = scale.back(made.images)
    count, patients = len(images), len(cohort.patients)
    empty = {name: torch.zeros(count, *getattr(cohort, name).shape[1:], dtype=torch.uint8) for name in _MASKS}
    added = {
        "images": images.to(torch.float32),
        "labels": torch.full((count,), label),
        "patient": torch.arange(patients, patients + count),
        "position": torch.zeros(count),
        "split": torch.full((count,), SPLITS.index("train"), dtype=torch.int8),
        **empty,
    }
    recipe: dict[str, Json] = {
        **cohort.recipe,
        "synthetic": count,
        # One patient may have shaped every synthetic image: without a guarantee no patient's influence is bounded.
        "independent": cohort.recipe.get("independent") is True and made.guaranteed,
        # Cohorts of two requests never share a name, which would reveal that their images are equal.
        "question": question,
    }
    parts: dict[str, Any] = {
        name: torch.cat([getattr(cohort, name), more]).contiguous() for name, more in added.items()
    }
    names = tuple(f"synthetic-{place:06}" for place in range(count))  # after every pseudonym, which is hexadecimal
    return replace(cohort, **parts, patients=(*cohort.patients, *names), recipe=recipe)


def _write_cohort(hospital: Hospital, cohort: Cohort) -> str:
    """Write the cohort next to the raw one; return its name."""
    name = short_digest(write_cohort_file(hospital.root / "cohorts", cohort, hospital.key()))
    folder = DiskFolder(hospital.cohort_folder(name))
    folder.write(REJECTED, b"[]")  # rejections are listed beside the raw cohort
    folder.write(SPLIT, json.dumps(split_of(cohort), indent=1).encode())
    return name


def _keep_cohort(hospital: Hospital, cohort: str, state: str, count_event: Event) -> Done[request.Augmented]:
    """The reply where the cohort stays as it was."""
    return Done(
        _build_reply(hospital, cohort, state, None, 0, None),
        describe_event(count_event),
        Message({}, looked_at(cohort, {})),
    )


def _build_reply(
    hospital: Hospital, cohort: str, state: str, label: int | None, made: int, figures: Figures | None
) -> request.Augmented:
    """What leaves. figures: None where privacy is promised, and where nothing was made."""
    digest = keyed_digest(hospital.key(), digest_of(hospital.cohort_folder(cohort) / COHORT) or "")
    if figures is None:
        return request.Augmented(cohort=cohort, sha256=digest, state=state, label=label, made=made)
    return request.Judged(cohort=cohort, sha256=digest, state=state, label=label, made=made, **figures)
