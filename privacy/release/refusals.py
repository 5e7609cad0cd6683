"""Refusal codes, and which of them can depend on patients' data.

A failure code is information too. A hospital with a budget sends at most `max_failures` codes that could depend on a
patient. A code that is in neither table below counts as one of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from privacy.message import Json

QUESTION = "follows from what was asked"
POLICY = "follows from what was asked and from the hospital's policy"
LEDGER = "follows from what was asked, and from what stands in the ledger and was paid for"
MACHINE = "follows from files that hold no patients: keys, settings, the ledger, a person's wish"
RECIPE = "follows from how the cohort was made, of which the coordinator was told, and from no patient in it"

UNDECIDED: Mapping[str, str] = {
    "malformed": QUESTION,
    "malformed_run": QUESTION,
    "malformed_round": QUESTION,
    "malformed_merged": QUESTION,
    "malformed_message": QUESTION,
    "malformed_request": QUESTION,
    "malformed_cohort": QUESTION,
    "malformed_opening": QUESTION,
    "malformed_model": QUESTION,
    "malformed_settings": QUESTION,
    "malformed_shared": QUESTION,
    "malformed_calibration": QUESTION,
    "malformed_inversion": QUESTION,
    "malformed_copies": QUESTION,
    "malformed_window": QUESTION,
    "malformed_moments": QUESTION,
    "malformed_route": QUESTION,
    "malformed_keys": QUESTION,
    "unknown_request": QUESTION,
    "unknown_setting": QUESTION,
    "not_the_coordinator": QUESTION,
    "unprotected_figures": POLICY,
    "unprotected_scores": QUESTION,
    "unprotected_translation": QUESTION,
    "policy_request": POLICY,
    "policy_algorithm": POLICY,
    "policy_recipient": POLICY,
    "policy_public": POLICY,
    "policy_pooling": POLICY,
    "policy_privacy": POLICY,
    "policy_again": LEDGER,
    "policy_inside": POLICY,
    "policy_plugin": "follows from what was asked, from the policy, and from the packages that are installed",
    "policy_model": POLICY,
    "policy_secure_sum": POLICY,
    "oversized_model": POLICY,
    "tampered_model": QUESTION,
    "expired_model": "follows from what was asked, and from the clock",
    "policy_bytes": "follows from the method and the policy: how large replies are is outside the guarantee",
    "budget": LEDGER,
    "unpaid_memory": LEDGER,
    "no_counts": LEDGER,
    "too_few_patients": "follows from counts that the hospital released, or declares public",
    "delta_too_large": "follows from counts that the hospital released, or declares public",
    "damaged_counts": MACHINE,
    "stale_round": LEDGER,
    "no_memory": LEDGER,
    "not_introduced": LEDGER,
    "no_model": "follows from the rounds that were answered; losses, which choose among them, were paid for",
    "not_synthesized": LEDGER,
    "another_cohort": LEDGER,
    "too_many_failures": LEDGER,
    "damaged_ledger": MACHINE,
    "lost_ledger": MACHINE,
    "older_ledger": MACHINE,
    "lost_key": MACHINE,
    "damaged_key": MACHINE,
    "open_key": MACHINE,
    "no_folder": MACHINE,
    "no_archive": MACHINE,
    "no_labels": MACHINE,
    "no_gland": MACHINE,
    "busy": MACHINE,
    "stopped": MACHINE,
    "unavailable": MACHINE,
    "no_cohort": RECIPE,
    "not_images": RECIPE,
    "not_a_phantom": RECIPE,
    "dependent_patients": RECIPE,
}
"""Codes that cannot depend on a patient, and why."""

DECIDED = frozenset(
    {
        "failed",
        "disk",
        "memory",
        "bad_source",
        "bad_archive",
        "no_files",
        "no_studies",
        "no_figures",
        "no_test_patients",
        "not_summable",
        "corrupt_cohort",
        "too_few_images",
        "undeclared_reply",
        "unexpected_reply",
        "too_many_rejected",
    }
)
"""Codes that may depend on a patient. They count; so does every code that is in neither table."""


def may_tell(code: Json) -> bool:
    """Whether this code, in place of a reply, could depend on a patient. None: there was a reply."""
    return code is not None and code not in UNDECIDED


def count_patient_codes(lines: Iterable[Mapping[str, Json]]) -> int:
    """How many codes in a ledger could depend on a patient."""
    return sum(may_tell(line.get("refused")) for line in lines)
