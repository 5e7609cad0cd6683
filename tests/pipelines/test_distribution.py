"""The wheel and the source distribution: what is in them, and that a user can install and run the wheel."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from rooms import FILES, FOLDERS, ROOMS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SMALL = (
    "sites.north.source.patients=20",
    "sites.south.source.patients=20",
    "split={train: 0.5, validation: 0.2, test: 0.3}",
    "sites.east.source.patients=20",
    "harmonize=null",
    "route=null",
    "outside=[]",
    "train.schedule.rounds=1",
    "train.methods={local: {name: local}, fedavg: {name: fedavg}}",
    "train.method_model={}",
    "train.method_images={}",
    "train.method_start={}",
    "evaluate.variants={}",
    "evaluate.copies=20",
)
"""Of the default run: two methods, few patients, one round, no harmonization."""
MADE = """
import setuptools.build_meta as build, sys
out, sys.argv = sys.argv[1], sys.argv[:1]
print(build.build_wheel(out), build.build_sdist(out))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from a copy of the working tree, with neither network nor isolation."""
    pytest.importorskip("setuptools", minversion="77")
    copy, out = tmp_path_factory.mktemp("copy") / "tree", tmp_path_factory.mktemp("dist")
    copy.mkdir()
    for folder in (*ROOMS, *FOLDERS):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    for folder in ("runs", "patients", "mine"):  # what users leave beside it
        (copy / folder).mkdir()
        (copy / folder / "secret.json").write_text("{}")
        (copy / folder / "__init__.py").touch()
    (copy / "notes.py").touch()
    done = subprocess.run([sys.executable, "-c", MADE, str(out)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    (found,) = made.glob("*.whl")
    return found


def test_the_wheel_holds_all_code_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.endswith("/")]
    version = PROJECT["project"]["version"]
    assert wheel.name == f"consilium-{version}-py3-none-any.whl"
    info = f"consilium-{version}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*ROOMS, info}
    code = {str(path.relative_to(ROOT)) for package in ROOMS for path in (ROOT / package).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == code and len(code) > 500
    data = {name for name in names if not name.endswith(".py") and not name.startswith(info)}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "pipelines" / "configs").glob("*.yaml")}
    expected |= {
        str(path.relative_to(ROOT)) for path in (ROOT / "evaluation" / "templates").iterdir() if path.is_file()
    }
    expected |= {f"{package}/py.typed" for package in ROOMS}
    assert expected <= data
    assert {Path(name).suffix for name in data - expected} <= {".md", ".yaml", ".json", ".txt"}
    assert f"{info}/licenses/LICENSE" in names and f"{info}/entry_points.txt" in names


def test_the_source_distribution_holds_what_a_user_reads_and_no_run(made: Path) -> None:
    (path,) = made.glob("*.tar.gz")
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt", "pyproject.toml"} <= names
    examples = {
        str(one.relative_to(ROOT)) for one in (ROOT / "examples").glob("*") if one.suffix in (".py", ".ipynb", ".md")
    }
    assert examples <= names and "docs/index.md" in names
    assert not [name for name in names if name.startswith(("tests/", "runs", "build/", "benchmarks/"))]


def test_every_command_of_the_package_leads_to_a_function() -> None:
    """The installed command is imported by name, where no type checker looks."""
    groups = [PROJECT["project"].get("scripts", {}), *PROJECT["project"].get("entry-points", {}).values()]
    places = [place for group in groups for place in group.values()]
    assert places
    for place in places:
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), place


def without_the_tree() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def installed(wheel: Path, place: Path) -> Path:
    """A bare environment with the wheel; what it depends on is that of the Python that runs the tests."""
    venv.create(place, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    command = [*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    done = subprocess.run(command, cwd=wheel.parent, env=without_the_tree(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Afterwards: pip would find the development's own installation there, and call the wheel installed.
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


@pytest.mark.slow
def test_a_user_installs_the_wheel_and_runs_the_default_configuration(wheel: Path, tmp_path: Path) -> None:
    """As a user: an empty folder, no repository on the path, the installed command; small by `--set`."""
    folder, commands = tmp_path / "empty", installed(wheel, tmp_path / "venv")
    folder.mkdir()
    environment = without_the_tree()

    def ran(*words: str) -> str:
        done = subprocess.run(
            [str(commands / "consilium"), *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import pipelines, evaluation; print(pipelines.__file__)"
    told = subprocess.run(
        [commands / "python", "-c", where], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert told.stdout.startswith(str(tmp_path / "venv")), told
    assert ran("--version") == f"consilium {PROJECT['project']['version']}\n"
    ran("run", "prostate_adc", "--check")
    ran("run", "prostate_adc", *(word for one in SMALL for word in ("--set", one)))
    assert list(folder.glob("runs/**/report.html"))
