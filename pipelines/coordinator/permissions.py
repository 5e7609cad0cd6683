"""Whether the hospitals' policies permit what a run asks of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from federation.models import OnFeatures
from federation.origins import offers_in, unpermitted
from pipelines.settings.config import Config
from pipelines.settings.image_spaces import features_in
from privacy.message import Json, as_list, as_mapping


class Permissions(NamedTuple):
    """What a hospital's policy permits. algorithms: None = all. private: it releases nothing without a finite ε.
    plugins: installed packages, name -> digest.
    """

    requests: Collection[str]
    algorithms: Collection[str] | None
    private: bool = False
    plugins: Mapping[str, str] = MappingProxyType({})


def permissions_in(config: Config) -> dict[str, Permissions]:
    """Each hospital's permissions, from the run's settings, which hold every policy in a simulation."""
    return {
        site: Permissions(one.policy.requests, one.policy.algorithms, one.policy.promises, one.policy.plugins)
        for site, one in config.sites.items()
    }


def permissions_from(facts: Mapping[str, Json]) -> Permissions:
    """One hospital's permissions, from the facts of its reply to `survey`."""
    known = facts.get("algorithms")
    requests = [str(one) for one in as_list(facts.get("requests"))]
    algorithms = None if known is None else [str(one) for one in as_list(known)]
    plugins = {name: str(code) for name, code in as_mapping(facts.get("plugins", {})).items()}
    return Permissions(requests, algorithms, facts.get("private") is True, plugins)


def refused_requests(config: Config, by_site: Mapping[str, Permissions], *, spare: Collection[str] = ()) -> list[str]:
    """One sentence for each need of this run that a hospital's policy refuses. spare: requests that are optional."""
    asked = ["survey", "ingest", "introduce", "train", "finish", "evaluate", "report", "holds"]
    asked += ["export"] if (config.evaluate.public and len(config.sites) > 1) or config.route is not None else []
    asked += ["audit"] if config.audit.membership or config.audit.inversion is not None else []
    asked += ["score", "synthesize", "sample", "translate"] if config.harmonize is not None else []
    asked += ["augment"] if config.augment is not None else []
    asked += ["extract"] if features_in(config) else []
    on_features = ["extract"] if _routes_features(config) else []
    found, offers = [], offers_in(config.train, config.model, config.harmonize)
    for site, permitted in by_site.items():
        found += [f"{site}: {text}" for text in unpermitted(offers, permitted.plugins)]
        needed = ["survey", "ingest", "route", "holds", *on_features] if site in config.outside else asked
        if silent := [one for one in needed if one not in (*permitted.requests, *spare)]:
            found.append(f"{site}: its policy does not answer {', '.join(silent)}")
        if permitted.private and (config.privacy == "none" or config.route is not None):
            found.append(
                f"{site}: its policy has a budget of privacy, and what this run asks has no "
                "epsilon; say privacy: {epsilon: ...}, without route:"
            )
        known = permitted.algorithms
        if known is not None and (others := [m.name for m in config.train.methods.values() if m.name not in known]):
            found.append(f"{site}: its policy does not train by {', '.join(dict.fromkeys(others))}")
    return found


def _routes_features(config: Config) -> bool:
    """Whether external sites get models on fixed features, which they then compute."""
    lines = () if config.route is None else config.route.lines.values()
    labels = {label for line in lines if config.route is not None for label in config.route.methods(line).values()}
    return any(isinstance(config.model_of(label), OnFeatures) for label in labels)
