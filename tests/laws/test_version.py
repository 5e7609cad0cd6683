"""The version is written in pyproject.toml alone: every other place that tells it tells the same."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from pipelines.run import main
from rooms import FILES, ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TOLD = re.compile(r"consilium[:-](\d+\.\d+\.\d+\w*)|image\.version=\"([^\"]+)\"", re.IGNORECASE)
"""An image or a file with the version in its name, or the label of an image."""
FOLDERS = ("docs", "deploy")


def texts() -> list[Path]:
    """All documents and files of deployment that are text."""
    kinds = {".md", ".yaml", ".yml", ".sh", ".py", ".txt", ".toml", ".cff", ""}
    deep = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    flat = (ROOT / name for name in FILES)
    files = [
        path for path in (*deep, *flat) if path.is_file() and (path.suffix in kinds or "Containerfile" in path.name)
    ]
    assert len(files) > 60
    return files


def told(text: str) -> list[str]:
    return [one or other for one, other in TOLD.findall(text)]


def test_a_version_is_found_where_one_is_told():
    assert told("-t consilium:0.1.0 .") == ["0.1.0"]
    assert told('org.opencontainers.image.version="9.9.9"') == ["9.9.9"]
    assert told("pip install consilium-2.0.0rc1-py3-none-any.whl") == ["2.0.0rc1"]


def test_documents_and_images_tell_the_version_of_pyproject():
    found = {path: told(path.read_text()) for path in texts()}
    assert sum(map(len, found.values())) >= 8
    wrong = {str(path.relative_to(ROOT)): said for path, said in found.items() if set(said) - {VERSION}}
    assert not wrong, f"pyproject.toml says {VERSION}"


def test_the_citation_and_the_changelog_tell_it_too():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] in (VERSION, "Unreleased")


def test_the_command_tells_what_is_installed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"consilium {version('consilium')}\n"
    assert version("consilium") == VERSION, "an older installation: pip install -e . again"
