"""Equal digests mean that the same would be computed; other code has another digest, wherever it stands."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from code_cases import FILES, OTHER, REFUSED, SAME
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from consilium import own
from federation.code_digest import Undigestible, code_digest
from federation.models.adapted import OwnModule
from federation.models.own import Own, register_network
from federation.origins import code_identity

NOTEBOOK = """
import functools, torch
from torch import nn

RATE = 3

def scale(x, by=2.0):
    return x * by

class Base(nn.Module):
    def half(self, x):
        return x / 2

class Net(Base):
    filters = 8

    def __init__(self, drop=0.1):
        super().__init__()
        self.lin = nn.Linear(4, self.filters)
        self.head = nn.Linear(self.filters, 2)

    @property
    def first(self):
        return self.lin

    @staticmethod
    def squared(x):
        return x.square()

    def forward(self, x):
        return self.head(scale(self.half(self.lin(x)).relu()) * RATE)

def make():
    width = 5
    return lambda: nn.Linear(4, width)

made = make()
part = functools.partial(Net, drop=0.3)
"""

EDITS = {  # what in the notebook is edited -> whose digest is another
    "a class attribute": ("filters = 8", "filters = 32", {"Net", "part"}),
    "a constructor": ("nn.Linear(4, self.filters)", "nn.Linear(4, self.filters, bias=False)", {"Net", "part"}),
    "a default": ("drop=0.1", "drop=0.2", {"Net", "part"}),
    "a base": ("x / 2", "x / 3", {"Base", "Net", "part"}),
    "a function that it uses": ("x * by", "x + by", {"scale", "Net", "part"}),
    "a default of a function that it uses": ("by=2.0", "by=2.5", {"scale", "Net", "part"}),
    "a constant of the module": ("RATE = 3", "RATE = 4", {"Net", "part"}),
    "a static method": ("x.square()", "x.abs()", {"Net", "part"}),
    "a property": ("return self.lin\n", "return self.head\n", {"Net", "part"}),
    "a captured value": ("width = 5", "width = 6", {"made", "make"}),
    "an argument of a partial": ("drop=0.3", "drop=0.4", {"part"}),
    "a comment and empty lines": ("RATE = 3", "# a rate\n\n\nRATE = 3", set()),
}
NAMES = ("scale", "Base", "Net", "make", "made", "part")
Told = dict[str, Any]
"""What a process of `told` says."""


def run_cell(source: str, space: dict[str, Any]) -> None:
    exec(compile(source, f"<{space['__name__']}>", "exec", dont_inherit=True), space)  # noqa: S102 - as a notebook does


def digests(source: str, module: str = "notebook") -> dict[str, str]:
    space: dict[str, Any] = {"__name__": module}
    run_cell(source, space)
    return {name: code_digest(space[name]) for name in NAMES}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_digests_of_what_it_reaches_and_no_other(edit: str) -> None:
    old, new, reached = EDITS[edit]
    assert NOTEBOOK.count(old) == 1
    before, after = digests(NOTEBOOK), digests(NOTEBOOK.replace(old, new))
    assert {name for name in NAMES if before[name] != after[name]} == reached


def test_the_same_code_has_the_same_digest_in_another_place_and_process(told: list[Told]) -> None:
    here = digests(NOTEBOOK)
    assert digests("\n\n\n" + NOTEBOOK, "elsewhere") == here
    for one in told:  # once compiled anew, once from a .pyc
        assert one["notebook"] == list(here.values())


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
PLAIN = st.recursive(
    LEAVES | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=6,
)


def around(value: Any) -> Any:
    return lambda: value


@given(PLAIN, PLAIN)
def test_functions_around_other_values_have_other_digests(first: Any, second: Any) -> None:
    assert (code_digest(around(first)) == code_digest(around(second))) == (repr(first) == repr(second))


def zeroed(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (np.arange(3), np.arange(4)),
        (nn.Linear(2, 2), nn.Linear(2, 2)),
        (nn.ReLU(), nn.Tanh()),
        ({1, 2}, {1, 3}),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (nn.Linear, nn.Conv2d),
        (torch.relu, torch.tanh),
        (Path("a"), Path("b")),
        (logging.getLogger("a"), logging.getLogger("b")),
        (functools.cache(lambda: 1), functools.cache(lambda: 2)),
        (torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.0, 2.0)),
        (Fraction(1, 3), Fraction(2, 3)),
        (np.poly1d([1, 2]), np.poly1d([1, 3])),
        (np.exp, np.log),
        (zeroed(nn.MultiheadAttention(4, 1)), zeroed(nn.MultiheadAttention(4, 2))),
    ],
)
def test_captured_tensors_modules_and_functions_count_by_their_content(first: Any, second: Any) -> None:
    assert code_digest(around(first)) == code_digest(around(first)) != code_digest(around(second))


def test_what_cannot_be_compared_is_refused_with_its_place() -> None:
    with pytest.raises(Undigestible, match=r"value around it: holds a _thread.lock"):
        code_digest(around(threading.Lock()))
    with pytest.raises(Exception, match="nobody can tell whether it is the same"):
        own(around(threading.Lock()), stem="0", head="1")


def net(width: int) -> Any:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))

    return build


def test_two_networks_of_one_name_are_two_networks() -> None:
    narrow, wide = own(net(3), stem="0", head="1"), own(net(9), stem="0", head="1")
    assert narrow.network == wide.network and narrow != wide
    sizes = [one.build(inputs=(4,), classes=2).state_dict()["stem.weight"].shape[0] for one in (narrow, wide, narrow)]
    assert sizes == [3, 9, 3]
    assert code_identity(narrow) != code_identity(wide) and code_identity((narrow, wide)) not in (
        code_identity(narrow),
        code_identity(wide),
    )
    assert isinstance(Own(network=wide.network, stem=("0",), head="1").build(inputs=(4,), classes=2), OwnModule)


def test_settings_of_a_network_whose_code_is_another_now_are_refused_by_name() -> None:
    model = own(net(3), stem="0", head="1", name="edited")
    other = Own(network="edited", stem=("0",), head="1", code="0" * 64)
    assert model.build(inputs=(4,), classes=2)
    with pytest.raises(ValueError, match="'edited' that is registered here has other code"):
        other.build(inputs=(4,), classes=2)
    with pytest.raises(ValueError, match="no network 'unknown' is registered here"):
        Own(network="unknown", stem=("0",), head="1").build(inputs=(4,), classes=2)


def test_a_class_that_is_changed_at_work_is_another_network() -> None:
    space: dict[str, Any] = {"__name__": "notebook"}
    run_cell(NOTEBOOK, space)
    before = register_network("changing", space["Net"])
    space["Net"].filters = 4
    assert register_network("changing", space["Net"]) != before


def of_source(source: str) -> Any:
    space: dict[str, Any] = {"__name__": "notebook"}
    run_cell(source, space)
    return space["f"]


@pytest.mark.parametrize("what", OTHER)
def test_code_that_computes_otherwise_has_another_digest(what: str) -> None:
    source, old, new = OTHER[what]
    assert source.count(old) == 1
    first = code_digest(of_source(source))
    assert first == code_digest(of_source(source)) != code_digest(of_source(source.replace(old, new)))


@pytest.mark.parametrize("what", REFUSED)
def test_code_that_may_be_another_after_a_call_or_is_chosen_by_it_is_refused(what: str) -> None:
    source, why = REFUSED[what]
    with pytest.raises(Undigestible, match=why):
        code_digest(of_source(source))


def in_a_process(folder: Path, tell: str, *, seed: str) -> Any:
    """What a new process prints, as JSON."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-W", "ignore", "-c", tell]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


