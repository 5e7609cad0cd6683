"""The form of a message: every fact and tensor that it may hold, and what a reply's are of a patient.

A form is a frozen dataclass. A field is a fact, or a tensor, or tensors by name; its annotation says the rest:

    @dataclass(frozen=True, kw_only=True)
    class Extracted:
        cohort: Annotated[str, Of.NAME, Field(max_length=200)]
        values: Annotated[Tensor, Of.SCORE, Shape(axes=2)]
        noise: Annotated[float, Of.NAME] | Absent = ABSENT

What a hospital sends is compared with the forms of its request before it leaves (`privacy.release.gate`): a fact or a
tensor that no form declares stays. A form cannot tell whether a declared number is what it is called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum, StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, NotRequired, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict, get_type_hints

from privacy.message import Message
from privacy.pickled import reduce_error

T = TypeVar("T")


class Of(StrEnum):
    """What a field is of the hospital's patients."""

    NAME = "name"
    """A name, a digest, a setting, a fixed sentence: chosen by a program or a person."""
    COUNT = "count"
    """Numbers of patients, studies, images, files, messages."""
    SCORE = "score"
    """Numbers that were computed from patients' images and labels, as losses, distances and histograms."""
    SUM = "sum"
    """Sums over patients' values."""
    PARAMETER = "parameter"
    """Parameters that were learnt from patients, and what a method says with them."""
    MASKED = "masked parameter"
    """Numbers that are random to whoever lacks the secrets of `privacy.secure_sum`; only their sum says something."""
    SYNTHETIC = "synthetic image"
    """Images that a generator drew, with the labels that were asked of it."""
    IMAGE = "image"
    """Images of patients, or other records of theirs, as they are."""
    LABEL = "label"
    """Labels of patients, as they are, and which of them belong to one patient."""


RECORDS = frozenset({Of.IMAGE, Of.LABEL})
"""What is a patient's own: it leaves only where the hospital's policy says `pooling: true`."""


class Absent(Enum):
    """The type of a field that may be left out."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


def value_or_none(value: T | Absent | None) -> T | None:
    """The value of a field that may be left out; None where it was."""
    return None if isinstance(value, Absent) else value


class Shape(NamedTuple):
    """What a tensor must be. axes: how many, at most. numbers: at most. names: a pattern of the names, of a field with
    many tensors. whole: integers; None = either.
    """

    axes: int
    numbers: int = 2**32
    names: str = ""
    whole: bool | None = None


class Code(NamedTuple):
    """Of a question: the code with which a hospital refuses it where this fact is wrong."""

    code: str


class Text(NamedTuple):
    """The most characters that a fact may have as JSON, if not `MOST_TEXT`."""

    most: int


MOST_TEXT = 2**16
"""Characters of one fact as JSON. An image of 64 x 64 numbers is larger."""


class FieldForm(NamedTuple):
    """One field. kind: the type of a fact; of tensors it is not used. of: None in a question. code: empty = that of
    the message.
    """

    name: str
    kind: Any
    of: Of | None
    optional: bool
    shape: Shape | None
    most: int
    code: str


UNDECLARED = "extra_forbidden"
"""What is wrong with a fact beside a form, in pydantic's word."""
UNDECLARED_SETTING = "unexpected_keyword_argument"
"""The same of a key in a group of settings, which are dataclasses."""


class Flaw(NamedTuple):
    """What is wrong with a message at one of its fields, without the value. code: as in `FieldForm`."""

    where: str
    what: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@cache
def fields_of(form: type) -> tuple[FieldForm, ...]:
    """The fields of a form.

    Raises:
        TypeError: it says of tensors no `Shape`, or of a fact or a tensor two things.
    """
    hints = get_type_hints(form, include_extras=True)
    return tuple(
        _build_field(form, field.name, hints[field.name], field.default is not MISSING) for field in fields(form)
    )


