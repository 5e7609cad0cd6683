"""Classes that other installed packages offer by entry points, and the digest that identifies such a package.

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
    (lower case, `-` between words); version: its version; place: its folder, such as site-packages.
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
        """Name and version of the package, as messages show them."""
        return f"{self.distribution} {self.version}"

    @property
    def text(self) -> str:
        """Name of the class, its code and its package, as messages show them."""
        return f"{self.name} ({self.point.value} of {self.source})"

    @property
    def digest(self) -> str:
        """The package's digest. Raises: ValueError: see `compute_package_digest`."""
        return _cached_digest(self)


def list_offers(group: str) -> tuple[Offer, ...]:
    """The offers of installed packages in a group, sorted by name. group: as `algorithms`."""
    return _find_offers(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _find_offers(group: str, path: tuple[str, ...]) -> tuple[Offer, ...]:
    """The offers of a group, sorted by name. path: `sys.path`, so that a change of it is a new search."""
    matches = [
        Offer(
            group,
            point.name,
            canonical_name(point.dist.name),
            point.dist.version,
            _package_place(point.dist),
            point,
            point.dist,
        )
        for point in entry_points(group=PREFIX + group)
        if point.dist is not None
    ]
    return tuple(sorted(matches, key=lambda offer: (offer.name, offer.distribution)))


def _package_place(distribution: Distribution) -> Path:
    """The folder in which a package is installed."""
    return Path(str(distribution.locate_file("."))).resolve()


@lru_cache(maxsize=64)
def _cached_digest(offer: Offer) -> str:
    """The digest of an offer's package, computed once in a process, before the package is imported."""
    return compute_package_digest(offer.package)


def canonical_name(name: str) -> str:
    """A package's name in the form in which PyPI compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def compute_package_digest(distribution: Distribution) -> str:
    """The digest of an installed package: the SHA-256, in hexadecimal, of a text.

    The text has a line `<name> <version>`, and then a line `<SHA-256 of the file>  <path>` for each file, as
    `sha256sum` writes it, in the order of paths. Files are those that the installation recorded inside site-packages,
    except those in `__pycache__`; of the folder `*.dist-info` only `entry_points.txt` counts, because the others
    depend on the tool that installed it. So the same wheel has the same digest on every machine. The digest does not
    cover packages that this one needs, scripts outside of site-packages, and files added after the installation.

    Raises:
        ValueError: the package has no list of files, is installed in editable form, or lacks a file.
        OSError: a file cannot be read.
    """
    package_label = f"{canonical_name(distribution.name)} {distribution.version}"
    direct = distribution.read_text("direct_url.json") or ""
    if re.search(r'"editable"\s*:\s*true', direct):
        raise ValueError(
            f"{package_label} is installed in editable form, so it has no fixed files: install it without -e"
        )
    lines = [package_label]
    for path in sorted(_list_files(distribution, package_label)):
        file = Path(str(distribution.locate_file(path)))
        if not file.is_file():
            raise ValueError(f"{package_label} lacks its file {path}: install it again")
        lines.append(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {path}")
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _list_files(distribution: Distribution, package_label: str) -> list[str]:
    """The paths of the files that a package's digest covers. Raises: ValueError: it has no list of files."""
    record = distribution.read_text("RECORD")  # `distribution.files` leaves out what is missing, from Python 3.12 on
    if not record:
        raise ValueError(f"{package_label} has no list of its files (RECORD): install it with pip, from a wheel")
    paths = [PurePosixPath(row[0]) for row in csv.reader(record.splitlines()) if row]
    return [str(path) for path in paths if _is_digested(path)]


def _is_digested(path: PurePosixPath) -> bool:
    """Whether the digest covers a file that the installation recorded."""
    if ".." in path.parts or path.is_absolute() or "__pycache__" in path.parts:
        return False
    return not path.parts[0].endswith((".dist-info", ".egg-info")) or path.name == "entry_points.txt"


def load_offer(offer: Offer) -> object:
    """Import the object of an entry point. This is the first time that code of the package runs.

    Raises:
        ValueError: the module is not one of the package's files, or it cannot be imported; the message gives the cause.
    """
    _check_own_module(offer)
    try:
        return offer.point.load()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{offer.text} cannot be imported ({reason}); repair or remove {offer.source}") from error


def _check_own_module(offer: Offer) -> None:
    """Refuse an entry point whose module is another package's: its digest would not cover the code that runs."""
    module = offer.point.module
    place = module.replace(".", "/")
    file_by_module = {
        MODULE.sub("", path): path for path in _list_files(offer.package, offer.source) if MODULE.search(path)
    }
    path = file_by_module.get(place) or file_by_module.get(f"{place}/__init__")
    if path is None:
        raise ValueError(f"{offer.text}: {module} is no file of {offer.source}; repair its entry point")
    top, root = module.partition(".")[0], offer.place
    spec = find_spec(top)
    origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if (
        origin is None
        or not origin.is_relative_to(root)
        or str(origin.relative_to(root)) not in file_by_module.values()
    ):
        raise ValueError(f"{offer.text}: Python finds {top} at {origin}, not in {offer.source}; rename one")


def forget_packages() -> None:
    """Forget all offers and digests, so that packages installed or removed in this process are noticed."""
    invalidate_caches()
    _find_offers.cache_clear()
    _cached_digest.cache_clear()
