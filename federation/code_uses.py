"""Which names of its module and of its imports a function's bytecode uses, and which of them it changes."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from federation.code_origin import Undigestible, find_edition, find_library_name

Uses: TypeAlias = list[tuple[str, Any]]
"""(dotted name, value) of each use; the value is a text where the object cannot be found."""
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


def list_steps(code: types.CodeType) -> list[Step]:
    """The instructions of code; one that loads or stores two variables becomes two."""
    steps = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL"):
            continue
        pair = re.findall(r"(?:LOAD|STORE)_FAST", instruction.opname) if isinstance(instruction.argval, tuple) else ()
        if len(pair) == 2:
            steps += [Step(op, arg, instruction) for op, arg in zip(pair, instruction.argval, strict=True)]
        else:
            steps.append(Step(instruction.opname, instruction.argval, instruction))
    return steps


def list_uses(function: types.FunctionType, where: str) -> Uses:
    """What a function uses of its module, of modules in its closure and of modules that it imports, sorted by name.

    Of own modules only the names in use count, as `module.name`; a module that is used as a value counts as a whole.

    Raises:
        Undigestible: it chooses what it uses at run time, for example by `globals()`.
    """
    closure_modules = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if isinstance(value := cell_content(cell), types.ModuleType):
            closure_modules[name] = value
    uses = dict(_find_uses(function.__code__, function.__globals__, closure_modules, where))
    return sorted(uses.items(), key=lambda pair: pair[0])


def cell_content(cell: types.CellType) -> Any:
    """The value of a closure cell; None if it is not set."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _find_uses(
    code: types.CodeType, space: Mapping[str, Any], closure_modules: Mapping[str, types.ModuleType], where: str
) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that code and its inner functions use of their module and imports."""
    steps = list_steps(code)
    modules = dict(closure_modules)
    for place, step in enumerate(steps):
        if step.op == "IMPORT_NAME":
            yield from _find_imports(steps, place, space, modules, where)
    for place, step in enumerate(steps):
        if not step.op.startswith("LOAD_"):
            continue
        name = step.arg
        is_global = step.op in ("LOAD_GLOBAL", "LOAD_NAME")
        if isinstance(name, str) and not step.op.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST")):
            if name in modules and (not is_global or name not in space):
                yield from _resolve_chain(name, modules[name], steps, place, where)
            elif is_global and name in space and name not in OF_THE_PLACE:
                yield from _resolve_chain(name, space[name], steps, place, where)
            elif is_global and name in DYNAMIC and hasattr(builtins, name):
                raise Undigestible(
                    f"{where}: calls {name}(), so nobody can tell what it uses; name it in the code instead"
                )
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _find_uses(inner, space, modules, where)


def _resolve_chain(name: str, value: Any, steps: list[Step], place: int, where: str) -> Iterator[tuple[str, Any]]:
    """Resolve `module.inner.name` to one value, with the dotted name as far as it was resolved."""
    while isinstance(value, types.ModuleType):
        place += 1
        attribute = steps[place].arg if place < len(steps) and steps[place].op in GETS else None
        if (value.__name__, attribute) in HIDDEN:
            raise Undigestible(f"{where}: uses {value.__name__}.{attribute}, so nobody can tell which code it means")
        if attribute is None or find_edition(value.__name__) is not None:
            break
        name, value = f"{name}.{attribute}", _find_attribute(value, attribute, where)
    if (getattr(value, "__module__", None), getattr(value, "__name__", None)) in HIDDEN:
        raise Undigestible(f"{where}: uses {name}, so nobody can tell which code it means; import it by name")
    yield name, value


def _find_attribute(module: types.ModuleType, name: str, where: str) -> Any:
    """An attribute of an own module; a submodule of a package is imported, as the code would do."""
    if name in vars(module):
        return vars(module)[name]
    if hasattr(module, "__path__") and _can_find_module(f"{module.__name__}.{name}"):
        return _import_module(f"{module.__name__}.{name}", where)
    return getattr(module, name, ABSENT)


def _find_imports(
    steps: list[Step], place: int, space: Mapping[str, Any], modules: dict[str, types.ModuleType], where: str
) -> Iterator[tuple[str, Any]]:
    """The names that an `import` inside a function brings; variables that are modules are added to `modules`."""
    level, names = steps[place - 2].arg, steps[place - 1].arg
    name = str(steps[place].arg)
    if level:
        package = str(space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0])
        name = importlib.util.resolve_name("." * int(level) + name, package)
    if (version := find_edition(name)) is not None or not _can_find_module(name):
        yield f"import {name}", version or ABSENT
        return
    leaf = _import_module(name, where)
    if not names:
        renamed = steps[place + 1].op == "IMPORT_FROM"
        bound = next(step.arg for step in steps[place + 1 :] if step.op.startswith("STORE_"))
        modules[bound] = leaf if renamed else _import_module(name.partition(".")[0], where)
        if not any(step.arg == bound and step.op.startswith("LOAD_") for step in steps):
            yield f"import {name}", leaf  # imported for its side effects
        return
    for step, next_step in zip(steps[place + 1 :], steps[place + 2 :], strict=False):
        if step.op == "IMPORT_NAME":
            break
        if step.op == "IMPORT_FROM" and step.arg in names:
            value = _find_attribute(leaf, step.arg, where)
            if isinstance(value, types.ModuleType) and next_step.op.startswith("STORE_"):
                modules[next_step.arg] = value
            else:
                yield f"from {name} import {step.arg}", value


def _can_find_module(name: str) -> bool:
    """Whether Python finds a module of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import_module(name: str, where: str) -> types.ModuleType:
    """The imported module. Raises: Undigestible: its import fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # its own code
        raise Undigestible(f"{where}: imports {name}, which fails ({type(error).__name__}: {error})") from error


def refuse_changes(function: types.FunctionType, where: str) -> None:
    """Raises: Undigestible: it changes values outside of itself, so that a second call may give another result."""
    code, space = function.__code__, function.__globals__
    closure_values = {
        name: cell_content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    }
    defaults = dict(
        zip(reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False)
    )
    defaults |= function.__kwdefaults__ or {}
    for how, name, is_set in list_changes(code):
        if how == "global":
            value, is_held = space.get(name), name in space or is_set
        elif how == "around":
            value, is_held = closure_values.get(name), name in closure_values
        else:
            value, is_held = defaults.get(name), name in defaults and not is_set
        if is_held and (is_set or _is_changeable(value)):
            raise Undigestible(
                f"{where}: changes {name}, which stands outside of it, so nobody can tell whether it is the same "
                "after a call; make it inside of the function, or give it as an argument"
            )


def _is_changeable(value: object) -> bool:
    """Whether a value of own code can be changed in place."""
    if isinstance(value, types.ModuleType):
        return find_edition(value.__name__) is None
    return not isinstance(value, FIXED) and find_library_name(value) is None


CHANGING = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove", "discard"),
    *("appendleft", "extendleft", "popleft", "sort", "reverse", "subtract", "difference_update", "fill", "itemset"),
    *("__setitem__", "__setattr__", "__delitem__", "put", "push", "write"),
}
Origin: TypeAlias = tuple[str, str] | None
"""Of a value on the stack: how code reaches it ("global", "around" = closure, "given" = argument), and its name."""


def list_changes(code: types.CodeType, outer: frozenset[str] | None = None) -> Iterator[tuple[str, str, bool]]:
    """(how code reaches it, name, whether the name itself is assigned) of each object that code changes."""
    around = frozenset(code.co_freevars) if outer is None else outer
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if outer is None else ()
    variables: dict[str, Origin] = {name: ("given", name) for name in arguments}
    stack: list[Origin] = []
    for op, arg, raw in list_steps(code):
        if op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield "global", arg, True
        elif op in ("STORE_DEREF", "DELETE_DEREF") and arg in around:
            yield "around", arg, True
        elif (changed := _find_changed_origin(op, arg, raw, stack)) is not None:
            yield (*changed, False)
        _apply_step(op, arg, raw, stack, variables, around)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from list_changes(inner, around & frozenset(inner.co_freevars))


def _find_changed_origin(op: str, arg: Any, raw: dis.Instruction, stack: list[Origin]) -> Origin:
    """The origin of the object that an instruction changes in place; None if it changes no known one."""
    depths = {"STORE_SUBSCR": 2, "DELETE_SUBSCR": 2, "STORE_ATTR": 1, "DELETE_ATTR": 1, "STORE_SLICE": 3}
    if op == "BINARY_OP" and raw.argrepr.endswith("="):
        depths = {op: 2}
    if op in GETS and (arg in CHANGING or (arg.endswith("_") and not arg.startswith("_"))):
        depths = {op: 1}
    depth = depths.get(op, 0)
    return stack[-depth] if 0 < depth <= len(stack) else None


def _apply_step(
    op: str, arg: Any, raw: dis.Instruction, stack: list[Origin], variables: dict[str, Origin], around: frozenset[str]
) -> None:
    """Apply one instruction to the simulated stack, without jumps: each change lies within one expression."""
    double = isinstance(raw.argval, tuple) and op in ("LOAD_FAST", "STORE_FAST")
    effect = (1 if op == "LOAD_FAST" else -1) if double else dis.stack_effect(raw.opcode, raw.arg, jump=False)
    top = stack[-1] if stack else None
    if op in ("LOAD_GLOBAL", "LOAD_NAME"):
        stack.extend([("global", arg)] * effect)  # one may be the empty slot that a call needs
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
        keeps_top = op.startswith(("STORE_", "POP_", "DELETE_", "JUMP", "RETURN")) or op in (
            "BINARY_SUBSCR",
            "BINARY_SLICE",
        )
        if effect <= 0 and not keeps_top and stack:
            stack[-1] = None
