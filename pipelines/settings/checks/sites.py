"""Checks of single sites, and of sites against the run."""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.data.readers import resolve_source
from pipelines.data.requirements import kind_problems
from pipelines.loader.names import RESERVED, is_name
from pipelines.settings.run_settings import RunSettings
from pipelines.settings.sites import Elsewhere
from privacy.settings_error import Problem, problems_of


def problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of names, test patients, files that do not fit the kind of examples, and overrides."""
    if not run.sites:
        yield Problem(("sites",), "empty; name at least one hospital")
    for name, site in run.sites.items():
        if not is_name(name) or name in RESERVED:
            reserved = f"or is reserved ({', '.join(RESERVED)})"
            yield Problem(("sites",), f"the name {name!r} is not made of a-z 0-9 _ - ({reserved})")
        if run.train.methods and run.split.test == 0 and not site.test:
            text = "split.test is 0; name this site's test patients, or give split.test a share"
            yield Problem(("sites", name, "test"), text)
        if not isinstance(site.source, Elsewhere):
            yield from (
                problem.within("sites", name) for problem in kind_problems(resolve_source(site.source).kind, run.images)
            )
        for label in sorted(set(site.methods) - set(run.train.methods)) if run.train.methods else ():
            text = f"no such method; methods are {', '.join(run.train.methods)}"
            yield Problem(("sites", name, "methods", label), text)
        for label in set(site.methods) & set(run.train.methods):
            try:
                run.method(label, name)
            except ValueError as error:
                yield from (problem.within("sites", name, "methods", label) for problem in problems_of(error))
        yield from _work_problems(run, name)


def _work_problems(run: RunSettings, site: str) -> Iterator[Problem]:
    """Problems of a site's overrides of local work, each once; it names the methods unless the problem is in all of
    them.
    """
    labels_by_problem: dict[Problem, list[str]] = {}
    for label in run.train.methods:
        try:
            run.work(label, site)
        except ValueError as error:
            for problem in problems_of(error):
                labels_by_problem.setdefault(problem, []).append(label)
    for problem, labels in labels_by_problem.items():
        methods_text = "" if len(labels) == len(run.train.methods) else f" (method {', '.join(labels)})"
        yield Problem(("sites", site, "work", *problem.where), f"{problem.message}{methods_text}")
