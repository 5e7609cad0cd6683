"""Types of fields that several questions and replies have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field
from torch import Tensor

from harmonize.scale import Scale
from pipelines.loader.names import NAME
from privacy.release.bounds import ROUNDS, RUN
from privacy.release.form import Code, Of, Shape

Name: TypeAlias = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Run: TypeAlias = Annotated[str, Field(pattern=f"^{RUN.pattern}$")]
Round: TypeAlias = Annotated[int, Field(ge=0, le=ROUNDS)]
Whole: TypeAlias = Annotated[int, Field(ge=0, le=2**31)]
Digest: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Line: TypeAlias = Annotated[str, Field(max_length=200)]
Window: TypeAlias = list[Whole] | None
Settings: TypeAlias = dict[str, Any]
Packages: TypeAlias = dict[str, str]
"""Code of others that takes part, by source: its digest (`federation.origins.code_identity`)."""

SumKey: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}([0-9a-f]{128})?$")]
"""A hospital's public key for secure sums of a run, with or without its signature (`privacy.secure_sum`)."""

WITHOUT_NULLS = "without nulls"
"""Marks settings that are sent without their nulls, so that a new optional setting changes no digest of older runs."""
SETTINGS = Code("malformed_settings")
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**62), SETTINGS]
DeformedCopies: TypeAlias = Annotated[int, Field(ge=1, le=64), SETTINGS]
"""Of each training image, in harmonization."""
ValueScale: TypeAlias = Annotated[Scale, SETTINGS]
BootstrapCopies: TypeAlias = Annotated[int, Field(ge=0, le=2000), Code("malformed_copies")]
"""More than any report needs is a hospital's time."""

CohortName: TypeAlias = Annotated[Line, Of.NAME]
KeyedDigest: TypeAlias = Annotated[Digest, Of.NAME]
Count: TypeAlias = Annotated[Whole, Of.COUNT]
Counts: TypeAlias = Annotated[dict[Line, Whole], Of.COUNT]
Number: TypeAlias = Annotated[float, Of.SCORE]
AnyTensors: TypeAlias = Annotated[Mapping[str, Tensor], Shape(axes=8, names=".*")]
"""Of a question: tensors of any names."""
Parameters: TypeAlias = Annotated[Mapping[str, Tensor], Of.PARAMETER, Shape(axes=8, names=".*")]
"""Of a reply. The names are those of the method: what it may send is compared with a rehearsal on invented patients
(`pipelines/hospital/rehearsal.py`)."""
