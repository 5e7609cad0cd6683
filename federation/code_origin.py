"""Whose code it is: of a library, which counts by its name and version, or a person's own, which is followed.

The file's place decides, not its name: a person's `examples.py` is own code, though an installed distribution has a
package of that name. What a library keeps under a name, as `random.uniform` with its generator or `os.environ`, is its
own too, whatever it holds at the moment.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

OURS = ("federation", "personalize", "harmonize", "privacy", "evaluation", "pipelines", "consilium")
ROOT = Path(__file__).resolve().parents[1]
SITE = {"site-packages", "dist-packages"}
"""Folders of installed packages. The files of one that is installed in editable form lie elsewhere: own code."""
HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class that was made while the process ran. Others are compiled."""
BOXES = (dict, list, set, frozenset, tuple, types.CodeType, types.ModuleType, types.CellType)


class Undigestible(ValueError):
    """Code holds or does something of which nobody can tell whether it is the same another time."""


def edition(module: str) -> str | None:
    """Name and version of the library that a module is of; None for own code, and for a module that is not there.

    A compiled module of one's own counts by its bytes.
    """
    top = module.partition(".")[0]
    if top == "__main__":  # a notebook's cells have this name, though a library's file runs them
        return None
    place = _place_of(module)
    if place is None:
        return _python() if top in sys.builtin_module_names or top in sys.stdlib_module_names else None
    return _edition_at(top, place)


@functools.cache
def _edition_at(top: str, place: str) -> str | None:
    path = Path(place)
    if top in OURS and path.resolve().is_relative_to(ROOT):
        return f"consilium {_version('consilium')}"
    if SITE & set(path.parts):
        if names := sorted(set(_installed().get(top, ()))):
            return " and ".join(f"{name} {_version(name)}" for name in names)
    elif any(path.is_relative_to(folder) for folder in _standard()):
        return _python()
    if path.suffix in (".so", ".pyd", ".dylib"):
        return f"compiled {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return None


def _place_of(module: str) -> str | None:
    """The file or folder of a module, or of the package that it is in; nothing is imported."""
    name = module
    while name:
        found = sys.modules.get(name)
        if place := getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None):
            return str(place)
        if found is not None and name == module and "." not in name:
            return None  # built in, or made by hand
        name = name.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)


def library_name(value: object) -> str | None:
    """Under which name a library keeps this very object, with its version; None if it does not."""
    if isinstance(value, type):
        return _class_name(value)
    if type(value) in BOXES or (isinstance(value, types.FunctionType) and not of_library(value)):
        return None
    for module, name in _names_of(value):
        if (version := edition(module)) is not None and _at(module, name) is value:
            return f"{module}.{name} of {version}"
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | property):
        return None
    return _kept_name(value)


def of_library(function: types.FunctionType) -> bool:
    """Whether a library's source has this function; its `__module__` may be that of what it wraps."""
    module = function.__globals__.get("__name__")
    found = sys.modules.get(module) if isinstance(module, str) else None
    return found is not None and vars(found) is function.__globals__ and edition(str(module)) is not None


def _class_name(kind: type) -> str | None:
    module, name = kind.__module__, kind.__qualname__
    version = edition(module) if isinstance(module, str) else None
    if version is None or (kind.__flags__ & HEAP and _at(module, name) is not kind):
        return None  # own, or made by a call to a library
    return f"{module}.{name} of {version}"


def _names_of(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(owner := getattr(value, "__self__", None), types.ModuleType):
        yield owner.__name__, str(getattr(value, "__name__", ""))
    module = getattr(value, "__module__", None)
    for attribute in ("__qualname__", "__name__"):
        name = getattr(value, attribute, None)
        if isinstance(module, str) and isinstance(name, str):
            yield module, name


def _kept_name(value: object) -> str | None:
    """The name of an object that the module of its class, or a package around it, made."""
    module = type(value).__module__ if _class_name(type(value)) else ""
    while module and module != "builtins":
        version = edition(module)
        for name, kept in list(vars(sys.modules[module]).items()) if version and module in sys.modules else ():
            if kept is value:
                return f"{module}.{name} of {version}"
        module = module.rpartition(".")[0]
    return None


def _at(module: str, name: str) -> object:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _python() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def _standard() -> tuple[str, ...]:
    return tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")})


@functools.cache
def _installed() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@functools.cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
