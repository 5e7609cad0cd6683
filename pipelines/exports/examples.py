"""A folder's studies as an exported network takes them: one `.npy` file an example, and a table with the answers.

They are patients' images and stay at the hospital. MONAI's runner and ONNX Runtime can be tried on them, and what they
say compared with `examples.csv`, which holds what `predict` says.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipelines.batch.prediction import build_study_source, open_unlabelled
from pipelines.batch.tables import table_bytes
from pipelines.data.images import Features
from pipelines.data.intake import read_studies
from pipelines.data.study import Rejected
from pipelines.exports.network import class_names
from pipelines.models.file import Ready
from privacy.durable import flush_folder, write_whole

FOLDER, TABLE = "examples", "examples.csv"
MOST = 100_000
"""Examples at most: their names are numbers."""


class Prepared(NamedTuple):
    """One study's examples, as the exported network takes them. x: (n, *inputs); probabilities: the model's own."""

    patient: str
    study: str
    position: tuple[float, ...]
    x: Tensor
    probabilities: Tensor


def prepare_examples(ready: Ready, images: Tensor) -> Tensor:
    """What the exported network takes of examples as they were read: lines of a table as they are, because it holds
    their normalization; images translated, and turned into fixed features, where the model asks for it.
    """
    return images.float() if isinstance(ready.images, Features) else ready.seen(images)


def read_examples(ready: Ready, options: argparse.Namespace) -> Iterator[Prepared | Rejected]:
    """Every study of `options.examples`, prepared, or why it cannot be.

    Raises:
        ValueError: nothing in the folder fits the model.
        OSError: it cannot be read.
    """
    options.folder = options.examples
    source = build_study_source(ready, options)
    opened = open_unlabelled(ready.images, source, options.gland)
    yield from opened.rejected
    for study in read_studies(opened.waiting, readers=options.readers):
        if isinstance(study, Rejected):
            yield study
            continue
        images = torch.from_numpy(study.examples.images)
        probabilities = ready.probabilities(ready.seen(images))
        places = tuple(float(position) for position in study.examples.position)
        yield Prepared(study.patient, study.study, places, prepare_examples(ready, images), probabilities)


def write_examples(ready: Ready, studies: list[Prepared], out: Path) -> int:
    """Write `examples/*.npy` and `examples.csv` into a folder; return the number of examples.

    Raises:
        OSError: the disk.
        ValueError: there are too many.
    """
    rows: list[tuple[object, ...]] = []
    for study in studies:
        for place, (x, probabilities) in enumerate(zip(study.x, study.probabilities, strict=True)):
            if len(rows) >= MOST:
                raise ValueError(f"--examples: more than {MOST} examples; give a smaller folder")
            name, buffer = f"{len(rows):05d}.npy", io.BytesIO()
            np.save(buffer, x.numpy().astype(np.float32), allow_pickle=False)
            write_whole(out / FOLDER / name, buffer.getvalue(), flush_name=False)
            cells = (
                [f"{float(p):.9g}" for p in probabilities] if probabilities.dim() == 1 else ["" for _ in probabilities]
            )
            rows.append((name, study.patient, study.study, f"{study.position[place]:g}", *cells))
    if rows:
        flush_folder(out / FOLDER)
    columns = ("file", "patient", "study", "position", *(f"p_{name}" for name in class_names(ready)))
    write_whole(out / TABLE, table_bytes(columns, rows))
    return len(rows)
