"""What a function's bytecode uses of its module and of what it imports, and what it changes there."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from federation.code_origin import Undigestible, edition, library_name

Uses: TypeAlias = list[tuple[str, Any]]
"""What is used, by its dotted name: a value, or a text for what cannot be had."""
DYNAMIC = ("globals", "eval", "exec", "__import__", "compile")
HIDDEN = {("sys", "modules"), ("importlib", "import_module"), ("importlib", "__import__"), ("runpy", "run_path")}
OF_THE_PLACE = ("__name__", "__file__", "__doc__", "__builtins__", "__package__", "__spec__", "__loader__", "__path__")
GETS = ("LOAD_ATTR", "LOAD_METHOD")
ABSENT = "what is not there"
FIXED = (str, bytes, int, float, complex, tuple, frozenset, range, type(None))


class Step(NamedTuple):
    """An instruction."""

    op: str
    arg: Any
    raw: dis.Instruction


def steps_of(code: types.CodeType) -> list[Step]:
    """Its instructions; those that load or store two variables at once are two."""
    found = []
    for one in dis.get_instructions(code):
        if one.opname in ("EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL"):
            continue
        pair = re.findall(r"(?:LOAD|STORE)_FAST", one.opname) if isinstance(one.argval, tuple) else ()
        if len(pair) == 2:
            found += [Step(op, arg, one) for op, arg in zip(pair, one.argval, strict=True)]
        else:
            found.append(Step(one.opname, one.argval, one))
    return found


def uses_of(function: types.FunctionType, where: str) -> Uses:
    """What a function uses of its module, of modules around it and of modules that it imports, in a fixed order.

    Of own modules only what is used counts, by `module.name`; a module that is used as a value is given whole.

    Raises:
        Undigestible: what it uses is chosen while it runs, as by `globals()`.
    """
    around = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if isinstance(value := content_of(cell), types.ModuleType):
            around[name] = value
    found = dict(_uses(function.__code__, function.__globals__, around, where))
    return sorted(found.items(), key=lambda pair: pair[0])


def content_of(cell: types.CellType) -> Any:
    """What a closure holds; None if it is not set."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _uses(
    code: types.CodeType, space: Mapping[str, Any], around: Mapping[str, types.ModuleType], where: str
) -> Iterator[tuple[str, Any]]:
    steps = steps_of(code)
    modules = dict(around)
    for place, step in enumerate(steps):
        if step.op == "IMPORT_NAME":
            yield from _imported(steps, place, space, modules, where)
    for place, step in enumerate(steps):
        if not step.op.startswith("LOAD_"):
            continue
        name = step.arg
        is_global = step.op in ("LOAD_GLOBAL", "LOAD_NAME")
        if isinstance(name, str) and not step.op.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST")):
            if name in modules and (not is_global or name not in space):
                yield from _chain(name, modules[name], steps, place, where)
            elif is_global and name in space and name not in OF_THE_PLACE:
                yield from _chain(name, space[name], steps, place, where)
            elif is_global and name in DYNAMIC and hasattr(builtins, name):
                raise Undigestible(
                    f"{where}: calls {name}(), so nobody can tell what it uses; name it in the code instead"
                )
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _uses(inner, space, modules, where)


def _chain(name: str, value: Any, steps: list[Step], place: int, where: str) -> Iterator[tuple[str, Any]]:
    """`module.inner.name` as the one value that is meant."""
    while isinstance(value, types.ModuleType):
        place += 1
        attribute = steps[place].arg if place < len(steps) and steps[place].op in GETS else None
        if (value.__name__, attribute) in HIDDEN:
            raise Undigestible(f"{where}: uses {value.__name__}.{attribute}, so nobody can tell which code it means")
        if attribute is None or edition(value.__name__) is not None:
            break
        name, value = f"{name}.{attribute}", _attribute(value, attribute, where)
    if (getattr(value, "__module__", None), getattr(value, "__name__", None)) in HIDDEN:
        raise Undigestible(f"{where}: uses {name}, so nobody can tell which code it means; import it by name")
    yield name, value


def _attribute(module: types.ModuleType, name: str, where: str) -> Any:
    """Of an own module; a part of a package is imported, as the code would."""
    if name in vars(module):
        return vars(module)[name]
    if hasattr(module, "__path__") and _is_there(f"{module.__name__}.{name}"):
        return _module(f"{module.__name__}.{name}", where)
    return getattr(module, name, ABSENT)


