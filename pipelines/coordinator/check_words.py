"""What --check says: sentences and tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from pipelines.settings.harmonization import Harmonize
from privacy.message import Json, as_list, as_mapping, number_of


def format_file_counts(facts: Mapping[str, Json]) -> tuple[str, str]:
    """Number of files and megabytes; a hospital that promises privacy reveals neither."""
    if "archived" in facts:
        return f"{facts['archived']} series in its archive", "–"
    if "simulated" in facts:
        return f"{facts['simulated']} simulated patients", "–"
    if "files" not in facts:
        return "not told", "–"
    return f"{facts['files']:,}", f"{number_of(facts, 'bytes') / 1e6:.1f}"


def describe_public_testing(hospitals: int) -> str:
    """What public testing of so many hospitals means."""
    return (
        f"Public testing: each of up to {hospitals:,} models of a method is tested at all {hospitals:,} hospitals, "
        f"{hospitals**2:,} tests a method. evaluate: {{public: false}} tests each at home only."
    )


def describe_harmonization_plan(plan: Harmonize) -> str:
    """One sentence on what will be harmonized."""
    from pipelines.coordinator.report.harmonization import describe_synthesis

    by = (
        plan.score.target
        or {"exact": "by exact scores", "dp": "by noised scores", "public": "by declared counts"}[plan.score.release]
    )
    spaces = ", ".join(f"{space} ({translator.name})" for space, translator in plan.translate.items()) or "none"
    rule = "" if plan.synthesis.name == "public" else f"selected by the rule {plan.sampling.name}, "
    number = f"{plan.shared} of each class"
    if plan.sampling.variant == "paper" and rule:
        number = "as many as the target trains on, without classes"
    return (
        f"Harmonization: target {by}; synthetic images: {describe_synthesis(plan.synthesis)}; {rule}{number}; spaces:"
        f" {spaces}."
    )


def privacy_table(costs: Mapping[str, Mapping[str, Json]]) -> Table:
    """Noise and cost of each method at each site."""
    table = Table(
        *("site", "method", "noise σ", "sampling q", "steps", "ε", "δ"),
        title="Privacy: cost of a patient, in the split with the highest cost",
        title_justify="left",
    )
    for site, cost in costs.items():
        for method_cost in as_list(cost["methods"]):
            row = as_mapping(method_cost)
            noised = row["noise"] is not None
            numbers = (
                f"{number_of(row, 'noise'):.3f}" if noised else "–",
                f"{row['sampling']}" if noised else "–",
                f"{row['steps']}",
            )
            table.add_row(site, str(row["method"]), *numbers, f"{number_of(row, 'epsilon'):.3f}", f"{row['delta']:g}")
    return table
