"""What may be removed of a run: by kind and age, but not what its finished results rest on, nor half of a whole.

Three rules. What the published report rests on is kept, unless that run is asked for by name. What a training in the
middle still needs is kept. And what an artifact speaks of goes only together with that artifact, wherever the next run
would not notice by itself that it is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.runs.holdings import ATTACKED, MAPS, PAGE, POOLED, QUALITIES, TRANSLATORS, Item, Kind, is_file
from pipelines.runs.store import MANIFEST, ArtifactError, DiskFolder, read_manifest, short
from privacy.message import Malformed

NEEDED = "its finished run rests on it"
SPOKEN = "an artifact that stays speaks of it; add the kind artifacts"
ORDER: tuple[Kind, ...] = (
    "artifacts",
    "reports",
    "conversations",
    "scores",
    "ready",
    "translations",
    "models",
    "cohorts",
    "phantoms",
    "leftovers",
)
"""Artifacts first, then committed answers: what they speak of goes after them, so that a kill between hides nothing."""
WRITERS = {"scores": "evaluate", "ready": "evaluate", TRANSLATORS: "translate", QUALITIES: "translate", MAPS: "score"}
"""The request whose work writes a file at a site."""
TOLD = ("score-0", "sample-0", "translate-0")
"""Small answers that tell patients who withdraw what their images shaped: kept as long as their cohort is."""


@dataclass(frozen=True)
class Rule:
    """What is asked for. seconds: the age. needed: also what finished runs rest on."""

    kinds: tuple[Kind, ...]
    seconds: float
    needed: bool = False


@dataclass(frozen=True)
class Verdict:
    """kept: why it stays although kind and age would let it go; empty: it goes."""

    item: Item
    kept: str = ""


def verdicts(items: Sequence[Item], rule: Rule, now: float) -> list[Verdict]:
    """What happens to every item of one run that the rule speaks of, in the order of removal.

    now: seconds since 1970.
    """
    asked = [item for item in items if item.kind in rule.kinds and now - item.newest >= rule.seconds]
    needed = set() if rule.needed else _needed(items)
    going = {item for item in asked if item not in needed}
    kept = {item: NEEDED for item in asked if item in needed}
    while stuck := {item: why for item in going if (why := _held_back(item, items, going))}:
        going -= set(stuck)
        kept |= stuck
    going |= _along(going, items)
    ordered = sorted({*going, *kept}, key=lambda item: (ORDER.index(item.kind), item.where, item.name))
    return [Verdict(item, kept.get(item, "")) for item in ordered]


def _needed(items: Sequence[Item]) -> set[Item]:
    """Artifacts of the published report and the newest of every stage, and what they speak of at the sites."""
    artifacts = _closure(items, [*_published(items), *_newest(items, "artifacts")])
    translations = {item for item in items if any(_tells_of(artifact, item, items) for artifact in artifacts)}
    cohorts, runs, labels = {_shown(item) for item in translations}, set(), set()
    for item in artifacts:
        labels |= set(_labels_of(item))
        cohorts |= set(_cohorts_of(item))
        runs |= set(_runs_of(item))
    needed = {*artifacts, *translations}
    for item in items:
        spoken = {
            "cohorts": (item.where, item.name) in cohorts,
            "conversations": item.name in runs or bool(_came_from(item, TOLD) & cohorts),
            "models": item.name in runs,
            "scores": item.name.partition(".")[0] in runs,
            "reports": bool(artifacts),
            "ready": item.name.partition(".")[0] in labels,
        }
        needed |= {item} if spoken.get(item.kind, False) else set()
    return needed | _phantoms(items, artifacts)


def _phantoms(items: Sequence[Item], artifacts: Iterable[Item]) -> set[Item]:
    """The newest of every site; all where their patients were rendered again on another scanner, which is newer."""
    if any(_is_oracle(artifact) for artifact in artifacts):
        return {item for item in items if item.kind == "phantoms"}
    return set(_newest(items, "phantoms"))


def _held_back(item: Item, items: Sequence[Item], going: set[Item]) -> str:
    """Why an item cannot go without others that stay; empty where it can."""
    if item.kind == "models":
        halves = [each for each in items if each.kind == "conversations" and each.name == item.name]
        if any(each not in going and not _finished(each) for each in halves):
            return "its training is in the middle; add the kind conversations"
    staying = [each for each in items if each.kind == "artifacts" and each not in going]
    label = item.name.partition(".")[0]
    if item.kind == "ready" and any(label in _labels_of(each) for each in staying):
        return SPOKEN
    if any(_tells_of(each, item, items) for each in staying):
        return SPOKEN
    if item.kind == "conversations" and any(item.name in _runs_of(each) for each in staying if each.where != "train"):
        return SPOKEN
    pooled = any(POOLED in part.parts[-5:] for part in item.parts)
    trained = item.kind == "scores" or (item.kind in ("models", "conversations") and pooled)
    return SPOKEN if trained and any(_speaks(each, label, items) for each in staying) else ""


def _along(going: set[Item], items: Sequence[Item]) -> set[Item]:
    """Committed answers that would hide that what they wrote is gone: asked again, a site only repeats itself."""
    wrote = {(item.where, _writer(item), _raw(item)) for item in going}
    return {
        item
        for item in items
        if item.kind == "conversations"
        for part in item.parts
        for site, request, raw in wrote
        if request and part.parents[2].name == site and any(part.glob(f"{request}-*"))
        if not raw or (site, raw) in _came_from(item, (f"{request}-0",))
    }


def _came_from(conversation: Item, answers: tuple[str, ...]) -> set[tuple[str, str]]:
    """(site, cohort) whose images shaped these answers, as their memory says: see `pipelines.hospital.withdrawn`."""
    from federation.conversation import newest  # torch: seconds that a folder without trained models saves

    found = set()
    for part in conversation.parts:
        if any(is_file(part / answer) for answer in answers):
            with suppress(Malformed, OSError):
                found.add((part.parents[2].name, str(newest(DiskFolder(part)).facts.get("looked_at"))))
    return found


def _raw(item: Item) -> str:
    """The cohort in the name of a translation's figures; empty for all else."""
    return item.name.split(".")[1] if item.name.startswith(f"{QUALITIES}/") and item.name.count(".") == 2 else ""


