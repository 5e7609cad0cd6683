"""Laws of the registry: what settings can name besides our own classes, and that nothing else changes by it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from torch import nn

from federation import installed, registry
from federation.fedprox import FedProx
from federation.models import MODELS, NamedModel
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.origins import package_facts, refuse_other_code
from federation.registry import NotPermitted, permit_packages
from personalize import ALGORITHMS, NamedAlgorithm
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings

MODEL: TypeAdapter[Any] = TypeAdapter(NamedModel)
ALGORITHM: TypeAdapter[Any] = TypeAdapter(NamedAlgorithm)
FORBID = {"extra": "forbid"}
MADE = {"__module__": __name__}


@dataclass(frozen=True, kw_only=True)
class Small:
    __pydantic_config__: ClassVar = FORBID

    name: Literal["small"] = "small"
    hidden: tuple[int, ...] = (3,)

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        return Mlp(hidden=self.hidden).build(inputs=inputs, classes=classes)

    losses = Mlp.losses


@dataclass(frozen=True, kw_only=True)
class Settings:
    __pydantic_config__: ClassVar = FORBID

    model: NamedModel


@pytest.fixture
def small() -> Iterator[type]:
    yield registry.register(MODELS, Small)
    registry.unregister(MODELS, Small)


def told(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        validate_settings(read_yaml(text, environment={}), Settings)
    return [str(problem) for problem in error.value.problems]


def test_our_own_classes_are_read_as_ever_whatever_is_registered(small: type) -> None:
    assert MODEL.validate_json('{"name": "mlp", "hidden": [4]}', strict=True) == Mlp(hidden=(4,))
    assert validate_settings(read_yaml("model: {name: cnn}", environment={}), Settings).model == Cnn()


def test_a_registered_class_is_read_at_once_and_no_more_once_it_is_taken_away() -> None:
    said = '{"name": "small", "hidden": [4, 5]}'
    for _ in range(2):  # the adapter was made long before
        with pytest.raises(ValidationError, match="expected tags"):
            MODEL.validate_json(said, strict=True)
        registry.register(MODELS, Small)
        assert MODEL.validate_json(said, strict=True) == Small(hidden=(4, 5))
        registry.unregister(MODELS, Small)


def test_messages_are_as_good_as_for_our_own(small: type) -> None:
    assert "did you mean 'small'?" in told("model: {name: smal}")[0] and "small" in told("model: {}")[0]
    assert told("model: {name: small, hiden: [3]}")[0].startswith(
        "model.hiden: unknown key (did you mean 'hidden'?); allowed: name, hidden"
    )
    assert told("model: {name: small, hidden: [x]}") == ['model.hidden[0] must be a whole number, found "x"']
    assert told("model: 3") == ["model must be a group of keys, found 3"]


def test_a_taken_name_is_refused_and_the_same_class_defined_anew_is_not(small: type) -> None:
    def like(place: str) -> type:
        return make_dataclass("Small", [], bases=(Small,), frozen=True, namespace={"__qualname__": place, **MADE})

    again = like("Small")
    assert again is not Small and registry.register(MODELS, again) is again
    registry.register(MODELS, Small)
    with pytest.raises(ValueError, match=r"'small' is taken by .*Small"):
        registry.register(MODELS, like("Other"))
    ours = make_dataclass("Ours", [("name", Literal["mlp"], "mlp")], bases=(Small,), frozen=True, kw_only=True)
    with pytest.raises(ValueError, match="'mlp' is taken by a network of this package"):
        registry.register(MODELS, ours)


def test_all_that_a_class_lacks_is_said_at_once() -> None:
    @dataclass
    class Bare:
        name: str = "bare"

        def losses(self, output: object) -> None: ...

    with pytest.raises(ValueError, match=r"frozen.*__pydantic_config__.*Literal.*build is missing; losses must take"):
        registry.register(MODELS, Bare)
    with pytest.raises(ValueError, match="frozen dataclass"):
        registry.register(MODELS, dict)


def test_every_class_of_ours_has_what_its_group_needs() -> None:
    from federation.features import EXTRACTORS
    from federation.features.detector import Detector
    from federation.features.encoder import Encoder
    from federation.features.joined import Joined
    from federation.features.lite0 import Lite0
    from federation.features.onnx_encoder import OnnxEncoder
    from harmonize.translation import TRANSLATORS

    for group in (MODELS, ALGORITHMS, TRANSLATORS, EXTRACTORS):
        for kind in group.built_in:
            if kind not in (
                Detector,
                Encoder,
                OnnxEncoder,
                Joined,
                Lite0,
            ):  # they become extractors with a file's bytes
                assert registry.complaints(group, kind) == [], kind


# Installed packages, as pip leaves them.

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar, Literal
from federation.fedprox import FedProx

LOADED = True

@dataclass(frozen=True, kw_only=True)
class Held(FedProx):
    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: Literal["held"] = "held"
    limit: float = 1.0

    def __post_init__(self):
        if self.limit == 13:
            raise RuntimeError("thirteen")
"""


