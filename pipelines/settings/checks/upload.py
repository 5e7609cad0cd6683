"""Checks of quantized uploads: sums, and methods without a difference to quantize."""

from __future__ import annotations

from collections.abc import Iterator

from federation.upload import SUM_NEEDS, find_upload_problem
from pipelines.settings.home_lines import CENTRAL
from pipelines.settings.run_settings import RunSettings, rehearse_method
from privacy.settings_error import Problem

UPLOAD = ("train", "upload")


def problems(run: RunSettings) -> Iterator[Problem]:
    """Settings with which replies cannot be quantized, or would not be."""
    if run.train.upload is None:
        return
    if run.train.secure_sum:
        text = f"{run.train.upload.name}, and {SUM_NEEDS}; say secure_sum: false, or leave upload out"
        yield Problem(UPLOAD, text, needs=(("train", "secure_sum"),))
    for label, method in run.train.methods.items():
        forms = None if method.name == CENTRAL else rehearse_method(run, label, method)
        if forms is not None and (problem := find_upload_problem(method, forms)):
            yield Problem(("train", "methods", label), problem, needs=(UPLOAD,))
