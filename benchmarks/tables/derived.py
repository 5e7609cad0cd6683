"""Tables of results that are made from measurements that are kept, in benchmarks/measured: which, by what function.

    python -m benchmarks.tables.derived                 # says where a table is not what its measurements make
    python -m benchmarks.tables.derived --json          # the tables that they make
    python -m benchmarks.tables.derived --write maps    # writes the tables of a page, and the page

A script that measures keeps its figures; this writes their tables, with the day and the commit where they changed.
tests/laws/test_derived_tables.py makes each again and compares. So a figure that somebody typed into docs/results/data/
differs from what was measured, and is told.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import TABLES
from benchmarks.shared.records import make_table, read_measured, write_tables
from benchmarks.tables import results_tables

Tables = dict[str, dict[str, Any]]


def made_by(script: str) -> Any:
    """The program of that name, imported when it is asked for."""
    return importlib.import_module(f"benchmarks.{script}")


def paired(made: Mapping[str, Any]) -> Tables:
    """Tables of their columns and rows."""
    return {name: make_table(*pair) for name, pair in made.items()}


def one_message() -> Tables:
    return {
        **made_by("studies.one_message").tables(read_measured("one_message")),
        "ablation": made_by("studies.ablation").table(read_measured("ablation")),
        **made_by("studies.cnn_lines").tables(read_measured("cnn_lines"), 2),
        **made_by("studies.leaving_out").tables(read_measured("leaving_out")),
        "cost": made_by("speed.one_message_cost").table(read_measured("one_message_cost")),
        **made_by("studies.release_attacks").tables(read_measured("release_attacks")),
    }


def many_hospitals() -> Tables:
    return {
        **made_by("speed.many_hospitals").tables(read_measured("many_hospitals")),
        **made_by("studies.buffering").tables(read_measured("buffering")),
        **made_by("speed.regions").tables(read_measured("regions")),
    }


def speed() -> Tables:
    return {
        **made_by("speed.curves").tables_of_images(read_measured("curves")),
        **made_by("speed.large_models").tables(read_measured("large_models")),
    }


def many_classes() -> Tables:
    floor = {"floor": made_by("studies.many_classes").LOGISTIC, "above": "logistic regression"}
    return {
        **made_by("studies.one_message").tables(read_measured("many_classes"), **floor),
        **made_by("studies.cnn_lines").tables(read_measured("cnn_lines"), 7),
    }


def one_message_phantom() -> Tables:
    script = made_by("studies.one_message_phantom")
    groups = tuple(f"2 x {patients} patients" for patients in script.TRAINED)
    floor = {"floor": script.FLOOR.format("detector"), "above": "the SVM on the detector"}
    kept = read_measured("one_message_phantom")
    made: Tables = made_by("studies.one_message").tables(kept, groups=groups, **floor)
    return made


def planned() -> Tables:
    return {
        **made_by("studies.planned").tables(read_measured("planned")),
        **made_by("studies.beside_nnunet").tables(read_measured("beside_nnunet")),
        **made_by("studies.lesion_trainings").tables(read_measured("lesion_trainings")),
        **made_by("studies.prostatex_nnunet").tables(read_measured("prostatex_nnunet")),
        **made_by("studies.own_plans").tables(read_measured("own_plans")),
        **made_by("studies.nnunet_weights").tables(read_measured("nnunet_weights")),
        **made_by("speed.planned_memory").tables(read_measured("planned_memory")),
    }


def recommendation() -> Tables:
    script, book = made_by("studies.recommendation"), read_measured("recommendation")
    made = {**{name: script.table(splits) for name, splits in book.items()}, "claims": script.claims(book)}
    of_findings = read_measured("recommendation_findings")
    made |= {f"findings-{name}": script.table(splits) for name, splits in of_findings.items()}
    return made | {"findings-claims": script.claims(of_findings)}


def heart_disease() -> Tables:
    script, book = made_by("studies.fenda_tables"), read_measured("fenda")
    made = paired({"ranks": script.ranks(), "sizes": script.sizes(book), "matrix": script.matrix(book)})
    return {**made, **made_by("studies.added_by_others").tables(read_measured("added_by_others"))}


def partitions() -> Tables:
    script, book = made_by("studies.partitions_tables"), read_measured("partitions")
    names = ("accuracy", "pooled", "gains", "cost", "bandwidth", "directed", "toy", "newcomers", "settings")
    return paired({name: getattr(script, name)(book) for name in names})


def routing() -> Tables:
    script, book = made_by("studies.outside_tables"), read_measured("outside")
    made = {name: getattr(script, name)(book) for name in ("ways", "taus", "epochs", "choice", "rule")}
    made["steps"] = script.inside(book, "disc", ("disc",), (2, 8))
    made["cups"] = script.inside(book, "cup", ("disc", "cup"), (8,))
    return paired(made)


def cost_curves() -> Tables:
    script, book = made_by("speed.curves"), read_measured("curves")
    return {
        **script.tables(book),
        "million": script.table_of_a_million(book),
        "ledger": made_by("speed.ledger_age").table(read_measured("ledger_age")),
        "patches": made_by("speed.patch_loader").table(read_measured("patch_loader")),
        "ratios": made_by("tables.ratios").table(),
    }


def uploads() -> Tables:
    return {
        **made_by("studies.uploads").tables(read_measured("uploads")),
        **made_by("speed.large_models").tables_of_uploads(read_measured("large_uploads")),
    }


def of_one(script: str, measured: str) -> Callable[[], Tables]:
    """The tables that one script makes of one file."""
    return lambda: made_by(script).tables(read_measured(measured))


DERIVED: Mapping[str, Callable[[], Tables]] = {
    "adapters": of_one("studies.adapters", "adapters"),
    "augmentation": of_one("studies.augmentation", "augmentation"),
    "carried": of_one("studies.carried", "carried"),
    "cost-curves": cost_curves,
    "customized": of_one("studies.customized_tables", "customized"),
    "default-run": of_one("studies.cusfl_low", "cusfl_low"),
    "encoder": of_one("studies.lite0", "lite0"),
    "gpu": of_one("speed.gpu", "gpu"),
    "harmonized-pictures": of_one("studies.synthesis_on_skin", "synthesis_on_skin"),
    "heart-disease": heart_disease,
    "many-hospitals": many_hospitals,
    "matched": of_one("studies.matched", "matched"),
    "maps": of_one("studies.localization_tables", "localization"),
    "many-classes": many_classes,
    "night": of_one("faults.night_tables", "night"),
    "one-message": one_message,
    "one-message-phantom": one_message_phantom,
    "own-norms": of_one("studies.own_norms", "own_norms"),
    "planned": planned,
    "partitions": partitions,
    "poisoned": of_one("studies.poisoned", "poisoned"),
    "prompts": of_one("studies.prompts", "prompts"),
    "public-start": of_one("studies.public_start", "public_start"),
    "recipe": of_one("studies.recipe", "recipe"),
    "recommendation": recommendation,
    "routing": routing,
    "shared-noise": of_one("studies.shared_noise", "shared_noise"),
    "speed": speed,
    "systems": lambda: made_by("tables.systems_tables").tables(),
    "translation-quality": of_one("studies.synthesis", "synthesis"),
    "uploads": uploads,
    "vafl-as-published": of_one("studies.vafl_as_published_tables", "vafl_as_published"),
    "veto-calibration": of_one("studies.veto_calibration", "veto_calibration"),
    "without-a-patient": of_one("studies.no_patient_tables", "no_patient"),
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
    parser = make_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print the tables")
    parser.add_argument("--write", nargs="+", default=[], choices=[*DERIVED], help="write the tables of these pages")
    options = parser.parse_args()
    for page in options.write:
        write_tables(page, DERIVED[page]())
    if options.write:
        return results_tables.write_pages()
    made = {page: tables() for page, tables in DERIVED.items()}
    if options.json:
        return json.dump(made, sys.stdout, ensure_ascii=False)
    for page, tables in made.items():
        committed = json.loads((TABLES / f"{page}.json").read_text(encoding="utf-8"))
        sys.stdout.writelines(f"{line}\n" for line in differences(page, tables, committed))
    return None


if __name__ == "__main__":
    main()
