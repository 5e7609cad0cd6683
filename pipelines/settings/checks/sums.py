"""Checks of secure sums, and of noise that hospitals share."""

from __future__ import annotations

from collections.abc import Iterator

from federation.algorithm import has_one_model, sends_gradient_sums
from federation.summing import find_sum_problem
from pipelines.settings.home_lines import CENTRAL
from pipelines.settings.privacy import PatientLevel
from pipelines.settings.run_settings import RunSettings, rehearse_method
from privacy.secure_sum import MISSING, has_cryptography
from privacy.settings_error import Problem

SECURE_SUM = ("train", "secure_sum")
SHARED = ("privacy", "shared")


def problems(run: RunSettings) -> list[Problem]:
    """Settings whose sums could not be computed, or would hide nothing that a policy or the noise counts on."""
    return list(
        dict.fromkeys([*_sum_problems(run), *_export_problems(run), *_shared_problems(run), *_policy_problems(run)])
    )


def _sum_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of `train.secure_sum`."""
    if not run.train.secure_sum:
        return
    if not has_cryptography():
        yield Problem(SECURE_SUM, MISSING)
    if (count := len(_list_inside(run))) < 2:
        text = f"true needs two hospitals that train, better three, found {count}"
        yield Problem(SECURE_SUM, text, needs=(("sites",), ("outside",)))
    elif (asked_count := run.train.schedule.count_asked(count)) < 2:
        text = (
            f"{run.train.schedule.participation:g} asks {asked_count} of {count} hospitals, and a sum needs two; say 1"
        )
        yield Problem(("train", "schedule", "participation"), text, needs=(SECURE_SUM, ("sites",), ("outside",)))
    for label, method in run.train.methods.items():
        forms = rehearse_method(run, label, method)
        if forms is not None and (problem := find_sum_problem(method, forms.introduction, forms.reply)):
            yield Problem(("train", "methods", label), problem, needs=(SECURE_SUM,))


def _export_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of other stages that would hand out a model of one hospital in a run of secure sums."""
    exports = {("evaluate", "public"): run.evaluate.public, ("route",): run.route is not None}
    methods = run.train.methods.items()
    personal = [label for label, method in methods if not has_one_model(method) and method.name != CENTRAL]
    if not run.train.secure_sum or not personal:
        return
    for where, is_wanted in exports.items():
        if is_wanted:
            remedy = "say false" if where[0] == "evaluate" else "leave it out"
            text = (
                f"each hospital's own model of {', '.join(personal)} would leave, and with secure_sum only sums do; "
                f"{remedy}, or take methods with one model for all"
            )
            yield Problem(where, text, needs=(SECURE_SUM,))


def _shared_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of `privacy.shared`."""
    if not isinstance(run.privacy, PatientLevel) or run.privacy.shared is None:
        return
    if not run.train.secure_sum:
        text = "noise can be shared only in a sum of which nobody sees a part; say train: {secure_sum: true}"
        yield Problem(SHARED, text, needs=(SECURE_SUM,))
    if not any(map(sends_gradient_sums, run.train.methods.values())):
        yield Problem(
            SHARED, "no method of this run sends sums of gradients; take fedsgd", needs=(("train", "methods"),)
        )
    count, colluding = len(_list_inside(run)), run.privacy.shared.colluding
    if count - colluding < 2:
        text = (
            f"{colluding}, and {count} hospitals train: needed are two that do not work together with the coordinator"
        )
        yield Problem((*SHARED, "colluding"), text, needs=(("sites",), ("outside",)))
    if run.train.schedule.participation < 1:
        text = f"{run.train.schedule.participation:g}, and noise is shared by all hospitals (privacy.shared); say 1"
        yield Problem(("train", "schedule", "participation"), text, needs=(SHARED,))


def _policy_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of hospitals whose policy asks for secure sums, or for larger ones."""
    count = len(_list_inside(run))
    for name in _list_inside(run):
        needed = run.sites[name].policy.secure_sum
        if needed is None or not run.train.methods:
            continue
        where = ("sites", name, "policy", "secure_sum")
        if not run.train.secure_sum:
            text = "this hospital's parameters leave only in sums; say train: {secure_sum: true}"
            yield Problem(where, text, needs=(SECURE_SUM,))
        elif needed.hospitals > count:
            text = f"{needed.hospitals} is the fewest hospitals in a sum, and {count} train in this run"
            yield Problem((*where, "hospitals"), text, needs=(("sites",), ("outside",)))
        elif needed.hospitals > (asked_count := run.train.schedule.count_asked(count)):
            text = f"{needed.hospitals} is the fewest hospitals in a sum, and "
            text += f"train.schedule.participation asks {asked_count}"
            yield Problem((*where, "hospitals"), text, needs=(("train", "schedule", "participation"),))


def _list_inside(run: RunSettings) -> list[str]:
    """The hospitals that train."""
    return [name for name in run.sites if name not in run.outside]
