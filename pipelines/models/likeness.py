"""Statistics of a model's training patients, to detect studies that are unlike them.

Two descriptions of each training study, its network inputs and the network's own features, are summarized by a mean and
a covariance each (`evaluation.unlike`). They are in a file of their own beside the model,
`ready/<label>.statistics.safetensors`: computed from training patients without noise, they must not be passed on with
the model. No message contains them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evaluation.unlike import FEWEST, Floats, Reference, average_by_study, compute_features, reference_of
from federation.task import Output
from federation.windows import split_windows
from pipelines.data.cohort import Cohort
from pipelines.data.split import SPLITS
from privacy.dp.chunks import at_once
from privacy.dp.stored_rows import select_rows, split_rows
from privacy.formats import LaterVersion, check_format
from privacy.message import (
    Json,
    Malformed,
    Message,
    as_mapping,
    from_bytes,
    number_of,
    seal_parts,
    to_bytes,
    unseal_parts,
    whole_of,
)

ENDING = ".statistics.safetensors"
FORMAT = 1
ALARM = 0.01
"""Share of the training hospital's own new studies that are called unlike: half by inputs, half by features."""
MOST_STUDIES = 512  # of a reference; enough to estimate a covariance
TENSORS = ("mean", "scale", "precision")


class Verdict(NamedTuple):
    """unlike: whether the study is unlike the training studies. distance: as a multiple of the limit, by inputs or by
    features, whichever is greater. p_value: how often a study of the training hospital is as far away.
    """

    unlike: bool
    distance: float
    p_value: float


@dataclass(frozen=True)
class Likeness:
    """references: by `inputs` and `features`, or by one of them where the other could not be taken."""

    references: Mapping[str, Reference]

    def verdict(self, module: nn.Module, x: Tensor, window: Sequence[int] | None) -> Verdict:
        """Of one study's examples x (n, *inputs), as the network sees them."""
        numbers = describe_examples(module, x, window)
        alarm = ALARM / len(self.references)
        distances, p_values = [], []
        for name, reference in self.references.items():
            distance = reference.distances(numbers[name].mean(axis=0, keepdims=True))
            distances.append(float(np.nan_to_num(distance, nan=np.inf)[0]) / reference.limit(alarm))
            p_values.append(float(reference.p_values(distance)[0]))
        p_value = min(1.0, len(p_values) * min(p_values))
        return Verdict(max(distances) > 1, max(distances), p_value)


def describe_examples(module: nn.Module, x: Tensor, window: Sequence[int] | None) -> dict[str, Floats]:
    """`inputs` and `features` (n, d) of examples x (n, *inputs), a few at a time."""
    module.eval()
    inputs, features = [], []
    for part in (x[rows] for rows in split_rows(x, at_once(x))):
        inputs.append(compute_features(part.cpu().numpy()))
        with torch.no_grad():
            pooled = [_pool_features(module(piece)) for piece in split_windows(part, window)]
        features.append(torch.stack(pooled).mean(dim=0).double().cpu().numpy())
    return {"inputs": np.concatenate(inputs), "features": np.concatenate(features)}


def _pool_features(output: object) -> Tensor:
    """The last layer's input (n, d); of spatial features, mean and standard deviation over positions."""
    if not isinstance(output, Output):
        raise TypeError(f"a network returns Output, found {type(output).__name__}")
    if output.features.dim() == 2:
        return output.features
    flat = output.features.flatten(2)
    return torch.cat([flat.mean(dim=2), flat.std(dim=2, correction=0)], dim=1)


