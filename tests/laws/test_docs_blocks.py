"""The documents' code blocks are true: commands parse, YAML is accepted, Python runs, the tutorial works."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from pipelines.batch.layouts_file import LayoutsFile
from pipelines.external.settings import ExternalSettings
from pipelines.loader.document import read_yaml
from pipelines.loader.files import CONFIGS
from pipelines.loader.validation import validate_settings
from pipelines.pacs.settings import DicomNode, DicomWeb
from pipelines.remote.site_config import Place
from pipelines.settings.benchmark import BenchmarkSettings
from pipelines.settings.config import Config
from privacy.release.policy import Policy

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
KINDS = {
    "policy.yaml": Policy,
    "route.yaml": ExternalSettings,
    "west.yaml": ExternalSettings,
    "layouts.yaml": LayoutsFile,
}
KINDS |= {"dicomweb.yaml": DicomWeb, "dicom_node.yaml": DicomNode}
KINDS |= {"benchmark.yaml": BenchmarkSettings}
KINDS |= {"site.yaml": Place, "first.yaml": Config, "second.yaml": Config, "harmonized.yaml": Config}
LESSONS = ("first-run", "read-the-page", "your-own-data", "hospital-outside")


class Block(NamedTuple):
    """A fenced block. where: page and line, as a test's name."""

    where: str
    language: str
    title: str
    text: str


def blocks(page):
    text = page.read_text()
    name = page.relative_to(ROOT)
    pattern = r'(?m)^( *)```(\w*)(?: title="([^"]*)")?\n(.*?)^ *```$'
    return [
        Block(f"{name}:{text[: found.start()].count(chr(10)) + 1}", found[2], found[3] or "", textwrap.dedent(found[4]))
        for found in re.finditer(pattern, text, re.DOTALL)
    ]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(language):
    chosen = [block for block in BLOCKS if block.language == language]
    return pytest.mark.parametrize("block", chosen, ids=[block.where for block in chosen])


def commands(text):
    """Module and arguments of each of our commands in a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;", line.partition(" #")[0]):
            words = shlex.split(part)
            if "-m" in words[:-1] and (module := words[words.index("-m") + 1]).startswith("pipelines."):
                yield module, words[words.index("-m") + 2 :]


def test_every_block_says_what_it_is():
    assert {block.language for block in BLOCKS} <= {"bash", "yaml", "python", "json", "text"}
    assert {block.title for block in BLOCKS if block.language == "yaml"} >= set(KINDS) - {"site.yaml"}


@of("bash")
def test_a_shell_block_can_be_read_by_a_shell(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@of("bash")
def test_commands_take_the_arguments_that_are_shown(block):
    for module, arguments in commands(block.text):
        made = getattr(importlib.import_module(module), "parser", None)
        if made is not None:  # the options of the two others are looked for in test_docs.py
            made().parse_args(arguments)  # SystemExit says what is wrong
        else:
            assert module in {"pipelines.site", "pipelines.remote.serve"}


def test_a_command_that_does_not_parse_is_told():
    [(module, arguments)] = commands("sudo .venv/bin/python -m pipelines.run my.yaml --chekc")
    with pytest.raises(SystemExit):
        importlib.import_module(module).parser().parse_args(arguments)


def merged(base, part):
    """Settings with a part of them replaced. What is of another kind or name is replaced whole."""
    if not (isinstance(base, dict) and isinstance(part, dict)):
        return part
    if any(key in base and key in part and base[key] != part[key] for key in ("kind", "name")):
        return part
    return {**base, **{key: merged(base.get(key), value) for key, value in part.items()}}


@of("yaml")
def test_settings_are_accepted(block):
    """A part is accepted in the shipped configuration that its title names."""
    data = {"CONSILIUM_DATA": "/data"}
    if block.title.startswith("part of "):
        text = (CONFIGS / block.title.removeprefix("part of ")).read_text()
        base = read_yaml(text, environment=data).data
        part = read_yaml(block.text, environment=data).data
        validate_settings(read_yaml(yaml.safe_dump(merged(base, part)), environment=data), Config)
    else:
        validate_settings(read_yaml(block.text, environment=data), KINDS[block.title])


@of("python")
def test_python_runs(block, tmp_path, monkeypatch):
    if "CONSILIUM_DATA" in block.text and "CONSILIUM_DATA" not in os.environ:
        pytest.skip("needs CONSILIUM_DATA")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.where, "exec"), {})  # noqa: S102


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(tmp_path):
    """All four lessons, in order, in one shell: files are saved where the text says, every command ends with 0."""
    script = ["set -e", f"export PATH={Path(sys.executable).parent}:$PATH"]
    for lesson in LESSONS:
        for block in blocks(ROOT / f"docs/tutorial/{lesson}.md"):
            if block.language == "bash" and "make install" not in block.text:
                script += [block.text]
            elif block.language == "yaml" and not block.title.startswith("part of "):
                script += [f"cat > {block.title} <<'END'", block.text + "END"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash"], input="\n".join(script), text=True, cwd=tmp_path, env=environment, capture_output=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "west/routed_west/predictions.csv").exists()
    assert (tmp_path / "found/predictions.csv").exists()
    assert (tmp_path / "runs/first/report.html").exists()
