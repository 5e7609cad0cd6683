"""Figures that the coordinator's page and a hospital's own have in common: which models they show, in which groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from evaluation.agreement import confusion_matrices
from evaluation.classes import Classes
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.figures import (
    LOSS,
    Curve,
    draw_learning_curves,
    draw_roc_by_class,
    draw_roc_by_finding,
    draw_roc_curves,
)
from evaluation.findings import Findings
from evaluation.histograms import Counts, Ints
from evaluation.panels import split_names
from evaluation.protocols import Table, own_model_table

Kind = TypeVar("Kind", Counts, Findings)


def list_shown_evidence(
    tables: Mapping[str, Table], decided: Sequence[Decision], reference: str | None, kind: type[Kind]
) -> Iterator[tuple[str, str, Kind]]:
    """Site, method and evidence of each hospital's recommended model and of the reference."""
    for decision in decided:
        for method in dict.fromkeys(name for name in (reference, decision.method) if name and name in tables):
            evidence = own_model_table(tables[method]).get((decision.site, decision.site))
            if isinstance(evidence, kind):
                yield decision.site, method, evidence


def draw_rocs(
    tables: Mapping[str, Table],
    sites: Sequence[str],
    order: Sequence[str],
    reference: str | None,
    classes: Classes,
    findings: Sequence[str] = (),
    *,
    names_site: bool = False,
) -> list[Picture]:
    """ROC curves of every site's own models, in groups of methods: one picture, or one for each site, with a panel for
    each of more than two classes, cuts or findings. order: all methods. names_site: whether titles say whose they are.
    """
    pictures = []
    if findings:
        by_finding = _select_at_home(tables, order, sites, Findings)
        for site in sites:
            several = {method: scores[site] for method, scores in by_finding.items() if site in scores}
            for part, group in split_names(list(several), reference):
                title = f", {site}{part}" if names_site else part
                shown = {method: several[method] for method in group}
                pictures.append(draw_roc_by_finding(shown, findings, order=order, part=title))
        return pictures
    at_home = _select_at_home(tables, order, sites, Counts)
    for part, group in split_names(list(at_home), reference):
        lines = {site: {m: at_home[m][site] for m in group if site in at_home[m]} for site in sites}
        if not classes.several:
            samples = {site: {m: counts.sample[0] for m, counts in each.items()} for site, each in lines.items()}
            pictures.append(draw_roc_curves(samples, order=order, part=part))
            continue
        for site, each in lines.items():
            title = f", {site}{part}" if names_site else part
            pictures.append(draw_roc_by_class(each, classes.scored_parts, order=order, part=title))
    return pictures


def _select_at_home(
    tables: Mapping[str, Table], methods: Sequence[str], sites: Sequence[str], kind: type[Kind]
) -> dict[str, dict[str, Kind]]:
    """Method -> site -> evidence of its own model there; without methods that have none."""
    at_home: dict[str, dict[str, Kind]] = {}
    for method in (name for name in methods if name in tables):
        table = own_model_table(tables[method])
        for site in sites:
            if isinstance(evidence := table.get((site, site)), kind):
                at_home.setdefault(method, {})[site] = evidence
    return at_home


def draw_confusions(
    tables: Mapping[str, Table], decided: Sequence[Decision], reference: str | None, classes: Classes, examples: str
) -> list[Picture]:
    """Confusion matrices of each hospital's recommended model and of the reference, of more than two classes."""
    shown, noised = dict[str, dict[str, Ints]](), False
    for site, method, counts in list_shown_evidence(tables, decided, reference, Counts):
        if classes.several:
            shown.setdefault(site, {})[method] = counts.confusion[0]
            noised = noised or counts.noise > 0
    return confusion_matrices(shown, classes.names, examples=examples, noised=noised)


def make_curve(values: Mapping[int, float]) -> Curve:
    """Values by round as a curve."""
    return Curve(tuple(sorted(values)), tuple(values[number] for number in sorted(values)))


def draw_curve_groups(
    curves: Mapping[str, Mapping[str, Curve]], order: Sequence[str], reference: str | None, value: str = LOSS
) -> list[Picture]:
    """Curves by hospital and method in groups of methods, each of the hospitals that have any. order: all methods."""
    names = [name for name in order if any(name in lines for lines in curves.values())]
    pictures = []
    for part, group in split_names(names, reference):
        lines = {site: {name: each[name] for name in group if name in each} for site, each in curves.items()}
        shown = {site: each for site, each in lines.items() if each}
        pictures.append(draw_learning_curves(shown, value=value, order=order, part=part))
    return pictures