def _build_field(form: type, name: str, hint: Any, has_default: bool) -> FieldForm:
    kind = _without_absent(hint)
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    whats = [note for note in notes if isinstance(note, Of)]
    shapes = [note for note in notes if isinstance(note, Shape)]
    most = max((note.most for note in notes if isinstance(note, Text)), default=MOST_TEXT)
    code = next((note.code for note in notes if isinstance(note, Code)), "")
    bare = get_args(kind)[0] if notes else kind
    is_tensor = bare is Tensor or (get_origin(bare) is not None and Tensor in get_args(bare))
    if len(whats) > 1 or is_tensor != (len(shapes) == 1):
        raise TypeError(f"{form.__name__}.{name}: a tensor needs one Shape, a fact none, and either at most one Of")
    if has_default != (kind is not hint):
        raise TypeError(f"{form.__name__}.{name}: a field that may be left out is `... | Absent = ABSENT`")
    return FieldForm(name, kind, next(iter(whats), None), has_default, next(iter(shapes), None), most, code)


def _without_absent(hint: Any) -> Any:
    """The type without `Absent`; the same object if that was no part of it."""
    if get_origin(hint) not in (Union, UnionType) or Absent not in get_args(hint):
        return hint
    left = [kind for kind in get_args(hint) if kind is not Absent]
    return left[0] if len(left) == 1 else Union[tuple(left)]  # noqa: UP007


def kinds_of(form: type) -> frozenset[Of]:
    """What a reply of this form is of patients."""
    return frozenset(field.of for field in fields_of(form) if field.of is not None)


def takes_tensors(form: type) -> bool:
    """Whether a message of this form may hold tensors."""
    return any(field.shape is not None for field in fields_of(form))


def find_flaws(form: type, message: Message, *, closed: bool) -> list[Flaw]:
    """Why a message is not of this form. closed: whether facts beside the form are a flaw, as they are of replies.
    Tensors beside the form always are.
    """
    return _parse_message(form, message, closed=closed, is_quoted=not closed)[0]


def read_form(form: type[T], message: Message, *, closed: bool = False) -> T:
    """The message as its form. closed: as in `find_flaws`; without it facts beside the form are left out.

    Raises:
        Misformed: it is not of this form.
    """
    found_flaws, values = _parse_message(form, message, closed=closed, is_quoted=True)
    if found_flaws:
        raise Misformed(found_flaws)
    return form(**values)


class Misformed(ValueError):
    """A message is not of the form that is asked for."""

    def __init__(self, flaws: Sequence[Flaw]) -> None:
        super().__init__("; ".join(map(str, flaws[:5])))
        self.flaws = tuple(flaws)

    __reduce__ = reduce_error


def _parse_message(form: type, message: Message, *, closed: bool, is_quoted: bool) -> tuple[list[Flaw], dict[str, Any]]:
    """The flaws, and if there are none the facts and tensors by field. is_quoted: as in `_describe_error`."""
    declared, names = fields_of(form), _group_tensors(form, message)
    found_flaws = [Flaw(_format_place([name]), "not declared") for name in names.get(None, ())]
    tensors: dict[str, Any] = {}
    for field in declared:
        if field.shape is not None:
            field_tensors = {name: message.tensors[name] for name in names.get(field.name, ())}
            found_flaws += [
                Flaw(_format_place([name]), text, field.code)
                for name, t in field_tensors.items()
                for text in _find_shape_problems(field.shape, t)
            ]
            if field.shape.names or field_tensors:
                tensors[field.name] = field_tensors if field.shape.names else field_tensors[field.name]
            elif not field.optional:
                found_flaws.append(Flaw(_format_place([field.name]), "missing", field.code))
        elif field.name in message.facts and len(text := json.dumps(message.facts[field.name])) > field.most:
            found_flaws.append(
                Flaw(_format_place([field.name]), f"{len(text)} characters, and at most {field.most} are allowed")
            )
    codes = {declared_field.name: declared_field.code for declared_field in declared}
    try:
        facts = _facts_parser(form, closed).validate_json(json.dumps(dict(message.facts)), strict=True)
    except ValidationError as error:
        each = error.errors(include_url=False)
        return found_flaws + [
            Flaw(_format_place(e["loc"]), _describe_error(e, is_quoted), codes.get(str(e["loc"][0]), "")) for e in each
        ], {}
    return found_flaws, {**facts, **tensors}


