from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from personalize import AnyAlgorithm
from pipelines.loader.document import MAX_DEPTH, MAX_SHOWN, ConfigError, problem_at, read_yaml, render
from pipelines.loader.keys import keys_at, tags_at
from pipelines.loader.validation import to_plain, validate_settings
from privacy.settings_error import Problem, SettingsError, refuse, unmet

FORBID = {"extra": "forbid"}
QUICK = settings(max_examples=300, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Prox:
    __pydantic_config__: ClassVar = FORBID
    name: Literal["fedprox"] = "fedprox"
    mu: float = 0.1

    def __post_init__(self) -> None:
        if self.mu < 0:
            refuse([Problem(("mu",), f"must be >= 0, found {self.mu}; for no pull use fedavg")])


@dataclass(frozen=True)
class Avg:
    __pydantic_config__: ClassVar = FORBID
    name: Literal["fedavg"] = "fedavg"
    weights: Literal["patients", "uniform"] = "patients"


@dataclass(frozen=True)
class Table:
    __pydantic_config__: ClassVar = FORBID
    table: str
    kind: Literal["table"] = "table"
    rows: int = 1


@dataclass(frozen=True)
class Mask:
    __pydantic_config__: ClassVar = FORBID
    mask: str
    kind: Literal["mask"] = "mask"


@dataclass(frozen=True)
class Train:
    __pydantic_config__: ClassVar = FORBID
    methods: tuple[Annotated[Prox | Avg, Field(discriminator="name")], ...]
    rounds: int = 3
    lr: float = 0.1
    decay: int | None = None

    def __post_init__(self) -> None:
        refuse(unmet(self, rounds=(self.rounds >= 1, ">= 1")))


@dataclass(frozen=True)
class Toy:
    __pydantic_config__: ClassVar = FORBID
    train: Train
    name: str = "toy"
    sites: Mapping[str, float] = field(default_factory=dict)
    labels: Annotated[Table | Mask, Field(discriminator="kind")] | None = None
    pooled: bool = False
    spacing: tuple[float, float] = (1.0, 1.0)
    free: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.sites) > 2:
            two = Problem(("train", "rounds"), "too many for the sites")
            raise SettingsError([Problem(("sites",), "at most 2; name two"), two])


GOOD = """\
name: prostate
train:
  methods:
    - {name: fedprox, mu: 1}
    - name: fedavg
      weights: uniform
  rounds: 10
  lr: 1e-4
sites: {north: 1.5, NO: 2}
labels: {kind: table, table: a.csv}
pooled: true
spacing: [1, 0.5]
free: {deep: {list: [1, null, yes]}}
"""


def read(text: str, **environment: str) -> Any:
    return read_yaml(text, environment=environment)


def loaded(text: str, kind: type | None, environment: Mapping[str, str]) -> None:
    document = read_yaml(text, environment=environment)
    if kind is not None:
        validate_settings(document, kind)


def problems(text: str, kind: type | None = None, **environment: str) -> list[tuple[str, int | None, str]]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, kind, environment)
    return [(p.path, p.line, p.message) for p in caught.value.problems]


SCALARS = [
    ("1e-4", 1e-4), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0), ("-1.5e+3", -1500.0), ("+3", 3), ("0", 0), ("-0.0", -0.0),
    ("010", "010"), ("-010", "-010"), ("0x1f", "0x1f"), ("0o7", "0o7"), ("1_000", "1_000"), ("1:30", "1:30"),
    ("12:30", "12:30"), ("12:30:45", "12:30:45"), ("2026-01-01", "2026-01-01"),
    ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
    ("true", True), ("false", False), ("True", "True"), ("yes", "yes"), ("no", "no"), ("NO", "NO"), ("on", "on"),
    ("off", "off"), ("y", "y"), ("null", None), ("~", None), ("", None), ("Null", "Null"), ("'1'", "1"),
    ('"true"', "true"),
    ("'null'", "null"), ("1.2.3", "1.2.3"), ("e5", "e5"), (".", "."), ("1e", "1e"), ("=", "="), ("٣", "٣"),
    ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
]  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), SCALARS, ids=[f"<{text}>" for text, _ in SCALARS])
def test_a_scalar_means_what_a_reader_sees(written, meant):
    value = read(f"a: {written}").data["a"]
    assert (type(value), value) == (type(meant), meant)


def test_keys_are_text():
    assert read("{1: a, NO: b, null: c, 1e5: d, 2026-01-01: e}").data == dict(
        zip(["1", "NO", "null", "1e5", "2026-01-01"], "abcde", strict=True)
    )


