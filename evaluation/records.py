"""The content of the pages: frozen records, filled from messages for the coordinator and at the hospital for its
page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.at_home import HomeComparison
from evaluation.attacks import InversionRow, MembershipRow
from evaluation.cases import Cases
from evaluation.classes import Classes
from evaluation.decision import Decision, Rival
from evaluation.drawing import Picture
from evaluation.findings import Several
from evaluation.harmony import Harmony
from evaluation.leaving import Left
from evaluation.numbers import Number
from evaluation.patients import Characteristic
from evaluation.rows import GainRow, GapRow, PairRow, ScoreRow
from evaluation.volumes import SizeSection
from evaluation.wording import Words
from privacy.release.statement import Audit, Statement


@dataclass(frozen=True)
class SplitCount:
    """Patients, images and positives of a split; `positives` are images, and `classes` the images of each named
    class, if the task names them.
    """

    split: str
    patients: int
    images: int
    positives: int
    classes: Sequence[int] = ()


@dataclass(frozen=True)
class Knew:
    """An earlier run that used patients who are withdrawn now. how: how it used them, if known."""

    run: str
    how: str = ""


@dataclass(frozen=True)
class Withdrawn:
    """Patients that the settings exclude. studies: left out. unmatched: names that no patient has. knew: runs."""

    studies: int = 0
    unmatched: int = 0
    knew: tuple[Knew, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.studies or self.unmatched or self.knew)


@dataclass(frozen=True)
class SiteCounts:
    """A site as the coordinator knows it. rejected: reason code -> studies. released: how the site counted its
    patients, if it does so once for all runs and does not send what was rejected.
    """

    site: str
    splits: tuple[SplitCount, ...]
    rejected: Mapping[str, int]
    withdrawn: Withdrawn = Withdrawn()
    released: str = ""


@dataclass(frozen=True)
class MethodCost:
    """Size of a method's model, and its traffic in bytes.

    sent, received: of one site over all rounds. total: of all sites, both ways. reached: the first round whose
    aggregated validation loss is as low as the reference's lowest; None: never, or the reference has none. gradients:
    of how many mini-batches, or passes over its patients, a site takes gradients in a round; empty = unknown. lowest:
    the lowest validation loss over all sites of any round, by examples; NaN = none.
    """

    method: str
    parameters: int
    sent: int
    received: int
    rounds: int
    total: int = 0
    reached: int | None = None
    gradients: str = ""
    lowest: float = math.nan


@dataclass(frozen=True)
class StageState:
    """The result of a stage. state: when it was finished. seconds: its duration, NaN = unknown. why: its folder."""

    stage: str
    state: str
    seconds: float
    why: str


@dataclass(frozen=True)
class Missing:
    """Missing replies, by the code that the site or the engine gave."""

    site: str
    request: str
    code: str
    times: int


@dataclass(frozen=True)
class Outlier:
    """What stands out in a hospital's updates of a method. rule: by which they were merged. rounds: in which. times:
    the largest, over the median of all hospitals; 0 = none is too large. opposed: away from the others'. n: a number of
    examples that it said, and had not released; 0 = none.
    """

    method: str
    site: str
    rule: str
    rounds: tuple[int, ...]
    times: float
    opposed: bool
    n: int


@dataclass(frozen=True)
class Command:
    """A command for the next step."""

    what: str
    line: str


@dataclass(frozen=True)
class OtherCode:
    """Code from outside this package that took part in a run. what: as `method trimmed_mean`. source: its package and
    version, or its module if it was registered in the program that ran. digest: SHA-256 of the package or of that file.
    """

    what: str
    source: str
    digest: str


@dataclass(frozen=True)
class RunPage:
    """The coordinator's page.

    what: a line on what was run. date: as printed. reference: the method over which gains are computed. settings: the
    YAML. statements: one of each hospital that has
    one. audits: of mechanisms; membership: attacks that detect who took part. structures: what the methods segment;
    none = they predict labels. outside: scores at external sites, by line of `route`; external_sites: their counts, all
    in one split. field: the setting that crops images around their masks; empty = none. inversion: attacks that
    reconstruct training images. models: the models that each hospital can use. optimism: by
    hospital, how much the best row on its test patients looks better than it is. spaces:
    method -> the space of images in which it learns, as `harmonize.translate` names it. decisions: which model each
    hospital should use. classes: the names of more than two classes, in their order; ordered: whether each is more than
    the one before it. shares: how much of the oracle gap each line closes, where there is an oracle. untreated: the
    external line over which the gains of other lines are computed. augmented: hospitals' synthetic training images, if
    any were asked for. others: code from outside this package. at_home: what federated lines gain over the best that
    hospitals keep to themselves. outliers: of single hospitals in training. merging: how replies were merged, and
    whether single ones can be judged, in words. number: what is predicted, if that is a number. pairs: any two
    methods compared. rivals: by hospital the model that is shown to be better than the one it should use.
    """

    title: str
    run: str
    date: str
    what: str
    simulation: bool
    reference: str
    sites: tuple[SiteCounts, ...]
    scores: tuple[ScoreRow, ...]
    gains: tuple[GainRow, ...]
    methods: tuple[MethodCost, ...]
    left: tuple[Left, ...]
    missing: tuple[Missing, ...]
    stages: tuple[StageState, ...]
    settings: str
    commands: tuple[Command, ...]
    pictures: tuple[Picture, ...] = ()
    words: Words = Words()
    statements: tuple[Statement, ...] = ()
    audits: tuple[Audit, ...] = ()
    membership: tuple[MembershipRow, ...] = ()
    harmony: Harmony | None = None
    structures: tuple[str, ...] = ()
    outside: tuple[ScoreRow, ...] = ()
    external_sites: tuple[SiteCounts, ...] = ()
    field: str = ""
    inversion: tuple[InversionRow, ...] = ()
    models: tuple[Model, ...] = ()
    optimism: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    classes: tuple[str, ...] = ()
    shares: tuple[GapRow, ...] = ()
    untreated: str = ""
    augmented: tuple[AugmentedRow, ...] = ()
    others: tuple[OtherCode, ...] = ()
    at_home: HomeComparison = HomeComparison()
    outliers: tuple[Outlier, ...] = ()
    merging: str = ""
    number: Number | None = None
    ordered: bool = False
    findings: Several = Several()
    pairs: tuple[PairRow, ...] = ()
    rivals: Mapping[str, Rival] = dataclasses.field(default_factory=dict)

    @property
    def bands(self: RunPage | SitePage) -> tuple[str, ...]:
        """Names of what examples are counted by, beside two classes: classes, or bands of the number's range, or how
        many findings they have.
        """
        return self.findings.bands or (self.classes if self.number is None else self.number.bands)

    @property
    def counted_by(self: RunPage | SitePage) -> str:
        """What these names are of."""
        return "number of findings" if self.findings.names else "class" if self.number is None else self.number.what

    @property
    def scored_parts(self: RunPage | SitePage) -> tuple[str, ...]:
        """The names of what has scores of its own, beside two classes: classes, or cuts between ordered ones, or
        findings.
        """
        return self.findings.names or Classes(self.classes, self.ordered).scored_parts

    @property
    def part_word(self: RunPage | SitePage) -> str:
        """What these are."""
        return "finding" if self.findings.names else "cut" if self.ordered else "class"


@dataclass(frozen=True)
class Quarantined:
    """A study that was not used. study: its code. detail: what is wrong and what to do, the same for all with one
    reason.
    """

    study: str
    reason: str
    detail: str


@dataclass(frozen=True)
class SitePage:
    """A hospital's own page. images: contact sheets, one for each split. maps: the same with class activation maps, one
    for each method, or if methods segment `structures`, their outlines. characteristics: of features. noted: what
    methods noted here during training; warnings: notes that a person should know, in sentences. Neither is on the
    coordinator's page. released: which counts the coordinator receives instead of those on the page. noised: whether
    the coordinator receives these scores with noise. pictured: False = one of many simulated hospitals, drawn without
    pictures. models, optimism, spaces, decisions, classes, ordered, shares: as in `RunPage`, of this hospital. at_home:
    lines that no other hospital had a part in; home_floors: those of them of which nothing was told. number,
    rivals: as in `RunPage`. sizes: of masks. cases: on whom its model is wrong most; None = that is not known. lookup:
    the command that says who or what a code is.
    """

    title: str
    site: str
    run: str
    date: str
    simulation: bool
    reference: str
    splits: tuple[SplitCount, ...]
    scores: tuple[ScoreRow, ...]
    left: tuple[Left, ...]
    quarantine: tuple[Quarantined, ...]
    images: tuple[Picture, ...] = ()
    pictures: tuple[Picture, ...] = ()
    words: Words = Words()
    withdrawn: Withdrawn = Withdrawn()
    released: str = ""
    maps: tuple[Picture, ...] = ()
    characteristics: tuple[Characteristic, ...] = ()
    commands: tuple[Command, ...] = ()
    statement: Statement | None = None
    membership: tuple[MembershipRow, ...] = ()
    harmony: Harmony | None = None
    noted: tuple[Picture, ...] = ()
    warnings: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()
    noised: bool = False
    models: tuple[Model, ...] = ()
    optimism: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spaces: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    classes: tuple[str, ...] = ()
    shares: tuple[GapRow, ...] = ()
    pictured: bool = True
    at_home: tuple[str, ...] = ()
    home_floors: tuple[str, ...] = ()
    number: Number | None = None
    ordered: bool = False
    findings: Several = Several()
    sizes: SizeSection = SizeSection()
    cases: Cases | None = None
    rivals: Mapping[str, Rival] = dataclasses.field(default_factory=dict)
    lookup: str = "grep -A 3 CODE linkage.json"

    bands, counted_by = RunPage.bands, RunPage.counted_by
    scored_parts, part_word = RunPage.scored_parts, RunPage.part_word


@dataclass(frozen=True)
class Model:
    """A row of the tables at one hospital. loss: on its validation patients, of the model that is used; NaN = not
    scored there. file: where the hospital finds it; empty = there is none. ended: in words, why its training ended
    before its last round, and after how many; empty = it did not. Such a model is not ranked.
    """

    site: str
    method: str
    loss: float = math.nan
    file: str = ""
    ended: str = ""


STATES: Mapping[str, str] = {
    "augmented": "",
    "balanced": "N/A: its classes are balanced",
    "one_class": "N/A: it has no training image of one class",
    "copies": "not used: the generator copied training images",
}
"""The state that a hospital replies, in words; empty if synthetic images joined its training split."""


@dataclass(frozen=True)
class AugmentedRow:
    """A hospital. made: synthetic images of the class `label` in its training split. distance, real: squared Frechet
    distances to held-back images, of synthetic and of training images, compared images of each, by the named features;
    NaN = the hospital sent none. near_copies: share of synthetic images that are near copies of training images. state:
    one of `STATES`.
    """

    site: str
    space: str
    state: str
    label: str
    made: int
    distance: float = math.nan
    real: float = math.nan
    compared: int = 0
    features: str = ""
    near_copies: float = math.nan

    @property
    def why(self) -> str:
        """Why no synthetic image joined the training split; empty if synthetic images did."""
        return STATES.get(self.state, self.state)
