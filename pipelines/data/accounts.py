"""Every file of a hospital's folder is accounted for: used, quarantined, not selected, or no image.

The index names the studies that each file belongs to, or the reason why it belongs to none. The outcome of the studies
gives the outcome of the files, so the four counts add up to all files. For a table, lines are counted instead of files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from evaluation.csv_text import csv_text
from pipelines.data.study import Item, Rejected
from privacy.message import Json

Class: TypeAlias = Literal["used", "quarantined", "not_selected", "not_imaging"]
CLASSES: tuple[Class, ...] = get_args(Class)
NAMED = 3  # descriptions of series that a sentence lists
UNSERVED = "nothing_selected"


class Account(NamedTuple):
    """The outcome of a file. study: the study that decided it; reason, detail: empty for used files."""

    file: str
    what: Class
    patient: str
    study: str
    series: str
    reason: str
    detail: str


def list_accounts(
    items: Iterable[Item], refused: Iterable[Rejected], left_out_studies: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Account, ...]:
    """The outcome of each file: used if one of its studies was used, else quarantined if one of them was refused.

    left_out_studies: study -> reason and sentence, for valid studies that the settings leave out.
    """
    rejections, left_out = {rejection.study: rejection for rejection in refused}, left_out_studies or {}
    return tuple(_build_account(item, rejections, left_out) for item in items)


def _build_account(item: Item, rejections: Mapping[str, Rejected], left_out: Mapping[str, tuple[str, str]]) -> Account:
    """The outcome of one file: used, quarantined or not selected, by the outcome of its studies."""
    if item.state != "part":
        return Account(item.name, item.state, item.patient, "", item.series, item.reason, item.detail)
    used = next((study for study in item.studies if study not in rejections and study not in left_out), None)
    if used is not None:
        return Account(item.name, "used", item.patient, used, item.series, "", "")
    rejection = next((rejections[study] for study in item.studies if study in rejections), None)
    if rejection is not None:
        known = (item.patient, rejection.study, item.series)
        return Account(item.name, "quarantined", *known, rejection.reason, rejection.detail)
    study = item.studies[0]
    return Account(item.name, "not_selected", item.patient, study, item.series, *left_out[study])


def count_outcomes(accounts: Sequence[Account]) -> dict[Class, int]:
    """The number of files in each class; the counts add up to all files."""
    counts = Counter(account.what for account in accounts)
    return {what: counts[what] for what in CLASSES}


def list_unused_patients(accounts: Sequence[Account]) -> list[str]:
    """Patients none of whose files was used."""
    used = {account.patient for account in accounts if account.what == "used"}
    return sorted({account.patient for account in accounts if account.patient} - used)


def reject_unserved_patients(accounts: Sequence[Account]) -> list[Rejected]:
    """A quarantine entry for each patient with no selected file, so that a missing patient is noticed."""
    silent = set(list_unused_patients(accounts)) - {
        account.patient for account in accounts if account.what == "quarantined"
    }
    silent -= {account.patient for account in accounts if account.reason in ("excluded", "elsewhere")}
    files: dict[str, list[Account]] = {patient: [] for patient in sorted(silent)}
    for account in accounts:
        if account.patient in files:
            files[account.patient].append(account)
    rejections = []
    for patient, patient_accounts in files.items():
        kinds = list(dict.fromkeys(account.series or "(no description)" for account in patient_accounts))
        more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
        rejections.append(
            Rejected(
                f"patient {patient}",
                UNSERVED,
                f"none of {len(patient_accounts)} files is selected: {', '.join(kinds[:NAMED])}{more}. "
                f"{patient_accounts[0].detail}",
            )
        )
    return rejections


def account_facts(accounts: Sequence[Account]) -> dict[str, Json]:
    """The counts as facts of a reply or part of a JSON output: `files` is the sum of the next four."""
    counts = count_outcomes(accounts)
    return {
        "files": len(accounts),
        "used_files": counts["used"],
        "quarantined_files": counts["quarantined"],
        "unselected_files": counts["not_selected"],
        "ignored_files": counts["not_imaging"],
        "patients_without_use": len(list_unused_patients(accounts)),
    }


def describe_outcomes(accounts: Sequence[Account], item_kind: str = "files") -> str:
    """The counts in one line, and a second line if no file of some patients was used."""
    counts, missing = count_outcomes(accounts), len(list_unused_patients(accounts))
    text = (
        f"{len(accounts)} {item_kind}: {counts['used']} used, {counts['quarantined']} quarantined,"
        f" {counts['not_selected']} not selected, {counts['not_imaging']} not imaging."
    )
    return f"{text}\n! Patients of whom nothing was used: {missing}." if missing else text


def format_accounts_csv(accounts: Sequence[Account]) -> bytes:
    """A table with a line for each file, unused files first. It names patients and stays in the hospital."""
    ordered = sorted(accounts, key=lambda account: (account.what == "used", account.what, account))
    names = ("class", "file", *Account._fields[2:])
    return csv_text(names, [(account.what, account.file, *account[2:]) for account in ordered]).encode(
        "utf-8", "surrogateescape"
    )
