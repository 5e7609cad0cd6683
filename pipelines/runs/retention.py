"""Decide which items of a run may be removed: by kind and age, without the inputs of its results and without breaking
sets.

Three rules. Everything the published report depends on is kept, unless the run is requested by name. Everything an
unfinished training needs is kept. And an item that an artifact refers to is removed only together with that artifact,
wherever the next run would not notice that it is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.runs.holdings import AUDIT_SUFFIXES, MAPS, PAGE, POOLED, QUALITIES, TRANSLATORS, Item, Kind, is_file
from pipelines.runs.listing import list_paths
from pipelines.runs.store import MANIFEST, ArtifactError, DiskFolder, read_manifest, short_digest
from privacy.message import Malformed
from privacy.release.policy import RequestName

NEEDED = "its finished run depends on it"
REFERENCED = "an artifact that stays refers to it; add the kind artifacts"
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
    "copies",
    "leftovers",
)
"""Artifacts first, then committed answers, then the items that they refer to, so that an interrupted removal leaves no
reference to a missing item.
"""
WRITERS: Mapping[str, RequestName] = {
    "scores": "evaluate",
    "ready": "evaluate",
    TRANSLATORS: "translate",
    QUALITIES: "translate",
    MAPS: "score",
}
"""The request that writes a file at a site."""
WITHDRAWAL_RECORDS = ("score-0", "sample-0", "translate-0", "augment-0")
"""Small answers that show which results a withdrawn patient's images influenced: kept as long as their cohort."""


@dataclass(frozen=True)
class Rule:
    """A requested removal. seconds: the least age. needed: whether items that finished runs depend on are removed,
    too.
    """

    kinds: tuple[Kind, ...]
    seconds: float
    needed: bool = False


@dataclass(frozen=True)
class RemovalDecision:
    """reason: why the item stays although kind and age match; empty: it is removed."""

    item: Item
    reason: str = ""


def decide_removals(items: Sequence[Item], rule: Rule, now: float) -> list[RemovalDecision]:
    """The decision on every item of one run that matches the rule, in the order of removal.

    now: seconds since 1970.

    Raises:
        OSError: something cannot be read or listed, so it is unknown which items must stay.
    """
    matching = [item for item in items if item.kind in rule.kinds and now - item.newest >= rule.seconds]
    needed = set() if rule.needed else _find_needed(items)
    removed_items = {item for item in matching if item not in needed}
    kept_items = {item: NEEDED for item in matching if item in needed}
    while blocked_items := {
        item: reason for item in removed_items if (reason := _reason_to_keep(item, items, removed_items))
    }:
        removed_items -= set(blocked_items)
        kept_items |= blocked_items
    removed_items |= _find_writing_answers(removed_items, items)
    ordered = sorted({*removed_items, *kept_items}, key=lambda item: (ORDER.index(item.kind), item.where, item.name))
    return [RemovalDecision(item, kept_items.get(item, "")) for item in ordered]


def _find_needed(items: Sequence[Item]) -> set[Item]:
    """Artifacts of the published report and the newest of every stage, and the sites' items that they refer to."""
    artifacts = _find_inputs(items, [*_find_published(items), *_find_newest(items, "artifacts")])
    translations = {item for item in items if any(_refers_to_translation(each, item, items) for each in artifacts)}
    cohorts, runs, labels = {_cohort_of_quality(item) for item in translations}, set(), set()
    for item in artifacts:
        labels |= set(_list_labels(item))
        cohorts |= set(_list_cohorts(item))
        runs |= set(_list_conversations(item))
    needed = {*artifacts, *translations}
    for item in items:
        referenced = {
            "cohorts": (item.where, item.name) in cohorts,
            "conversations": item.name in runs or bool(_list_sources(item, WITHDRAWAL_RECORDS) & cohorts),
            "models": item.name in runs,
            "scores": item.name.partition(".")[0] in runs,
            "reports": bool(artifacts),
            "ready": item.name.partition(".")[0] in labels,
        }
        needed |= {item} if referenced.get(item.kind, False) else set()
    return needed | _find_phantoms(items, artifacts) | set(_find_newest(items, "copies"))


def _find_phantoms(items: Sequence[Item], artifacts: Iterable[Item]) -> set[Item]:
    """The newest phantom of every site; all of them if an oracle translation rendered their patients again, later."""
    if any(_is_oracle(artifact) for artifact in artifacts):
        return {item for item in items if item.kind == "phantoms"}
    return set(_find_newest(items, "phantoms"))


