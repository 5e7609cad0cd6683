"""The image's files name what is there, and its list of contents (SBOM) is compared with what is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.nights.settings import Night
from pipelines.settings.config import Config

ROOT = Path(__file__).parents[2]
IMAGE, COMPOSE = ROOT / "deploy/image", ROOT / "deploy/compose"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

_spec = importlib.util.spec_from_file_location("sbom", IMAGE / "sbom.py")
assert _spec is not None and _spec.loader is not None
sbom = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sbom)


def instructions(path):
    """(word, rest) of each instruction; comments are left out and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


CONTAINERFILES = [IMAGE / "Containerfile", COMPOSE / "orthanc.Containerfile"]


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_instructions_are_known_and_their_shell_parses(path):
    known = {"ARG", "FROM", "RUN", "COPY", "LABEL", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions(path)} <= known
    for _, text in [one for one in instructions(path) if one[0] == "RUN"]:
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    for word, text in instructions(path):
        if word in {"ENTRYPOINT", "CMD"}:
            assert all(isinstance(one, str) for one in json.loads(text))


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_what_runs_is_not_root(path):
    last = [text for word, text in instructions(path) if word == "USER"][-1]
    assert last.split(":")[0] not in {"root", "0"}


def test_stages_are_copied_from_stages_that_come_before():
    seen = set()
    for word, text in instructions(IMAGE / "Containerfile"):
        if word == "COPY" and "--from=" in text:
            assert re.search(r"--from=(\S+)", text)[1] in seen
        if word == "FROM" and " AS " in text:
            seen.add(text.split(" AS ")[1])


def admitted():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line[1:] for line in lines if line.startswith("!")]


def test_what_the_build_reads_is_there_and_let_through():
    text = (IMAGE / "Containerfile").read_text() + (IMAGE / "build.sh").read_text()
    named = set(re.findall(r"(deploy/image/\w[\w.]*)|\b(constraints\.txt|wheelhouse)\b", text))
    named = {one or other for one, other in named}
    assert {"deploy/image/tools.txt", "deploy/image/sbom.py", "constraints.txt"} <= named
    assert not [one for one in named - {"wheelhouse"} if not (ROOT / one).exists()]
    assert not [one for one in named if not any(one == root or one.startswith(f"{root}/") for root in admitted())]


def test_every_package_of_the_project_and_nothing_private_goes_into_the_build():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert not [room for room in rooms if not any(fnmatch(name, room) for name in admitted())]
    assert not {"runs", "tests", "shared", ".git", "build"} & set(admitted())
    assert not [name for name in admitted() if name != "wheelhouse" and not (ROOT / name).exists()]
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def test_versions_are_the_project_s():
    text = (IMAGE / "Containerfile").read_text()
    assert re.findall(r'image\.version="([^"]+)"', text) == [VERSION]
    for path in (IMAGE / "Containerfile", COMPOSE / "compose.yaml", ROOT / "docs/how-to/container.md"):
        assert set(re.findall(r"(?<![\w-])consilium:(\d[\w.]*)", path.read_text())) == {VERSION}, path.name
    for line in (IMAGE / "tools.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w-]+==[\w.]+", line)


def test_scripts_parse():
    subprocess.run(["sh", "-n", str(IMAGE / "build.sh")], check=True)


def test_compose_names_files_and_volumes_that_are_there():
    told = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    for name, service in told["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in told["volumes"], (name, source)
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    built = told["services"]["orthanc"]["build"]
    assert (COMPOSE / built["context"] / built["dockerfile"]).is_file()
    assert json.loads((COMPOSE / "orthanc.json").read_text())["RegisteredUsers"]["trial"]


def test_settings_of_the_trial_are_accepted_and_name_each_other():
    run = validate_settings(read_yaml((COMPOSE / "settings/trial.yaml").read_text(), environment={}), Config)
    night = validate_settings(read_yaml((COMPOSE / "settings/night.yaml").read_text(), environment={}), Night)
    told = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    archive = json.loads((COMPOSE / "orthanc.json").read_text())
    assert night.archive.url == f"http://orthanc:{archive['HttpPort']}/dicom-web"
    assert archive["RegisteredUsers"] == {night.archive.user: told["night"]["environment"]["TRIAL_PASSWORD"]}
    *_, name, _, site, _, file = Path(night.model).parts
    assert (name, site in run.sites, Path(file).stem in run.train.methods) == (run.name, True, True)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,3}(?:-[a-z0-9]{1,3})?", fullmatch=True)
VERSIONS = st.from_regex(r"(?:[0-9]:)?[0-9]{1,2}(?:\.[0-9]{1,2})?(?:[+~-][a-z0-9]{1,3})?", fullmatch=True)
PACKAGES = st.sets(st.tuples(st.sampled_from(["pypi", "deb"]), NAMES, VERSIONS), min_size=1, max_size=8)


def listing(packages, licence="MIT"):
    kinds = {"pypi": "pypi", "deb": "deb/debian"}
    return {
        "components": [
            {
                "name": name,
                "version": version,
                "bom-ref": f"{kind} {name} {version}",
                "purl": f"pkg:{kinds[kind]}/{name}@{quote(version, safe=':')}"
                + ("?arch=amd64" if kind == "deb" else ""),
                "licenses": [{"license": {"name": licence}}],
            }
            for kind, name, version in sorted(packages)
        ]
    }


