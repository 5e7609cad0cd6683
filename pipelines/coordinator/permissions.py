"""Whether the hospitals' policies permit what a run asks of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from federation.models import OnFeatures
from federation.origins import find_permission_problems, list_packages_in
from personalize.at_home import list_policy_names
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.loader.document import ConfigError
from pipelines.requests.survey import Surveyed
from pipelines.settings.config import Config
from pipelines.settings.harmonization import Public
from pipelines.settings.home_lines import asks_comparisons
from pipelines.settings.image_spaces import list_features, list_routed_spaces
from pipelines.settings.recipients import list_needed_recipients
from pipelines.settings.sites import Elsewhere
from privacy.release.form import value_or_none
from privacy.release.policy import REQUESTS, Policy
from privacy.settings_error import Problem


class Permissions(NamedTuple):
    """What a hospital's policy permits. algorithms: None = all. private: it releases nothing without a finite ε.
    plugins: installed packages, name -> digest. recipients: None = it did not say.
    """

    requests: Collection[str]
    algorithms: Collection[str] | None
    private: bool = False
    plugins: Mapping[str, str] = MappingProxyType({})
    recipients: Collection[str] | None = None


def permissions_in(config: Config) -> dict[str, Permissions]:
    """Each hospital's permissions by the run's settings, which hold no policy of a hospital on another machine."""
    return {
        site: Permissions(
            _list_answered_requests(site_settings.policy),
            site_settings.policy.algorithms,
            site_settings.policy.promises,
            site_settings.policy.plugins,
            site_settings.policy.recipients,
        )
        for site, site_settings in config.sites.items()
        if not isinstance(site_settings.source, Elsewhere)
    }


def _list_answered_requests(policy: Policy) -> tuple[str, ...]:
    """The requests that a policy answers."""
    return tuple(request for request in REQUESTS if policy.allows(request))


def permissions_from(reply: Surveyed) -> Permissions:
    """One hospital's permissions, from its reply to `survey`."""
    return Permissions(
        reply.requests,
        reply.algorithms,
        reply.private,
        value_or_none(reply.plugins) or {},
        value_or_none(reply.recipients),
    )


class Need(NamedTuple):
    """Requests that one stage makes, and of whom. remark: where not every site is sure to be asked. optional:
    the run goes on without an answer, or may never ask.
    """

    stage: str
    requests: tuple[str, ...]
    sites: tuple[str, ...]
    optional: bool = False
    remark: str = ""


def list_needs(config: Config) -> list[Need]:
    """Every request that a run makes of its hospitals, stage by stage, in the order of the stages."""
    outside = tuple(config.outside)
    sites = tuple(site for site in config.sites if site not in outside)
    reading = ("survey", *(("moments",) if getattr(config.images, "normalize", "") == "pooled" else ()), "ingest")
    federated = any(method.name != CENTRAL for method in config.train.methods.values())
    trains = bool(config.train.methods)
    needs = [Need("ingest", (*reading, "holds"), sites)]
    needs += _harmonization_needs(config, sites)
    needs += [Need("augment", ("augment",), sites)] if config.augment is not None else []
    needs += [Need("features", ("extract",), sites)] if list_features(config) else []
    needs += [Need("train", ("holds", "introduce", "train", "finish"), sites)] if federated else []
    needs += [Need("train", ("pool",), sites)] if _has_central(config) else []
    if federated and config.evaluate.rounds:
        remark = ", so nobody sees its scores by round; say requests: with figures in the policy, or leave out "
        needs.append(Need("figures", ("figures",), sites, optional=True, remark=f"{remark}evaluate: {{rounds: true}}"))
    needs += [Need("evaluate", ("evaluate",), sites)] if trains else []
    matches = any(variant.calibration == "matched" for variant in config.evaluate.variants.values())
    exports = federated and (matches or (config.evaluate.public and len(sites) > 1))
    needs += [Need("evaluate", ("export",), sites)] if exports else []
    if trains and (config.audit.membership or config.audit.inversion is not None):
        needs.append(Need("audit", ("audit",), sites, optional=True, remark=", so its models are not attacked"))
    if config.route is not None:
        features = ("extract",) if _routes_features(config) else ()
        translating = ("translate",) if list_routed_spaces(config) else ()
        requests = (*reading, "holds", *translating, *features, "route")
        needs += [Need("route", ("export",), sites), Need("route", requests, outside)]
    if config.track is not None:
        remark = f", so no figure of it goes to {' and '.join(config.track.places)}; say requests: with track in the "
        remark += "policy, or leave out track:"
        needs.append(Need("track", ("track",), (*sites, *outside), optional=True, remark=remark))
    if asks_comparisons(config):
        remark = ", so its scores help no hospital to decide"
        needs.append(Need("report", ("compare",), sites, optional=True, remark=remark))
    return [*needs, Need("report", ("report",), (*sites, *(outside if config.route is not None else ())))]


