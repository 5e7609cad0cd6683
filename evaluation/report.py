"""The pages: the coordinator's, made from messages only, and each hospital's own, which stays there.

Everything arrives in the frozen records below; a page is one self-contained HTML text without script, and without any
reference to another document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.drawing import Picture
from evaluation.floors import FLOORS
from evaluation.grid import by_column, weak_columns, weak_rows
from evaluation.harmony import Harmony
from evaluation.leaving import Left as Left
from evaluation.leaving import totals
from evaluation.overlap import DICE, HD95
from evaluation.patients import Characteristic
from evaluation.rendering import rendered
from evaluation.rows import OUTSIDE, OVERALL, PRIVATE, PRIVATE_MEAN, PUBLIC, GainRow, ScoreRow
from evaluation.statement_page import NO_GUARANTEE as NO_GUARANTEE
from evaluation.statement_page import InversionRow, MechanismAudit, MembershipRow, SiteStatement, together
from evaluation.wording import Words


@dataclass(frozen=True)
class SplitCount:
    """How many of what a split holds; `positives` are images."""

    split: str
    patients: int
    images: int
    positives: int


@dataclass(frozen=True)
class Knew:
    """An earlier run that patients had a part in who must not be used any more. how: what part, where it is known."""

    run: str
    how: str = ""


@dataclass(frozen=True)
class Withdrawn:
    """Patients whom the settings exclude. studies: left out. unmatched: names that no patient has. knew: runs."""

    studies: int = 0
    unmatched: int = 0
    knew: tuple[Knew, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.studies or self.unmatched or self.knew)


@dataclass(frozen=True)
class SiteCounts:
    """A site as the coordinator knows it. rejected: reason code -> studies."""

    site: str
    splits: tuple[SplitCount, ...]
    rejected: Mapping[str, int]
    withdrawn: Withdrawn = Withdrawn()


@dataclass(frozen=True)
class MethodCost:
    """What a method's model holds, and its traffic in bytes.

    sent, received: of one site over all rounds. total: of all sites, both ways. reached: the first round whose
    aggregated validation loss is as low as the reference's lowest; None: never, or the reference has none.
    """

    method: str
    parameters: int
    sent: int
    received: int
    rounds: int
    total: int = 0
    reached: int | None = None


@dataclass(frozen=True)
class StageState:
    """What a stage did: state is "run", "kept" or "failed"; why names the reason."""

    stage: str
    state: str
    seconds: float
    why: str


@dataclass(frozen=True)
class Missing:
    """Replies that did not come, by the code that the site or the engine gave."""

    site: str
    request: str
    code: str
    times: int


@dataclass(frozen=True)
class Command:
    """How to go on."""

    what: str
    line: str


@dataclass(frozen=True)
class RunPage:
    """The coordinator's page.

    what: a line on what was run. date: as it shall be printed. reference: the method over which gains are taken.
    settings: the YAML. pooled: training and validation images left for a central baseline. statements: one of each
    hospital that has one. audits: of mechanisms; membership: attacks that guess who took part. structures: what the
    methods outline; none = they give labels. outside: scores at hospitals outside the federation, by line of `route`;
    strangers: who they are, all in one split. field: the setting by which masks say where their images are cut; empty =
    none. inversion: how like training images the pictures are that attackers drew.
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
    pooled: bool = False
    words: Words = Words()
    statements: tuple[SiteStatement, ...] = ()
    audits: tuple[MechanismAudit, ...] = ()
    membership: tuple[MembershipRow, ...] = ()
    harmony: Harmony | None = None
    structures: tuple[str, ...] = ()
    outside: tuple[ScoreRow, ...] = ()
    strangers: tuple[SiteCounts, ...] = ()
    field: str = ""
    inversion: tuple[InversionRow, ...] = ()


@dataclass(frozen=True)
class Quarantined:
    """A study that was not used. study: its code. detail: what is wrong and what to do, alike for all of a reason."""

    study: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Reason:
    """Why studies were not used, and which."""

    reason: str
    detail: str
    studies: tuple[str, ...]