def packed(folder: Path, name: str, files: dict[str, str], points: str) -> str:
    """A package as pip installs it. Returns its name."""
    said = {**files, f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n"}
    said |= {f"{name}-1.0.dist-info/entry_points.txt": points, f"{name}-1.0.dist-info/INSTALLER": "pip\n"}
    said |= {f"{name}-1.0.dist-info/RECORD": "".join(f"{path},,\n" for path in [*said, "../bin/tool"])}
    for path, text in said.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    installed.forget_packages()
    return name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("held_")]:
        del sys.modules[name]


def held(place: Path, name: str = "held_back") -> str:
    points = f"[consilium.algorithms]\nheld = {name}.held:Held\n"
    return packed(place, name, {f"{name}/__init__.py": "", f"{name}/held.py": PLUGIN}, points)


def asked(**said: object) -> Any:
    return ALGORITHM.validate_json(json.dumps({"name": "held", **said}), strict=True)


def test_a_package_is_imported_where_it_is_named_and_permitted_by_its_digest_and_nowhere_else(place: Path) -> None:
    held(place)
    (offer,) = installed.list_offers("algorithms")
    assert (offer.name, offer.distribution, offer.version) == ("held", "held-back", "1.0")
    with permit_packages("all"):
        assert ALGORITHM.validate_json('{"name": "fedprox"}', strict=True) == FedProx()
    for plugins in ({}, {"held-back": "0" * 64}, {"other": offer.digest}):
        with permit_packages(plugins), pytest.raises(NotPermitted, match=f"held-back: {offer.digest}"):
            asked()
    with pytest.raises(NotPermitted):
        asked()
    assert "held_back.held" not in sys.modules and "held_back" not in sys.modules
    with permit_packages({"held-back": offer.digest}):
        assert type(asked(limit=2)).__name__ == "Held" and asked(limit=2).mu == FedProx().mu
    with pytest.raises(NotPermitted):  # though it is imported by now
        asked()


