"""The settings of a run from what a caller gives: the YAML that a person would write, and a file for each hospital.

Nothing is decided here twice: what is left out keeps the default of its key, and every check is that of the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import yaml
from torch import nn

from consilium.examples import LABELS, SHOWN, Examples
from evaluation.classes import compare_classes
from federation.descent import Work
from federation.pretraining import Pretrained
from federation.transforms import register_transform
from federation.weights import Weights
from pipelines.loader.document import ConfigError
from pipelines.loader.names import is_name
from pipelines.loader.validation import to_plain
from pipelines.settings.sites import SiteSettings
from privacy.message import Json
from privacy.release.policy import Policy
from privacy.settings_error import Problem

TAGS = ("name", "kind")
ALL = "*"
Plain: TypeAlias = dict[str, Any]


class HospitalInputs(NamedTuple):
    """What hospitals have. examples: of those with arrays; settings: of the others, whose files lie there already."""

    examples: Mapping[str, Examples]
    settings: Mapping[str, Plain]


def to_yaml_values(value: object) -> Any:
    """Settings as YAML has them, without what is a default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    values = {}
    for field in dataclasses.fields(value):
        value_of_field = getattr(value, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name in TAGS or value_of_field != default:
            values[field.name] = to_yaml_values(value_of_field)
    return values


def named_or_plain(value: object, where: str) -> Plain:
    """A name as `fenda` becomes {name: fenda}; a mapping stays, and settings become one. where: the argument.

    Raises:
        ConfigError: it is none of them.
    """
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return dict(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        what = value.__name__ if isinstance(value, type) else type(value).__name__
        text = f'must be settings, a name as "mlp", or {{"name": ...}}, found {what}'
        network = isinstance(value, nn.Module) or (isinstance(value, type) and issubclass(value, nn.Module))
        remedy = "; consilium.own(Net, stem=..., head=...) makes settings of a network class" if network else ""
        raise ConfigError([Problem((where,), text + remedy)])
    return dict(to_yaml_values(value))


def mapping_or_plain(value: object) -> Plain:
    """A mapping as it is, and settings as YAML has them."""
    return dict(value) if isinstance(value, Mapping) else dict(to_yaml_values(value))


def start_of(start: object) -> Plain:
    """The settings of a start, of a path too. Raises: ConfigError: it is none, as a network or its tensors."""
    if isinstance(start, str | Path):
        return {"name": "weights", "file": str(start)}
    if isinstance(start, Weights | Pretrained) or (isinstance(start, Mapping) and "name" in start):
        return named_or_plain(start, "start")
    text = f"must be the path of a safetensors file, or settings as Weights(file=...), found {type(start).__name__}"
    remedy = "; safetensors.torch.save_file(network.state_dict(), FILE) writes one"
    raise ConfigError([Problem(("start",), text + remedy)])


def training_of(
    methods: Mapping[str, object], rounds: int, work: Work | Mapping[str, Any] | None, start: object, view: Plain | None
) -> Plain:
    """The settings `train`. view: the transform of all hospitals. Raises: ConfigError: see `start_of`."""
    local = {} if work is None else mapping_or_plain(work)
    local |= {} if view is None else {"transform": view}
    return {
        "schedule": {"rounds": rounds},
        **({"work": local} if local else {}),
        **({} if start is None else {"start": start_of(start)}),
        "methods": {label: named_or_plain(method, "method") for label, method in methods.items()},
    }


def methods_of(method: object) -> dict[str, object]:
    """Label -> method, of one method, several names, or labelled methods.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(method, Mapping) and "name" not in method:
        return dict(method)
    several = list(method) if isinstance(method, Sequence) and not isinstance(method, str) else [method]
    named_methods = {_name_of(method): method for method in several}
    if not named_methods or "" in named_methods or len(named_methods) < len(several):
        text = "give a method, a list of different ones, or label -> method, as in {'mu 1': FedProx(mu=1.0)}"
        raise ConfigError([Problem(("method",), text)])
    return named_methods


def _name_of(method: object) -> str:
    """A method's name; empty if it has none."""
    name = method.get("name", "") if isinstance(method, Mapping) else getattr(method, "name", "")
    return method if isinstance(method, str) else str(name)


LEAST = 2
"""Patients of a hospital: one in training, one in the test."""


def parse_hospitals(hospitals: Mapping[str, object]) -> HospitalInputs:
    """Hospitals' examples and settings.

    Raises:
        ConfigError: what is wrong with them, also among each other; all at once.
    """
    examples, settings, problems = {}, {}, []
    if not isinstance(hospitals, Mapping) or not hospitals:
        text = 'must be name -> examples, as in {"north": Examples(x, y, patient)}, with at least one'
        raise ConfigError([Problem(("hospitals",), text)])
    for name, what in hospitals.items():
        try:
            if not isinstance(name, str) or not is_name(name):
                problems.append(Problem(("hospitals", str(name)), "must be named with a-z 0-9 _ -, at most 80"))
            if isinstance(what, SiteSettings | Mapping):
                settings[str(name)] = dict(what) if isinstance(what, Mapping) else to_yaml_values(what)
            else:
                examples[str(name)] = what if isinstance(what, Examples) else Examples.of(what)
        except ConfigError as error:
            problems += [each.within("hospitals", str(name)) for each in error.problems]
    problems += _find_form_problems(examples)
    problems += _too_few(examples)
    problems += _find_shared_examples(examples)
    if examples and settings:
        text = f"{', '.join(settings)} have files of their own kind; give all hospitals examples, or none"
        problems.append(Problem(("hospitals",), text))
    if problems:
        raise ConfigError(problems)
    return HospitalInputs(examples, settings)


def sites_of(examples: Mapping[str, Examples], folder: Path, views: Mapping[str, Plain]) -> dict[str, Plain]:
    """The settings of hospitals with examples. views: their own transforms, by hospital."""
    sites: dict[str, Plain] = {
        site: {"source": {"kind": "tensors", "file": str(file_of(folder, site))}} for site in examples
    }
    for site in views.keys() & sites.keys():
        sites[site]["work"] = {"transform": views[site]}
    return sites


def transforms_of(examples: Mapping[str, Examples], methods: Mapping[str, object]) -> dict[str, Plain]:
    """The settings of hospitals' transforms, by hospital; ALL -> those of every hospital, where they are the same.

    Raises:
        ConfigError: they differ, and a method pools the hospitals' examples.
    """
    transforms = {site: site_examples.transform for site, site_examples in examples.items()}
    registered = {
        site: dict(to_yaml_values(register_transform(transform)))
        for site, transform in transforms.items()
        if transform is not None
    }
    different = [
        settings
        for place, settings in enumerate(registered.values())
        if settings not in list(registered.values())[:place]
    ]
    if len(registered) == len(transforms) and len(different) == 1:
        return {ALL: different[0]}
    if registered and (pooled := [label for label, method in methods.items() if _name_of(method) == "central"]):
        text = f"{pooled[0]} trains on all hospitals' examples together, and their transforms differ; give all the same"
        raise ConfigError([Problem(("hospitals", "*", "transform"), text)])
    return registered


def _find_form_problems(examples: Mapping[str, Examples]) -> list[Problem]:
    """Problems of hospitals whose examples differ in form from those of the first."""
    problems, first = [], next(iter(examples), None)
    for name, site_examples in examples.items():
        if first is not None and site_examples.inputs != examples[first].inputs:
            text = f"examples are {list(site_examples.inputs)}, and those of {first} {list(examples[first].inputs)}"
            problems.append(Problem(("hospitals", name, "x"), f"{text}; bring them to one shape"))
        if first is not None and (labels := name_labels(site_examples)) != name_labels(examples[first]):
            problems.append(Problem(("hospitals", name, "y"), f"has {labels}, unlike {first}; give all the same"))
    if examples and all(each.highest == 0 for each in examples.values()):
        first_examples = next(iter(examples.values()))
        what = next(name for name in LABELS if getattr(first_examples, name) is not None)
        problems.append(Problem(("hospitals", "*", what), "every class is 0; there is nothing to tell apart"))
    return problems


def name_labels(examples: Examples) -> str:
    """What kind of labels examples have, in words."""
    if examples.findings is not None:
        return f"{examples.findings.shape[1]} findings"
    return "labels" if examples.mask is None else "masks"


def _too_few(examples: Mapping[str, Examples]) -> list[Problem]:
    """Problems of hospitals without a patient to train on, or without one to test on."""
    problems = []
    for name, site_examples in examples.items():
        if (count := len({*site_examples.patient})) < LEAST:
            text = f"{count} patient; a hospital needs one for training and another for the test: give it more patients"
            problems.append(Problem(("hospitals", name, "patient"), f"{text}, or leave it out"))
        elif site_examples.split and "test" not in site_examples.split:
            text = "nobody is in test, so that no model could be scored; name some, or leave the hospital out"
            problems.append(Problem(("hospitals", name, "split"), text))
    return problems


def _find_shared_examples(examples: Mapping[str, Examples]) -> list[Problem]:
    """Patients with an equal example at two hospitals."""
    seen: dict[tuple[str, bytes], str] = {}
    problems = []
    for site, site_examples in examples.items():
        if _has_row_numbers(site_examples):
            continue
        twice = {}
        for name, x in zip(site_examples.patient, site_examples.x, strict=True):
            other = seen.setdefault((str(name), np.ascontiguousarray(x).tobytes()), site)
            if other != site:
                twice[str(name)] = other
        if twice:
            who = ", ".join(repr(name) for name in sorted(twice)[:SHOWN])
            text = (
                f"{len(twice)} patients ({who}) have an equal example at {next(iter(twice.values()))}; leave it at one"
            )
            problems.append(Problem(("hospitals", site, "patient"), text))
    return problems


def _has_row_numbers(examples: Examples) -> bool:
    """Whether the patients' names are only the numbers of their rows, which identify no person."""
    return list(examples.patient) == [str(number + 1) for number in range(len(examples.x))]


def common_names(examples: Mapping[str, Examples]) -> int:
    """How many names of patients occur at several hospitals."""
    names = [
        set(map(str, site_examples.patient))
        for site_examples in examples.values()
        if not _has_row_numbers(site_examples)
    ]
    return len(
        {
            name
            for place, site_names in enumerate(names)
            for name in site_names
            if any(name in other for other in names[:place])
        }
    )


def task_of(examples: Mapping[str, Examples], classes: Sequence[str]) -> tuple[Plain | None, tuple[str, ...]]:
    """The task's settings, None if they are the defaults, and the names of classes, or of findings.

    Raises:
        ConfigError: a class occurs that has no name; or names are not given, and a class below the highest occurs at
            no hospital, or no hospital has both the first and the last of more than two.
    """
    if not examples:
        return None, tuple(classes)
    if next(iter(examples.values())).findings is not None:
        return _task_of_findings(next(iter(examples.values())).findings.shape[1], classes)
    highest, masks = (
        max(site_examples.highest for site_examples in examples.values()),
        next(iter(examples.values())).mask is not None,
    )
    count = highest if masks else max(1, highest) + 1
    occurring = frozenset().union(*(site_examples.classes for site_examples in examples.values()))
    if not classes and (absent := sorted({*range(masks, count + masks)} - occurring)):
        seen, gone = (", ".join(map(str, numbers)) for numbers in (sorted(occurring), absent))
        text = f"the classes {seen} occur, and {gone} at no hospital; classes count from 0: number them without gaps, "
        text += f"as 0 to {len(occurring) - 1}, or name all of them by classes=[...], the first = {int(masks)}"
        raise ConfigError([Problem(("hospitals", "*", "mask" if masks else "y"), text)])
    names = tuple(classes) or (
        () if count == 2 and not masks else tuple(f"class_{n}" for n in range(masks, count + masks))
    )
    first = int(masks)
    classes_by_site = {
        site: [number in site_examples.classes for number in range(first, count + first)]
        for site, site_examples in examples.items()
    }
    if not classes and (
        odd := compare_classes(classes_by_site, [str(number) for number in range(first, count + first)])
    ):
        text = f"{odd}: number them alike, or say that it is so by naming them: classes=[...], the first = {first}"
        raise ConfigError([Problem(("hospitals", "*", "mask" if masks else "y"), text)])
    if names and len(names) < count:
        what = "beside the background " if masks else ""
        text = f"{len(names)} names, and {count} classes {what}occur; name each"
        raise ConfigError([Problem(("classes",), text)])
    if masks:
        return {"kind": "segmentation", "target": "masks", "classes": [*names]}, names
    return ({"kind": "classification", "classes": [*names]} if names else None), names


def _task_of_findings(number: int, names: Sequence[str]) -> tuple[Plain, tuple[str, ...]]:
    """The task of this many findings, and their names. Raises: ConfigError: there are more names, or fewer."""
    if names and len(names) != number:
        text = f"{len(names)} names for {number} findings; name each, in the order of their columns"
        raise ConfigError([Problem(("classes",), text)])
    findings = tuple(names) or tuple(f"finding_{place}" for place in range(number))
    return {"kind": "findings", "findings": [*findings]}, findings


def policies_by_site(policy: Policy | Mapping[str, Policy] | None, sites: Sequence[str]) -> dict[str, Plain]:
    """Site -> its policy, where one is given. Raises: ConfigError: a policy is given for a name that is no site."""
    if policy is None:
        return {}
    if isinstance(policy, Policy):
        return dict.fromkeys(sites, to_yaml_values(policy))
    if strange := sorted(set(policy) - set(sites)):
        text = f"of {', '.join(strange)}, which are no hospitals of this run ({', '.join(sites)})"
        raise ConfigError([Problem(("policy",), text)])
    return {site: to_yaml_values(site_policy) for site, site_policy in policy.items()}


def merge_groups(base: Plain, more: Mapping[str, Any]) -> Plain:
    """The settings with others over them, group by group."""
    result = dict(base)
    for key, value in more.items():
        inner = result.get(key)
        result[key] = merge_groups(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result


def text_of(settings: Mapping[str, Json], head: str) -> str:
    """Settings as YAML. head: its first line, a comment.

    Raises:
        ConfigError: a value that is none of settings.
    """
    try:
        return f"# {head}\n" + yaml.safe_dump(to_plain(settings), sort_keys=False, allow_unicode=True, width=110)
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ConfigError([Problem((), f"{error}")]) from error


def file_of(folder: Path, site: str) -> Path:
    """Where a hospital's examples are written."""
    return folder / "data" / f"{site}.safetensors"