@QUICK
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_written_by_python_comes_back(number):
    value = read(f"a: {number!r}").data["a"]
    assert isinstance(value, float)
    assert value == number


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12).filter(lambda t: "${" not in t),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(string.ascii_letters, min_size=1), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@QUICK
@given(PLAIN)
def test_what_pyyaml_writes_is_read_back(data):
    """A second implementation of everything but scalars: PyYAML's own writer, with every text in quotes."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    Dumper.add_representer(str, lambda d, text: d.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
    document = read(yaml.dump(data, Dumper=Dumper, allow_unicode=True))
    assert document.data == data


@pytest.mark.parametrize(
    ("text", "path", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3", "a", 3, "first on line 1"),
        ("a:\n  b: 1\n  'b': 2", "a.b", 3, "first on line 2"),
        ("a: !!python/object/apply:os.system [ls]", "", 1, "python/object/apply:os.system"),
        ("a: !!str 5", "", 1, "tags are refused"),
        ("a: !x {b: 1}", "", 1, "tags are refused"),
        ("a: 1\nb: '${HOME}/x'", "b", 2, "${HOME}"),
        ("a: ${CONSILIUM_DATA", "a", 1, "unknown substitution"),
        ("a: ${CONSILIUM_DATA}/x", "a", 1, "export CONSILIUM_DATA="),
        ("'${CONSILIUM_DATA}': 1", "", 1, "nothing is substituted in a key"),
        ("a: &x {b: 1}\nc:\n  <<: *x", "c", 3, "merge keys"),
        ("? [1, 2]\n: 3", "", 1, "a key must be text"),
        ("'': 3", "", 1, "must not be empty"),
        ("a: 1e999", "a", 1, "too large"),
        ("a: 99999999999999999999", "a", 1, "64 bits"),
        ("a: " + "9" * 9000, "a", 1, "64 bits"),
        ("a: .inf", "a", 1, "use null"),
        ("a: -.INF", "a", 1, "finite"),
        ("a: .nan", "a", 1, "finite"),
        ('a: "\\ud800"', "a", 1, "Unicode"),
        ('"\\ud800": 1', "", 1, "Unicode"),
        ("\tx: 1", "", 1, "spaces"),
        ("a: 1\nb: [1, 2", "", 2, "not valid YAML"),
        ("a: 1\n--- \nb: 2", "", 2, "another document"),
        ("a: *nowhere", "", 1, "undefined alias"),
        ("a: 1\nb: \x00", "", 2, "does not allow"),
        ('a: "\\UFFFFFFFF"', "", None, "not valid YAML"),
        ("%YAML 1." + "1" * 5000 + "\n--- a", "", None, "not valid YAML"),
    ],
)  # fmt: skip
def test_a_fault_of_the_text_is_told_with_its_place(text, path, line, words):
    (problem,) = problems(text)
    assert problem[:2] == (path, line)
    assert words in problem[2]


def test_all_faults_of_a_text_are_told_at_once():
    text = "a: 1\na: 2\nb: !!python/name:os.system x\nc: ${HOME}\nd: [1e999, {e: 1, e: 2}]\n<<: 3"
    assert [(path, line) for path, line, _ in problems(text)] == [
        ("a", 2), ("", 3), ("c", 4), ("d[0]", 5), ("d[1].e", 5), ("", 6)
    ]  # fmt: skip


def test_the_data_folder_is_substituted_once_and_only_it():
    data = read("a: '${CONSILIUM_DATA}/x'\nb: $HOME\nc: [\"${CONSILIUM_DATA}\"]", CONSILIUM_DATA="/d/${HOME}").data
    assert data == {"a": "/d/${HOME}/x", "b": "$HOME", "c": ["/d/${HOME}"]}
    assert "is not set" in problems("a: ${CONSILIUM_DATA}", CONSILIUM_DATA="")[0][2]


def test_aliases_work_and_bombs_do_not():
    assert read("a: &x {b: [1, 2]}\nc: *x").data == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert "aliases are followed" in problems(bomb)[0][2]
    long = f"a: &a {'x' * 50_000}\nb: [{', '.join(['*a'] * 5000)}]"
    assert "characters once aliases are followed" in problems(long)[0][2]
    assert "may contain itself" in problems("a: &x [*x]")[0][2]
    assert "may contain itself" in problems("a: &x {b: *x}")[0][2]


DEEP = {
    "open": "[" * 90_000,
    "flow": "{a: " * 20_000,
    "list": "- " * 90_000,
    "block": "\n".join(" " * i + "a:" for i in range(500)),
    "keys": "? " * 50_000,
    "one too deep": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_depth_is_bounded_whatever_the_style(text):
    assert any(f"deeper than {MAX_DEPTH}" in message for _, _, message in problems(text))


def test_a_depth_below_the_bound_is_read():
    data = read("[" * MAX_DEPTH + "]" * MAX_DEPTH).data
    for _ in range(MAX_DEPTH - 1):
        (data,) = data
    assert data == []


def test_size_is_bounded():
    assert "at most" in problems("a" * 200_001)[0][2]
    assert "at most" not in problems("a: 1\na: " + "b" * 190_000)[0][2]


def through(text: str) -> Any:
    """Any text either gives settings or a ConfigError with at least one problem, which can be rendered."""
    try:
        return validate_settings(read(text), Toy)
    except ConfigError as error:
        refused = error
    assert refused.problems
    lines = render(refused, "x.yaml").splitlines()
    assert len(lines) <= MAX_SHOWN + 1
    assert all(line.startswith("x.yaml") for line in lines)
    return None


@QUICK
@given(st.text(max_size=200))
def test_fuzz_arbitrary_text(text):
    through(text)


CHARACTERS = "abx019 \n\t-:?,[]{}&*!|>'\"%@`#.~<=$\\\u0085\u2028\ufeff\ud800"
TOKENS = (
    "\n  ",
    ": ",
    "- ",
    "---\n",
    "...",
    "!!int",
    "<<: ",
    "${",
    "\\U",
    "\\x",
    "&a",
    "*a",
    "1e",
    "%YAML 1.",
    "%TAG ! ",
)
ALPHABET = st.sampled_from([*CHARACTERS, *TOKENS])


@settings(QUICK, max_examples=600)
@given(st.lists(ALPHABET, max_size=60).map("".join))
def test_fuzz_yaml_like_text(text):
    through(text)


@settings(QUICK, max_examples=600)
@given(st.data())
def test_fuzz_mutated_settings(data):
    text = GOOD
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        patch = data.draw(st.lists(ALPHABET, max_size=3).map("".join) | st.sampled_from(GOOD.splitlines(keepends=True)))
        text = text[:start] + patch + text[end:]
    through(text)


@QUICK
@given(PLAIN)
def test_fuzz_any_data_against_the_settings(data):
    through(yaml.safe_dump(data))
    through(yaml.safe_dump({"train": data, "labels": data, "sites": {"a": data}, "spacing": data}))


def test_good_settings_become_what_they_say():
    assert validate_settings(read(GOOD), Toy) == Toy(
        train=Train((Prox(mu=1.0), Avg(weights="uniform")), 10, 1e-4),
        name="prostate",
        sites={"north": 1.5, "NO": 2.0},
        labels=Table("a.csv"),
        pooled=True,
        spacing=(1.0, 0.5),
        free={"deep": {"list": [1, None, "yes"]}},
    )
    assert isinstance(validate_settings(read(GOOD), Toy).train.methods[0].mu, float)


BAD = """\
name: 5
train:
  methods:
    - {name: fedprox, mu: -1}
    - {name: fedporx}
    - {mu: 1}
    - {name: fedavg, weights: unifrom, mu: 2}
    - fedavg
  rouns: 10
  rounds: 10.0
  lr: "0.1"
  decay: 010