def test_the_digest_is_of_the_files_that_can_be_imported_and_of_nothing_that_depends_on_the_machine(
    place: Path,
) -> None:
    held(place)
    offer = installed.list_offers("algorithms")[0]
    digest = offer.digest
    info, package = place / "held_back-1.0.dist-info", place / "held_back"

    def anew() -> str:
        installed.forget_packages()
        return installed.list_offers("algorithms")[0].digest

    (info / "INSTALLER").write_text("uv\n")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "held.pyc").write_bytes(b"")
    assert anew() == digest
    (package / "held.py").write_text(PLUGIN + "\n")
    assert anew() != digest
    (package / "held.py").write_text(PLUGIN)
    assert anew() == digest
    (info / "entry_points.txt").write_text("[consilium.algorithms]\nheld = held_back.held:Held\n# more\n")
    assert anew() != digest
    (package / "__init__.py").unlink()
    with pytest.raises(ValueError, match=r"held-back 1.0 lacks its file held_back/__init__.py"):
        anew()
    (info / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    with pytest.raises(ValueError, match="without -e"):
        anew()


def test_two_packages_with_one_name_are_both_named_and_break_nothing_else(place: Path) -> None:
    held(place)
    held(place, "held_too")
    with permit_packages("all"):
        with pytest.raises(ValidationError, match=r"held-back 1.0 and held-too 1.0"):
            asked()
        assert ALGORITHM.validate_json('{"name": "fedprox"}', strict=True) == FedProx()


def test_our_own_name_stays_ours(place: Path) -> None:
    points = "[consilium.algorithms]\nfedprox = held_back.held:Held\n"
    packed(place, "held_back", {"held_back/__init__.py": "", "held_back/held.py": PLUGIN}, points)
    with permit_packages("all"):
        assert ALGORITHM.validate_json('{"name": "fedprox"}', strict=True) == FedProx()
    assert "held_back" not in sys.modules and "fedprox" not in registry.other_names(ALGORITHMS)


@pytest.mark.parametrize(
    ("value", "source", "said"),
    [
        ("held_back.held:Held", "import nowhere_to_be_found", "cannot be imported .ModuleNotFoundError"),
        ("held_back.held:Held", "raise SystemExit(3)", "cannot be imported .SystemExit"),
        ("held_back.held:Missing", PLUGIN, "cannot be imported .AttributeError"),
        ("os:system", PLUGIN, "os is no file of held-back 1.0"),
        ("held_back.held:LOADED", PLUGIN, "must be a frozen dataclass"),
        ("held_back.held:Held", PLUGIN.replace('"held"', '"hold"'), "must be the literal 'held'"),
        ("held_back.held:Held", PLUGIN.replace("(FedProx)", ""), "network is missing; complaints is missing"),
    ],
)
def test_what_is_wrong_with_a_package_is_a_message_by_its_name(place: Path, value: str, source: str, said: str) -> None:
    files = {"held_back/__init__.py": "", "held_back/held.py": source}
    packed(place, "held_back", files, f"[consilium.algorithms]\nheld = {value}\n")
    with permit_packages("all"), pytest.raises(ValidationError, match=said) as error:
        asked()
    assert "held-back 1.0" in str(error.value)


def test_a_package_that_python_finds_elsewhere_is_not_the_one_of_the_digest(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    held(place)
    other = tmp_path_factory.mktemp("other")
    (other / "held_back.py").write_text("raise RuntimeError('somebody else')")
    monkeypatch.syspath_prepend(str(other))
    with permit_packages("all"), pytest.raises(ValidationError, match="Python finds held_back at"):
        asked()


def test_an_error_in_its_own_checks_is_a_message_too(place: Path) -> None:
    held(place)
    with (
        permit_packages("all"),
        pytest.raises(ValidationError, match=r"method 'held' cannot be made \(RuntimeError: thirt"),
    ):
        asked(limit=13)


def test_a_file_made_with_a_registered_class_is_refused_once_other_code_has_its_name(small: type) -> None:
    def anew(answer: int) -> type:
        losses = {"losses": lambda self, output, y: answer, "__qualname__": "Small"}
        return make_dataclass("Small", [], bases=(Small,), frozen=True, namespace={**MADE, **losses})

    first = registry.register(MODELS, anew(1))()
    facts = package_facts(first)
    refuse_other_code(facts, first)
    refuse_other_code(facts, registry.register(MODELS, anew(1))())
    other = registry.register(MODELS, anew(2))()
    with pytest.raises(ValueError, match=r"class .*Small that is registered here has other code"):
        refuse_other_code(facts, other)
    registry.unregister(MODELS, type(other))
