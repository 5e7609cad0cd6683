"""Whether code is a library's, which enters digests by name and version, or a user's own, which is followed.

The place of the file decides, not its name: a user's `examples.py` is own code even if an installed distribution has a
package of that name. An object that a library keeps under a name, such as `random.uniform` with its generator or
`os.environ`, counts as library code too, whatever its present state.
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
"""Folders of installed packages. A package in editable form has its files outside of them, so it counts as own code."""
HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class that was defined at run time; other classes are compiled."""
BOXES = (dict, list, set, frozenset, tuple, types.CodeType, types.ModuleType, types.CellType)


class Undigestible(ValueError):
    """Code holds or does something that may differ the next time, so it has no digest."""


def find_edition(module: str) -> str | None:
    """Name and version of the library that contains a module; None for own code, and for a module that does not exist.

    A compiled module of the user counts by its bytes.
    """
    top = module.partition(".")[0]
    if top == "__main__":  # a notebook's cells have this name, though a library's file runs them
        return None
    place = _find_module_place(module)
    if place is None:
        return _python_edition() if top in sys.builtin_module_names or top in sys.stdlib_module_names else None
    return _find_edition_at(top, place)


@functools.cache
def _find_edition_at(top: str, place: str) -> str | None:
    """Name and version of the library whose file or folder is `place`; None for own code."""
    path = Path(place)
    if top in OURS and path.resolve().is_relative_to(ROOT):
        return f"consilium {_find_version('consilium')}"
    if SITE & set(path.parts):
        if names := sorted(set(_distributions_by_module().get(top, ()))):
            return " and ".join(f"{name} {_find_version(name)}" for name in names)
    elif any(path.is_relative_to(folder) for folder in _standard_folders()):
        return _python_edition()
    if path.suffix in (".so", ".pyd", ".dylib"):
        return f"compiled {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return None


def _find_module_place(module: str) -> str | None:
    """The file or folder of a module, or of the package that contains it; nothing is imported."""
    name = module
    while name:
        loaded_module = sys.modules.get(name)
        if place := getattr(loaded_module, "__file__", None) or next(
            iter(getattr(loaded_module, "__path__", ())), None
        ):
            return str(place)
        if loaded_module is not None and name == module and "." not in name:
            return None  # built in, or created without a file
        name = name.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)


def find_library_name(value: object) -> str | None:
    """The name under which a library keeps this very object, with the library's version; None if no library does."""
    if isinstance(value, type):
        return _find_class_name(value)
    if type(value) in BOXES or (isinstance(value, types.FunctionType) and not is_library_function(value)):
        return None
    for module, name in _list_possible_names(value):
        if (version := find_edition(module)) is not None and _find_attribute(module, name) is value:
            return f"{module}.{name} of {version}"
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | property):
        return None
    return _find_instance_name(value)


def is_library_function(function: types.FunctionType) -> bool:
    """Whether a library's source defines this function; `__module__` may be that of a wrapped function."""
    module = function.__globals__.get("__name__")
    loaded_module = sys.modules.get(module) if isinstance(module, str) else None
    return (
        loaded_module is not None
        and vars(loaded_module) is function.__globals__
        and find_edition(str(module)) is not None
    )


def _find_class_name(kind: type) -> str | None:
    """Module, name and library version of a class of a library; None for other classes."""
    module, name = kind.__module__, kind.__qualname__
    version = find_edition(module) if isinstance(module, str) else None
    if version is None or (kind.__flags__ & HEAP and _find_attribute(module, name) is not kind):
        return None  # own code, or created by a call to a library
    return f"{module}.{name} of {version}"


def _list_possible_names(value: object) -> Iterator[tuple[str, str]]:
    """(module, name) pairs under which an object says that it can be found."""
    if isinstance(owner := getattr(value, "__self__", None), types.ModuleType):
        yield owner.__name__, str(getattr(value, "__name__", ""))
    module = getattr(value, "__module__", None)
    for attribute in ("__qualname__", "__name__"):
        name = getattr(value, attribute, None)
        if isinstance(module, str) and isinstance(name, str):
            yield module, name


def _find_instance_name(value: object) -> str | None:
    """The name of an object in the module of its class, or in a package around that module."""
    module = type(value).__module__ if _find_class_name(type(value)) else ""
    while module and module != "builtins":
        version = find_edition(module)
        for name, candidate in list(vars(sys.modules[module]).items()) if version and module in sys.modules else ():
            if candidate is value:
                return f"{module}.{name} of {version}"
        module = module.rpartition(".")[0]
    return None


def _find_attribute(module: str, name: str) -> object:
    """The value at a dotted name in an imported module, or None."""
    value: object = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _python_edition() -> str:
    """ "Python" with major and minor version."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    """The folders of the standard library."""
    return tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")})


@functools.cache
def _distributions_by_module() -> Mapping[str, list[str]]:
    """Top-level module -> names of the installed distributions that contain it."""
    return metadata.packages_distributions()


@functools.cache
def _find_version(distribution: str) -> str:
    """The version of an installed distribution; empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