def likeness_of(
    module: nn.Module, cohort: Cohort, window: Sequence[int] | None, device: str = "cpu"
) -> Likeness | None:
    """The statistics of a hospital's training patients; None if they are too few. window: of the network's input.

    cohort: of network inputs. Of more studies, 512 are taken, evenly spread over the patients.
    """
    rows = (cohort.split == SPLITS.index("train")).nonzero()[:, 0]
    study = studies_of(cohort.patient[rows], cohort.position[rows])
    chosen = np.unique(study)
    if len(chosen) > MOST_STUDIES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_STUDIES).round().astype(int)]
    taken = np.isin(study, chosen)
    if not taken.any():
        return None
    rows, study = rows[torch.from_numpy(taken)], study[taken]
    owners = cohort.patient[rows].numpy()[np.unique(study, return_index=True)[1]]
    images = select_rows(cohort.images, rows, cohort.images.dtype)
    described = describe_examples(module, images.to(device), window)
    made = {name: reference_of(average_by_study(numbers, study), owners) for name, numbers in described.items()}
    references = {name: reference for name, reference in made.items() if reference is not None}
    return Likeness(references) if references else None


def studies_of(patient: Tensor, position: Tensor) -> NDArray[np.int64]:
    """The number (n,) of the study of each example; positions increase within a study and restart with the next."""
    patients, place = patient.cpu().numpy(), position.cpu().numpy()
    begins = np.ones(len(patients), bool)
    begins[1:] = (patients[1:] != patients[:-1]) | (place[1:] <= place[:-1])
    return np.cumsum(begins, dtype=np.int64) - 1


def to_file(likeness: Likeness, model: str) -> bytes:
    """The bytes of a file. model: the digest of the model's file."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Json] = {"what": "statistics", "format": FORMAT, "model": model}
    for name, reference in likeness.references.items():
        tensors |= {f"{name}/{part}": torch.from_numpy(getattr(reference, part)) for part in TENSORS}
        facts[name] = {"patients": reference.patients, "centre": reference.centre, "spread": reference.spread}
    return seal_parts(to_bytes(Message(tensors, facts)))


def read_likeness(path: Path, model: str) -> Likeness | str:
    """The statistics in a file, or in words why there are none. model: the digest of the model's file.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_file():
        return f"no {path.name} lies beside it, which needs {FEWEST} training patients"
    try:
        message = from_bytes(unseal_parts(path.read_bytes()))
        if message.facts.get("what") != "statistics":
            raise ValueError("it holds no statistics")
        check_format(message.facts.get("format"), FORMAT, path.name)
        if message.facts.get("model") != model:
            return f"{path.name} is of another model; copy both files, or evaluate again"
        references = {name: _parse_reference(message, name) for name in ("inputs", "features") if name in message.facts}
    except LaterVersion as error:
        return str(error)
    except (Malformed, KeyError, TypeError, ValueError) as error:
        return f"{path.name} is damaged ({error}); take it from a backup, or evaluate again"
    return Likeness(references) if references else f"{path.name} holds nothing; evaluate again"


def _parse_reference(message: Message, name: str) -> Reference:
    mean, scale, precision = (message.tensors[f"{name}/{part}"].double().numpy() for part in TENSORS)
    facts = as_mapping(message.facts[name])
    patients, centre, spread = whole_of(facts, "patients"), number_of(facts, "centre"), number_of(facts, "spread")
    shapes = (mean.ndim, scale.shape, precision.shape[0], precision.shape[-1])
    if shapes != (1, mean.shape, len(mean), len(mean)) or not (scale > 0).all():
        raise ValueError(f"{name}: numbers that do not fit each other")
    if patients < FEWEST or not math.isfinite(centre) or not spread > 0:
        raise ValueError(f"{name}: {patients} patients, centre {centre}, spread {spread}")
    return Reference(mean, scale, precision, patients, centre, spread)


def likeness_in_words(likeness: Likeness | str, unlike: int, studies: int) -> str:
    """How many studies are unlike those that the model learnt from, and what to think of their results."""
    if isinstance(likeness, str):
        return f"Whether these studies are like those that the model learnt from cannot be told: {likeness}."
    chance = f"of the training hospital's own studies, about {ALARM:.0%} would be marked by chance"
    if not unlike:
        return f"None of {studies} studies is marked as unlike those that the model learnt from ({chance})."
    return (
        f"{unlike} of {studies} studies {'is' if unlike == 1 else 'are'} unlike those that the model learnt from "
        f"(unlike_training in predictions.csv; {chance}): do not rely on their results."
    )
