"""The package beside this file, really installed by pip into an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipelines_settings import BASE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
METHODS = {"avg": {"name": "fedavg"}, "ours": {"name": "trimmed_mean", "share": 0.2}}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that sees this project and its libraries, and has the package by pip, from a wheel."""
    made = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
    (place,) = made.glob("lib/python*/site-packages")
    (place / "beside.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    source = made / "source"
    shutil.copytree(HERE, source, ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    pip = [str(made / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    build = [sys.executable, *pip[1:], "wheel", "--no-deps", "--no-build-isolation"]  # with this one's setuptools
    subprocess.run([*build, "--wheel-dir", str(made / "dist"), str(source)], check=True, capture_output=True)
    (built,) = (made / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", str(built)], check=True, capture_output=True)
    return made


@pytest.fixture
def call(environment: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a module in the environment, in a folder of its own."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        line = [str(environment / "bin/python"), "-m", *words]
        return subprocess.run(line, cwd=tmp_path, env=variables, text=True, capture_output=True, timeout=900)

    return called


def written(folder: Path, plugins: dict[str, str]) -> str:
    sites = {name: {**site, "policy": {**site["policy"], "plugins": plugins}} for name, site in BASE["sites"].items()}
    train = {**BASE["train"], "schedule": {"rounds": 1}, "methods": METHODS}
    said = {**BASE, "sites": sites, "train": train, "model": {"name": "plain_cnn"}, "evaluate": {"copies": 20}}
    (folder / "own.yaml").write_text(yaml.safe_dump(said))
    return "own.yaml"


@pytest.mark.slow
def test_a_method_from_a_package_runs_where_a_policy_permits_it(
    call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    rows = json.loads(call("pipelines.plugins", "--json").stdout)
    assert {row["name"] for row in rows} == {"trimmed_mean", "plain_cnn", "middle", "bundle"}
    (digest,) = {row["digest"] for row in rows}
    refused = call("pipelines.run", written(tmp_path, {}), "--check")
    assert refused.returncode == 2
    assert f"plugins: {{consilium-example: {digest}}}" in refused.stdout + refused.stderr
    permitted = written(tmp_path, {"consilium-example": digest})
    checked = call("pipelines.run", permitted, "--check")
    assert checked.returncode == 0, checked.stderr
    assert "ours" in checked.stdout + checked.stderr
    ran = call("pipelines.run", permitted)
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "runs/tiny/report.html").read_text()
    assert "consilium-example 0.1.0" in page and digest in page


@pytest.mark.slow
def test_the_contract_is_run_on_it_without_a_test_of_its_own(
    call: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = call("pytest", "--pyargs", "consilium.testing", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.slow
def test_the_digest_is_that_of_the_same_files_elsewhere(
    environment: Path, call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """What the wheel holds decides, not where or by whom it was installed."""
    (built,) = (environment / "dist").glob("*.whl")
    target = tmp_path / "elsewhere"
    install = ("pip", "install", "--no-deps", "--target", str(target), "--no-compile", str(built))
    assert call(*install).returncode == 0
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import distributions; "
        "from federation.installed import digest_of; "
        "print(digest_of(next(one for one in distributions(path=[sys.argv[1]]))))"
    )
    line = [str(environment / "bin/python"), "-c", code, str(target)]
    found = subprocess.run(line, text=True, capture_output=True, check=True).stdout.strip()
    (digest,) = {row["digest"] for row in json.loads(call("pipelines.plugins", "--json").stdout)}
    assert found == digest
