"""The results of a run as plain objects, read from its folder: the page shows the same numbers."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from evaluation.metrics import AUC
from evaluation.numbers import MAE
from evaluation.overlap import DICE
from federation.models.adapted import show_fixed_in
from federation.registry import permit_packages
from pipelines.coordinator.artifacts import PAGE
from pipelines.export import main as export
from pipelines.ledger import FILE
from pipelines.models.file import READY, Ready, read_ready
from pipelines.runs.exits import Exit
from privacy.message import Json
from privacy.release import ledger as ledgers

if TYPE_CHECKING:
    import pandas as pd

Kind: TypeAlias = Literal["onnx", "bundle", "card"]
USUAL = (AUC.name, DICE.name, MAE)
REPORT = "report.json"
"""In the folder of a report, what `export` takes its figures from."""


@dataclass(frozen=True)
class Score:
    """One number of the tables. hospital: the test site, or what is averaged over, as `private mean`. value: NaN where
    it is not defined; low, high: its 95 % interval over patients, NaN without bootstrap copies. assessable: whether
    there were enough test patients to judge by.
    """

    method: str
    hospital: str
    measure: str
    value: float
    low: float
    high: float
    assessable: bool
    patients: int


@dataclass(frozen=True)
class Difference:
    """How much better `method` is than `other` by the task's own measure, on the same patients; positive = better.
    hospital: as in `Score`. low, high: the wider of its 95 % intervals over patients and over trainings.
    """

    method: str
    other: str
    hospital: str
    measure: str
    value: float
    low: float
    high: float
    assessable: bool

    @property
    def turned(self) -> Difference:
        """The same, of the other method over this one."""
        low, high = -self.high, -self.low
        return replace(self, method=self.other, other=self.method, value=-self.value, low=low, high=high)


@dataclass(frozen=True)
class Round:
    """What a hospital told of a method's model after one round, on its validation patients; with `evaluate: {rounds:
    true}` in the settings. method: of a further training with its number, as `fedavg--2`. loss: NaN where it is not
    defined. measure, score: the task's own measure, as AUC, Dice or MAE; scores: all that there are, NaN where one is
    not defined. confusion: numbers of examples, or of pixels, by true and predicted class, (classes, classes) for each
    of the tables: one, of several findings one each (absent, there), of a number none. seconds: of local work, NaN
    where the hospital took no part in the round.
    """

    method: str
    hospital: str
    round: int
    loss: float
    measure: str
    score: float
    scores: Mapping[str, float]
    confusion: tuple[tuple[tuple[int, ...], ...], ...]
    seconds: float


@dataclass(frozen=True)
class Statement:
    """What one hospital says of its patients' privacy in this run, and before it where its ledger began earlier.

    unit: who is protected, as `patient`; adjacency: which data sets are compared. epsilon: infinite where nothing is
    promised. meaning: ε in words. outside: what no ε covers. text: the whole statement, Markdown.
    """

    hospital: str
    unit: str
    adjacency: str
    epsilon: float
    delta: float
    meaning: str
    outside: tuple[str, ...]
    text: str = field(repr=False)


@dataclass(frozen=True, eq=False)
class Results:
    """A finished run, as a record: a later run in its folder changes nothing here. A file that it replaced is refused.

    folder: with all its artifacts. report: the folder of its pages. ran, kept: stages. rows: scores. starts: method ->
    the digest of the weights with which its networks began, and what is said of them; none for random numbers. losses:
    method -> hospital -> round -> validation loss. statements: by hospital. recommended: hospital -> the method that
    its page recommends; None for none, and where the hospital is on another machine and keeps its decision to itself.
    rounds: what hospitals told of each round; empty unless the settings ask for it. differences: of any two methods,
    each pair once, the mean over hospitals first.
    not_guaranteed: what this run does not promise that a run at real hospitals by reviewed code would; each a sentence.
    settings, digests, heads: the file of settings, SHA-256 of its own files (its models, its report) and ends of its
    hospitals' ledgers when it ended. What is not among them is not of this run.
    """

    folder: Path
    report: Path
    ran: tuple[str, ...]
    kept: tuple[str, ...]
    rows: tuple[Score, ...] = field(repr=False)
    losses: Mapping[str, Mapping[str, Mapping[int, float]]] = field(repr=False)
    starts: Mapping[str, Mapping[str, Json]] = field(repr=False)
    statements: Mapping[str, Statement] = field(repr=False)
    recommended: Mapping[str, str | None]
    not_guaranteed: tuple[str, ...]
    settings: Path | None = field(repr=False)
    digests: Mapping[Path, str] = field(repr=False)
    heads: Mapping[Path, tuple[int, str] | None] = field(repr=False)
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    differences: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def page(self) -> Path:
        """The coordinator's page."""
        return self.report / PAGE

    @property
    def yaml(self) -> Path | None:
        """The settings that it ran by; None of a mapping. Raises: ValueError: a later run replaced them."""
        return None if self.settings is None else self._check_unchanged(self.settings, "the settings")

    def _check_unchanged(self, path: Path, what: str) -> Path:
        """The path. Raises: ValueError: the file is not the one of this run."""
        if digest_of(path) == self.digests.get(path):
            return path
        raise ValueError(
            f"{path}: a later run in this folder replaced {what} of this one; take the results of that run, or give "
            "each run a folder of its own"
        )

    def frame(self) -> pd.DataFrame:
        """The scores as a DataFrame, with the columns of `Score`.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas  # optional
        except ModuleNotFoundError as error:
            text = "pandas is not installed: pip install consilium[frame]; `rows` are the same numbers without it"
            raise ModuleNotFoundError(text) from error
        return pandas.DataFrame([asdict(row) for row in self.rows])

    def score(self, method: str, hospital: str, measure: str = "AUC") -> Score:
        """One score. Raises: KeyError: there is none."""
        matches = [r for r in self.rows if (r.method, r.hospital, r.measure) == (method, hospital, measure)]
        if not matches:
            known_scores = sorted({(row.method, row.hospital, row.measure) for row in self.rows})
            raise KeyError(f"no score of {method!r}, {hospital!r}, {measure!r}; there are {known_scores}")
        return matches[0]

    def compare(self, method: str, other: str, hospital: str = "") -> Difference:
        """How much better a method is than another one. hospital: "" = the mean over hospitals, or the only one.

        Raises:
            KeyError: they were not both scored on the same patients there.
        """
        for row in self.differences:
            if hospital in ("", row.hospital) and {row.method, row.other} == {method, other}:
                return row if row.method == method else row.turned
        known = sorted({(row.method, row.other, row.hospital) for row in self.differences})
        raise KeyError(
            f"no comparison of {method!r} with {other!r} at {hospital or 'all hospitals'!r}; there are {known}"
        )

    def table(self, measure: str = "") -> str:
        """One measure as a table of text. measure: "" = AUC, Dice or MAE, where it is there, else the first."""
        measures = list(dict.fromkeys(row.measure for row in self.rows))
        chosen = measure or next((name for name in (*USUAL, *measures) if name in measures), "")
        rows = [row for row in self.rows if row.measure == chosen]
        hospitals = list(dict.fromkeys(row.hospital for row in rows))
        cells = {(row.method, row.hospital): _format_cell(row) for row in rows}
        lines = [[chosen, *hospitals]]
        lines += [
            [name, *(cells.get((name, hospital), "") for hospital in hospitals)]
            for name in dict.fromkeys(r.method for r in rows)
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def __str__(self) -> str:
        promises: dict[str, list[str]] = {}
        for statement in self.statements.values():
            promises.setdefault(_describe_promise(statement), []).append(statement.hospital)
        lines = [self.table(), *(f"{', '.join(names)}: {text}" for text, names in promises.items())]
        lines += [f"not guaranteed: {text}" for text in self.not_guaranteed]
        return "\n".join([*lines, f"page: {self.page}"])

    def ready(self, method: str, hospital: str) -> Ready:
        """A hospital's finished model with all that belongs to it, as `predict` uses it.

        Raises:
            KeyError: this run has none here: another name, one of another run, or the hospital is on another machine,
                where its models stay.
            ValueError: a later run replaced it.
        """
        with permit_packages("all"):  # whoever calls chose the packages that this process has
            return read_ready(self._find_model_file(method, hospital))

    def _find_model_file(self, method: str, hospital: str) -> Path:
        """The file of a model of this run. Raises: as `ready`."""
        path = model_at(self.folder, method, hospital)
        if path not in self.digests:
            known_models = sorted(
                (path.stem, path.parent.parent.name) for path in self.digests if path.parent.name == READY
            )
            raise KeyError(f"this run has no model of {method!r} at {hospital!r} here; there are {known_models}")
        return self._check_unchanged(path, f"the model of {method!r} at {hospital!r}")

    def model(self, method: str, hospital: str) -> nn.Module:
        """A hospital's finished network, loaded, in evaluation mode, with what its author fixed among its parameters.

        Raises: KeyError: as `ready`.
        """
        return show_fixed_in(self.ready(method, hospital).module)

    def probabilities(self, method: str, hospital: str, x: Any) -> torch.Tensor:
        """Probabilities (n, classes, *spatial) of new examples x (n, *inputs), as in the evaluation; of a number its
        place (n, 1) in the range of `ready(...).number`; of several findings (n, findings), each for itself.

        Raises:
            KeyError: as `ready`. ValueError: x has another shape.
        """
        ready = self.ready(method, hospital)
        examples = torch.as_tensor(x, dtype=torch.float32)
        if tuple(examples.shape[1:]) != ready.images.inputs:
            raise ValueError(
                f"x must be (n, {', '.join(map(str, ready.images.inputs))}), found {tuple(examples.shape)}"
            )
        with torch.no_grad():
            return ready.probabilities(ready.seen(examples))

    def export(self, method: str, hospital: str, folder: str | Path, *kinds: Kind) -> tuple[Path, ...]:
        """Write a finished model for other software, as `python -m pipelines.export` does; also one of own code. Its
        card has the figures of this run's report.

        Raises:
            KeyError: as `ready`. ValueError: a later run replaced the model or the report. RuntimeError: nothing was
                written; why.
        """
        path = self._find_model_file(method, hospital)
        flags = [f"--{kind}" for kind in kinds]
        flags += ["--report", str(self._check_unchanged(self.report / REPORT, "the report"))]
        output, why = io.StringIO(), io.StringIO()
        with permit_packages("all"), redirect_stdout(output), redirect_stderr(why):
            code = export([str(path), "--out", str(folder), "--json", *flags])
        if code != Exit.OK:
            raise RuntimeError(f"{method} of {hospital} is not exported: {why.getvalue().strip()}")
        return tuple(Path(folder) / name for name in json.loads(output.getvalue())["files"])

    def ledger(self, hospital: str) -> tuple[Mapping[str, Json], ...]:
        """Every line of a hospital's ledger up to the end of this run: what left, at which cost.

        Raises:
            KeyError: no ledger is here, as of a hospital of another run, on another machine, or with a home of its own.
            ValueError: it is damaged: what was found.
        """
        path = self.folder / "sites" / hospital / FILE
        if path not in self.heads:
            known_hospitals = sorted(path.parent.name for path in self.heads)
            raise KeyError(f"this run has no ledger of {hospital!r} here; there are {known_hospitals}")
        if not path.is_file():
            raise KeyError(f"no ledger of {hospital!r} at {path}; it lies in the hospital's home, or with the hospital")
        head = self.heads[path]
        if complaints := ledgers.verify_ledger(path, head):
            raise ValueError(f"{path}: {'; '.join(complaints)}")
        return tuple(ledgers.read_lines(path))[: None if head is None else head[0]]


def _format_cell(row: Score) -> str:
    """A score with its interval; * = too few test patients, - = not defined."""
    between = "" if math.isnan(row.low) else f" [{row.low:z.2f}, {row.high:z.2f}]"
    return "-" if math.isnan(row.value) else f"{row.value:z.3f}{'' if row.assessable else '*'}{between}"


def _describe_promise(statement: Statement) -> str:
    """What a hospital guarantees to its patients, in one line."""
    if math.isinf(statement.epsilon):
        return "ε = ∞: no formal guarantee"
    return f"ε = {statement.epsilon:g} at δ = {statement.delta:g} for each {statement.unit}"


def digest_of(path: Path) -> str:
    """SHA-256 of a file; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_at(folder: Path, method: str, hospital: str) -> Path:
    """Where a finished model of a hospital lies. folder: the run's."""
    return folder / "sites" / hospital / READY / f"{method}.safetensors"
