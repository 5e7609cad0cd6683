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
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor

from federation.features.encoder import digest
from federation.features.inception import Network, frozen, inception_features
from federation.randomness import derived
from harmonize import synthesis
from harmonize.balancing import Features, Lack, distance, lack, near_copies
from harmonize.networks import Inputs
from harmonize.prior import PRIORS, Prior, drawn
from harmonize.public_features import compared, features_of
from harmonize.scale import Scale
from pipelines.data.cohort import Cohort
from pipelines.data.stored import label_names
from pipelines.hospital.harmonization import SCALE, cohort_in, number, parsed, split_rows
from pipelines.hospital.hospital import COHORT, SPLITS, Done, Hospital, keyed, write_cohort_file
from pipelines.hospital.kept import REJECTED, SPLIT, digest_of, split_of
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.synthesis import inputs_of, learnt
from pipelines.hospital.withdrawn import looked_at
from pipelines.models.fixed_features import WEIGHTS
from pipelines.runs.store import DiskFolder, short
from pipelines.settings.augment import Augment
from pipelines.settings.harmonization import Public
from privacy.dp.access import Rows, Split
from privacy.dp.events import NON_PRIVATE, Event, composed, describe
from privacy.message import Call, Json, Message, to_bytes
from privacy.release.gate import Refused

SETTINGS: TypeAdapter[Augment] = TypeAdapter(Augment)
AUGMENTED, BALANCED, ONE_CLASS, COPIES = "augmented", "balanced", "one_class", "copies"
"""What became of a hospital: synthetic images joined it; nothing was lacking; there is nothing to imitate of a class;
the synthetic images copied training images, and are not used."""
SHAPED, HELD = "synthetic training images were made from theirs", "synthetic images were compared with theirs"
_MASKS = ("lesion", "gland", "mask")
SEED, PUBLIC, COMPONENTS, ROUGHNESS = 0, 2000, 40, 1.0  # of the features of distances: the same at all hospitals


class _Made(NamedTuple):
    """Synthetic images (n, C, H, W) in [-1, 1]. guaranteed: whether they cost patients a finite epsilon at most."""

    images: Tensor
    events: list[Event]
    guaranteed: bool
    said: dict[str, Json]


