"""What the documents name is there: files that they link, paths, sections, commands with their options, YAML keys."""

import ast
import dataclasses
import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from PIL import Image
from pydantic import TypeAdapter

from benchmarks.tables import diagram
from pipelines.settings.config import Config

ROOT = Path(__file__).parents[2]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
DOCS = sorted([*(ROOT / name for name in ROOT_PAGES), *(ROOT / "docs").rglob("*.md")])
ROOMS = (
    "pipelines",
    "personalize",
    "federation",
    "harmonize",
    "evaluation",
    "privacy",
    "tests",
    "benchmarks",
    "docs",
    "deploy",
)

FIELDS = {field.name for field in dataclasses.fields(Config)}


def anchor(heading):
    """As a forge makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def sections(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    return {anchor(found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_sections_that_are_there(path):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, section = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (section and there.suffix == ".md" and section not in sections(there)):
            lost.append(target)
    assert not lost


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_of_this_repository_are_there(path):
    text = re.sub(r"Tried: .*?(?=\n\n|\Z)", "", path.read_text(), flags=re.DOTALL)  # may name what went
    named = set(re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./-]+\.(?:py|md|yaml|json|html|service|timer|cron))`", text))
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


@cache
def source(module):
    """The text of a command and of the modules beside it that add its options."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    path = Path(found.origin)
    if path.name == "__init__.py":
        path = path.parent / "__main__.py"
    own = path.read_text()
    beside = re.findall(r"from ((?:pipelines|benchmarks)[\w.]*) import", own)
    return own + "".join(source(one) for one in beside if one.count(".") and one != module and "argparse" in _text(one))


@cache
def _text(module):
    found = importlib.util.find_spec(module)
    return Path(found.origin).read_text() if found and found.origin else ""


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist_with_the_options_that_are_named(path):
    lost = []
    for module, rest in re.findall(
        r"python3? -m ((?:pipelines|benchmarks)[\w.]*)([^`\n]*)", path.read_text().replace("\\\n", " ")
    ):
        if importlib.util.find_spec(module) is None:
            lost.append(module)
            continue
        options = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", rest.split("#")[0])
        lost += [f"{module} {option}" for option in options if f'"{option}"' not in source(module)]
    assert not lost


@cache
def keys():
    """Every name of a setting, wherever it stands."""
    found = set()

    def look(schema):
        if isinstance(schema, dict):
            found.update(schema.get("properties", {}))
            for one in schema.values():
                look(one)
        elif isinstance(schema, list):
            for one in schema:
                look(one)

    look(TypeAdapter(Config).json_schema())
    return found


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_settings_with_dots_are_settings(path):
    lost = []
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", path.read_text()):
        first, *others = name.split(".")
        # A function, by its module.
        depths = range(1, len(others) + 1)
        code = any(ROOT.joinpath(first, *others[:depth]).with_suffix(".py").exists() for depth in depths)
        if first in FIELDS and not code and others[-1] not in {"py", "md", "json", "yaml", "html"}:
            lost += [name] if not set(others) <= keys() else []
    assert not lost


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_prose_and_code_are_short(path):
    """Rows of tables and pictures cannot be broken."""
    if path.name == "CONTRIBUTING.md":
        pytest.skip("not yet")
    lines = path.read_text().splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("|", "!["))]


def test_the_site_has_every_page_once():
    listed = re.findall(r"^ +- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_pages_of_the_site_link_nothing_outside_it():
    """Such a link would be dead on the site: name the path instead."""
    docs = ROOT / "docs"
    for path in docs.rglob("*.md"):
        for target in re.findall(r"\]\(([^)\s#]+)", path.read_text()):
            assert "://" in target or (path.parent / target).resolve().is_relative_to(docs), (path.name, target)


def test_version_and_licence_are_told_alike_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert f"\n## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


def test_pins_hold_what_the_documents_are_built_with():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=]", one)[0] for one in project["optional-dependencies"]["docs"]]
    assert all(f"\n{name}==" in (ROOT / "constraints.txt").read_text() for name in names)


def test_the_diagram_is_the_one_that_the_script_draws():
    """Otherwise: python -m benchmarks.tables.diagram."""
    assert diagram.PICTURE.read_text() == diagram.drawn()


@pytest.mark.parametrize("name", ["report.png", "site.png"])
def test_the_pictures_of_pages_are_of_this_version(name):
    """Otherwise make them again: benchmarks/tables/page_pictures.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert Image.open(ROOT / "docs/pictures" / name).text.get("Version") == project["version"]


def test_the_picture_of_the_page_shows_the_headings_that_the_page_has():
    """Otherwise make it again: benchmarks/tables/page_pictures.py."""
    shown = Image.open(ROOT / "docs/pictures/report.png").text.get("Headings", "").split("\n")
    patterns = [
        "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)
        for parts in list_section_titles()
        if any(isinstance(part, ast.Constant) for part in parts)
    ]
    assert shown != [""]
    assert not [heading for heading in shown if not any(re.fullmatch(p, heading) for p in patterns)]


def list_section_titles():
    """The title of each section of a page that the code writes out, in its constant and its other parts."""
    calls = (
        node
        for path in (ROOT / "evaluation").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Section"
    )
    titles = [call.args[0] for call in calls]
    return [title.values if isinstance(title, ast.JoinedStr) else [title] for title in titles]