def _imported(
    steps: list[Step], place: int, space: Mapping[str, Any], modules: dict[str, types.ModuleType], where: str
) -> Iterator[tuple[str, Any]]:
    """What an `import` inside a function brings; its variables that are modules are added to `modules`."""
    level, names = steps[place - 2].arg, steps[place - 1].arg
    name = str(steps[place].arg)
    if level:
        package = str(space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0])
        name = importlib.util.resolve_name("." * int(level) + name, package)
    if (version := edition(name)) is not None or not _is_there(name):
        yield f"import {name}", version or ABSENT
        return
    leaf = _module(name, where)
    if not names:
        renamed = steps[place + 1].op == "IMPORT_FROM"
        bound = next(step.arg for step in steps[place + 1 :] if step.op.startswith("STORE_"))
        modules[bound] = leaf if renamed else _module(name.partition(".")[0], where)
        if not any(step.arg == bound and step.op.startswith("LOAD_") for step in steps):
            yield f"import {name}", leaf  # for what it does when it is imported
        return
    for one, then in zip(steps[place + 1 :], steps[place + 2 :], strict=False):
        if one.op == "IMPORT_NAME":
            break
        if one.op == "IMPORT_FROM" and one.arg in names:
            value = _attribute(leaf, one.arg, where)
            if isinstance(value, types.ModuleType) and then.op.startswith("STORE_"):
                modules[then.arg] = value
            else:
                yield f"from {name} import {one.arg}", value


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _module(name: str, where: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # its own code
        raise Undigestible(f"{where}: imports {name}, which fails ({type(error).__name__}: {error})") from error


def refuse_changes(function: types.FunctionType, where: str) -> None:
    """Raises: Undigestible: it changes what stands around it, so that it is not the same after a call."""
    code, space = function.__code__, function.__globals__
    held = {name: content_of(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    given = dict(
        zip(reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False)
    )
    given |= function.__kwdefaults__ or {}
    for how, name, is_set in changes_of(code):
        if how == "global":
            value, is_held = space.get(name), name in space or is_set
        elif how == "around":
            value, is_held = held.get(name), name in held
        else:
            value, is_held = given.get(name), name in given and not is_set
        if is_held and (is_set or _is_changeable(value)):
            raise Undigestible(
                f"{where}: changes {name}, which stands outside of it, so nobody can tell whether it is the same "
                "after a call; make it inside of the function, or give it as an argument"
            )


def _is_changeable(value: object) -> bool:
    if isinstance(value, types.ModuleType):
        return edition(value.__name__) is None
    return not isinstance(value, FIXED) and library_name(value) is None


CHANGING = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove", "discard"),
    *("appendleft", "extendleft", "popleft", "sort", "reverse", "subtract", "difference_update", "fill", "itemset"),
    *("__setitem__", "__setattr__", "__delitem__", "put", "push", "write"),
}
Origin: TypeAlias = tuple[str, str] | None
"""Of a value on the stack: "global", "around" or "given", and its name."""


def changes_of(code: types.CodeType, outer: frozenset[str] | None = None) -> Iterator[tuple[str, str, bool]]:
    """Which names' contents code changes, by how they reach it, and whether the name itself is given another value."""
    around = frozenset(code.co_freevars) if outer is None else outer
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if outer is None else ()
    variables: dict[str, Origin] = {name: ("given", name) for name in given}
    stack: list[Origin] = []
    for op, arg, raw in steps_of(code):
        if op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield "global", arg, True
        elif op in ("STORE_DEREF", "DELETE_DEREF") and arg in around:
            yield "around", arg, True
        elif (changed := _changed(op, arg, raw, stack)) is not None:
            yield (*changed, False)
        _do(op, arg, raw, stack, variables, around)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from changes_of(inner, around & frozenset(inner.co_freevars))


def _changed(op: str, arg: Any, raw: dis.Instruction, stack: list[Origin]) -> Origin:
    depths = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_ATTR": 1, "DELETE_ATTR": 1, "STORE_SLICE": 3}
    if op == "BINARY_OP" and raw.argrepr.endswith("="):
        depths = {op: 2}
    if op in GETS and (arg in CHANGING or (arg.endswith("_") and not arg.startswith("_"))):
        depths = {op: 1}
    depth = depths.get(op, 0)
    return stack[-depth] if 0 < depth <= len(stack) else None


def _do(
    op: str, arg: Any, raw: dis.Instruction, stack: list[Origin], variables: dict[str, Origin], around: frozenset[str]
) -> None:
    """One instruction, as if there were no jumps: what matters stands within one expression."""
    double = isinstance(raw.argval, tuple) and op in ("LOAD_FAST", "STORE_FAST")
    effect = (1 if op == "LOAD_FAST" else -1) if double else dis.stack_effect(raw.opcode, raw.arg, jump=False)
    top = stack[-1] if stack else None
    if op in ("LOAD_GLOBAL", "LOAD_NAME"):
        stack.extend([("global", arg)] * effect)  # one may be the empty place that a call needs
    elif op.startswith(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")):
        stack[max(0, len(stack) + min(effect - 1, 0)) :] = [("around", arg) if arg in around else variables.get(arg)]
    elif op.startswith("LOAD_FAST"):
        stack.append(variables.get(arg))
    elif op == "COPY":
        stack.append(stack[-arg] if arg <= len(stack) else None)
    elif op == "SWAP" and arg <= len(stack):
        stack[-1], stack[-arg] = stack[-arg], stack[-1]
    elif op in GETS:
        stack.extend([top] * effect)
    else:
        if op in ("STORE_FAST", "STORE_DEREF", "STORE_NAME"):
            variables[arg] = top
        del stack[max(0, len(stack) + min(effect, 0)) :]
        stack.extend([None] * effect)
        kept = op.startswith(("STORE_", "POP_", "DELETE_", "JUMP", "RETURN")) or op in ("BINARY_SUBSCR", "BINARY_SLICE")
        if effect <= 0 and not kept and stack:
            stack[-1] = None
