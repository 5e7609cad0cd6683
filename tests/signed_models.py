"""Finished models with chosen weights, signed by a key that tests know; and patients who are lines of a CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from federation.fedavg import FedAvg
from federation.models import AnyModel
from federation.models.mlp import Mlp
from federation.task import Task
from pipelines.data.images import AnyImages, Features
from pipelines.data.sources import Files, TableSource
from pipelines.loader.validation import to_plain
from pipelines.models.file import parse_ready
from pipelines.models.signed import settings_of
from pipelines.models.translator_file import remove_places
from privacy.message import Message, seal_parts, to_bytes
from privacy.release.signature import ENDING, Signature, sign_statement, statement_of

TODAY = date(2026, 1, 1)
LONG = 3650
COLUMN = Features(numbers=("x",), normalize="none")
TABLE = TableSource(file=".", label="y")


def key_file(folder: Path, number: int = 1) -> Path:
    """A private key, always the same for a number."""
    private = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
    path = folder / f"{number}.key"
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


def public_key(number: int = 1) -> str:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key().public_bytes_raw().hex()


def finished(
    label: str = "ours",
    *,
    model: AnyModel | None = None,
    images: AnyImages = COLUMN,
    source: Files = TABLE,
    params: Mapping[str, torch.Tensor] | None = None,
    **facts: Any,
) -> bytes:
    """The bytes of a finished model. params: of its network; None: random, always the same."""
    made = Mlp(hidden=()) if model is None else model
    said: dict[str, Any] = {
        "format": 1,
        "site": "elsewhere",
        "label": label,
        "algorithm": to_plain(FedAvg()),
        "model": to_plain(made),
        "inputs": list(images.inputs),
        "source": remove_places(source),
        "gland": False,
        "translated": None,
        "images": to_plain(images),
        "scale": None,
        "kind": "classification",
        "classes": 2,
        "names": [],
        "run": "theirs/fedavg-0",
    }
    if params is None:
        torch.manual_seed(7)
        params = FedAvg().network(Task(made, images.inputs, 2)).state_dict()
    return seal_parts(to_bytes(Message(dict(params), {**said, **facts})))


def sees(weight: float, offset: float = 0.0) -> dict[str, torch.Tensor]:
    """Weights of a logistic regression on one column: positive where weight * x + offset is."""
    return {
        "head.weight": torch.tensor([[-weight / 2], [weight / 2]]),
        "head.bias": torch.tensor([-offset / 2, offset / 2]),
    }


def signature_of(folder: Path, data: bytes, *, number: int = 1, today: date = TODAY, days: int = LONG) -> Signature:
    said = statement_of(data, title="a test", settings=settings_of(parse_ready(data)), today=today, days=days)
    return sign_statement(said, key_file(folder, number))


def write_signed(path: Path, data: bytes, *, number: int = 1, **when: Any) -> Path:
    """The file, with its signature beside it."""
    path.write_bytes(data)
    made = signature_of(path.parent, data, number=number, **when)
    path.with_name(f"{path.name}{ENDING}").write_text(json.dumps(to_plain(made)))
    return path


def table(path: Path, seed: int, *, patients: int = 60, noise: float = 1.0, flip: bool = False) -> Path:
    """A hospital's patients: x is the label's sign and noise, a line each. flip: labels are the wrong way round."""
    draw = np.random.default_rng(seed)
    y = np.arange(patients) % 2
    x = (2 * y - 1) + noise * draw.standard_normal(patients)
    lines = [f"{value:.6f},{1 - label if flip else label}" for value, label in zip(x, y, strict=True)]
    path.write_text("\n".join(["x,y", *lines]) + "\n")
    return path
