"""Commands answer at once: what each of them imports for its help, a wrong flag and a file that is no YAML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.__main__ import COMMANDS
from pipelines.coordinator.arguments import STAGE_NAMES
from pipelines.coordinator.run import STAGES

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "torch._dynamo",
    "monai",
    "numpy",
    "scipy",
    "sklearn",
    "skimage",
    "matplotlib",
    "pydantic",
    "opacus",
    "dp_accounting",
    "openTSNE",
    "torchio",
    "pydicom",
    "highdicom",
    "nibabel",
    "jinja2",
    "onnx",
    "onnxruntime",
    "tensorboard",
    "mlflow",
)
CALLED = """
import contextlib, io, json, sys
from importlib import import_module

found = {}
for module, arguments in json.loads(sys.argv[1]):
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        try:
            code = import_module(module).main(arguments)
        except SystemExit as end:
            code = end.code
    loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
    found[" ".join([module, *arguments])] = [code, loaded, said.getvalue(), complained.getvalue()]
print(json.dumps(found))
"""


def called(folder: Path, *calls: tuple[str, list[str]]) -> dict[str, tuple[int, list[str], str, str]]:
    """Of each call, one after the other in one new Python: its code, heavy modules that are loaded by then, what it
    printed, what it complained of.
    """
    done = subprocess.run(
        [sys.executable, "-c", CALLED, json.dumps(calls), json.dumps(HEAVY)],
        capture_output=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    return {call: tuple(found) for call, found in json.loads(done.stdout).items()}


def test_help_a_version_a_wrong_flag_and_a_bad_file_need_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("sites: [1\n")
    modules = sorted({command.module for command in COMMANDS.values()})
    light = [(module, [flag]) for module in modules for flag in ("--help", "--version", "--nonsense")]
    bad = [(f"pipelines.{name}", ["bad.yaml"]) for name in ("run", "study", "site")]
    group = [
        ("pipelines.__main__", [word]) for word in ("--help", "--version", "--nonsense", "--print-completion=bash")
    ]
    found = called(tmp_path, *light, *bad, *group)
    assert len(found) == len(light) + len(bad) + len(group)
    for call, (code, loaded, said, complained) in found.items():
        assert loaded == [], f"{call} imports {loaded}"
        assert code == (0 if call.endswith(("--help", "--version", "=bash")) else 2), call
        if call.endswith("--version"):
            assert said.startswith("consilium ")
        if call.endswith("bad.yaml"):
            assert complained.startswith("bad.yaml:2: not valid YAML"), complained
    assert "--older-than" in found["pipelines.__main__ --print-completion=bash"][2]


def test_looking_after_a_folder_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "ledger.jsonl").touch()
    (tmp_path / "ledger.head").touch()
    found = called(
        tmp_path,
        ("pipelines.clean", []),
        ("pipelines.clean", ["--older-than", "1d", "--json"]),
        ("pipelines.ledger", ["verify", "ledger.jsonl"]),
        ("pipelines.ledger", ["explain", "ledger.jsonl"]),
    )
    assert [loaded for _, loaded, *_ in found.values()] == [[]] * 4
    (listed,) = called(tmp_path, ("pipelines.overview", ["--json"])).values()
    assert sorted(listed[1]) == ["jinja2", "pydantic"], "it writes a page, and what it read of runs"
    (other,) = called(tmp_path, ("pipelines.ledger", ["sum", "ledger.jsonl"])).values()
    assert not {"torch", "monai", "pydantic"} & set(other[1])


def test_a_check_needs_no_library_that_draws_translates_or_attacks(tmp_path: Path) -> None:
    """Nor one that reads images; nor torch's compiler, which the classes of torch.optim import. (A configuration with
    `route` needs it: adaptation is rehearsed. Floors are rehearsed too, with their features.)
    """
    explained, checked = called(
        tmp_path,
        ("pipelines.run", ["heart_disease.yaml", "--explain"]),
        ("pipelines.run", ["prostate_adc_lines.yaml", "--check"]),
    ).values()
    assert explained[3].startswith("reading heart_disease.yaml\n")
    assert set(explained[1]) == {"torch", "numpy", "pydantic"}
    # A private synthesis has its noise computed, which takes an accountant, and that SciPy; floors take the rest.
    needed = {"torch", "numpy", "pydantic", "dp_accounting", "scipy", "sklearn", "skimage"}
    assert checked[0] == 0 and set(checked[1]) == needed


def test_the_stages_that_the_help_names_are_those_of_a_run() -> None:
    assert tuple(sorted(stage.name for stage in STAGES)) == STAGE_NAMES


@pytest.mark.parametrize("name", COMMANDS)
def test_one_command_calls_all(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from pipelines.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: consilium {name} ")