@given(packages=PACKAGES, data=st.data())
def test_a_list_is_right_only_if_it_names_just_what_is_installed(packages, data):
    assert sbom.problems(listing(packages), sorted(packages)) == []
    lost = data.draw(st.sampled_from(sorted(packages)))
    words = " ".join(lost)
    assert sbom.problems(listing(packages - {lost}), sorted(packages)) == [f"installed and not listed: {words}"]
    assert sbom.problems(listing(packages), sorted(packages - {lost})) == [f"listed and not installed: {words}"]


def test_a_package_without_a_licence_is_named_and_sources_are_no_packages():
    bom = listing({("pypi", "a", "1")})
    del bom["components"][0]["licenses"]
    bom["components"].append({"name": "a", "version": "1", "purl": "pkg:deb/debian/a@1?arch=source", "bom-ref": "s"})
    assert sbom.problems(bom, [("pypi", "a", "1")]) == ["listed without a licence: pypi a 1"]


def test_licences_are_read_from_both_kinds_of_copyright_files():
    machine = "Format: https://example.org\n\nFiles: *\nLicense: GPL-2+\n text\n\nFiles: x\nLicense: BSD-3-clause\n"
    assert sbom.licence(machine) == "BSD-3-clause; GPL-2+"
    assert sbom.licence("On Debian systems see /usr/share/common-licenses/LGPL-2.1.") == "LGPL-2.1"
    assert sbom.licence("You may do what you like.") is None


def test_dpkg_s_status_lists_what_is_installed_and_not_what_was_removed():
    status = (
        "Package: a\nStatus: install ok installed\nVersion: 1:2-3+b1\nDescription: x\n Package: no\n\n"
        "Package: b\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert list(sbom.debian_packages(status)) == [("deb", "a", "1:2-3+b1")]


def tool(name, components, edges):
    return {
        "specVersion": "1.6",
        "metadata": {"tools": {"components": [{"name": name}]}},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": needs} for ref, needs in edges.items()],
    }


def test_a_joined_list_has_both_lists_once_and_one_root_that_leads_everywhere():
    own = {"name": "consilium", "version": "1.2.3", "bom-ref": "own"}
    python = tool("p", [{"name": "b", "bom-ref": "b"}, own], {"own": ["b"], "b": [], "root-of-tool": ["own"]})
    debian = tool("d", [{"name": "c", "bom-ref": "c"}], {"c": ["not listed"]})
    made = sbom.join(python, debian, 0)
    assert [one["bom-ref"] for one in made["components"]] == ["b", "c", "own"]
    assert made["metadata"]["component"]["version"] == "1.2.3"
    assert made["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"
    edges = {one["ref"]: one["dependsOn"] for one in made["dependencies"]}
    assert edges == {sbom.ROOT: ["c", "own"], "own": ["b"], "b": [], "c": []}
    assert made == sbom.join(python, debian, 0)
    with pytest.raises(ValueError, match=r"found 1\.6 and 1\.5"):
        sbom.join(python, {**debian, "specVersion": "1.5"}, 0)


@pytest.mark.slow
def test_an_image_is_built_without_a_registry_and_runs_without_a_network(tmp_path):
    """Some minutes, and some gigabytes of disk."""
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None or shutil.which("mmdebstrap") is None:
        pytest.skip("no podman or docker, or no mmdebstrap here")
    if os.geteuid() != 0:
        pytest.skip("a base from Debian's packages is made as root")
    if not (ROOT / "wheelhouse").is_dir():
        pytest.skip("no wheelhouse/ in the root of the repository: docs/how-to/container.md says how it is made")
    script = ["sh", str(IMAGE / "build.sh")]
    subprocess.run(script, env={**os.environ, "ENGINE": engine, "BASE": "made", "OUT": str(tmp_path)}, check=True)
    (bom,) = tmp_path.glob("*.cdx.json")
    assert len(sbom.listed(json.loads(bom.read_text()))) > 100
    quiet = [engine, "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "all"]
    wrote = subprocess.run([*quiet, "--entrypoint", "touch", f"consilium:{VERSION}", "/opt/here"], check=False)
    assert wrote.returncode != 0
    answer = subprocess.run([*quiet, f"consilium:{VERSION}", "night", "--help"], check=True, capture_output=True)
    assert b"archive" in answer.stdout


def test_the_check_says_how_many_there_are(tmp_path, monkeypatch, capsys):
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("no Debian")
    installed = [*sbom.python_packages(), *sbom.debian_packages(Path("/var/lib/dpkg/status").read_text())]
    (tmp_path / "all.json").write_text(json.dumps(listing(set(installed))))
    assert sbom.main(["check", str(tmp_path / "all.json")]) == 0
    assert "all are listed, with licences" in capsys.readouterr().out
    (tmp_path / "few.json").write_text(json.dumps(listing(set(installed[1:]) - {installed[0]})))
    assert sbom.main(["check", str(tmp_path / "few.json")]) == 1
    assert f"installed and not listed: {' '.join(installed[0])}" in capsys.readouterr().out
