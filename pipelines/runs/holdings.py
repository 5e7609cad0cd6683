"""What a runs folder holds, item by item: found by the places where a run writes, and by nothing else.

A file that stands in no such place is not an item, whatever it is called. So a ledger, the key of the pseudonyms, a
linkage file and a log can be neither counted as waste nor removed. Symbolic links are never followed and never items.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

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
POOLED = "pooled"
BEGUN = ("sites", "federation")
ATTACKED = (".membership.json", ".inversion.safetensors")
TRANSLATORS, QUALITIES, MAPS = "translators", "qualities", "maps"


class Places(NamedTuple):
    """Where items of a kind lie below a run's folder, in the order in which their parts may be removed.

    patterns: one that ends in / is of folders, {site} is any hospital or the pooled site. shared: what all sites hold
    under one name is one item. named: how many parts of a path are an item's name.
    """

    patterns: tuple[str, ...]
    shared: bool = False
    named: int = 1


PLACES: Mapping[Kind, Places] = {
    "artifacts": Places(("*/" + "[0-9a-f]" * 12 + "/",)),
    # Half of a conversation cannot be continued. The coordinator's part goes first: without it a conversation that
    # sites still know is begun anew under another name.
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
    "reports": Places((PAGE, f"{{site}}/{PAGE}")),
}


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
    return [*(item for kind, places in PLACES.items() for item in _items(run, kind, places)), *_leftovers(run)]


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


def _items(run: Path, kind: Kind, places: Places) -> Iterator[Item]:
    found: dict[tuple[str, str], list[Path]] = {}
    for pattern in dict.fromkeys(each.format(site=site) for each in places.patterns for site in ("sites/*", POOLED)):
        for path in sorted(filter(_real(run, pattern), run.glob(pattern))):
            above, name = path.relative_to(run).parts[: -places.named], "/".join(path.parts[-places.named :])
            where = "" if places.shared or not above else above[above[0] == "sites"]
            found.setdefault((where, name), []).append(path)
    for (where, name), parts in sorted(found.items()):
        if kind == "phantoms":  # the note of what was written goes first: without it a phantom is written again
            parts = [*filter(is_file, [parts[0].with_name(f"{name}.txt")]), *parts]
        yield _item(run, kind, where, name, parts)


def _real(run: Path, pattern: str) -> Callable[[Path], bool]:
    """Whether a path is a folder or file as the pattern says, is not hidden, and no link leads to it; of an artifact
    also whether its manifest is there.
    """

    def real(path: Path) -> bool:
        below = [path, *path.parents][: len(path.relative_to(run).parts)]
        if any(each.is_symlink() or each.name.startswith(".") for each in below):
            return False
        if not pattern.startswith("*/"):
            return path.is_dir() if pattern.endswith("/") else path.is_file()
        return is_file(path / MANIFEST) and path.parent.name not in (*BEGUN, POOLED)

    return real


def _leftovers(run: Path) -> Iterator[Item]:
    """What killed processes, and killed cleanings, left under a hidden name."""
    for parent, folders, files in os.walk(run, followlinks=False):
        hidden = [name for name in (*folders, *files) if name.startswith(HIDDEN)]
        folders[:] = sorted(set(folders) - set(hidden))
        for name in sorted(hidden):
            path = Path(parent, name)
            if is_folder(path) or is_file(path):
                yield _item(run, "leftovers", "", path.relative_to(run).as_posix(), [path])