def _reason_to_keep(item: Item, items: Sequence[Item], removed_items: set[Item]) -> str:
    """Why an item cannot be removed while other items stay; empty if it can."""
    if item.kind == "models":
        conversations = [each for each in items if each.kind == "conversations" and each.name == item.name]
        if any(each not in removed_items and not _is_finished(each) for each in conversations):
            return "its training is unfinished; add the kind conversations"
    remaining_artifacts = [each for each in items if each.kind == "artifacts" and each not in removed_items]
    label = item.name.partition(".")[0]
    if item.kind == "ready" and any(label in _list_labels(each) for each in remaining_artifacts):
        return REFERENCED
    if any(_refers_to_translation(each, item, items) for each in remaining_artifacts):
        return REFERENCED
    if item.kind == "conversations" and any(
        item.name in _list_conversations(each) for each in remaining_artifacts if each.where != "train"
    ):
        return REFERENCED
    pooled = any(POOLED in part.parts[-5:] for part in item.parts)
    trained = item.kind == "scores" or (item.kind in ("models", "conversations") and pooled)
    return REFERENCED if trained and any(_refers_to_run(each, label, items) for each in remaining_artifacts) else ""


def _find_writing_answers(removed_items: set[Item], items: Sequence[Item]) -> set[Item]:
    """Committed answers that wrote a removed item: if they stayed, a site would repeat them and not write it again."""
    writing_requests = {(item.where, _writing_request(item), _source_cohort(item)) for item in removed_items}
    return {
        item
        for item in items
        if item.kind == "conversations"
        for part in item.parts
        for site, request, cohort in writing_requests
        if request and part.parents[2].name == site and list_paths(part, f"{request}-*")
        if not cohort or (site, cohort) in _list_sources(item, (f"{request}-0",))
    }


def _list_sources(conversation: Item, answers: tuple[str, ...]) -> set[tuple[str, str]]:
    """(site, cohort) of the images behind these answers, from their memory: see `pipelines.hospital.withdrawn`."""
    from federation.conversation import (
        load_newest_memory,  # imports torch, which a folder without trained models does not need
    )

    sources = set()
    for part in conversation.parts:
        if any(is_file(part / answer) for answer in answers):
            with suppress(Malformed):
                sources.add((part.parents[2].name, str(load_newest_memory(DiskFolder(part)).facts.get("looked_at"))))
    return sources


def _source_cohort(item: Item) -> str:
    """The cohort in the name of a translation's quality figures; empty for all other items."""
    return item.name.split(".")[1] if item.name.startswith(f"{QUALITIES}/") and item.name.count(".") == 2 else ""


def _writing_request(item: Item) -> str:
    """The request that wrote this item at a site; empty if the same request would write it again."""
    if item.name.endswith(AUDIT_SUFFIXES):
        return "audit"
    return WRITERS.get(item.name.partition("/")[0] if item.kind == "translations" else item.kind, "")


def _is_finished(conversation: Item) -> bool:
    """Whether every site has finished a training, or the conversation is not a training."""
    sites = [part for part in conversation.parts if part.parent.name != "federation"]
    trained = [part for part in sites if list_paths(part, "introduce-*")]
    return all(list_paths(part, "finish-*") for part in trained)


def _refers_to_run(artifact: Item, run: str, items: Sequence[Item]) -> bool:
    """Whether an artifact of training, or one made from it, refers to a conversation; True if that is unknown."""
    if artifact.where == "train":
        return run in _list_conversations(artifact)
    if artifact.where not in ("evaluate", "audit"):
        return False
    trained = [each for each in _find_inputs(items, [artifact]) if each.where == "train"]
    return not trained or any(run in _list_conversations(each) for each in trained)


def _find_published(items: Iterable[Item]) -> list[Item]:
    """The report artifact whose page is the one in the run's folder."""
    pages = [item for item in items if item.kind == "reports" and not item.where]
    page_digests = {hashlib.sha256(page.parts[0].read_bytes()).hexdigest() for page in pages}
    reports = [item for item in items if item.kind == "artifacts" and item.where == "report"]
    return [
        item for item in reports if _read_manifest(item).get("files", {}).get(PAGE, {}).get("sha256") in page_digests
    ]


