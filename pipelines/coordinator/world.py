"""The state that all stages share: settings, engines, folders. Stages send requests and never read patient data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from federation.engine import Engine, InProcess, listening
from pipelines.runs.stopping import Stop
from pipelines.runs.store import digest, short
from pipelines.runs.witness import begun_anew
from pipelines.settings.config import Config
from privacy.message import Call, Json, Message
from privacy.pickled import pickled
from privacy.release.witness import OLDER

DATA_CODES = frozenset({"no_folder", "no_files", "no_labels", "no_gland", "bad_source", "bad_archive"})
"""Refusal codes that concern a site's files, not its machine."""


class SitesMissing(RuntimeError):
    """Some sites did not answer a request that every site must answer."""

    def __init__(self, request: str, missing: Mapping[str, str], *, where: str) -> None:
        reasons = ", ".join(f"{site}: {code}" for site, code in sorted(missing.items()))
        super().__init__(f"{request}: no answer from {reasons}; what happened stands in {where}")
        self.missing = dict(missing)

    __reduce__ = pickled


@dataclass(frozen=True)
class World:
    """root: the run's folder at the coordinator. fresh: start finished conversations again. command: the run's command
    line. outside: the engine for external sites. simulation: all hospitals run on this machine. versions: of stages, as
    a run that pays keeps them (`pipelines.runs.kept_versions`); empty: the program's own. spend: stages that patients
    shall pay again, as a person said."""

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

    def beyond(self) -> World:
        """The same world with the external sites in place of the federation's."""
        return replace(self, engine=self.outside)

    def version(self, name: str, today: int) -> int:
        """The version by which a stage's questions are named. today: the program's own."""
        return self.versions.get(name, today)

    def named(self, prefix: str, stage: str, today: int, about: Mapping[str, Json]) -> str:
        """The name of a stage's question about something: the same for the same, in the same version."""
        return f"{prefix}-{short(digest({**about, 'version': self.version(stage, today)}))}"

    def run(self, name: str) -> str:
        """The name of a conversation of this run."""
        return f"{self.config.name}/{name}"

    def ask_all(self, run: str, request: str, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        """Send each site one request, and require every reply.

        Raises:
            SitesMissing: with the code of each site that did not answer.
        """
        return self.ask_each(dict.fromkeys(messages, run), request, messages)

    def ask_each(
        self,
        runs: Mapping[str, str],
        request: str,
        messages: Mapping[str, Message],
        *,
        told: Callable[[str], None] = lambda site: None,
        spared: Collection[str] = (),
    ) -> Mapping[str, Message]:
        """Send each site one request, all at once, that belongs to a run of its own. told: called with each site that
        has answered. spared: codes with which a site may be missing.

        Raises:
            SitesMissing: with the code of each other site that did not answer.
        """
        self.stop.check()
        one = next(iter(runs.values())) if len({*runs.values()}) == 1 else ""
        with listening(told):
            answers = self.engine.ask(Call(one, 0, request, {}, {} if one else dict(runs)), messages)
        self.stop.check()  # a site that was stopped at work has not replied
        if missing := {site: code for site, code in answers.missing.items() if code not in spared}:
            raise SitesMissing(request, missing, where=self._why(missing))
        return answers.replies

    def logs(self, *sites: str) -> str:
        """Paths of the hospitals' logs, for error messages."""
        if not self.simulation:
            return "log.txt in its folder, at the hospital"
        return ", ".join(str(self.root / "sites" / site / "log.txt") for site in sorted(sites))

    def _why(self, missing: Mapping[str, str]) -> str:
        forgotten = self.simulation and OLDER in missing.values()
        return f"{self.logs(*missing)}; {begun_anew(self.root)}" if forgotten else self.logs(*missing)

    def ask_one(self, run: str, request: str, site: str, facts: Mapping[str, Json]) -> Message:
        """Send one site a request, and require its reply. Raises: SitesMissing."""
        return self.ask_all(run, request, {site: Message({}, facts)})[site]

    def complaint(self, held: Mapping[str, Mapping[str, Json]]) -> str | None:
        """What a site, inside or outside, says against what it should hold (facts of `holds`, by site); None: nothing.
        A site that has left is not asked: the stages that need it tell.

        Raises:
            SitesMissing: with the code of each site that did not answer.
        """
        for there in (self, self.beyond()):
            asked = {site: Message({}, facts) for site, facts in held.items() if site in there.engine.sites}
            replies = there.ask_all(self.run("holds"), "holds", asked) if asked else {}
            for site, said in replies.items():
                if said.facts.get("complaint"):
                    return f"{site}: {said.facts['complaint']}"
        return None

    def conversation(self, base: str, site: str) -> str:
        """The run name for work that one site must not do twice: the last one that the site holds intact; a new one if
        there is none, or with `fresh`.
        """
        good = ""
        for attempt in count():
            name = self.run(f"{base}-{attempt}" if attempt else base)
            said = self.ask_one(self.run("holds"), "holds", site, {"runs": {name: "begun"}}).facts
            if name not in (said["known"] if isinstance(said["known"], list) else []):
                return name if self.fresh or not good else good
            good = good if said["complaint"] else name
        raise RuntimeError("unreachable")

    def everyone(self, facts: Mapping[str, Json]) -> dict[str, Message]:
        """A message with these facts for every site."""
        return {site: Message({}, facts) for site in self.engine.sites}
