"""What models began with, in the hospital's own words: public pictures, priors, files, frozen networks, by digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from federation.features.lite0 import TENSORS_SHA256
from privacy.message import Json, as_mapping

FEATURES, ENCODER, DETECTOR = "features", "encoder", "detector"
"""The fact of a memory of `extract` with public pictures, and, in it, a network's digest with its kind or its prior."""

TRANSLATION = "translation"
"""The fact of a memory of `translate` with a prior, and the digest of the translator that was learnt on it."""

START = "start"
"""The fact of an opening with public pictures and the digest of the weights that were trained on them; or of weights of
a file, with its digest and whether the coordinator calls them public."""
NOT_PUBLIC = (
    "it does not say that they are public, so no ε here covers those whose data shaped them: a patient of this "
    "hospital who is among them is protected only from what was learnt since"
)
BEFORE = "Those whose data shaped weights of a file with which networks began, and which are not said to be public"


CODE = "Those whose data shaped weights that the code of an own network reads when it makes one"
KEEPS = "Patients whose examples code of one's own keeps in its globals, from one patient to the next"


def describe_beginnings(memories: Mapping[str, Mapping[str, Json]]) -> str:
    """Everything that is not a patient's and shaped what these runs learnt; empty if nothing did.

    memories: of a hospital's runs, as `extract`, `translate` and `synthesize` left them, and openings of training.
    """
    return "; ".join(dict.fromkeys(text for facts in memories.values() for text in _list_beginnings(facts)))


def list_uncovered_patients(memories: Iterable[Mapping[str, Json]]) -> tuple[str, ...]:
    """Whom no ε of these runs covers because of what networks began with: a sentence for each file. memories: with the
    fact `start`, as openings and finished models have it.
    """
    memories = list(memories)
    starts = (as_mapping(facts.get(START)) for facts in memories)
    private_starts = (
        start for start in starts if "weights" in start and as_mapping(start["weights"]).get("public") is not True
    )
    sentences = [f"{BEFORE} (SHA-256 {start.get('sha256')})" for start in private_starts]
    sentences += [
        f"{CODE} ({network.get('network')}; nobody reviewed it)" for network in map(_own_network, memories) if network
    ]
    code = [
        name
        for memory in memories
        for name in (_own_network(memory).get("network"), _registered_transform(memory))
        if name
    ]
    sentences += [f"{KEEPS} ({name}; nobody reviewed it)" for name in code]
    return tuple(dict.fromkeys(sentences))


def _registered_transform(facts: Mapping[str, Json]) -> Json:
    """The name of a transform that was registered from Python; None if there is none."""
    return as_mapping(as_mapping(facts.get("work")).get("transform")).get("function")


def _own_network(facts: Mapping[str, Json]) -> Mapping[str, Json]:
    """The settings of a network that was registered from Python; empty if it is none."""
    model = as_mapping(facts.get("model"))
    return model if model.get("name") == "own" else {}


def _list_beginnings(facts: Mapping[str, Json]) -> Iterator[str]:
    """What shaped one run before its first patient, in words."""
    prior = as_mapping(facts.get("synthesis")).get("prior")
    if prior:
        yield f"the synthesis began with {_describe_prior(prior)}"
    translation = as_mapping(facts.get(TRANSLATION))
    if translation:
        yield (
            f"a network (SHA-256 {translation.get('sha256')}) that translates images, used unless the veto refused it, "
            f"learnt from {_describe_prior(translation.get('prior'))}, and no patient shaped it (ε = 0)"
        )
    if network := _own_network(facts):
        code = f"the code of {network.get('network')} makes them (SHA-256 {network.get('code') or 'not known'})"
        read = "random numbers, or weights that it reads; nobody reviewed which, and whose data shaped them"
        yield f"networks began as {code}: {read}"
    if as_mapping(facts.get("model")).get("name") == "lite0":
        yield (
            f"networks began with the weights of EfficientNet-Lite0 (SHA-256 {TENSORS_SHA256}), which learnt from "
            "ImageNet's photographs; the package that brings them does not tell how"
        )
    start = as_mapping(facts.get(START))
    if brought := as_mapping(start.get("weights")):
        file = f"networks began with weights of a file (SHA-256 {start.get('sha256')}) that the coordinator brought"
        yield f"{file} and calls public" if brought.get("public") is True else f"{file}; {NOT_PUBLIC}"
    elif start:
        yield (
            f"networks began with weights (SHA-256 {start.get('sha256')}) that the coordinator says it trained on "
            f"{_describe_pictures(as_mapping(start.get('public')))}"
        )
    features = as_mapping(facts.get(FEATURES))
    if as_mapping(features.get("public")).get("pictures"):
        yield f"features were scaled by {_describe_pictures(as_mapping(features.get('public')))}"
    if encoder := as_mapping(features.get(ENCODER)):
        yield (
            f"features are those of a frozen network ({encoder.get('kind')}) of a file with SHA-256 "
            f"{encoder.get('sha256')}, which the coordinator handed over and calls public"
        )
    if detector := as_mapping(features.get(DETECTOR)):
        yield (
            f"features are what a network marks (SHA-256 {detector.get('sha256')}) that the coordinator says it "
            f"trained on {_describe_prior(detector.get('prior'))}"
        )


def _describe_pictures(public: Mapping[str, Json]) -> str:
    """Public pictures, in words."""
    if "prior" in public:
        return f"{public.get('pictures')} {_describe_prior(public['prior'])}"
    named = f"{public.get('pictures')} pictures, {public.get('folder')} (SHA-256 {public.get('sha256')})"
    return f"{named}, which the coordinator read and calls public"


def _describe_prior(prior: Json) -> str:
    """Pictures of a prior, in words."""
    return f"pictures of the procedural prior {prior}, which is code of this program"
