"""The results of a run as plain objects, read from its folder: the page shows the same numbers."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from evaluation.metrics import AUC
from evaluation.overlap import DICE
from evaluation.rows import AT_ONE
from federation.models.adapted import show_fixed_in
from federation.registry import permitting
from pipelines.coordinator.artifacts import ANSWERS, PAGE
from pipelines.export import main as export
from pipelines.ledger import FILE
from pipelines.models.file import READY, Ready, read_ready
from pipelines.models.recommended import read_recommended
from pipelines.runs.exits import Exit
from pipelines.runs.listing import listed
from pipelines.runs.runner import Results as Ended
from privacy.message import Json
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged

if TYPE_CHECKING:
    import pandas as pd

Kind: TypeAlias = Literal["onnx", "bundle", "card"]
USUAL = (AUC.name, DICE.name)


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
    """A finished run, as a record: a later run in its folder changes nothing here. What that one replaced is refused.

    folder: with all its artifacts. report: the folder of its pages. ran, kept: stages. rows: scores. starts: method ->
    the digest of the weights with which its networks began, and what is said of them; none for random numbers. losses:
    method -> hospital -> round -> validation loss. statements: by hospital. recommended: hospital -> the method that
    its page recommends; None for none, and where the hospital is on another machine and keeps its decision to itself.
    not_guaranteed: what this run does not promise that a run at real hospitals by reviewed code would; each a sentence.
    settings, digests, heads: the file of settings, SHA-256 of files and ends of ledgers when it ended.
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
    heads: Mapping[Path, tuple[int, str]] = field(repr=False)

    @property
    def page(self) -> Path:
        """The coordinator's page."""
        return self.report / PAGE

    @property
    def yaml(self) -> Path | None:
        """The settings that it ran by; None of a mapping. Raises: ValueError: a later run replaced them."""
        return None if self.settings is None else self._unchanged(self.settings, "the settings")

    def _unchanged(self, path: Path, what: str) -> Path:
        if _digest(path) == self.digests.get(path):
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
        found = [r for r in self.rows if (r.method, r.hospital, r.measure) == (method, hospital, measure)]
        if not found:
            there = sorted({(row.method, row.hospital, row.measure) for row in self.rows})
            raise KeyError(f"no score of {method!r}, {hospital!r}, {measure!r}; there are {there}")
        return found[0]

    def table(self, measure: str = "") -> str:
        """One measure as a table of text. measure: "" = AUC or Dice, where it is there, else the first."""
        there = list(dict.fromkeys(row.measure for row in self.rows))
        chosen = measure or next((name for name in (*USUAL, *there) if name in there), "")
        rows = [row for row in self.rows if row.measure == chosen]
        hospitals = list(dict.fromkeys(row.hospital for row in rows))
        cells = {(row.method, row.hospital): _cell(row) for row in rows}
        lines = [[chosen, *hospitals]]
        lines += [
            [name, *(cells.get((name, one), "") for one in hospitals)] for name in dict.fromkeys(r.method for r in rows)
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def __str__(self) -> str:
        promises: dict[str, list[str]] = {}
        for one in self.statements.values():
            promises.setdefault(_promise(one), []).append(one.hospital)
        said = [self.table(), *(f"{', '.join(names)}: {text}" for text, names in promises.items())]
        said += [f"not guaranteed: {text}" for text in self.not_guaranteed]
        return "\n".join([*said, f"page: {self.page}"])

    def ready(self, method: str, hospital: str) -> Ready:
        """A hospital's finished model with all that belongs to it, as `predict` uses it.

        Raises:
            KeyError: there is none here: another name, or the hospital is on another machine, where its models stay.
            ValueError: a later run replaced it.
        """
        folder = self.folder / "sites" / hospital / READY
        path = folder / f"{method}.safetensors"
        if not path.is_file():
            there = sorted(
                str(one.relative_to(self.folder / "sites")) for one in self.folder.glob(f"sites/*/{READY}/*")
            )
            raise KeyError(f"no model of {method!r} at {hospital!r}; there are {there}")
        self._unchanged(path, f"the model of {method!r} at {hospital!r}")
        with permitting("all"):  # whoever calls chose the packages that this process has
            return read_ready(path)

    def model(self, method: str, hospital: str) -> nn.Module:
        """A hospital's finished network, loaded, in evaluation mode, with what its author fixed among its parameters.

        Raises: KeyError: as `ready`.
        """
        return show_fixed_in(self.ready(method, hospital).module)

    def probabilities(self, method: str, hospital: str, x: Any) -> torch.Tensor:
        """Probabilities (n, classes, *spatial) of new examples x (n, *inputs), as in the evaluation.

        Raises:
            KeyError: as `ready`. ValueError: x has another shape.
        """
        ready = self.ready(method, hospital)
        given = torch.as_tensor(x, dtype=torch.float32)
        if tuple(given.shape[1:]) != ready.images.inputs:
            raise ValueError(f"x must be (n, {', '.join(map(str, ready.images.inputs))}), found {tuple(given.shape)}")
        with torch.no_grad():
            return ready.probabilities(ready.seen(given))

    def export(self, method: str, hospital: str, folder: str | Path, *kinds: Kind) -> tuple[Path, ...]:
        """Write a finished model for other software, as `python -m pipelines.export` does; also one of own code.

        Raises:
            KeyError: as `ready`. RuntimeError: nothing was written; why.
        """
        self.ready(method, hospital)
        path = self.folder / "sites" / hospital / READY / f"{method}.safetensors"
        flags = [f"--{kind}" for kind in kinds]
        told, why = io.StringIO(), io.StringIO()
        with permitting("all"), redirect_stdout(told), redirect_stderr(why):
            code = export([str(path), "--out", str(folder), "--json", *flags])
        if code != Exit.OK:
            raise RuntimeError(f"{method} of {hospital} is not exported: {why.getvalue().strip()}")
        return tuple(Path(folder) / name for name in json.loads(told.getvalue())["files"])

    def ledger(self, hospital: str) -> tuple[Mapping[str, Json], ...]:
        """Every line of a hospital's ledger up to the end of this run: what left, at which cost.

        Raises:
            KeyError: no ledger is here, as of a hospital on another machine, or with a home of its own.
            ValueError: it is damaged: what was found.
        """
        path = self.folder / "sites" / hospital / FILE
        if not path.is_file():
            raise KeyError(f"no ledger of {hospital!r} at {path}; it lies in the hospital's home, or with the hospital")
        head = self.heads.get(path)
        if complaints := ledgers.verify(path, head):
            raise ValueError(f"{path}: {'; '.join(complaints)}")
        return tuple(ledgers.lines(path))[: None if head is None else head[0]]


def _cell(row: Score) -> str:
    between = "" if math.isnan(row.low) else f" [{row.low:.2f}, {row.high:.2f}]"
    return "-" if math.isnan(row.value) else f"{row.value:.3f}{'' if row.assessable else '*'}{between}"


def _promise(one: Statement) -> str:
    if math.isinf(one.epsilon):
        return "ε = ∞: no formal guarantee"
    return f"ε = {one.epsilon:g} at δ = {one.delta:g} for each {one.unit}"


def read_results(ended: Ended, folder: Path, yaml: Path | None, not_guaranteed: tuple[str, ...]) -> Results:
    """The results of a run that went to its end. folder: the run's."""
    report, train = ended.artifacts["report"], ended.artifacts["train"]
    rows = tuple(_score(row) for row in json.loads((report / "scores.json").read_text(encoding="utf-8")))
    use = json.loads((report / ANSWERS).read_text(encoding="utf-8"))["use"]
    here = {one["site"]: read_recommended(folder / "sites" / one["site"]) for one in use}
    losses, starts = {}, dict[str, Mapping[str, Json]]()
    for path in listed(train, "*.json"):
        said = json.loads(path.read_text(encoding="utf-8"))
        if "losses" in said:
            losses[str(said["label"])] = {
                site: {int(number): float(loss) for number, loss in own.items()} for site, own in said["losses"].items()
            }
            starts |= {str(said["label"]): said["start"]} if "start" in said else {}
    models, books = list(folder.glob(f"sites/*/{READY}/*.safetensors")), list(folder.glob(f"sites/*/{FILE}"))
    return Results(
        folder,
        report,
        ended.ran,
        ended.kept,
        rows,
        losses,
        starts,
        _statements(report),
        {one["site"]: (kept.decision.method if (kept := here[one["site"]]) else one["method"]) or None for one in use},
        not_guaranteed,
        yaml,
        {path: _digest(path) for path in (*models, *([] if yaml is None else [yaml]))},
        {path: head for path in books if (head := _head(path)) is not None},
    )


def _head(ledger: Path) -> tuple[int, str] | None:
    """None of one that is damaged, which is told to whoever reads it."""
    try:
        return ledgers.head(ledger)
    except Damaged:
        return None


def _digest(path: Path) -> str:
    """Empty where there is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _score(row: Mapping[str, Any]) -> Score:
    where = str(row["sites"][0]) if row["protocol"] in AT_ONE else str(row["protocol"])
    value, low, high = (math.nan if row[name] is None else float(row[name]) for name in ("value", "low", "high"))
    return Score(row["method"], where, row["measure"], value, low, high, bool(row["assessable"]), int(row["patients"]))


def _statements(report: Path) -> dict[str, Statement]:
    text = (report / "statement.md").read_text(encoding="utf-8")
    said = json.loads((report / "statement.json").read_text(encoding="utf-8"))
    return {
        site: Statement(
            site,
            own["unit"],
            own["adjacency"],
            float(own["epsilon"]),
            float(own["delta"]),
            own["meaning"],
            tuple(own["outside"]),
            text,
        )
        for site, own in said.items()
    }