def _writer(item: Item) -> str:
    """The request whose work writes this at a site; empty where asking again writes it again."""
    if item.name.endswith(ATTACKED):
        return "audit"
    return WRITERS.get(item.name.partition("/")[0] if item.kind == "translations" else item.kind, "")


def _finished(conversation: Item) -> bool:
    """Whether every site has finished a training, or the conversation is no training."""
    sites = [part for part in conversation.parts if part.parent.name != "federation"]
    trained = [part for part in sites if any(part.glob("introduce-*"))]
    return all(any(part.glob("finish-*")) for part in trained)


def _speaks(artifact: Item, run: str, items: Sequence[Item]) -> bool:
    """Whether an artifact of training, or one made from it, speaks of a conversation; also where that is unknown."""
    if artifact.where == "train":
        return run in _runs_of(artifact)
    if artifact.where not in ("evaluate", "audit"):
        return False
    trained = [each for each in _closure(items, [artifact]) if each.where == "train"]
    return not trained or any(run in _runs_of(each) for each in trained)


def _published(items: Iterable[Item]) -> list[Item]:
    """The artifact of the page that lies on top of the run's folder."""
    pages = [item for item in items if item.kind == "reports" and not item.where]
    shas = {hashlib.sha256(page.parts[0].read_bytes()).hexdigest() for page in pages}
    reports = [item for item in items if item.kind == "artifacts" and item.where == "report"]
    return [item for item in reports if _manifest(item).get("files", {}).get(PAGE, {}).get("sha256") in shas]


def _newest(items: Iterable[Item], kind: Kind) -> list[Item]:
    """The newest item of every place: stage or site."""
    newest: dict[str, Item] = {}
    for item in sorted((item for item in items if item.kind == kind), key=lambda item: item.newest):
        newest[item.where] = item
    return list(newest.values())


def _closure(items: Iterable[Item], first: Iterable[Item]) -> list[Item]:
    """Artifacts, and all that they were made from."""
    known = {(item.where, item.name): item for item in items if item.kind == "artifacts"}
    found: list[Item] = []
    waiting = list(first)
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.append(item)
            inputs = _manifest(item).get("inputs", {})
            places = [(stage, short(str(digest))) for stage, digest in inputs.items()]
            waiting += [known[place] for place in places if place in known]
    return found


def _manifest(item: Item) -> dict[str, Any]:
    try:
        return read_manifest(item.parts[0])
    except ArtifactError:  # a damaged one holds nothing back: the next run makes it again
        return {}


def _cohorts_of(artifact: Item) -> list[tuple[str, str]]:
    """(site, cohort) of which an artifact of ingest or of translation speaks."""
    said = [_json(path) for path in sorted(artifact.parts[0].glob("*.json")) if path.name != MANIFEST]
    if artifact.where not in ("ingest", "translate"):
        return []
    return [(site, str(home.get("cohort"))) for facts in said for site, home in facts.items() if isinstance(home, dict)]


def _runs_of(artifact: Item) -> list[str]:
    """Conversations that must be remembered for an artifact of training or of synthesis."""
    name = {"train": "train_run", "synthesize": "run"}.get(artifact.where)
    if name is None:
        return []
    said = [_json(path) for path in sorted(artifact.parts[0].glob("*.json")) if path.name != MANIFEST]
    return [str(facts[name]).rpartition("/")[2] for facts in said if name in facts]


def _tells_of(artifact: Item, item: Item, items: Sequence[Item]) -> bool:
    """Whether an artifact speaks of a translator, of figures of a translation, or of a score's map."""
    if item.kind != "translations":
        return False
    folder, _, file = item.name.partition("/")
    if folder == MAPS:
        return artifact.where == "score" and _json(artifact.parts[0] / "scores.json").get("release") == "exact"
    space = file.partition(".")[0]
    if artifact.where != "translate" or not (artifact.parts[0] / f"{space}.json").is_file():
        return False
    raw = (item.where, _raw(item))
    return folder == TRANSLATORS or (
        folder == QUALITIES and raw in [one for each in _closure(items, [artifact]) for one in _cohorts_of(each)]
    )


def _shown(quality: Item) -> tuple[str, str]:
    """(site, cohort) of the translation that figures are of: the hospital's page shows its images, vetoed or not."""
    return quality.where, str(_json(quality.parts[0]).get("cohort"))


def _is_oracle(artifact: Item) -> bool:
    settings = _manifest(artifact).get("settings")
    spaces = settings.get("translate") if isinstance(settings, dict) else None
    return isinstance(spaces, dict) and any(isinstance(s, dict) and s.get("name") == "oracle" for s in spaces.values())


def _labels_of(artifact: Item) -> list[str]:
    """Methods that an artifact of training holds, or their variants that one of evaluation does."""
    if artifact.where == "evaluate":
        settings: Any = _manifest(artifact).get("settings")
        return [*settings["evaluate"].get("variants", {})] if isinstance(settings, dict) else []
    if artifact.where != "train":
        return []
    return [path.stem for path in artifact.parts[0].glob("*.json") if path.name != MANIFEST]


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