def _find_newest(items: Iterable[Item], kind: Kind) -> list[Item]:
    """The newest item of every place: stage or site."""
    newest: dict[str, Item] = {}
    for item in sorted((item for item in items if item.kind == kind), key=lambda item: item.newest):
        newest[item.where] = item
    return list(newest.values())


def _find_inputs(items: Iterable[Item], first: Iterable[Item]) -> list[Item]:
    """Artifacts, and all their direct and indirect inputs."""
    known = {(item.where, item.name): item for item in items if item.kind == "artifacts"}
    artifacts: list[Item] = []
    pending = list(first)
    while pending:
        item = pending.pop()
        if item not in artifacts:
            artifacts.append(item)
            inputs = _read_manifest(item).get("inputs", {})
            places = [(stage, short_digest(str(digest))) for stage, digest in inputs.items()]
            pending += [known[place] for place in places if place in known]
    return artifacts


def _read_manifest(item: Item) -> dict[str, Any]:
    """The manifest of an artifact; empty if it is damaged."""
    try:
        return read_manifest(item.parts[0])
    except ArtifactError as error:  # a damaged artifact keeps nothing: the next run makes it again
        if isinstance(error.__cause__, OSError):  # this one may be whole, and what it refers to must stay
            raise error.__cause__ from error
        return {}


def _list_cohorts(artifact: Item) -> list[tuple[str, str]]:
    """(site, cohort) to which an artifact of ingest, of translation or of features refers."""
    contents = [_read_json(path) for path in list_paths(artifact.parts[0], "*.json") if path.name != MANIFEST]
    if artifact.where not in ("ingest", "translate", "augment", "features"):
        return []
    return [
        (site, str(site_facts.get("cohort")))
        for facts in contents
        for site, site_facts in facts.items()
        if isinstance(site_facts, dict)
    ]


def _list_conversations(artifact: Item) -> list[str]:
    """Conversations that an artifact of training or of synthesis needs."""
    name = {"train": "train_run", "synthesize": "run"}.get(artifact.where)
    if name is None:
        return []
    contents = [_read_json(path) for path in list_paths(artifact.parts[0], "*.json") if path.name != MANIFEST]
    return [str(facts[name]).rpartition("/")[2] for facts in contents if name in facts]


def _refers_to_translation(artifact: Item, item: Item, items: Sequence[Item]) -> bool:
    """Whether an artifact refers to a translator, to a translation's quality figures, or to a score's map."""
    if item.kind != "translations":
        return False
    folder, _, file = item.name.partition("/")
    if folder == MAPS:
        return artifact.where == "score" and _read_json(artifact.parts[0] / "scores.json").get("release") == "exact"
    space = file.partition(".")[0]
    if artifact.where != "translate" or not (artifact.parts[0] / f"{space}.json").is_file():
        return False
    source_cohort = (item.where, _source_cohort(item))
    return folder == TRANSLATORS or (
        folder == QUALITIES
        and source_cohort in [cohort for each in _find_inputs(items, [artifact]) for cohort in _list_cohorts(each)]
    )


def _cohort_of_quality(quality: Item) -> tuple[str, str]:
    """(site, cohort) of a translation with quality figures: the hospital's page shows its images, even if vetoed."""
    return quality.where, str(_read_json(quality.parts[0]).get("cohort"))


def _is_oracle(artifact: Item) -> bool:
    """Whether an artifact is of a translation with the oracle."""
    settings = _read_manifest(artifact).get("settings")
    spaces = settings.get("translate") if isinstance(settings, dict) else None
    return isinstance(spaces, dict) and any(
        isinstance(space, dict) and space.get("name") == "oracle" for space in spaces.values()
    )


def _list_labels(artifact: Item) -> list[str]:
    """The methods in an artifact of training, or their variants in one of evaluation."""
    if artifact.where == "evaluate":
        settings: Any = _read_manifest(artifact).get("settings")
        return [*settings["evaluate"].get("variants", {})] if isinstance(settings, dict) else []
    if artifact.where != "train":
        return []
    return [path.stem for path in list_paths(artifact.parts[0], "*.json") if path.name != MANIFEST]


def _read_json(path: Path) -> dict[str, Any]:
    """A file's contents; empty if it is gone or damaged. Raises: OSError: it cannot be read, so its contents are
    unknown.
    """
    with suppress(FileNotFoundError, ValueError):
        content = json.loads(path.read_bytes())
        return content if isinstance(content, dict) else {}
    return {}
