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

import numpy as np
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
def test_a_run_reads_what_a_packages_reader_writes_and_says_so(
    call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Files of a form that only the package knows, from `--check` to the page; nothing without permission."""
    (digest,) = {row["digest"] for row in json.loads(call("pipelines.plugins", "--json").stdout)}
    chance, sites = np.random.default_rng(0), {}
    for name in "ab":
        labels = np.arange(40) // 2 % 2
        images = chance.integers(0, 120, (40, 16, 16)) + 100 * labels[:, None, None]
        np.savez(tmp_path / f"{name}.npz", images=images.astype(np.uint8), labels=labels, patients=np.arange(40) // 2)
        sites[name] = {"source": {"kind": "bundle", "file": f"{name}.npz"}}

    def settings(policy: dict[str, object]) -> str:
        train = {**BASE["train"], "schedule": {"rounds": 2}, "methods": {"avg": {"name": "fedavg"}}}
        images = {"kind": "pictures", "size": 16}
        said = {**BASE, "pooling": "refused", "images": images, "model": {"name": "plain_cnn"}, "train": train}
        said |= {"sites": {name: {**site, "policy": policy} for name, site in sites.items()}}
        said |= {"evaluate": {"copies": 20, "reference": None}}
        (tmp_path / "read.yaml").write_text(yaml.safe_dump(said))
        return "read.yaml"

    refused = call("pipelines.run", settings({}), "--check")
    assert refused.returncode == 2 and "consilium-example 0.1.0" in refused.stdout + refused.stderr
    ran = call("pipelines.run", settings({"plugins": {"consilium-example": digest}}), "--json")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert {site: said["files"][site]["used_files"] for site in "ab"} == {"a": 40, "b": 40}
    aucs = [row["value"] for row in said["scores"] if (row["method"], row["measure"]) == ("avg", "AUC")]
    assert aucs and min(aucs) > 0.9, "classes differ by their brightness"
    page = (tmp_path / "runs/tiny/report.html").read_text()
    assert "reader bundle" in page and "consilium-example 0.1.0" in page and digest in page
    statement = next((tmp_path / "runs/tiny/report").glob("*/statement.md")).read_text()
    assert f"reader bundle: consilium-example 0.1.0 (SHA-256 {digest})" in " ".join(statement.split())
    again = call("pipelines.run", "read.yaml")
    assert "ingest    kept" in again.stderr, "the files are as they were"


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
        "from federation.installed import compute_package_digest; "
        "print(compute_package_digest(next(one for one in distributions(path=[sys.argv[1]]))))"
    )
    line = [str(environment / "bin/python"), "-c", code, str(target)]
    found = subprocess.run(line, text=True, capture_output=True, check=True).stdout.strip()
    (digest,) = {row["digest"] for row in json.loads(call("pipelines.plugins", "--json").stdout)}
    assert found == digest
