"""Settings of a study: one base run, the changes of each case, and the seeds.

Groups are merged key by key; everything else, also a list or `null`, replaces the base's value. Every case and seed
becomes the settings of a whole run, checked like any other before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pipelines.loader.command_of_file import meant_for
from pipelines.loader.document import ConfigError, Document, problem_at
from pipelines.loader.files import find_document
from pipelines.loader.names import is_name, name_problems
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import FORBID, Config
from pipelines.settings.load import apply_own_policies, find_missing_files
from privacy.message import Json
from privacy.settings_error import Problem, refuse, unmet

LATER_PATIENTS = 1000
"""With `resample_patients`, a study's seed times this is added to the seeds of phantom hospitals."""
NOT_HERE: Mapping[str, str] = {
    "name": "a study names its runs itself; remove it",
    "seed": "seeds are listed in seeds; remove it",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a study. what: a description. set: changes of the base, after those of all cases. seeds, methods: of
    this case; None: the study's.
    """

    __pydantic_config__: ClassVar = FORBID

    what: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    methods: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        problems = [*_seed_problems(self.seeds), *_find_named_sites(self.set)]
        if "runs" in self.set:
            text = "all runs of a study lie in one folder; say it in the study's own set"
            problems.append(Problem(("set", "runs"), text))
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A base run and its cases.

    base: a run's YAML, looked up as `pipelines.run` does. set: changes of every run. methods: which of the base's
    methods are trained, with the image spaces that only they need; null = all. seeds: the runs' `seed`, which sets the
    initial models, the splits, and the order of the images. resample_patients: draw other patients for phantom
    hospitals with every seed; real hospitals' patients never change. measures: those on the page, in this order; the
    tables have all. what: a paragraph.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    title: str = ""
    what: str = ""
    base: str
    set: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] | None = None
    resample_patients: bool = False
    measures: tuple[Literal["AUC", "balanced accuracy", "accuracy", "Dice", "HD95"], ...] = ("AUC", "balanced accuracy")
    cases: Mapping[str, Case]

    def __post_init__(self) -> None:
        problems = [*_seed_problems(self.seeds), *_find_named_sites(self.set)]
        different = bool(self.measures) and len(set(self.measures)) == len(self.measures)
        problems += unmet(self, measures=(different, "one or more different ones"))
        problems += name_problems(self.name)
        if not self.cases:
            text = "empty; name at least one, as in cases: {few: {set: {split: {train: 0.2}}}}"
            problems.append(Problem(("cases",), text))
        problems += [
            Problem(("cases",), f"the name {case!r} is not made of a-z 0-9 _ -; it becomes part of a folder's name")
            for case in self.cases
            if not is_name(case)
        ]
        refuse(problems)


class Planned(NamedTuple):
    """One run of a study. data: its settings, as in a YAML file."""

    case: str
    seed: int
    data: Mapping[str, Json]
    config: Config

    @property
    def root(self) -> Path:
        """The run's folder."""
        return Path(self.config.runs) / self.config.name


def _seed_problems(seeds: Sequence[int] | None) -> list[Problem]:
    """What is wrong with the seeds."""
    if seeds is None or (seeds and len(set(seeds)) == len(seeds) and min(seeds) >= 0):
        return []
    return [Problem(("seeds",), f"must be one or more different whole numbers >= 0, found {list(seeds)}")]


def _find_named_sites(changes: Mapping[str, Any]) -> list[Problem]:
    """Changes that a study must not make for all cases."""
    return [Problem(("set", key), why) for key, why in NOT_HERE.items() if key in changes]


def merge_settings(base: Json, changes: Json) -> Json:
    """The base with the changes: groups merged key by key, everything else replaced. Neither argument is modified."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return {**base, **{key: merge_settings(base[key], new) if key in base else new for key, new in changes.items()}}


def keep_methods(data: Mapping[str, Json], labels: Sequence[str]) -> dict[str, Json]:
    """Settings of a run with only these methods: removes the others in `train`, at sites and in `evaluate.variants`,
    and image spaces that only they use. A space that no method uses stays.
    """
    chosen = dict(data)
    train = _as_group(chosen.get("train"))
    spaces = _as_group(train.get("method_images"))
    gone = {v for k, v in spaces.items() if k not in labels} - {v for k, v in spaces.items() if k in labels}
    tables = {key: _select_keys(train[key], labels) for key in train if key == "methods" or key.startswith("method_")}
    chosen["train"] = {**train, **tables}
    if isinstance(chosen.get("sites"), dict):
        chosen["sites"] = {name: _keep_site_methods(site, labels) for name, site in _as_group(chosen["sites"]).items()}
    for group, table, goes in (
        ("harmonize", "translate", lambda label, _: label in gone),
        ("evaluate", "variants", lambda _, variant: _as_group(variant).get("of") not in labels),
    ):
        group_settings = _as_group(chosen.get(group))
        if table in group_settings:
            stays = {
                label: value for label, value in _as_group(group_settings[table]).items() if not goes(label, value)
            }
            chosen[group] = {**group_settings, table: stays}
    return chosen


def build_settings(study: Study, case: str, seed: int, base: Json) -> dict[str, Json]:
    """The settings of one run, as plain data: base, the study's changes, the case's, methods, name, seed, patients."""
    case_settings = study.cases[case]
    data = _as_group(merge_settings(merge_settings(base, dict(study.set)), dict(case_settings.set)))
    labels = study.methods if case_settings.methods is None else case_settings.methods
    data = data if labels is None else keep_methods(data, labels)
    data |= {"name": f"{study.name}_{case}_s{seed}", "title": f"{study.name}: {case}, seed {seed}", "seed": seed}
    if study.resample_patients and isinstance(data.get("sites"), dict):
        data["sites"] = {name: _reseed_phantom(site, seed) for name, site in _as_group(data["sites"]).items()}
    return data


def load_study(name: str) -> tuple[Study, tuple[Planned, ...], Document]:
    """Read a study, looked up as a run's YAML is, and check every run of it.

    Raises:
        ConfigError: everything that is wrong with it or with its base, and with every case, by its name.
    """
    study_document = meant_for(find_document(name), "study", name)
    study = validate_settings(study_document, Study)
    try:
        base = find_document(study.base)
        if base.problems:
            raise ConfigError(base.problems)
    except ConfigError as error:
        raise ConfigError(
            [
                problem_at(study_document, Problem(("base",), f"{study.base}: {_describe_problem(p)}"))
                for p in error.problems
            ]
        ) from error
    problems: list[Problem] = []
    planned: list[Planned] = []
    if isinstance(base.data, dict) and base.data.get("name") == study.name:
        problems.append(problem_at(study_document, Problem(("name",), "is the name of the base run; choose another")))
    for case, case_settings in study.cases.items():
        problems += _find_unknown_methods(study, case, base.data, study_document)
        for seed in study.seeds if case_settings.seeds is None else case_settings.seeds:
            data = build_settings(study, case, seed, base.data)
            try:
                config = apply_own_policies(
                    validate_settings(
                        Document(data, _find_lines(data, study_document, case)), Config, find_missing_files
                    )
                )
                planned.append(Planned(case, seed, data, config))
                if config.task.kind in ("regression", "findings"):
                    what = "a number" if config.task.kind == "regression" else "several findings"
                    text = f"a study compares scores of classes or masks, and the task of this run is {what}"
                    problems.append(problem_at(study_document, Problem(("base",), text)))
            except ConfigError as error:
                problems += [_of_case(problem, case, study.base) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return study, tuple(planned), study_document


def _find_unknown_methods(study: Study, case: str, base: Json, document: Document) -> list[Problem]:
    """A problem where a study keeps methods that its base does not define."""
    case_settings = study.cases[case]
    labels, path = (
        (study.methods, ("methods",))
        if case_settings.methods is None
        else (case_settings.methods, ("cases", case, "methods"))
    )
    settings = _as_group(merge_settings(merge_settings(base, dict(study.set)), dict(case_settings.set)))
    known_labels = list(_as_group(_as_group(settings.get("train")).get("methods")))
    lost = [label for label in labels or () if label not in known_labels]
    text = f"no such method in case {case}: {', '.join(lost)}; there are {', '.join(known_labels)}"
    return [problem_at(document, Problem(path, text))] if lost else []


def _find_lines(data: Json, document: Document, case: str) -> dict[tuple[str | int, ...], int]:
    """Line in the study's file of every path of a run's settings; 0 for values from the base or set here."""
    return {
        path: document.lines.get(("cases", case, "set", *path), document.lines.get(("set", *path), 0))
        for path in _list_paths(data)
    }


def _list_paths(data: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all groups and values."""
    yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from _list_paths(value, (*path, key))


def _of_case(problem: Problem, case: str, base: str) -> Problem:
    """A run's problem as one of the study; settings of the base have no line in the study."""
    text = _describe_problem(problem)
    return Problem(("cases", case), text if problem.line else f"{text} (see {base})", problem.line or None)


def _describe_problem(problem: Problem) -> str:
    """A problem with its path."""
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def _reseed_phantom(site: Json, seed: int) -> Json:
    """A site's settings, with another seed of patients for a phantom."""
    source = _as_group(_as_group(site).get("source"))
    first_seed = source.get("seed", 0)
    if source.get("kind") != "phantom" or not isinstance(first_seed, int):
        return site
    return merge_settings(site, {"source": {"seed": first_seed + LATER_PATIENTS * seed}})


def _keep_site_methods(site: Json, labels: Sequence[str]) -> Json:
    """A site's settings with these methods only."""
    return (
        {**site, "methods": _select_keys(site["methods"], labels)}
        if isinstance(site, dict) and "methods" in site
        else site
    )


def _select_keys(table: Json, labels: Sequence[str]) -> Json:
    """The entries of a group with these labels."""
    return {label: value for label, value in table.items() if label in labels} if isinstance(table, dict) else table


def _as_group(value: Json) -> dict[str, Json]:
    """The value if it is a group, else an empty one."""
    return dict(value) if isinstance(value, dict) else {}