labels: {kind: table, rows: x}
pooled: yes
spacing: [1]
sites: {a: true}
"""


def test_every_fault_of_the_settings_is_told_with_path_line_and_remedy():
    told = [f"{line}: {path}: {message}" for path, line, message in problems(BAD, Toy)]
    assert told == [
        '1: name: must be text, found 5',
        '4: train.methods[0].mu: must be >= 0, found -1.0; for no pull use fedavg',
        "5: train.methods[1].name: unknown \"fedporx\" (did you mean 'fedprox'?); allowed: fedprox, fedavg",
        "6: train.methods[2].name: missing; it says which one is meant; allowed: fedprox, fedavg",
        "7: train.methods[3].mu: unknown key; allowed: name, weights",
        "7: train.methods[3].weights: must be 'patients' or 'uniform', found \"unifrom\" (did you mean 'uniform'?)",
        '8: train.methods[4]: must be a group of keys, found "fedavg"',
        "9: train.rouns: unknown key (did you mean 'rounds'?); allowed: methods, rounds, lr, decay",
        "10: train.rounds: must be a whole number, found 10.0",
        '11: train.lr: must be a number, found "0.1"; write it without quotes, leading zeros and separators',
        '12: train.decay: must be a whole number, found "010"; write it without quotes, leading zeros and separators',
        '13: labels.rows: must be a whole number, found "x"',
        "13: labels.table: missing; add it",
        '14: pooled: must be true or false, found "yes"; write true',
        "15: spacing: must be a list of 2 values, found [1]",
        "16: sites.a: must be a number, found true",
    ]  # fmt: skip


def test_problems_of_the_settings_are_told_where_they_belong():
    text = "sites: {a: 1, b: 1, c: 1}\ntrain:\n  methods: []\n  rounds: 2"
    assert problems(text, Toy) == [("sites", 1, "at most 2; name two"), ("train.rounds", 4, "too many for the sites")]
    assert problems("train: {methods: [], rounds: 0}", Toy) == [("train.rounds", 1, "must be >= 1, found 0")]
    assert problems("train: {methods: []}\nlabels: {kind: table, table: x, y: 1}", Toy)[0][:2] == ("labels.y", 2)


def test_a_key_that_is_called_as_the_whole_is_found():
    """A name is the label of a member of a union only within one; the whole file is none."""
    assert problems("name: bench\nbench: {a: 1}\nsites: {}\ntrain: {methods: []}", Toy)[0][:2] == ("bench", 2)
    assert problems("name: train\ntrain: {methods: [], rounds: x}", Toy)[0][:2] == ("train.rounds", 2)
    assert problems("name: sites\nsites: 5\ntrain: {methods: []}", Toy)[0][:2] == ("sites", 2)


@pytest.mark.parametrize("text", ["", "- 1", "5", "null"])
def test_a_file_that_is_no_group_is_refused(text):
    (problem,) = problems(text, Toy)
    assert "must be a group of keys" in problem[2]


def test_rendering_is_bounded_and_names_the_file():
    text = "train: {methods: []}\nsites:\n" + "".join(f"  s{i}: x\n" for i in range(50))
    with pytest.raises(ConfigError) as caught:
        validate_settings(read(text), Toy)
    lines = render(caught.value, "prostate.yaml").splitlines()
    assert lines[0] == 'prostate.yaml:3: sites.s0: must be a number, found "x"'
    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1] == "prostate.yaml: and 30 more problems"
    assert max(map(len, render_of({"a" * 5000: "b" * 5000}).splitlines())) < 500


def render_of(data: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_settings(read(yaml.safe_dump(data)), Toy)
    return render(caught.value, "x.yaml")


def test_a_later_finding_gets_the_line_of_the_nearest_group():
    document = read(GOOD)
    assert problem_at(document, Problem(("train", "methods", 1, "weights"), "no")).line == 6
    assert problem_at(document, Problem(("train", "methods", 1, "absent"), "no")).line == 5
    assert problem_at(document, Problem(("a key", "b"), "no")).path == '["a key"].b'


class Colour(enum.Enum):
    RED = "red"


@QUICK
@given(PLAIN)
def test_plain_data_is_its_own_plain_form(data):
    assert to_plain(data) == data


def test_plain_form_of_settings_and_back():
    toy = validate_settings(read(GOOD), Toy)
    plain = to_plain(toy)
    assert plain["train"]["methods"][0] == {"name": "fedprox", "mu": 1.0}
    assert plain["spacing"] == [1.0, 0.5]
    assert validate_settings(read(yaml.safe_dump(plain)), Toy) == toy
    assert to_plain(dataclasses.replace(toy, free={"c": Colour.RED, "t": (1, math.inf)}))["free"] == {
        "c": "red",
        "t": [1, "inf"],
    }


@pytest.mark.parametrize(
    ("value", "error"),
    [({1, 2}, TypeError), (Path("x"), TypeError), (math.nan, ValueError), ({1: 2}, TypeError), (b"x", TypeError),
     (datetime.date(2026, 1, 1), TypeError), (Toy, TypeError)],
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused_with_its_place(value, error):
    with pytest.raises(error, match=r"settings\.a\[0\]"):
        to_plain({"a": [value]})


def test_the_keys_that_are_offered_are_those_of_the_member_that_was_named():
    """Members that go by several names once gave their keys to all the others."""
    members = get_args(AnyAlgorithm)
    assert len(members) > 25
    for member in members:
        name = get_args(get_type_hints(member)["name"])[0]
        offered = keys_at(dict[str, AnyAlgorithm], {"one": {"name": name, "nonsense": 1}}, ("one",))
        assert set(offered) == {one.name for one in dataclasses.fields(member)}, name
        at_home = {"one": {"name": "at_home", "of": {"name": name, "nonsense": 1}}}
        assert keys_at(dict[str, AnyAlgorithm], at_home, ("one", "of")) == offered, name


def test_where_a_method_at_home_has_no_name_the_names_are_offered():
    names = tags_at(dict[str, AnyAlgorithm], {"one": {"name": "at_home", "of": {}}}, ("one", "of"), "name")
    assert {"fenda", "moments", "fedavg"} <= set(names)
