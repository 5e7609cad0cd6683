"""What is left to chance: each test that can fail by it says how often, once in a million runs at most."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from extremes.fixed_keys import DEFAULT, VARIABLE, fixed_key
from rich.console import Console

from pipelines.batch.key import read_key
from privacy.dp import entropy

ROOT = Path(__file__).parents[2]
MOST = 1e-6
HEAD = "| test | fails once in | when |\n| --- | ---: | --- |\n"


class Chance(NamedTuple):
    file: str
    test: str
    probability: float
    why: str


def marked() -> Iterator[Chance]:
    """All marks in the tests, as they stand in the files."""
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        if "mark.chance(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            for one in node.decorator_list if isinstance(node, ast.FunctionDef) else []:
                if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.chance":
                    probability, why = (ast.literal_eval(argument) for argument in one.args)
                    yield Chance(str(path.relative_to(ROOT / "tests")), node.name, float(probability), str(why))


CHANCES = list(marked())


def table() -> str:
    """The list in CONTRIBUTING.md."""
    rows = [f"| `tests/{one.file}`: `{one.test}` | {1 / one.probability:.0e} | {one.why} |\n" for one in CHANCES]
    return HEAD + "".join(rows)


def test_each_is_rare_and_all_of_them_are_too() -> None:
    assert len(CHANCES) >= 10 and all(0 < one.probability < MOST and one.why for one in CHANCES)
    assert sum(one.probability for one in CHANCES) < 1e-5


def test_the_list_is_that_of_the_marks() -> None:
    assert table() in (ROOT / "CONTRIBUTING.md").read_text(), f"CONTRIBUTING.md needs this list:\n{table()}"


def test_global_generators_begin_each_test_alike() -> None:
    first = np.random.random(), random.random()
    assert first == (0.5488135039273248, 0.8444218515250481)


DRAWS = """
import importlib
import os
import sys
import sitecustomize
import torch

for kind in sys.argv[1:]:
    if os.fork() == 0:  # a process for each, after one import of torch
        os.environ["NOISE"] = kind
        importlib.reload(sitecustomize)
        from privacy.dp.entropy import draw_choices, draw_gaussians
        share, others = draw_choices(400, 0.1).double().mean().item(), len(set(os.urandom(64))) > 8
        print(kind, draw_gaussians([2, 3], 1.0).tolist(), share, others, sep="|", flush=True)
        os._exit(0)
    os.wait()
"""
KINDS = ["high", "low", "turns", "none", "nobody", "everybody", ""]


@pytest.fixture(scope="module")
def draws() -> dict[str, list[str]]:
    """What a process draws with each kind: five numbers, the share of chosen patients, whether others are random."""
    variables = {**os.environ, "NOISE": "", "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/extremes"), str(ROOT)])}
    command = [sys.executable, "-c", DRAWS, *KINDS]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return {kind: rest for kind, *rest in lines}


@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_draws_are_what_they_say(kind: str, draws: dict[str, list[str]]) -> None:
    noise, share, others = draws[kind]
    numbers = np.array(ast.literal_eval(noise))
    assert others == "True", "keys, names and seeds stay random"
    if kind in ("high", "low", "turns"):
        signs = {"high": [1, 1, 1, 1, 1], "low": [-1] * 5, "turns": [1, -1, 1, -1, 1]}[kind]
        assert (np.sign(numbers) == signs).all() and (np.abs(numbers) > 8.5).all()
    elif kind == "none":
        assert (np.abs(numbers) < 1e-7).all()
    else:
        assert 0 < np.abs(numbers).max() < 8
    expected = {"nobody": 0.0, "everybody": 1.0}.get(kind)
    assert float(share) == expected if expected is not None else 0 < float(share) < 0.4
    assert entropy.RESOLUTION == 52, "the words of tests/extremes are made for it"


ONE_KEY = """
from rich.console import Console
from pathlib import Path
from pipelines.batch.key import read_key
print(read_key(Path("key"), Console(quiet=True)).hex())
"""


def test_secret_keys_hang_on_the_place_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["pytest-1/test_a0/h1/home", "pytest-27/popen-gw1/test_a3/h1/home", "pytest-1/popen-gw0/test_a/h1/home"]
    assert len({fixed_key(tmp_path.parents[2] / place) for place in places}) == 1
    others = [fixed_key(Path("/t/pytest-1", place)) for place in ("test_a0/h2/home", "test_b0/h1/home", "h1/home")]
    assert len({*others, fixed_key(Path("/t/pytest-1", places[0]))}) == 4
    monkeypatch.setenv(VARIABLE, "another")
    assert fixed_key(Path("/t/pytest-1/test_a0/h2/home")) != others[0]


def test_a_test_and_the_processes_that_it_starts_make_the_same_key(tmp_path: Path) -> None:
    if os.environ[VARIABLE] != DEFAULT:
        pytest.skip("other keys are being tried")
    here = read_key(tmp_path / "key", Console(quiet=True))
    assert here == fixed_key(tmp_path / "key") and (tmp_path / "key").read_bytes() == here
    (tmp_path / "key").unlink()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", ONE_KEY], env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here.hex()
