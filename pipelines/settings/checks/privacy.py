"""Checks of privacy: settings that no epsilon covers, and policies whose promise the run would break."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.settings.run_settings import RunSettings, build_network, is_buildable, list_works
from privacy.release.policy import Policy
from privacy.settings_error import Problem


def problems(run: RunSettings) -> list[Problem]:
    """Settings by which a patient would affect other patients or a release without clipping and noise."""
    if run.privacy == "none":
        return [_broken_promise(name, site.policy) for name, site in run.sites.items() if site.policy.promises]
    figures = [_figures_problem()] if run.evaluate.rounds else []
    return list(dict.fromkeys([*figures, *_feature_problems(run), *_method_problems(run), *_site_problems(run)]))


def _figures_problem() -> Problem:
    """The problem of scores and counts of each round in a private run."""
    text = "releases exact scores and counts of each round, and in a private run every one of them would cost epsilon"
    return Problem(("evaluate", "rounds"), f"{text}; leave it out: the validation losses of the rounds are paid for")


def _broken_promise(site: str, policy: Policy) -> Problem:
    """The problem of a policy that promises privacy in a run without it."""
    key, text = "require", "this hospital lets nothing leave without a finite epsilon"
    if policy.require is None and policy.budget is not None:
        key, text = "budget", f"this hospital allows epsilon {policy.budget.epsilon}"
    remedy = "and privacy: none makes every release non-private; say privacy: {epsilon: ...}"
    return Problem(("sites", site, "policy", key), f"{text}, {remedy}")


def _feature_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of tables of features that are normalized or projected by means of patients' values."""
    images = run.images
    if images.kind == "features" and images.normalize in ("site", "pooled"):
        text = f"{images.normalize} computes means from patients, which no noise covers; say none, or declared with "
        yield Problem(("images", "normalize"), f"{text}public ranges")
    if images.kind == "features" and images.components is not None:
        text = f"{images.components} fits principal axes to all training patients, which no noise covers; remove it"
        yield Problem(("images", "components"), text)


def _method_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of methods, networks and local work that cannot be trained privately."""
    from privacy.dp.modules import find_unfit_parts  # slow to import

    for label, method in run.train.methods.items():
        where = ("train", "methods", label)
        if method.name == "central":
            yield Problem(where, "pools images, which no epsilon covers; remove it")
        elif is_buildable(run.task_of(label)) and (
            sentence := find_unfit_parts(build_network(method, run.task_of(label)))  # norms are the same everywhere
        ):
            yield Problem(where, f"cannot be trained privately: {', '.join(sentence)}")
    for label, _, work in list_works(run):
        if work.balance and run.train.methods[label].name != "central":
            text = "draws by the labels of all patients, which a patient's clipping does not bound; say balance: false"
            yield Problem(("train", "work", "balance"), text)
        yield from (Problem(("train", "work"), sentence) for sentence in work.private_problems)


def _site_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of sites whose policy gives counts no guarantee, or whose budget has no lasting ledger."""
    for name, site in run.sites.items():
        if site.policy.budget is None and not site.policy.declares("counts"):
            yield Problem(
                ("sites", name, "policy", "public"),
                "how many patients there are must be declared public by a hospital without a budget, or its answers "
                "have no guarantee; say public: [counts], or give it a budget, which pays for counts with noise",
            )
        if site.policy.budget is not None and site.home is None and site.source.kind != "phantom":
            text = "missing; a budget over a patient's life needs a ledger that outlives this run: name the hospital's "
            yield Problem(("sites", name, "home"), f"{text}own folder")
