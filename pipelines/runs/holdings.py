"""List the removable items of a runs folder, found only by the places where a run writes.

A file in any other place is not an item, whatever its name. So a ledger, the key of the pseudonyms, a linkage file and
a log can be neither counted as removable nor removed. Symbolic links are never followed and never items.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from pipelines.runs.listing import list_names, list_paths
from pipelines.runs.stopping import LOCK
from pipelines.runs.store import MANIFEST, NAME, UNFINISHED

Kind: TypeAlias = Literal[
    "artifacts",
    "conversations",
    "models",
    "cohorts",
    "scores",
    "ready",
    "translations",
    "phantoms",
    "copies",
    "reports",
    "leftovers",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAGE, CONTENT = "report.html", "report.json"
OVERVIEW = "index.html"  # beside the folders of runs
POOLED = "pooled"
RUN_FOLDERS = ("sites", "federation")
AUDIT_SUFFIXES = (".membership.json", ".inversion.safetensors")
TRANSLATORS, QUALITIES, MAPS = "translators", "qualities", "maps"


class Places(NamedTuple):
    """The places of one kind of items below a run's folder, in the order in which their parts may be removed.

    patterns: one that ends in / matches folders; {site} stands for any hospital or the pooled site. shared: parts with
    the same name at all sites are one item. named: the number of path parts in an item's name.
    """

    patterns: tuple[str, ...]
    shared: bool = False
    named: int = 1


PLACES: Mapping[Kind, Places] = {
    "artifacts": Places(("*/" + "[0-9a-f]" * 12 + "/",)),
    # Half of a conversation cannot be continued. The coordinator's part is removed first: without it, a conversation
    # that sites still know is restarted under another name.
    "conversations": Places(("federation/*/", "{site}/conversations/*/*/"), shared=True),
    "models": Places(("{site}/models/*/*/",), shared=True),
    "cohorts": Places(("{site}/cohorts/*/",)),
    "scores": Places(("{site}/scores/*.safetensors", "{site}/scores/*.membership.json")),
    "ready": Places(("{site}/ready/*.safetensors",)),
    "translations": Places(
        (
            "{site}/fitting/*/",
            f"{{site}}/{TRANSLATORS}/*.safetensors",
            f"{{site}}/{QUALITIES}/*.json",
            f"{{site}}/{MAPS}/*.safetensors",
        ),
        named=2,
    ),
    "phantoms": Places(("{site}/phantom/*/",)),
    "copies": Places(("{site}/archive/*/",)),
    "reports": Places((PAGE, f"{{site}}/{PAGE}", f"{{site}}/{CONTENT}")),
}


@dataclass(frozen=True)
class Item:
    """Files and folders that are removed together or not at all.

    where: the stage of an artifact, the site of a cohort, scores, a translation, a phantom, a copy or a page; empty for
    items that several sites share. parts: folders and files, in the order in which they may be removed. newest: time of
    the last change of one of its files, in seconds since 1970.
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
        """The item's name in messages."""
        return "/".join(part for part in (self.where, self.name) if part)


def list_runs(folder: Path) -> list[Path]:
    """Folders of runs: real folders with a valid run name, a lock file and some output."""
    return [
        path
        for path in list_folders(folder)
        if NAME.fullmatch(path.name) and is_file(path / LOCK) and any(is_folder(path / inner) for inner in RUN_FOLDERS)
    ]


def list_run_items(run: Path) -> list[Item]:
    """All items of a run, kind by kind. Raises: OSError: a folder cannot be listed, so that some may be missing."""
    return [
        *(item for kind, places in PLACES.items() for item in _list_items(run, kind, places)),
        *_list_leftovers(run),
    ]


def measure_size(path: Path) -> tuple[int, int, float]:
    """Files, bytes and newest change (seconds since 1970) of a file or of everything below a folder."""
    try:
        status = path.lstat()
    except OSError:
        return 0, 0, 0.0
    if not stat.S_ISDIR(status.st_mode):
        return 1, status.st_size, status.st_mtime
    inner_sizes = [measure_size(Path(entry)) for entry in list_entries(path)]
    newest = max((inner_size[2] for inner_size in inner_sizes), default=status.st_mtime)
    return sum(inner_size[0] for inner_size in inner_sizes), sum(inner_size[1] for inner_size in inner_sizes), newest


def list_folders(path: Path) -> list[Path]:
    """Real folders in a folder, sorted, without hidden ones; none if the folder does not exist."""
    return [entry for entry in list_entries(path) if is_folder(entry) and not entry.name.startswith(".")]


def list_entries(path: Path) -> list[Path]:
    """The entries of a real folder, sorted; none if it is not one. Raises: OSError: it cannot be listed."""
    return [path / name for name in list_names(path)] if is_folder(path) else []


def is_folder(path: Path) -> bool:
    """Whether it is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def is_file(path: Path) -> bool:
    """Whether it is a regular file, not a link to one."""
    return path.is_file() and not path.is_symlink()


def _build_item(run: Path, kind: Kind, where: str, name: str, parts: Iterable[Path]) -> Item:
    """An item with the sizes and the newest change of its parts."""
    parts = tuple(parts)
    sizes = [measure_size(part) for part in parts]
    files, size = sum(part_size[0] for part_size in sizes), sum(part_size[1] for part_size in sizes)
    return Item(run.name, kind, where, name, parts, files, size, max(part_size[2] for part_size in sizes))


def _list_items(run: Path, kind: Kind, places: Places) -> Iterator[Item]:
    """All items of a kind, by place and name."""
    parts_by_place: dict[tuple[str, str], list[Path]] = {}
    for pattern in dict.fromkeys(each.format(site=site) for each in places.patterns for site in ("sites/*", POOLED)):
        for path in filter(_make_real_check(run, pattern), list_paths(run, pattern)):
            parent_parts, name = path.relative_to(run).parts[: -places.named], "/".join(path.parts[-places.named :])
            where = "" if places.shared or not parent_parts else parent_parts[parent_parts[0] == "sites"]
            parts_by_place.setdefault((where, name), []).append(path)
    for (where, name), parts in sorted(parts_by_place.items()):
        if kind == "phantoms":  # the record is removed first: without it a phantom is written again
            parts = [*filter(is_file, [parts[0].with_name(f"{name}.txt")]), *parts]
        yield _build_item(run, kind, where, name, parts)


def _make_real_check(run: Path, pattern: str) -> Callable[[Path], bool]:
    """Whether a path is a folder or file as the pattern requires, not hidden and not below a link; for an artifact
    also whether its manifest exists.
    """

    def is_real(path: Path) -> bool:
        path_and_parents = [path, *path.parents][: len(path.relative_to(run).parts)]
        if any(parent.is_symlink() or parent.name.startswith(".") for parent in path_and_parents):
            return False
        if not pattern.startswith("*/"):
            return path.is_dir() if pattern.endswith("/") else path.is_file()
        return is_file(path / MANIFEST) and path.parent.name not in (*RUN_FOLDERS, POOLED)

    return is_real


def _list_leftovers(run: Path) -> Iterator[Item]:
    """Hidden files and folders that killed processes, or a killed clean command, left behind."""
    for parent, folders, files in os.walk(run, followlinks=False):
        hidden = [name for name in (*folders, *files) if name.startswith(UNFINISHED)]
        folders[:] = sorted(set(folders) - set(hidden))
        for name in sorted(hidden):
            path = Path(parent, name)
            if is_folder(path) or is_file(path):
                yield _build_item(run, "leftovers", "", path.relative_to(run).as_posix(), [path])
