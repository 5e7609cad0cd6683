"""The evidence in a hospital's reply: counts, noised counts, overlaps of masks, errors of numbers, or counts of
several findings.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from evaluation.findings import from_noised_tensors as from_noised_findings
from evaluation.findings import from_tensors as from_findings
from evaluation.histograms import from_tensors
from evaluation.noised import from_tensors as from_noised
from evaluation.numbers import from_noised_tensors as from_noised_errors
from evaluation.numbers import from_tensors as from_errors
from evaluation.overlap import from_tensors as from_overlaps
from evaluation.protocols import Evidence


def parse_evidence(tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int) -> Evidence:
    """The evidence about a model in a reply. copies, seed: of the parametric bootstrap of noised counts; other evidence
    contains its copies.

    Raises:
        ValueError: the tensors are none of these.
    """
    if "finding_noised" in tensors:
        return from_noised_findings(tensors, facts, copies=copies, seed=seed)
    if "finding_scores" in tensors:
        return from_findings(tensors)
    if "error_bins" in tensors:
        return from_noised_errors(tensors, facts, copies=copies, seed=seed)
    if "errors" in tensors:
        return from_errors(tensors)
    if "noised" in tensors or "cuts" in tensors:
        return from_noised(tensors, facts, copies=copies, seed=seed)
    return from_overlaps(tensors) if "totals" in tensors else from_tensors(tensors)
