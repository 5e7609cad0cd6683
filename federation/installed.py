"""Classes that packages installed beside this one offer by entry points, and the digest that identifies such a package.

Nothing here imports a package's code: names, versions and digests are read from files.
"""

from __future__ import annotations

import csv
import hashlib
import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import invalidate_caches
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

PREFIX = "consilium."
"""Prefix of the entry points' groups: `consilium.algorithms`."""
MODULE = re.compile(r"\.(py|(abi3|cpython-\w+|cp\w+)[\w.-]*\.(so|pyd)|so|pyd)$")


@dataclass(frozen=True)
class Offer:
    """An entry point. group: as `algorithms`; name: in YAML; distribution: the package's name, as PyPI compares names
    (lower case, `-` between words); version: its version; place: its folder, as site-packages.
    """

    group: str
    name: str
    distribution: str
    version: str
    place: Path
    point: EntryPoint = field(compare=False, repr=False)
    package: Distribution = field(compare=False, repr=False)

    @property
    def source(self) -> str:
        """The package and its version, as messages name it."""
        return f"{self.distribution} {self.version}"

    @property
    def text(self) -> str:
        """What is offered, as messages name it."""
        return f"{self.name} ({self.point.value} of {self.source})"

    @property
    def digest(self) -> str:
        """The package's digest. Raises: ValueError: see `digest_of`."""
        return _digested(self)


def offers(group: str) -> tuple[Offer, ...]:
    """What installed packages offer in a group, in the order of names. group: as `algorithms`."""
    return _found(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _found(group: str, path: tuple[str, ...]) -> tuple[Offer, ...]:
    found = [
        Offer(group, point.name, canonical(point.dist.name), point.dist.version, _place(point.dist), point, point.dist)
        for point in entry_points(group=PREFIX + group)
        if point.dist is not None
    ]
    return tuple(sorted(found, key=lambda offer: (offer.name, offer.distribution)))


def _place(distribution: Distribution) -> Path:
    return Path(str(distribution.locate_file("."))).resolve()


@lru_cache(maxsize=64)
def _digested(offer: Offer) -> str:
    """Computed once in a process, before anything of the package is imported."""
    return digest_of(offer.package)


def canonical(name: str) -> str:
    """A package's name in the form in which PyPI compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def digest_of(distribution: Distribution) -> str:
    """The digest of an installed package: the SHA-256, in hexadecimal, of a text.

    The text has a line `<name> <version>`, and then a line `<SHA-256 of the file>  <path>` for each file, as
    `sha256sum` writes it, in the order of paths. Files are those that the installation recorded inside site-packages,
    but those in `__pycache__`, and of the folder `*.dist-info` only `entry_points.txt`: the others say who installed
    it, with which tool. So the same wheel has the same digest on every machine. Not in it: packages that this one
    needs, scripts outside of site-packages, and files that were added after the installation.

    Raises:
        ValueError: the package has no list of files, is installed in editable form, or lacks a file.
        OSError: a file cannot be read.
    """
    who = f"{canonical(distribution.name)} {distribution.version}"
    direct = distribution.read_text("direct_url.json") or ""
    if re.search(r'"editable"\s*:\s*true', direct):
        raise ValueError(f"{who} is installed in editable form, so it has no fixed files: install it without -e")
    lines = [who]
    for path in sorted(_files(distribution, who)):
        file = Path(str(distribution.locate_file(path)))
        if not file.is_file():
            raise ValueError(f"{who} lacks its file {path}: install it again")
        lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}")
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _files(distribution: Distribution, who: str) -> list[str]:
    record = distribution.read_text("RECORD")  # `distribution.files` leaves out what is missing, from Python 3.12 on
    if not record:
        raise ValueError(f"{who} has no list of its files (RECORD): install it with pip, from a wheel")
    paths = [PurePosixPath(row[0]) for row in csv.reader(record.splitlines()) if row]
    return [str(path) for path in paths if _counts(path)]


def _counts(path: PurePosixPath) -> bool:
    if ".." in path.parts or path.is_absolute() or "__pycache__" in path.parts:
        return False
    return not path.parts[0].endswith((".dist-info", ".egg-info")) or path.name == "entry_points.txt"


def load(offer: Offer) -> object:
    """Import what an entry point names. The package's code runs here, for the first time.

    Raises:
        ValueError: the module is not one of the package's files, or it cannot be imported; in words, with the cause.
    """
    _check_own_module(offer)
    try:
        return offer.point.load()
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"{offer.text} cannot be imported ({said}); repair or remove {offer.source}") from error


def _check_own_module(offer: Offer) -> None:
    """Refuse an entry point whose module is another package's: its digest would not cover the code that runs."""
    module = offer.point.module
    place = module.replace(".", "/")
    own = {MODULE.sub("", path): path for path in _files(offer.package, offer.source) if MODULE.search(path)}
    path = own.get(place) or own.get(f"{place}/__init__")
    if path is None:
        raise ValueError(f"{offer.text}: {module} is no file of {offer.source}; repair its entry point")
    top, root = module.partition(".")[0], offer.place
    spec = find_spec(top)
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if origin is None or not origin.is_relative_to(root) or str(origin.relative_to(root)) not in own.values():
        raise ValueError(f"{offer.text}: Python finds {top} at {origin}, not in {offer.source}; rename one")


def forget() -> None:
    """Look at the installed packages anew, after one was installed or removed in this process."""
    invalidate_caches()
    _found.cache_clear()
    _digested.cache_clear()
