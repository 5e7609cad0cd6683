"""HAM10000 as studies take it: its pictures, the hospitals among which its archives are dealt, and splits by lesion."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.shared.places import DATA

FOLDER = DATA / "ham10000"
Line = dict[str, str]


@cache
def read_lines() -> list[Line]:
    """The lines of its table; a picture each."""
    with (FOLDER / "labels.csv").open() as file:
        return list(csv.DictReader(file))


def column(lines: Sequence[Line], key: str) -> np.ndarray:
    """(n,) One column of the table; `label` as whole numbers."""
    values = np.array([line[key] for line in lines])
    return values.astype(int) if key == "label" else values


def merge_archives(lines: Sequence[Line]) -> np.ndarray:
    """(n,) The archive of each picture, where vienna_dias belongs to vidir_modern."""
    return np.array([{"vienna_dias": "vidir_modern"}.get(line["site"], line["site"]) for line in lines])


def open_picture(line: Line) -> Image.Image:
    """One picture in colours."""
    return Image.open(FOLDER / line["image"]).convert("RGB")


def shrink_pictures(lines: Sequence[Line], side: int) -> Tensor:
    """(n, 3, side, side) in [-1, 1], by the means of boxes."""
    opened = (open_picture(line) for line in lines)
    box = Image.Resampling.BOX
    small = (one if one.size == (side, side) else one.resize((side, side), box) for one in opened)
    x = np.stack([np.asarray(one) for one in small])
    return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 127.5 - 1


def deal_hospitals(lines: Sequence[Line], parts: int, seed: int) -> np.ndarray:
    """The hospital of each picture: three archives, each dealt into `parts` by lesion."""
    source, lesion = merge_archives(lines), column(lines, "patient")
    random, found = np.random.default_rng(10_000 + seed), np.empty(len(lines), dtype=object)
    for name in np.unique(source):
        dealt = np.unique(lesion[source == name])
        random.shuffle(dealt)
        number = {one: k % parts for k, one in enumerate(dealt)}
        for k in np.flatnonzero(source == name):
            found[k] = f"{name}_{number[lesion[k]]}"
    return found


def cut_lesions(
    site: np.ndarray, lesion: np.ndarray, seed: int, *, train: float = 0.6, rest: float = 0.7
) -> np.ndarray:
    """0 = train, 1 = between, 2 = test, of each picture; a lesion is in one. train, rest: shares where these end."""
    random, found = np.random.default_rng(seed), np.zeros(len(site), dtype=int)
    for name in np.unique(site):
        here = np.unique(lesion[site == name])
        random.shuffle(here)
        place = {one: 0 if k < train * len(here) else 1 if k < rest * len(here) else 2 for k, one in enumerate(here)}
        found[site == name] = [place[one] for one in lesion[site == name]]
    return found


class Split(NamedTuple):
    """Pictures of one split. y: malignant. train, test: rows of each hospital. judged: with enough of both classes."""

    y: np.ndarray
    lesion: np.ndarray
    site: np.ndarray
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    judged: list[str]


def split_hospitals(lines: Sequence[Line], parts: int, split: int) -> Split:
    """Hospitals of each archive, and their lesions in training and test."""
    y, lesion, site = column(lines, "label"), column(lines, "patient"), deal_hospitals(lines, parts, split)
    place = cut_lesions(site, lesion, split)
    train, test = (
        {name: np.flatnonzero((site == name) & (place == part)) for name in np.unique(site)} for part in (0, 2)
    )
    return Split(y, lesion, site, train, test, [n for n, rows in test.items() if is_assessable(y[rows], lesion[rows])])


def is_assessable(y: np.ndarray, lesion: np.ndarray) -> bool:
    """Whether there are 20 pictures and 5 lesions of each class."""
    return all((y == c).sum() >= 20 and len(np.unique(lesion[y == c])) >= 5 for c in (0, 1))


def number_lesions(lesion: np.ndarray) -> Tensor:
    """(n,) Lesions as numbers from 0."""
    return torch.from_numpy(np.unique(lesion, return_inverse=True)[1])