IN_A_PROCESS = """
import importlib, json, sys
from federation.code_digest import code_digest
import written
told = {{"notebook": [code_digest(getattr(written, name)) for name in {names!r}], "same": {{}}, "files": {{}}}}
for place in {order!r}:
    one = importlib.import_module(f"same{{place}}")
    told["same"][place] = [code_digest(one.f)]
    getattr(one, "CALL", int)()
    told["same"][place].append(code_digest(one.f))
for what, folders in {files!r}.items():
    told["files"][what] = []
    for folder in folders:
        for name in {own!r}:
            sys.modules.pop(name, None)
        sys.path.insert(0, folder)
        import net
        told["files"][what].append(code_digest(net.Net))
        sys.path.remove(folder)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Of two processes that do the same in another order: digests of the notebook; of all of SAME that are asked for,
    before and after a call; and, by the second one, of all of FILES before and after the edit. Torch is imported for
    seconds in each.
    """
    asked = [one.callspec.params.get("what") for one in request.session.items if hasattr(one, "callspec")]
    folder = tmp_path_factory.mktemp("same")
    (folder / "written.py").write_text(NOTEBOOK)
    for place, source in enumerate(SAME.values()):
        (folder / f"same{place}.py").write_text(source)
    files: dict[str, list[str]] = {}
    for place, (what, (texts, edited)) in enumerate(FILES.items()):
        for edit in (False, True):
            own_folder = tmp_path_factory.mktemp(f"files{place}")
            for name, text in texts.items():
                (own_folder / name).parent.mkdir(exist_ok=True)
                (own_folder / name).write_text(text.replace("2\n", "3\n") if edit and name == edited else text)
            files.setdefault(what, []).append(str(own_folder))
    names = {name.removesuffix(".py").replace("/", ".") for texts, _ in FILES.values() for name in texts}
    said = {"names": NAMES, "own": sorted(names | {name.removesuffix(".__init__") for name in names})}
    there = [place for place, what in enumerate(SAME) if what in asked]
    return [
        in_a_process(folder, IN_A_PROCESS.format(**said, order=there, files={}), seed="1"),
        in_a_process(folder, IN_A_PROCESS.format(**said, order=there[::-1], files=files), seed="2"),
    ]


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.slow if what == "torch.compile" else ()) for what in SAME]
)
def test_code_has_one_digest_in_all_processes_and_after_a_call(what: str, told: list[Told]) -> None:
    place = str(list(SAME).index(what))
    assert len({digest for one in told for digest in one["same"][place]}) == 1


@pytest.mark.parametrize("what", FILES)
def test_an_edit_in_another_own_file_changes_the_digest(what: str, told: list[Told]) -> None:
    before, after = told[1]["files"][what]
    assert before != after
