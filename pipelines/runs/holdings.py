"""What a runs folder holds, item by item: found by the places where a run writes, and by nothing else.

A file that stands in no such place is not an item, whatever it is called. So a ledger, the key of the pseudonyms, a
linkage file and a log can be neither counted as waste nor removed. Symbolic links are never followed and never items.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pipelines.runs.stopping import LOCK
from pipelines.runs.store import HIDDEN, MANIFEST, NAME

Kind: TypeAlias = Literal[
    "artifacts",
    "conversations",
    "models",
    "cohorts",
    "scores",
    "ready",
    "translations",
    "phantoms",
    "reports",
    "leftovers",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAGE = "report.html"
DIGEST = re.compile(r"[0-9a-f]{12}")
POOLED = "pooled"
BEGUN = ("sites", "federation")
ATTACKED = (".membership.json", ".inversion.safetensors")
ENDINGS = {"scores": (".safetensors", *ATTACKED), "ready": (".safetensors",)}
TRANSLATORS, QUALITIES, MAPS = "translators", "qualities", "maps"
SUFFIXES = {TRANSLATORS: ".safetensors", QUALITIES: ".json", MAPS: ".safetensors"}
"""Folders of files that harmonization leaves at a site; beside them lies `fitting`, one folder for each training."""


@dataclass(frozen=True)
class Item:
    """Something that is removed whole or not at all.

    where: the stage of an artifact, the site of a cohort, scores, a translation, a phantom or a page; empty for what
    several sites share. parts: folders and files, in the order in which they may be removed. newest: when a file of it
    last changed, in seconds since 1970.
    """

    run: str
    kind: Kind
    where: str
    name: str
    parts: tuple[Path, ...]
    files: int
    bytes: int
    newest: float

    @property
    def label(self) -> str:
        """How people are told of it."""
        return "/".join(part for part in (self.where, self.name) if part)


def runs_below(folder: Path) -> list[Path]:
    """Folders of runs: real folders, with a run's name, in which a run has held its lock and has begun to work."""
    return [
        path
        for path in folders_in(folder)
        if NAME.fullmatch(path.name) and is_file(path / LOCK) and any(is_folder(path / inner) for inner in BEGUN)
    ]


def items_of(run: Path) -> list[Item]:
    """All items of a run, kind by kind."""
    found = [*_artifacts(run), *_conversations(run), *_models(run), *_cohorts(run)]
    return [*found, *_scores(run), *_translations(run), *_phantoms(run), *_reports(run), *_leftovers(run)]


def size_of(path: Path) -> tuple[int, int, float]:
    """Files, bytes and newest change (seconds since 1970) of a file or of everything below a folder."""
    try:
        own = path.lstat()
    except OSError:
        return 0, 0, 0.0
    if not stat.S_ISDIR(own.st_mode):
        return 1, own.st_size, own.st_mtime
    inner = [size_of(Path(entry)) for entry in entries(path)]
    newest = max((each[2] for each in inner), default=own.st_mtime)
    return sum(each[0] for each in inner), sum(each[1] for each in inner), newest


def sites_of(run: Path) -> list[Path]:
    """Folders of hospitals, and of the pooled site of a simulation."""
    pooled = run / POOLED
    return [*folders_in(run / "sites"), *([pooled] if is_folder(pooled) else [])]


def folders_in(path: Path) -> list[Path]:
    """Real folders in a folder, sorted, without hidden ones; none where there is no such folder."""
    return [each for each in entries(path) if is_folder(each) and not each.name.startswith(".")]


def entries(path: Path) -> list[Path]:
    """What lies in a real folder, sorted; nothing where it is none."""
    if not is_folder(path):
        return []
    try:
        return sorted(Path(entry.path) for entry in os.scandir(path))
    except OSError:
        return []


