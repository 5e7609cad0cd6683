"""What an image holds, as one CycloneDX list (SBOM): joined from the lists of two tools, and compared with the image.

    sbom.py join python.json debian.json --system FOLDER --out sbom.cdx.json     while the image is built
    sbom.py check sbom.cdx.json                              in the image; code 1, and a line for each difference

cyclonedx-bom lists Python's packages and debsbom Debian's. Where they name no licence, it is read here: from a Python
package's field `License`, from a Debian package's copyright file. Both commands are for the Python of the image, and
need nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote
from uuid import NAMESPACE_URL, uuid5

Bom: TypeAlias = dict[str, Any]
Package: TypeAlias = tuple[str, str, str]
"""(pypi or deb, name, version)."""

ROOT = "consilium-image"


def join(python: Bom, debian: Bom, seconds: int) -> Bom:
    """One CycloneDX document of both lists.

    Args:
        python, debian: documents of the same specVersion.
        seconds: since 1970, the time that is written.

    Raises:
        ValueError: the documents are of two versions of CycloneDX.
    """
    if python["specVersion"] != debian["specVersion"]:
        found = f"{python['specVersion']} and {debian['specVersion']}"
        raise ValueError(f"specVersion: found {found}; both tools must write the same, set it where they are called")
    components = sorted(python["components"] + debian["components"], key=lambda one: str(one["bom-ref"]))
    version = next(one["version"] for one in python["components"] if one["name"] == "consilium")
    tools = [one for bom in (python, debian) for one in bom["metadata"].get("tools", {}).get("components", [])]
    lists = json.dumps([(one["bom-ref"], one.get("version")) for one in components])
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{python['specVersion']}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": python["specVersion"],
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, lists)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "tools": {"components": tools},
            "component": {"type": "container", "bom-ref": ROOT, "name": "consilium", "version": version},
        },
        "components": components,
        "dependencies": _graph(python, debian, components),
    }


def _graph(python: Bom, debian: Bom, components: Sequence[Bom]) -> list[Bom]:
    """Who needs whom. The image needs what no other needs; each tool's own root is left out."""
    known = {one["bom-ref"] for one in components}
    edges = {one["ref"]: one.get("dependsOn", []) for bom in (python, debian) for one in bom.get("dependencies", [])}
    edges = {ref: sorted(set(needs) & known) for ref, needs in edges.items() if ref in known}
    needed = {ref for needs in edges.values() for ref in needs}
    return [
        {"ref": ROOT, "dependsOn": sorted(known - needed)},
        *({"ref": ref, "dependsOn": edges[ref]} for ref in sorted(edges)),
    ]


def licensed(bom: Bom, licences: Mapping[str, str]) -> Bom:
    """The document with the licence of each component that names none. licences: by the component's name."""

    def one(component: Bom) -> Bom:
        told = licences.get(component["name"])
        if component.get("licenses") or not told:
            return component
        return {**component, "licenses": [{"license": {"name": told, "acknowledgement": "declared"}}]}

    return {**bom, "components": [one(component) for component in bom["components"]]}


def licence(copyright_text: str) -> str | None:
    """The licences that a Debian copyright file names: its `License:` fields, else the common licences it refers to."""
    if copyright_text.lstrip().startswith(("Format:", "Format-Specification:")):
        named = re.findall(r"^License:[ \t]*(\S.*)$", copyright_text, re.MULTILINE)
    else:
        named = re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])", copyright_text)
    return "; ".join(sorted({one.strip() for one in named})) or None


def debian_licences(system: Path) -> dict[str, str]:
    """The licence of each installed Debian package; where its copyright file names none, the path of that file."""
    told = {}
    for _, name, _ in debian_packages((system / "var/lib/dpkg/status").read_text()):
        file = system / "usr/share/doc" / name / "copyright"
        if file.is_file():
            where = f"see /usr/share/doc/{name}/copyright"
            told[name] = licence(file.read_text(errors="replace")) or where
    return told


def debian_packages(status: str) -> Iterator[Package]:
    """The installed packages of dpkg's status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield "deb", fields["Package"], fields["Version"]


def python_packages() -> Iterator[Package]:
    """The packages of this Python."""
    for one in metadata.distributions():
        yield "pypi", re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version


def listed(bom: Bom) -> dict[Package, Bom]:
    """The components of a document that are installed packages: Python's, and Debian's but the sources.

    Consilium itself is installed from a file, so it has no purl: another project may have its name on PyPI.
    """
    found = {}
    for one in bom["components"]:
        own = f"pkg:pypi/{one['name']}@{one.get('version', '')}"
        parts = re.fullmatch(r"pkg:(pypi|deb/debian)/([^@]+)@([^?#]+)(\?[^#]*)?(?:#.*)?", one.get("purl", own))
        if parts and "arch=source" not in (parts[4] or ""):
            found[(parts[1].partition("/")[0], unquote(parts[2]), unquote(parts[3]))] = one
    return found


def problems(bom: Bom, installed: Sequence[Package]) -> list[str]:
    """A sentence for each package that is listed or installed and not both, and for each without a licence."""
    there, known = set(installed), listed(bom)
    return [
        *(f"installed and not listed: {' '.join(one)}" for one in sorted(there - known.keys())),
        *(f"listed and not installed: {' '.join(one)}" for one in sorted(known.keys() - there)),
        *(f"listed without a licence: {' '.join(one)}" for one in sorted(known) if not known[one].get("licenses")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """As the module says."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = line.add_subparsers(dest="command", required=True)
    joining = commands.add_parser("join")
    joining.add_argument("python", type=Path)
    joining.add_argument("debian", type=Path)
    joining.add_argument("--system", type=Path, required=True, help="root folder of the image")
    joining.add_argument("--out", type=Path, required=True)
    checking = commands.add_parser("check")
    checking.add_argument("bom", type=Path)
    options = line.parse_args(arguments)
    if options.command == "join":
        told = {one.metadata["Name"]: str(one.metadata.json.get("license", "")) for one in metadata.distributions()}
        python = licensed(json.loads(options.python.read_text()), told)
        debian = licensed(json.loads(options.debian.read_text()), debian_licences(options.system))
        made = join(python, debian, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
        options.out.write_text(json.dumps(made, indent=1) + "\n")
        return 0
    status = Path("/var/lib/dpkg/status").read_text()
    installed = [*python_packages(), *debian_packages(status)]
    wrong = problems(json.loads(options.bom.read_text()), installed)
    kinds = [kind for kind, _, _ in installed]
    count = f"{kinds.count('pypi')} packages of Python and {kinds.count('deb')} of Debian are installed"
    count += f"; the list has {len(wrong)} faults" if wrong else "; all are listed, with licences"
    sys.stdout.write("\n".join([*wrong, count, ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
