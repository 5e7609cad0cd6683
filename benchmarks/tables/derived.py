"""Tables of results that are made from measurements that are kept, in benchmarks/*.json: which, and by what function.

    python -m benchmarks.tables.derived            # says where a table is not what its measurements make
    python -m benchmarks.tables.derived --json     # the tables that they make

A script that measures writes its table itself; tests/laws/test_derived_tables.py makes each again and compares. So a
figure that somebody typed into docs/results/data/ differs from what was measured, and is told.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Tables = dict[str, dict[str, Any]]


def kept(name: str) -> Any:
    """What benchmarks/NAME.json holds."""
    return json.loads((ROOT / "benchmarks/measured" / f"{name}.json").read_text(encoding="utf-8"))


def made_by(script: str) -> Any:
    """The program of that name beside this one, imported when it is asked for."""
    return importlib.import_module(f"benchmarks.{script}")


def one_message() -> Tables:
    return {
        **made_by("studies.one_message").tables(kept("one_message"), ""),
        "ablation": made_by("studies.ablation").table(kept("ablation"), ""),
        **made_by("studies.cnn_lines").tables(kept("cnn_lines"), 2, ""),
        **made_by("studies.leaving_out").tables(kept("leaving_out"), ""),
        "cost": made_by("speed.one_message_cost").table(kept("one_message_cost"), ""),
        **made_by("studies.release_attacks").tables(kept("release_attacks"), ""),
    }


def many_classes() -> Tables:
    script = made_by("studies.many_classes")
    floor = {"command": "", "floor": script.LOGISTIC, "above": "logistic regression"}
    return {
        **script.tables(kept("many_classes"), "", **floor),
        **made_by("studies.cnn_lines").tables(kept("cnn_lines"), 7, ""),
    }


def one_message_phantom() -> Tables:
    script = made_by("studies.one_message_phantom")
    groups = tuple(f"2 x {patients} patients" for patients in script.TRAINED)
    floor = {"floor": script.FLOOR.format("detector"), "above": "the SVM on the detector"}
    made: Tables = script.tables(kept("one_message_phantom"), "", command="", groups=groups, **floor)
    return made


def recommendation() -> Tables:
    script, book = made_by("studies.recommendation"), kept("recommendation")
    return {**{name: script.table(splits, {}) for name, splits in book.items()}, "claims": script.claims(book, {})}


def heart_disease() -> Tables:
    script, book = made_by("studies.fenda_tables"), kept("fenda")
    made = {"ranks": script.ranks(), "sizes": script.sizes(book), "matrix": script.matrix(book)}
    return {name: {"columns": columns, "rows": rows} for name, (columns, rows) in made.items()}


def partitions() -> Tables:
    script, book = made_by("studies.partitions_tables"), kept("partitions")
    names = ("accuracy", "pooled", "gains", "cost", "bandwidth", "directed", "toy", "newcomers", "settings")
    made = {name: getattr(script, name)(book) for name in names}
    return {name: {"columns": columns, "rows": rows} for name, (columns, rows) in made.items()}


def routing() -> Tables:
    script, book = made_by("studies.outside_tables"), kept("outside")
    made = {name: getattr(script, name)(book) for name in ("ways", "taus", "epochs", "choice", "rule")}
    made["steps"] = script.inside(book, "disc", ("disc",), (2, 8))
    made["cups"] = script.inside(book, "cup", ("disc", "cup"), (8,))
    return {name: {"columns": columns, "rows": rows} for name, (columns, rows) in made.items()}


def public_start() -> Tables:
    return {key: made_by("studies.public_start").table(key, one) for key, one in kept("public_start").items()}


DERIVED: Mapping[str, Callable[[], Tables]] = {
    "augmentation": lambda: made_by("studies.augmentation").tables("", ""),
    "customized": lambda: made_by("studies.customized_tables").tables(kept("customized"), ""),
    "harmonized-pictures": lambda: made_by("studies.synthesis_on_skin").tables(kept("synthesis_on_skin"), ""),
    "heart-disease": heart_disease,
    "many-hospitals": lambda: made_by("speed.many_hospitals").tables(kept("many_hospitals"), ""),
    "maps": lambda: made_by("studies.localization_tables").made(kept("localization")),
    "many-classes": many_classes,
    "night": lambda: made_by("faults.night_tables").made(""),
    "one-message": one_message,
    "one-message-phantom": one_message_phantom,
    "partitions": partitions,
    "prompts": lambda: made_by("studies.prompts").tables(kept("prompts"), ""),
    "public-start": public_start,
    "recommendation": recommendation,
    "routing": routing,
    "translation-quality": lambda: made_by("studies.synthesis").tables(kept("synthesis"), ""),
    "vafl-as-published": lambda: made_by("studies.vafl_as_published_tables").made(""),
    "veto-calibration": lambda: made_by("studies.veto_calibration").tables(),
    "without-a-patient": lambda: made_by("studies.no_patient_tables").made(),
}
"""Page of docs/results: what makes its tables, not all of them."""


def differences(page: str, made: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Where a page's committed tables are not what its measurements make."""
    found = []
    for name, table in made.items():
        told = committed.get(name, {"columns": [], "rows": []})
        rows = [list(row) for row in table["rows"]]
        if list(table["columns"]) != told["columns"]:
            found.append(f"{page}.{name}: columns {table['columns']}, and {told['columns']} on the page")
        found += [f"{page}.{name}: measured {row}" for row in rows if row not in told["rows"]]
        found += [f"{page}.{name}: on the page {row}" for row in told["rows"] if row not in rows]
        if not found and rows != told["rows"]:
            found.append(f"{page}.{name}: rows in another order")
    return found


def main() -> None:
    made = {page: tables() for page, tables in DERIVED.items()}
    if "--json" in sys.argv:
        json.dump(made, sys.stdout, ensure_ascii=False)
        return
    for page, tables in made.items():
        committed = json.loads((ROOT / "docs/results/data" / f"{page}.json").read_text(encoding="utf-8"))
        sys.stdout.writelines(f"{line}\n" for line in differences(page, tables, committed))


if __name__ == "__main__":
    main()