def _describe_error(error: Mapping[str, Any], is_quoted: bool) -> str:
    """What is wrong. is_quoted: with the words of our own checks, which quote the message: a question's, no reply's."""
    words = "" if not is_quoted or error["type"] != "value_error" else f" ({error['msg'][:300]!a})"
    return f"{error['type']}{words}"


def _format_place(path: Sequence[str | int]) -> str:
    """The place of a fact; keys come from outside, so they are cut short and in printable ASCII."""
    return ".".join(f"{part[:60]!a}" if isinstance(part, str) else str(part) for part in path)


class Fit(NamedTuple):
    """How a reply fits the forms of its request. flaws: by the nearest form; empty if it has one of them. kinds: what
    it is of patients, by all forms that it has; by all of its request where it has none.
    """

    flaws: tuple[Flaw, ...]
    kinds: frozenset[Of]


def compare_with_forms(forms: Sequence[type], reply: Message) -> Fit:
    """Compare a reply with the forms of its request."""
    flaws_by_form = {form: find_flaws(form, reply, closed=True) for form in forms}
    fitting = [form for form, form_flaws in flaws_by_form.items() if not form_flaws]
    nearest = min(flaws_by_form.values(), key=len, default=[Flaw("reply", "its request declares none")])
    return Fit(tuple(nearest), frozenset().union(*map(kinds_of, fitting or forms)))


def read_fitting_form(forms: Sequence[type[T]], message: Message) -> T:
    """The message as the first of these forms that it has. If it has none, as the first to which it only adds facts: a
    hospital with a later version may say more.

    Raises:
        Misformed: it is of none of these forms.
    """
    each = [*forms]
    for closed in (True, False):
        for form in each:
            found_flaws, values = _parse_message(form, message, closed=closed, is_quoted=False)
            if not found_flaws:
                return form(**values)
    raise Misformed(compare_with_forms(each, message).flaws)


def _group_tensors(form: type, message: Message) -> dict[str | None, list[str]]:
    """The names of a message's tensors by their field: that of the name, else the first whose pattern the name has, or
    None.
    """
    exact, patterns = _tensor_names(form)
    names: dict[str | None, list[str]] = {}
    for name in message.tensors:
        place = name if name in exact else next((field for field, each in patterns if each.fullmatch(name)), None)
        names.setdefault(place, []).append(name)
    return names


@cache
def _tensor_names(form: type) -> tuple[frozenset[str], tuple[tuple[str, re.Pattern[str]], ...]]:
    """The fields of a form with one tensor; and those with many, with the pattern of their names."""
    shaped = [(field.name, field.shape.names) for field in fields_of(form) if field.shape is not None]
    patterns = tuple((name, re.compile(pattern)) for name, pattern in shaped if pattern)
    return frozenset(name for name, pattern in shaped if not pattern), patterns


def _find_shape_problems(shape: Shape, tensor: Tensor) -> list[str]:
    axes, numbers = tensor.dim(), tensor.numel()
    is_whole = shape.whole is not None and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    wrong = [f"{axes} axes, and at most {shape.axes} are allowed"] * (axes > shape.axes)
    wrong += [f"{numbers} numbers, and at most {shape.numbers} are allowed"] * (numbers > shape.numbers)
    return wrong + [f"{tensor.dtype} is not allowed"] * (shape.whole not in (None, is_whole))


@cache
def _facts_parser(form: type, closed: bool) -> TypeAdapter[Any]:
    """A parser of the facts of a form."""
    facts = {
        field.name: NotRequired[field.kind] if field.optional else field.kind
        for field in fields_of(form)
        if field.shape is None
    }
    typed = TypedDict("Facts", facts)  # type: ignore[misc]
    typed.__pydantic_config__ = ConfigDict(extra="forbid" if closed else "ignore")  # type: ignore[attr-defined]
    return TypeAdapter(typed)
