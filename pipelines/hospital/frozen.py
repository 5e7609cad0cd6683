"""The text transformer that networks with a prompt hold, from the file that came with their cohort's vectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from federation.models.clip import Clip, read_text_transformer
from pipelines.hospital.hospital import Hospital
from pipelines.models.fixed_features import weights_in
from privacy.message import Malformed, from_bytes

SCALE = "features.safetensors"
"""What features of a cohort were computed by, beside the cohort, for finished models."""


def held_here(hospital: Hospital, cohort: str, model: Clip) -> Mapping[str, Tensor]:
    """What the networks of a model hold.

    Raises:
        ValueError: this cohort has no vectors of the file that the model names.
    """
    path = hospital.cohort_folder(cohort) / SCALE
    try:
        stamp = path.stat()
        return _load_weights(model, path, stamp.st_size, stamp.st_mtime_ns)
    except (OSError, Malformed) as error:
        raise ValueError("the cohort has no vectors of a CLIP") from error


@lru_cache(maxsize=2)
def _load_weights(model: Clip, path: Path, size: int, changed: int) -> Mapping[str, Tensor]:
    """The text transformer's weights; cached by path, size and time."""
    return read_text_transformer(model, weights_in(from_bytes(path.read_bytes()).tensors))