def augment(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Synthesize images of the smaller class, and write the cohort with them.

    Facts: `augment` (the fields of `pipelines.settings.augment.Augment`), `cohort`, `scale`, `copies`, `prior` (of the
    features in which distances are told), `seed`, `private`; and `fid`, the digest of Inception's weights, if these are
    the tensors and their features are told instead.

    Returns:
        `cohort` and `sha256` of the cohort to be used in this space, with synthetic images or as it was; `state`;
        `label` and `made`, which class got how many images; `distance` and `distance_real` to held-back images, of
        `compared` images each, by `features`; and `near_copies`. The last five are missing where privacy is promised.

    Raises:
        Refused: `malformed_settings`; or what the policy does not allow of a synthesis.
    """
    facts = message.facts
    settings, network = _asked(message)
    quiet = facts.get("private") is not False or hospital.policy.promises
    cohort = cohort_in(hospital, facts)
    if len(label_names(cohort)) != 2:
        raise Refused("malformed_settings") from ValueError("augment balances two classes; this cohort has others")
    _check_priors(settings, facts, inputs_of(cohort)[0])
    held, told = _counted(hospital, cohort) if quiet else (_classes(cohort), NON_PRIVATE)
    wanted = lack(held, settings.balanced_at)
    if wanted is None or not held[wanted.label]:
        return _as_it_was(hospital, facts, BALANCED if wanted is None else ONE_CLASS, told)
    made = _made(hospital, cohort, settings, call, facts, wanted)
    event = describe(composed([told, *made.events]))
    how: dict[Split, str] = {"train": SHAPED} if quiet else {"train": SHAPED, "validation": HELD}
    kept = Message({}, {**looked_at(str(facts["cohort"]), how), **made.said})
    found = {} if quiet else _judged(cohort, made.images, wanted, facts, network)
    copied = found.get("near_copies")
    if settings.near_copies is not None and isinstance(copied, float) and copied > settings.near_copies:
        was = _as_it_was(hospital, facts, COPIES, told).reply.facts
        return Done(Message({}, {**was, **found}), event, kept)
    question = hashlib.sha256(to_bytes(message)).hexdigest()
    name = _written(hospital, _joined(cohort, parsed(SCALE, facts["scale"]), wanted.label, made, question))
    reply = {**_named(hospital, name), "state": AUGMENTED, "label": wanted.label, "made": len(made.images), **found}
    return Done(Message({}, reply), event, kept)


def _asked(message: Message) -> tuple[Augment, Network | None]:
    """The settings, parsed with all others before a patient is read, and the network of the FID, if it was sent.

    Raises:
        Refused: `malformed_settings`.
    """
    facts = message.facts
    settings: Augment = parsed(SETTINGS, facts["augment"])
    parsed(SCALE, facts["scale"])
    number(facts, "copies", 1, 64)
    number(facts, "seed", 0, 2**62)
    if message.tensors.keys() != ({WEIGHTS} if facts.get("fid") is not None else set()):
        raise Refused("malformed_settings") from ValueError("weights go with their digest, as fid")
    if not message.tensors:
        return settings, None
    data = message.tensors[WEIGHTS].to(torch.uint8).numpy().tobytes()
    try:
        if digest(data) != facts["fid"]:
            raise ValueError(f"the weights have the SHA-256 {digest(data)}, and {facts['fid']} is named")
        return settings, frozen(data)
    except ValueError as error:
        raise Refused("malformed_settings") from error


def _check_priors(settings: Augment, facts: Mapping[str, Json], channels: int) -> None:
    """Check that the priors of distances and of the synthesis draw such images. Raises: Refused: they do not."""
    own = getattr(settings.synthesis, "prior", None)
    for name in (str(facts["prior"]), *([] if own is None else [str(own)])):
        if name not in PRIORS or PRIORS[name].channels != channels:
            text = f"the prior {name!r} draws no images of {channels} channels; known are {', '.join(PRIORS)}"
            raise Refused("malformed_settings") from ValueError(text)


def _counted(hospital: Hospital, cohort: Cohort) -> tuple[tuple[int, ...], Event]:
    """Training patients with an example of each class, as the hospital released them, and the event of telling them."""
    known = need_counts(hospital)
    if known is not None:
        return known.of_classes("train"), hospital.counts
    rows = cohort.split == SPLITS.index("train")
    whose = [torch.unique(cohort.patient[rows & (cohort.labels == label)]) for label in range(2)]
    return tuple(map(len, whose)), hospital.counts


def _classes(cohort: Cohort) -> tuple[int, ...]:
    """Training images of each class."""
    rows = cohort.split == SPLITS.index("train")
    return tuple(torch.bincount(cohort.labels[rows], minlength=2).tolist())


def _made(
    hospital: Hospital, cohort: Cohort, settings: Augment, call: Call, facts: Mapping[str, Json], wanted: Lack
) -> _Made:
    """As many synthetic images as are wanted."""
    inputs, y = inputs_of(cohort), torch.full((wanted.number,), wanted.label)
    seed = derived(number(facts, "seed", 0, 2**62), hospital.name, "augment", "images")
    how = settings.synthesis
    if isinstance(how, Public):
        prior = PRIORS[str(facts["prior"])]
        return _Made(drawn(prior, y, inputs, seed), [], True, {"synthesis": {"name": how.name, "prior": prior.name}})
    found = learnt(hospital, cohort, how, call, facts, "augment")
    images = synthesis.candidates(found.settings, inputs, found.params, y, seed=seed).cpu().float()
    return _Made(images, found.events, found.settings.private, found.said)


def _judged(
    cohort: Cohort, made: Tensor, wanted: Lack, facts: Mapping[str, Json], network: Network | None
) -> dict[str, Json]:
    """Distances and copies, by validation patients, whom no synthesis saw. Test patients are not looked at."""
    prior = PRIORS[str(facts["prior"])]
    scale = parsed(SCALE, facts["scale"])
    train, held = (split_rows(cohort, scale, split) for split in ("train", "validation"))
    features = _public(prior, inputs_of(cohort)) if network is None else partial(inception_features, network)
    found = distance(features, made, _of(held, wanted), _of(train, wanted), seed=SEED)
    copied = near_copies(made, train.x, held.x)
    return {
        "distance": None if found is None else found.made,
        "distance_real": None if found is None else found.real,
        "compared": None if found is None else found.images,
        "features": prior.name if network is None else "inception",
        "near_copies": None if math.isnan(copied) else copied,
    }


def _public(prior: Prior, inputs: Inputs) -> Features:
    return partial(features_of, compared(prior, inputs, PUBLIC, COMPONENTS, ROUGHNESS, seed=SEED))


def _of(rows: Rows, wanted: Lack) -> Tensor:
    return rows.x[rows.y == wanted.label]


def _joined(cohort: Cohort, scale: Scale, label: int, made: _Made, question: str) -> Cohort:
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


def _written(hospital: Hospital, cohort: Cohort) -> str:
    name = short(write_cohort_file(hospital.root / "cohorts", cohort, hospital.key()))
    folder = DiskFolder(hospital.cohort_folder(name))
    folder.write(REJECTED, b"[]")  # rejections are listed beside the raw cohort
    folder.write(SPLIT, json.dumps(split_of(cohort), indent=1).encode())
    return name


def _as_it_was(hospital: Hospital, facts: Mapping[str, Json], state: str, told: Event) -> Done:
    reply = {**_named(hospital, str(facts["cohort"])), "state": state, "label": None, "made": 0}
    return Done(Message({}, reply), describe(told), Message({}, looked_at(str(facts["cohort"]), {})))


def _named(hospital: Hospital, cohort: str) -> dict[str, Json]:
    digest = digest_of(hospital.cohort_folder(cohort) / COHORT) or ""
    return {"cohort": cohort, "sha256": keyed(hospital.key(), digest)}
