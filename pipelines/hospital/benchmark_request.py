"""What a hospital is sent to evaluate somebody else's model: a file, its signature, and a cohort of its own."""

from __future__ import annotations

from typing import Annotated, NotRequired

import torch
from pydantic import Field
from typing_extensions import TypedDict

from pipelines.models.signed import TENSOR
from privacy.message import Params
from privacy.release.gate import Refused
from privacy.release.signature import Signature


class Benchmark(TypedDict):
    """The facts."""

    cohort: Annotated[str, Field(max_length=200)]
    signature: Signature
    epsilon: NotRequired[Annotated[float, Field(gt=0, le=100)] | None]


def check_file(tensors: Params) -> None:
    """Raises: Refused: `malformed_request`: there is not exactly one tensor, (n,) uint8, the bytes of a file."""
    file = tensors.get(TENSOR)
    if len(tensors) != 1 or file is None or file.dtype != torch.uint8 or file.dim() != 1:
        raise Refused("malformed_request") from ValueError(f"benchmark takes one tensor, {TENSOR}: a file's bytes")
