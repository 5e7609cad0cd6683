"""The state that all stages share: settings, engines, folders. Stages send requests and never read patient data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeAlias, TypeVar

from federation.engine import Engine, InProcess, listen_for_answers
from pipelines.requests.asking import Answered, ask
from pipelines.requests.holds import HOLDS, Holds
from pipelines.requests.request import Request
from pipelines.runs.stopping import Stop
from pipelines.runs.store import digest_json, short_digest
from pipelines.runs.witness import describe_new_beginning
from pipelines.settings.config import Config
from privacy.message import Json
from privacy.pickled import reduce_error
from privacy.release.witness import OLDER

Q = TypeVar("Q")
R = TypeVar("R")
DATA_CODES = frozenset({"no_folder", "no_files", "no_labels", "no_gland", "bad_source", "bad_archive"})
"""Refusal codes that concern a site's files, not its machine."""

CHANGES: Mapping[str, str] = {
    "too_few_images": (
        "the same command draws the same images again: first let closeness double where too few pass, with harmonize: "
        "{sampling: {doublings: 5}}, or change what the log names; what was synthesized stays and is not paid again"
    )
}
"""Refusal codes after which the same settings fail again, and what to change first."""


@dataclass(frozen=True)
class RoundEnded:
    """A round of a method's training that has ended. round: its number, from 1, of `rounds`. losses: hospital -> round
    -> validation loss, as far as hospitals have sent them; that of the newest model comes with the next round. totals:
    round -> their mean over hospitals, by examples.
    """

    method: str
    round: int
    rounds: int
    losses: Mapping[str, Mapping[int, float]]
    totals: Mapping[int, float] = field(default_factory=dict)


OnRound: TypeAlias = Callable[[RoundEnded], None]


def ignore_round(ended: RoundEnded) -> None:
    """Do nothing after a round of training."""


class SitesMissing(RuntimeError):
    """Some sites did not answer a request that every site must answer."""

    def __init__(self, request: str, missing: Mapping[str, str], *, where: str) -> None:
        reasons = ", ".join(f"{site}: {code}" for site, code in sorted(missing.items()))
        changes = [f"; {CHANGES[code]}" for code in dict.fromkeys(missing.values()) if code in CHANGES]
        super().__init__(f"{request}: no answer from {reasons}; what happened stands in {where}{''.join(changes)}")
        self.missing = dict(missing)

    __reduce__ = reduce_error


@dataclass(frozen=True)
class World:
    """root: the run's folder at the coordinator. fresh: start finished conversations again. command: the run's command
    line. outside: the engine for external sites. simulation: all hospitals run on this machine. versions: of stages, as
    a run that pays keeps them (`pipelines.runs.read_kept_versions`); empty: the program's own. spend: stages that
    patients shall pay again, as a person said. on_round: called after each round of training, at the coordinator.
    """

    config: Config
    engine: Engine
    root: Path
    stop: Stop
    now: Callable[[], str]
    fresh: bool = False
    command: str = "python -m pipelines.run CONFIG"
    outside: Engine = field(default_factory=lambda: InProcess({}))
    simulation: bool = True
    versions: Mapping[str, int] = field(default_factory=dict)
    spend: Collection[str] = ()
    on_round: OnRound = ignore_round

    def outside_world(self) -> World:
        """The same world with the external sites in place of the federation's."""
        return replace(self, engine=self.outside)

    def version(self, name: str, today: int) -> int:
        """The version by which a stage's questions are named. today: the program's own."""
        return self.versions.get(name, today)

    def name_question(self, prefix: str, stage: str, today: int, about: Mapping[str, Json]) -> str:
        """The name of a stage's question about something: the same for the same, in the same version."""
        return f"{prefix}-{short_digest(digest_json({**about, 'version': self.version(stage, today)}))}"

    def run(self, name: str) -> str:
        """The name of a conversation of this run."""
        return f"{self.config.name}/{name}"

    def ask_all(self, request: Request[Q, R], run: str, questions: Mapping[str, Q]) -> Mapping[str, R]:
        """Send each site one question, and require every reply.

        Raises:
            SitesMissing: with the code of each site that did not answer.
        """
        return self.ask_each(request, dict.fromkeys(questions, run), questions)

    def ask_each(
        self,
        request: Request[Q, R],
        runs: Mapping[str, str],
        questions: Mapping[str, Q],
        *,
        report_site: Callable[[str], None] = lambda site: None,
        spared: Callable[[str], bool] = lambda code: False,
    ) -> Mapping[str, R]:
        """Send each site one question, all at once, that belongs to a run of its own. report_site: called with each
        site that has answered. spared: whether a site may be missing with this code.

        Raises:
            SitesMissing: with the code of each other site that did not answer.
        """
        answers = self.ask(request, runs, questions, report_site=report_site)
        if missing := {site: code for site, code in answers.missing.items() if not spared(code)}:
            raise SitesMissing(request.name, missing, where=self._describe_missing(missing))
        return answers.replies

    def ask(
        self,
        request: Request[Q, R],
        runs: Mapping[str, str],
        questions: Mapping[str, Q],
        *,
        report_site: Callable[[str], None] = lambda site: None,
    ) -> Answered[R]:
        """As `ask_each`, whoever answers."""
        self.stop.check()
        with listen_for_answers(report_site):
            answers = ask(self.engine, request, runs, questions)
        self.stop.check()  # a site that was stopped at work has not replied
        return answers

    def log_paths(self, *sites: str) -> str:
        """Paths of the hospitals' logs, for error messages."""
        if not self.simulation:
            return "log.txt in its folder, at the hospital"
        return ", ".join(str(self.root / "sites" / site / "log.txt") for site in sorted(sites))

    def _describe_missing(self, missing: Mapping[str, str]) -> str:
        """Where the reasons of missing sites stand, and what a deleted simulation can do."""
        forgotten = self.simulation and OLDER in missing.values()
        return (
            f"{self.log_paths(*missing)}; {describe_new_beginning(self.root)}"
            if forgotten
            else self.log_paths(*missing)
        )

    def ask_one(self, request: Request[Q, R], run: str, site: str, question: Q) -> R:
        """Send one site a question, and require its reply. Raises: SitesMissing."""
        return self.ask_all(request, run, {site: question})[site]

    def find_complaint(self, holdings: Mapping[str, Holds]) -> str | None:
        """What a site, inside or outside, says against what it should hold; None: nothing.
        A site that has left is not asked: the stages that need it tell.

        Raises:
            SitesMissing: with the code of each site that did not answer.
        """
        for world in (self, self.outside_world()):
            questions = {site: question for site, question in holdings.items() if site in world.engine.sites}
            replies = world.ask_all(HOLDS, self.run(HOLDS.name), questions) if questions else {}
            for site, reply in replies.items():
                if reply.complaint:
                    return f"{site}: {reply.complaint}"
        return None

    def choose_conversation(self, base: str, site: str) -> str:
        """The run name for work that one site must not do twice: the last one that the site holds intact; a new one if
        there is none, or with `fresh`.
        """
        good = ""
        for attempt in count():
            name = self.run(f"{base}-{attempt}" if attempt else base)
            reply = self.ask_one(HOLDS, self.run(HOLDS.name), site, Holds(runs={name: "begun"}))
            if name not in reply.known:
                return name if self.fresh or not good else good
            good = good if reply.complaint else name
        raise RuntimeError("unreachable")

    def same_for_all(self, question: Q) -> dict[str, Q]:
        """The same question for every site."""
        return dict.fromkeys(self.engine.sites, question)