def is_folder(path: Path) -> bool:
    """Whether it is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def is_file(path: Path) -> bool:
    """Whether it is a regular file, and no link to one."""
    return path.is_file() and not path.is_symlink()


def _item(run: Path, kind: Kind, where: str, name: str, parts: Iterable[Path]) -> Item:
    parts = tuple(parts)
    sizes = [size_of(part) for part in parts]
    files, size = sum(each[0] for each in sizes), sum(each[1] for each in sizes)
    return Item(run.name, kind, where, name, parts, files, size, max(each[2] for each in sizes))


def _artifacts(run: Path) -> Iterator[Item]:
    for stage in folders_in(run):
        if stage.name not in ("sites", POOLED, "federation"):
            for path in folders_in(stage):
                if DIGEST.fullmatch(path.name) and is_file(path / MANIFEST):
                    yield _item(run, "artifacts", stage.name, path.name, [path])


def _conversations(run: Path) -> Iterator[Item]:
    """One item holds the coordinator's state and every site's answers: half of a conversation cannot be continued.

    The coordinator's part goes first. Without it a conversation that sites still know is not continued, but begun anew
    under another name.
    """
    parts: dict[str, list[Path]] = {path.name: [path] for path in folders_in(run / "federation")}
    for path in _by_run(run, "conversations"):
        parts.setdefault(path.name, []).append(path)
    for name, found in sorted(parts.items()):
        yield _item(run, "conversations", "", name, found)


def _models(run: Path) -> Iterator[Item]:
    parts: dict[str, list[Path]] = {}
    for path in _by_run(run, "models"):
        parts.setdefault(path.name, []).append(path)
    for name, found in sorted(parts.items()):
        yield _item(run, "models", "", name, found)


def _by_run(run: Path, what: str) -> list[Path]:
    """`sites/<site>/<what>/<run>/<conversation>` of every site."""
    return [path for site in sites_of(run) for inner in folders_in(site / what) for path in folders_in(inner)]


def _cohorts(run: Path) -> Iterator[Item]:
    for site in sites_of(run):
        for path in folders_in(site / "cohorts"):
            yield _item(run, "cohorts", site.name, path.name, [path])


def _scores(run: Path) -> Iterator[Item]:
    """Scores of a hospital's patients, attacks on its models, and its models that are ready for use."""
    kinds: tuple[Kind, ...] = ("scores", "ready")
    for site in sites_of(run):
        for kind in kinds:
            for path in entries(site / kind):
                if is_file(path) and path.name.endswith(ENDINGS[kind]) and not path.name.startswith("."):
                    yield _item(run, kind, site.name, path.name, [path])


def _translations(run: Path) -> Iterator[Item]:
    """What a hospital's images taught: translators, unfinished and finished states of their training, and figures."""
    for site in sites_of(run):
        for path in folders_in(site / "fitting"):
            yield _item(run, "translations", site.name, f"fitting/{path.name}", [path])
        for folder, suffix in SUFFIXES.items():
            for path in entries(site / folder):
                if is_file(path) and path.suffix == suffix and not path.name.startswith("."):
                    yield _item(run, "translations", site.name, f"{folder}/{path.name}", [path])


def _phantoms(run: Path) -> Iterator[Item]:
    """The note of what was written goes first: without it a phantom is written again."""
    for site in sites_of(run):
        for path in folders_in(site / "phantom"):
            note = path.with_name(f"{path.name}.txt")
            yield _item(run, "phantoms", site.name, path.name, [*([note] if is_file(note) else []), path])


def _reports(run: Path) -> Iterator[Item]:
    for folder in (run, *sites_of(run)):
        if is_file(folder / PAGE):
            yield _item(run, "reports", "" if folder == run else folder.name, PAGE, [folder / PAGE])


def _leftovers(run: Path) -> Iterator[Item]:
    """What killed processes, and killed cleanings, left under a hidden name."""
    for parent, folders, files in os.walk(run, followlinks=False):
        hidden = [name for name in (*folders, *files) if name.startswith(HIDDEN)]
        folders[:] = sorted(set(folders) - set(hidden))
        for name in sorted(hidden):
            path = Path(parent, name)
            if is_folder(path) or is_file(path):
                yield _item(run, "leftovers", "", path.relative_to(run).as_posix(), [path])
