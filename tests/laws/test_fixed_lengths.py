"""A list of a fixed length that is empty, too short or too long is told in one sentence, whoever gives it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import federation.features
import federation.models
import harmonize.translation
from pipelines.data.images import Features
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import Config
from privacy.settings_error import SettingsError

ROOTS = (Config, federation.features.AnyExtractor, federation.models.AnyModel, harmonize.translation.Translators)
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "Detector": {"on": "prostate_adc"},
    "Encoder": {"file": "encoder.safetensors"},
    "OnnxEncoder": {"file": "encoder.onnx"},
    "Regression": {"kind": "regression", "what": "age", "unit": "a"},
    "Clip": {"weights": "clip", "classes": {"no": "a", "yes": "b"}},
}
"""What else a class must be given."""


def list_dataclasses(kind: Any, seen: set[type]) -> set[type]:
    """Every dataclass that can be reached from a type."""
    for part in typing.get_args(kind):
        list_dataclasses(part, seen)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            list_dataclasses(hint, seen)
    return seen


def find_length(hint: Any) -> int:
    """How many values a type's list has; 0: any number, or it is no list."""
    parts = typing.get_args(hint)
    return len(parts) if typing.get_origin(hint) is tuple and Ellipsis not in parts else 0


def fields_of_fixed_length() -> Iterator[tuple[type, str, int]]:
    found = set().union(*(list_dataclasses(root, set()) for root in ROOTS))
    for kind in sorted(found, key=lambda kind: kind.__name__):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.init and (length := find_length(hints[field.name])):
                yield kind, field.name, length


FIELDS = [*fields_of_fixed_length()]


def test_the_fields_are_found():
    names = {(kind.__name__, name) for kind, name, _ in FIELDS}
    assert {("Radiomics", "window"), ("Encoder", "std"), ("Cam", "widths"), ("CycleGan", "betas")} <= names


@pytest.mark.parametrize(("kind", "name", "length"), FIELDS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_a_list_of_another_length_is_refused_with_its_name_and_what_was_found(kind: Any, name: str, length: int):
    for wrong in ((), (0.5,) * (length - 1), (0.5,) * (length + 1)):
        with pytest.raises(SettingsError) as caught:
            kind(**REQUIRED.get(kind.__name__, {}), **{name: wrong})
        (problem,) = caught.value.problems
        assert problem.where == (name,) and f"found {list(wrong)}" in problem.message


@pytest.mark.parametrize("wrong", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_a_range_of_another_length_is_refused(wrong: tuple[float, ...]):
    with pytest.raises(SettingsError) as caught:
        Features(numbers=("age",), normalize="declared", ranges={"age": wrong})  # type: ignore[dict-item]
    (problem,) = caught.value.problems
    assert problem.path == "ranges.age" and f"two finite numbers, the lower first, found {list(wrong)}" in str(problem)


@pytest.mark.parametrize("wrong", ["[]", "[1]", "[8, 8, 8]"])
def test_a_file_of_settings_says_how_many_are_needed(wrong: str):
    text = (
        f"model: {{name: cam, widths: {wrong}}}\nimages: {{kind: features, numbers: [age], ranges: {{age: {wrong}}}}}"
    )
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(text, environment={}), Config)
    said = {problem.path: problem.message for problem in caught.value.problems}
    assert f"4 values, found {wrong}" in said["model.widths"]
    assert "2 values, found" in said["images.ranges.age"] and len([path for path in said if "ranges" in path]) == 1