@dataclass(frozen=True)
class SitePage:
    """A hospital's own page. images: contact sheets, one for each split. maps: the same with class activation maps, one
    for each method, or where methods outline `structures`, their outlines. characteristics: of features. noted: what
    methods noted here while they learnt; warnings: what of it a person should know, in sentences. Neither has a place
    on the coordinator's page."""

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
    maps: tuple[Picture, ...] = ()
    characteristics: tuple[Characteristic, ...] = ()
    commands: tuple[Command, ...] = ()
    statement: SiteStatement | None = None
    membership: tuple[MembershipRow, ...] = ()
    harmony: Harmony | None = None
    noted: tuple[Picture, ...] = ()
    warnings: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()


def coordinator_page(page: RunPage) -> str:
    """The run in one page: how good, for whom, what left."""
    sites = sorted({site for row in page.scores if row.protocol == PRIVATE for site in row.sites})
    return rendered(
        "coordinator.html",
        page=page,
        measures=_ordered(row.measure for row in page.scores),
        leading=_leading(page.scores, page.structures),
        floors=FLOORS,
        tested=sites,
        grid=by_column(page.scores),
        spread={(row.method, row.measure): row for row in page.gains},
        tables=_ordered(row.method for row in page.scores),
        weak=weak_rows(page.scores),
        over_sites=[p for p in (PRIVATE_MEAN, OVERALL, PUBLIC) if any(row.protocol == p for row in page.scores)],
        totals=totals(page.left, page.statements),
        noise=max((row.noise for row in page.scores), default=0.0),
        common=together(page.statements, page.audits),
        held={(site.site, s.split): s for site in page.sites for s in site.splits},
        splits=_ordered(s.split for site in page.sites for s in site.splits),
        withdrawn=[site for site in (*page.sites, *page.strangers) if site.withdrawn],
        requests=_ordered(entry.request for entry in page.left),
        sent={(entry.site, entry.request): entry for entry in page.left},
        weak_columns=weak_columns(page.scores),
        beyond=by_column(page.outside),
        lines=_ordered(row.method for row in page.outside),
        strangers=sorted({row.sites[0] for row in page.outside if row.protocol == OUTSIDE}),
        unknown=[site.site for site in page.strangers],
    )


def site_page(page: SitePage) -> str:
    """One hospital's page, with pictures of its patients: it is written for that hospital's disk only."""
    return rendered("site.html", **told_of(page))


def told_of(page: SitePage) -> dict[str, object]:
    """What the template of a hospital's page is given."""
    said = () if page.statement is None else (page.statement,)
    return {
        "page": page,
        "measures": _ordered(row.measure for row in page.scores),
        "leading": _leading(page.scores, page.structures),
        "floors": FLOORS,
        "grid": by_column(page.scores),
        "tables": _ordered(row.method for row in page.scores),
        "tested": [page.site],
        "weak": weak_rows(page.scores),
        "totals": totals(page.left, said),
        "noise": max((row.noise for row in page.scores), default=0.0),
        "statements": said,
        "common": together(said),
        "reasons": _reasons(page.quarantine),
    }


def _leading(rows: Sequence[ScoreRow], structures: Sequence[str]) -> list[str]:
    """The measures of the first table: of several structures those over all of them."""
    each = {f"{name} {structure}" for name in (DICE.name, HD95.name) for structure in structures}
    return [name for name in _ordered(row.measure for row in rows) if name not in each]


def _reasons(quarantine: Sequence[Quarantined]) -> list[Reason]:
    """The quarantine by reason and words, most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in quarantine:
        found.setdefault((one.reason, one.detail), []).append(one.study)
    reasons = [Reason(reason, detail, tuple(studies)) for (reason, detail), studies in found.items()]
    return sorted(reasons, key=lambda reason: (-len(reason.studies), reason.reason))


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
