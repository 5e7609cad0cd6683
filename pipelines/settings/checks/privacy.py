"""What in the settings of a private run no epsilon would cover, all of it at once and with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.dp.modules import unfit

if TYPE_CHECKING:
    from pipelines.settings.config import Config


def unprotected(config: Config) -> list[str]:
    """Every setting by which patients would influence each other or a release past clipping and noise."""

    problems = []
    if config.images.kind == "features" and config.images.normalize in ("site", "pooled"):
        problems.append(
            f"images.normalize: {config.images.normalize} computes means from patients, which no noise covers; "
            "say none, or declared with public ranges"
        )
    if config.images.kind == "features" and config.images.components is not None:
        problems.append(
            f"images.components: {config.images.components} fits principal axes to all training patients, which no "
            "noise covers; remove it"
        )
    for label, method in config.train.methods.items():
        if method.name == "central":
            problems.append(f"train.methods.{label}: pools images, which no epsilon covers; remove it")
            continue
        if said := unfit(method.network(config.task_of(label))):
            problems.append(f"train.methods.{label}: cannot be trained privately: {', '.join(said)}")
        for site in config.sites:
            try:
                work = config.work(label, site)
            except ValueError:
                continue  # told as a problem of this site's work
            if work.balance:
                problems.append(
                    "train.work.balance: draws by the labels of all patients, which a patient's clipping does not "
                    "bound; say balance: false"
                )
    for name, settings in config.sites.items():
        if settings.policy.budget is None and not settings.policy.declares("counts"):
            problems.append(
                f"sites.{name}.policy.public: how many patients there are must be declared public by a hospital "
                "without a budget, or its answers have no guarantee; say public: [counts], or give it a budget, which "
                "pays for counts with noise"
            )
        if settings.policy.budget is not None and settings.home is None and settings.source.kind != "phantom":
            problems.append(
                f"sites.{name}.home: missing; a budget over a patient's life needs a ledger that outlives this run: "
                "name the hospital's own folder"
            )
    return list(dict.fromkeys(problems))