def find_unanswered_requests(config: Config, by_site: Mapping[str, Permissions], *, optional: bool) -> list[str]:
    """One sentence for each hospital and stage whose requests the hospital's policy does not answer. optional: those
    that the run can do without, in place of those that it needs.
    """
    sentences = []
    for site, permitted in by_site.items():
        for need in list_needs(config):
            silent = [request for request in need.requests if request not in permitted.requests]
            if site in need.sites and need.optional == optional and silent:
                text = f"{site}: its policy does not answer {', '.join(silent)}"
                sentences.append(f"{text}, which the stage {need.stage} asks{need.remark}")
    return sentences


def find_refused_requests(config: Config, by_site: Mapping[str, Permissions]) -> list[str]:
    """One sentence for each need of this run that a hospital's policy refuses, so that the run would fail."""
    sentences, offers = (
        find_unanswered_requests(config, by_site, optional=False),
        list_packages_in(config.train, config.model, config.harmonize),
    )
    for site, permitted in by_site.items():
        sentences += [f"{site}: {text}" for text in find_permission_problems(offers, permitted.plugins)]
        if permitted.private and (config.privacy == "none" or config.route is not None):
            sentences.append(
                f"{site}: its policy requires privacy (a budget, or require: privacy), and what this run asks has no "
                "epsilon; say privacy: {epsilon: ...}, without route:"
            )
        sentences += _find_missing_recipients(config, site, permitted)
        known = permitted.algorithms
        if known is not None and (
            refused_methods := [
                name
                for method in config.train.methods.values()
                for name in list_policy_names(method)
                if name not in known
            ]
        ):
            sentences.append(
                f"{site}: its policy does not train by {', '.join(dict.fromkeys(refused_methods))} (stage train)"
            )
    return sentences


def _find_missing_recipients(config: Config, site: str, permitted: Permissions) -> list[str]:
    """One sentence for each recipient that this run needs, and that the policy of a hospital inside does not name."""
    if permitted.recipients is None or site in config.outside:
        return []
    return [
        f"{site}: {why}, and its policy names no such recipient; say recipients: [coordinator, {recipient}] there"
        for recipient, why in list_needed_recipients(config, site)
        if recipient not in permitted.recipients
    ]


def check_permitted(config: Config, by_site: Mapping[str, Permissions]) -> None:
    """Raises: ConfigError: a hospital's policy refuses what this run needs; all of it, before anything is asked."""
    if sentences := find_refused_requests(config, by_site):
        ways = "ask the hospital, or leave out what needs it (evaluate.public: export)"
        raise ConfigError([Problem(("sites",), f"{text}; {ways}") for text in sentences])


def _harmonization_needs(config: Config, sites: tuple[str, ...]) -> list[Need]:
    """What harmonization asks: of the target alone, where it trains a generator; any hospital may become the target."""
    plan = config.harmonize
    if plan is None:
        return []
    needs = [Need("score", ("holds", "score"), sites)] if plan.score.release != "public" else []
    if not isinstance(plan.synthesis, Public):
        known = plan.score.target is not None
        target, remark = ((plan.score.target or "",), "") if known else (sites, " if it becomes the target")
        for stage in ("synthesize", "sample"):
            requests = ("holds", stage) if stage == "synthesize" else (stage,)
            needs.append(Need(stage, requests, target, optional=not known, remark=remark))
    return needs + ([Need("translate", ("translate",), sites)] if plan.translate else [])


def _has_central(config: Config) -> bool:
    """Whether a method is the central baseline."""
    return any(method.name == CENTRAL for method in config.train.methods.values())


def _routes_features(config: Config) -> bool:
    """Whether external sites get models on fixed features, which they then compute."""
    lines = () if config.route is None else config.route.lines.values()
    labels = {label for line in lines if config.route is not None for label in config.route.methods(line).values()}
    return any(isinstance(config.model_of(label), OnFeatures) for label in labels)
