"""python -m pipelines.plugins [FILES]: list the installed packages that offer methods, networks and the like.

    python -m pipelines.plugins                          what is offered, by which package, with its digest
    python -m pipelines.plugins policy.yaml site.yaml    and which of these files permit it

No package's code is run. The last lines are what a hospital's policy says to permit everything that is listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelines.loader.command_line import command_parser
from pipelines.loader.document import ConfigError, render
from pipelines.loader.files import read_document
from pipelines.runs.exits import Exit, end_process
from privacy.message import Json, as_mapping

if TYPE_CHECKING:
    from rich.console import Console

    from federation.installed import Offer

PROG = "python -m pipelines.plugins"


class Listed(NamedTuple):
    """What is offered. digest: of the package; empty if it has none. trouble: why it has none, or cannot be named.
    permitted: files and sites whose policy permits it.
    """

    offer: Offer
    digest: str
    trouble: str
    permitted: tuple[str, ...]


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """List the packages, and return the exit code (see docs/reference/exit-codes.md)."""
    options = parser(prog).parse_args(arguments)
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True, emoji=False)
    policies: dict[str, Mapping[str, Json]] = {}
    for path in options.files:
        try:
            policies |= dict(_policies(path))
        except ConfigError as error:
            Console(stderr=True, soft_wrap=True, emoji=False).print(render(error, path), markup=False, highlight=False)
            return int(Exit.CONFIG)
    offered = list_offers_of_packages(policies)
    if options.json:
        rows = [
            {"group": row.offer.group, "name": row.offer.name, "package": row.offer.distribution}
            | {"version": row.offer.version, "digest": row.digest, "trouble": row.trouble}
            | {"permitted": list(row.permitted)}
            for row in offered
        ]
        print(json.dumps(rows, indent=1))  # noqa: T201 - the machine's answer
        return int(Exit.OK)
    _print(offered, console, bool(policies))
    return int(Exit.OK)


def list_offers_of_packages(policies: Mapping[str, Mapping[str, Json]]) -> list[Listed]:
    """Everything that installed packages offer. policies: file or site -> its permitted packages, name -> digest."""
    from federation.installed import list_offers
    from federation.registry import own_names
    from pipelines.settings.others import GROUPS  # all our classes, whose names are taken

    rows = []
    for group in GROUPS.values():
        built_in, offers = own_names(group), list_offers(group.group)
        for offer in offers:
            digest, trouble = _digest(offer)
            if offer.name in built_in:
                trouble = "its name is taken by this package: nothing can name it"
            elif sum(other.name == offer.name for other in offers) > 1:
                trouble = "another package offers the same name: neither can be named"
            where = [place for place, plugins in policies.items() if plugins.get(offer.distribution) == digest != ""]
            rows.append(Listed(offer, digest, trouble, tuple(where)))
    return rows


def _digest(offer: Offer) -> tuple[str, str]:
    try:
        return offer.digest, ""
    except (ValueError, OSError) as error:
        return "", str(error)


def _policies(path: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The permitted packages in a policy, a site file, or the sites of a run's settings."""
    data = as_mapping(read_document(path).data)
    sites = {path: as_mapping(data.get("site", {})), **as_mapping(data.get("sites", {}))}
    if "plugins" in data:
        yield path, as_mapping(data["plugins"])
    for name, site in sites.items():
        policy = as_mapping(as_mapping(site).get("policy", {}))
        if "plugins" in policy:
            yield name, as_mapping(policy["plugins"])


def _print(rows: Sequence[Listed], console: Console, policy_files: bool) -> None:
    if not rows:
        console.print("No installed package offers a method, a network, a translator, an extractor or a reader.")
        return
    from rich.table import Table

    table = Table("group", "name", "package", "version", "sha256", *(["permitted by"] if policy_files else []))
    for row in rows:
        cells = (row.offer.group, row.offer.name, row.offer.distribution, row.offer.version)
        table.add_row(
            *cells, row.digest[:12] or "none", *([", ".join(row.permitted) or "nobody"] if policy_files else [])
        )
    console.print(table)
    for row in rows:
        if row.trouble:
            console.print(f"! {row.offer.text}: {row.trouble}", markup=False)
    lines = dict.fromkeys(f"  {row.offer.distribution}: {row.digest}" for row in rows if row.digest)
    console.print("\n".join(["To permit them, a hospital's policy says", "plugins:", *lines]), markup=False)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("files", nargs="*", metavar="FILE", help="a policy.yaml, a site.yaml, or the YAML of a run")
    made.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    return made


if __name__ == "__main__":
    end_process(main)
