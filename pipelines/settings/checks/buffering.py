"""Checks of buffered merging: methods whose updates may come late, sums, and who would never be merged."""

from __future__ import annotations

from collections.abc import Iterator

from federation.buffering import can_merge_late, find_buffer_problem
from federation.rounds import HIDDEN_BUFFER, method_schedule
from pipelines.settings.run_settings import RunSettings, rehearse_method
from privacy.settings_error import Problem

SCHEDULE = ("train", "schedule")
BUFFER = (*SCHEDULE, "buffer")
SECURE_SUM = ("train", "secure_sum")


def problems(run: RunSettings) -> list[Problem]:
    """Settings with which updates cannot be merged late, or with which some hospital's never would be."""
    if run.train.schedule.buffer is None or not run.train.methods:
        return []
    return [*_method_problems(run), *_hospital_problems(run)]


def _method_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of methods, and of sums that hide whose update is late."""
    if run.train.secure_sum:
        yield Problem(BUFFER, f"{run.train.schedule.buffer}: {HIDDEN_BUFFER}", needs=(SECURE_SUM,))
    for label, method in run.train.methods.items():
        forms = rehearse_method(run, label, method)
        if forms is not None and (problem := find_buffer_problem(method, forms.reply)):
            yield Problem(("train", "methods", label), problem, needs=(BUFFER,))


def _hospital_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of hospitals that are not there, are too few, or train too slowly to be merged at all."""
    schedule, inside = run.train.schedule, [name for name in run.sites if name not in run.outside]
    needs = (("sites",), ("outside",))
    for name in sorted(set(schedule.durations) - set(inside)):
        text = f"no such hospital trains; those that do are {', '.join(inside)}"
        yield Problem((*SCHEDULE, "durations", name), text, needs=needs)
    buffer = schedule.buffer or 0
    if buffer > len(inside):
        text = f"must be at most {len(inside)}, the number of hospitals that train, found {buffer}"
        yield Problem(BUFFER, text, needs=needs)
    late = [label for label, method in run.train.methods.items() if can_merge_late(method)]
    if not late:
        return
    updates = method_schedule(run.train.methods[late[0]], schedule).count_updates(inside)
    if silent := [name for name, count in updates.items() if not count]:
        text = (
            f"{schedule.rounds} merges end before {', '.join(silent)} has answered once; say more rounds, a larger "
            "buffer, or leave the hospital out"
        )
        yield Problem((*SCHEDULE, "rounds"), text, needs=(*needs, BUFFER, (*SCHEDULE, "durations")))
