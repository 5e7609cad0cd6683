"""What a run asks its hospitals, and what their policies answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pipelines.settings.config import Config
from privacy.message import Json, as_list


class Answered(NamedTuple):
    """What a hospital's policy lets it answer, and the methods that it trains by; None: all. private: whether nothing
    leaves it without a finite ε.
    """

    requests: Collection[str]
    algorithms: Collection[str] | None
    private: bool = False


def said_by(config: Config) -> dict[str, Answered]:
    """What the run's own settings say of each hospital: all there is to say in a simulation."""
    return {
        site: Answered(one.policy.requests, one.policy.algorithms, one.policy.promises)
        for site, one in config.sites.items()
    }


def heard(facts: Mapping[str, Json]) -> Answered:
    """What a hospital says of itself with its survey."""
    known = facts.get("algorithms")
    requests = [str(one) for one in as_list(facts.get("requests"))]
    algorithms = None if known is None else [str(one) for one in as_list(known)]
    return Answered(requests, algorithms, facts.get("private") is True)


def unanswered(config: Config, said: Mapping[str, Answered], *, spare: Collection[str] = ()) -> list[str]:
    """What this run will ask, and a hospital's policy does not answer. spare: what the run can do without."""
    asked = ["survey", "ingest", "introduce", "train", "finish", "evaluate", "report", "holds"]
    asked += ["export"] if (config.evaluate.public and len(config.sites) > 1) or config.route is not None else []
    asked += ["audit"] if config.audit.membership or config.audit.inversion is not None else []
    asked += ["score", "synthesize", "sample", "translate"] if config.harmonize is not None else []
    found = []
    for site, answered in said.items():
        needed = ["survey", "ingest", "route", "holds"] if site in config.outside else asked
        if silent := [one for one in needed if one not in (*answered.requests, *spare)]:
            found.append(f"{site}: its policy does not answer {', '.join(silent)}")
        if answered.private and (config.privacy == "none" or config.route is not None):
            found.append(
                f"{site}: its policy requires privacy (a budget, or require: privacy), and what this run asks has no "
                "epsilon; say privacy: {epsilon: ...}, without route:"
            )
        known = answered.algorithms
        if known is not None and (others := [m.name for m in config.train.methods.values() if m.name not in known]):
            found.append(f"{site}: its policy does not train by {', '.join(dict.fromkeys(others))}")
    return found
