"""Several settings tried on the same patients, as one run: one page, one ledger a hospital, and the ε of them all."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilium.results import Results
from consilium.running import register_classes, train
from consilium.settings import Plain, mapping_or_plain, merge_groups, named_or_plain, start_of
from pipelines.loader.document import ConfigError
from pipelines.loader.names import is_name
from privacy.settings_error import Problem

MOST_LINES = 200
LONGEST_LABEL = 60
PARTS = ("method", "work", "model", "start")
"""What may be swept: all but `work` as a whole, and fields of all but `start`, as `work.lr`."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """A finished sweep.

    results: of the run with all lines. lines: label -> what is its own, as {"work.lr": 0.01}. losses: label -> the
    lowest validation loss of a round, mean over hospitals; lines without validation losses are left out. No test
    patient has a part in the choice, so it does not raise the test score of the chosen line. The highest test score of
    all lines is too high.
    """

    results: Results
    lines: Mapping[str, Mapping[str, Any]]
    losses: Mapping[str, float] = field(repr=False)

    @property
    def chosen(self) -> str | None:
        """The label with the lowest validation loss; None where no line has one."""
        return min(self.losses, key=lambda label: self.losses[label], default=None)

    def table(self) -> str:
        """Each line with its settings and its validation loss, the chosen one marked."""
        keys = list(dict.fromkeys(key for settings in self.lines.values() for key in settings))
        rows = [["", *keys, "validation loss", ""]]
        for label, settings in self.lines.items():
            loss = f"{self.losses[label]:.4f}" if label in self.losses else "none"
            mark = "chosen" if label == self.chosen else ""
            rows.append([label, *(str(settings.get(key, "")) for key in keys), loss, mark])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
        return "\n".join("  ".join(row).rstrip() for row in cells)

    def __str__(self) -> str:
        spent = {site: statement.epsilon for site, statement in self.results.statements.items()}
        sums = ", ".join(f"{site} {'∞' if math.isinf(e) else f'{e:.3g}'}" for site, e in spent.items())
        total = f"ε of all {len(self.lines)} lines together: {sums}"
        return f"{self.table()}\n{total}\npage: {self.results.page}"


def sweep(
    hospitals: Mapping[str, object],
    *,
    over: Mapping[str, Sequence[Any]],
    method: object,
    model: object,
    rounds: int,
    folder: str | Path,
    settings: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Sweep:
    """Train every combination of some settings on the same split, and choose one by the hospitals' validation losses.

    All lines are methods of one run, so that a hospital's ledger and its statement hold the ε of all of them, and a
    policy's budget bounds the whole sweep.

    Args:
        over: what differs -> its values, as {"work.lr": [0.01, 0.1], "method.mu": [0.1, 1.0]}. Keys are `method`,
            `model`, `start`, and fields of `method`, `work` and `model`. method, model: what the fields belong to;
            `method` is not used where `over` names methods.
        hospitals, rounds, folder, settings, arguments: as of `train`.

    Raises:
        ConfigError, RunFailed, Stopped: as `train`.
    """
    _check_keys(over)
    register_classes([method, model, *(value for key in ("method", "model") for value in over.get(key, ()))])
    base: Plain = {"method": named_or_plain(method, "method"), "model": named_or_plain(model, "model")}
    lines = name_lines(over, base["method"]["name"])
    groups: dict[str, Plain] = {"method_work": {}, "method_model": {}, "method_start": {}}
    methods = {}
    for label, values in lines.items():
        line = _apply_values(base, values)
        methods[label] = line["method"]
        if "work" in line:
            groups["method_work"][label] = line["work"]
        if "start" in line:
            groups["method_start"][label] = line["start"]
        if any(key.partition(".")[0] == "model" for key in values):
            groups["method_model"][label] = line["model"]
    swept = {"train": {name: group for name, group in groups.items() if group}}
    results = train(
        hospitals,
        model=base["model"],
        method=methods,
        rounds=rounds,
        folder=folder,
        settings=merge_groups(swept, settings or {}),
        **arguments,
    )
    losses = {label: loss for label in lines if (loss := _lowest_loss(results.losses.get(label, {}))) is not None}
    return Sweep(results, lines, losses)


def name_lines(over: Mapping[str, Sequence[Any]], method: str) -> dict[str, Mapping[str, Any]]:
    """Label -> values, of every combination. method: the name of the method that is swept, if `over` names none.

    A label tells the values where they are short, as `fedprox-mu-0_1`, and is numbered where they are not.
    """
    lines: dict[str, Mapping[str, Any]] = {}
    for number, values in enumerate(itertools.product(*over.values()), start=1):
        line = dict(zip(over, values, strict=True))
        first = named_or_plain(line["method"], "over.method")["name"] if "method" in line else method
        parts = [f"{key.rpartition('.')[2]}-{_shorten(value)}" for key, value in line.items() if key != "method"]
        label = "-".join([first, *parts])
        fits = is_name(label) and len(label) <= LONGEST_LABEL and label not in lines
        lines[label if fits else f"{first}-{number}"] = line
    return lines


def _check_keys(over: Mapping[str, Sequence[Any]]) -> None:
    """Raises: ConfigError: nothing is swept, too much is, or a key that cannot be; all of it."""
    problems = []
    for key, values in over.items():
        part, _, inner = key.partition(".")
        if part not in PARTS or (part == "start" and inner) or (part == "work" and not inner):
            text = "cannot be swept; take method, model, start, or a field as work.lr, method.mu, model.hidden"
            problems.append(Problem(("over", key), text))
        elif isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
            text = f"must be a list of values, found {type(values).__name__}; write [{values!r}] for one"
            problems.append(Problem(("over", key), text))
        elif any(value == other for value, other in itertools.combinations(values, 2)):
            problems.append(Problem(("over", key), "has a value twice; each line would be trained again: remove one"))
    if not over:
        problems.append(Problem(("over",), 'is empty; say what differs, as {"work.lr": [0.01, 0.1]}'))
    if problems:
        raise ConfigError(problems)
    total = 1
    for values in over.values():
        total *= len(values)
    if total > MOST_LINES:
        text = f"has {total} combinations, and at most {MOST_LINES} are one run; take fewer values"
        raise ConfigError([Problem(("over",), text)])


def _apply_values(base: Mapping[str, Plain], values: Mapping[str, Any]) -> Plain:
    """The method, network, work and start of one line. What is named as a whole comes before its fields."""
    line: Plain = {**base}
    for key, value in sorted(values.items(), key=lambda item: "." in item[0]):
        part, _, inner = key.partition(".")
        if part == "start":
            line[part] = None if value is None else start_of(value)
        elif inner:
            line[part] = merge_groups(line.get(part, {}), _nest_value(inner, value))
        else:
            line[part] = named_or_plain(value, f"over.{part}")
    return line


def _nest_value(path: str, value: object) -> Plain:
    """The value in groups, as `a.b` and 1 give {"a": {"b": 1}}; settings in it become plain."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return mapping_or_plain(value)


def _shorten(value: object) -> str:
    """A value as a part of a label; a sign that no label may have where it is long."""
    text = str(value).lower().replace(".", "_").replace("+", "")
    return re.sub(r"[^a-z0-9_-]+", "-", text).strip("-") or "none"


def _lowest_loss(losses: Mapping[str, Mapping[int, float]]) -> float | None:
    """The lowest of the rounds' mean validation losses over hospitals; None where no round has one of each."""
    rounds = set.intersection(*(set(each) for each in losses.values())) if losses else set()
    means = [sum(each[number] for each in losses.values()) / len(losses) for number in rounds]
    return min((mean for mean in means if mean == mean), default=None)
