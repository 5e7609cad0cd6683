"""Which part of one message of moments gives what: one thing is changed at a time, on hospitals of HAM10000.

    CONSILIUM_DATA=... python -m benchmarks.studies.ablation [--splits 5]

The full recipe is that of skin_lesion_private.yaml: features `colour`, 24 components whitened by the prior with
softness 1, and moments with a = .3, r = .1, ridge .1. Hospitals, splits, measure and guarantee are those of
one_message.py; nothing is chosen anew for a changed line. Every figure is kept in measured/ablation.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.skin import open_picture, split_hospitals
from benchmarks.studies.one_message import (
    ALONE,
    BY_NOISE,
    CACHE,
    FIRMER,
    LINEAR,
    PICTURES,
    SIDE,
    TOGETHER,
    computed,
    margins,
    models,
    scaled,
)
from federation.features.random_convolutions import RandomConvolutions
from federation.features.whitening import MOST, Floats, fit_whitening
from harmonize.prior import PRIORS, draw_pictures
from personalize.dp_head import DpHead
from personalize.moments import Moments

EPSILONS = (1.0, 3.0, None)
GRID = 12  # pixels a side
FULL = "the full recipe"
POOLED = "patients: of all hospitals in one place (no federation)"
ONE = replace(TOGETHER, others_gram=1.0, others_classes=1.0)
MEANS = replace(TOGETHER, ridge=1e6)  # the scatter becomes that of a sphere
RELEASES: dict[str, tuple[str, dict[str, Moments | DpHead]]] = {
    "whitened": (
        "colour",
        {
            FULL: TOGETHER,
            "head: differences of class means, second moments unused": MEANS,
            "personalization: none, each hospital's own sums (a = r = 0)": ALONE,
            "personalization: a = 1, r = 0.3": FIRMER,
            "personalization: none, one head of all (a = r = 1)": ONE,
        },
    ),
    "descent": ("colour", {"head: dp_head, others by the noise": BY_NOISE}),
    "hard": ("colour", {"whitening: softness 0": TOGETHER}),
    "turned": ("colour", {"whitening: principal axes of the prior, not whitened": TOGETHER}),
    "standard": ("colour", {"whitening: all 120 features, standardized by the prior": TOGETHER}),
    "raw": ("colour", {"whitening: all 120 features, one common scale": TOGETHER}),
    "convolutions": ("convolutions", {"features: random convolutions": TOGETHER}),
    "pixels": ("pixels", {"features: 12 x 12 pixels": TOGETHER}),
}
"""What leaves -> the features it is of, and the lines that are solved from it."""


def extracted(lines: list[dict[str, str]]) -> dict[str, tuple[Floats, Floats]]:
    """Features of all pictures and of the prior's, by name; kept in build/ under a digest of the extractor's source."""
    found, public, _ = computed()
    source = (ROOT / "federation/features/random_convolutions.py").read_text()
    kept = CACHE / f"ablation-{hashlib.sha256(source.encode()).hexdigest()[:16]}.npz"
    if not kept.exists():
        prior = draw_pictures(PRIORS["skin_lesion"], torch.arange(PICTURES) % 2, (3, SIDE, SIDE), 0).double().numpy()
        opened = (np.asarray(open_picture(line)) / 127.5 - 1 for line in lines)
        images = (x.transpose(2, 0, 1)[None] for x in opened)
        pairs = [(RandomConvolutions().extract(x), small(x)) for x in images]
        convolved, shrunk = (np.concatenate(each) for each in zip(*pairs, strict=True))
        of_prior = {"public_convolutions": RandomConvolutions().extract(prior), "public_pixels": small(prior)}
        np.savez(kept, convolutions=convolved, pixels=shrunk, **of_prior)
    with np.load(kept) as arrays:
        others = {name: (arrays[name], arrays[f"public_{name}"]) for name in ("convolutions", "pixels")}
    return {"colour": (found, public), **others}


def small(x: Floats) -> Floats:
    """Means over a grid of 12 x 12 places: (n, 432) of (n, 3, 112, 112)."""
    places = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(np.ascontiguousarray(x)), GRID)
    return places.flatten(1).numpy()


def turned(how: str, found: Floats, public: Floats) -> Floats:
    """Features as the head gets them; a number has a mean square of about 1 on the prior."""
    if how == "raw":
        return (found - public.mean(axis=0)) / np.sqrt(public.var(axis=0).mean())
    if how == "standard":
        by = fit_whitening(public, components=1, softness=0.0)
        return np.clip((found - by.mean) / by.spread, -MOST, MOST)
    softness = {"hard": 0.0, "turned": 1e6}.get(how, LINEAR["softness"])
    return scaled(found, public, {**LINEAR, "softness": softness})


def lines_of(split: int, parts: int, lines, given: Mapping[str, Floats]) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split. given: what leaves -> features as the head gets them."""
    y, lesion, _, train, test, judged = split_hospitals(lines, parts, split)

    def mean(x: Floats, networks: Mapping[str, torch.nn.Module]) -> float:
        return float(np.mean([roc_auc_score(y[test[one]], margins(networks[one], x[test[one]])) for one in judged]))

    for epsilon in EPSILONS:
        for release, (_, methods) in RELEASES.items():
            x = given[release]
            solve = models(x, y, lesion, train, epsilon, next(iter(methods.values())))
            for label, how in methods.items():
                yield label, epsilon, mean(x, solve(how))
        x, everybody = given["whitened"], {"all": np.concatenate([*train.values()])}
        networks = models(x, y, lesion, everybody, epsilon)(ALONE)
        yield POOLED, epsilon, mean(x, dict.fromkeys(judged, networks["all"]))


def table(kept: dict[str, dict[str, float]]) -> dict[str, object]:
    order = [label for _, methods in RELEASES.values() for label in methods]
    order = sorted([*order, POOLED], key=lambda label: (label != FULL, label.partition(":")[0]))
    columns = [(f"{3 * parts} hospitals", said) for parts in (1, 4) for said in ("1", "3", "inf")]
    rows = []
    for label in order:
        cells = []
        for group, epsilon in columns:
            values, full = kept[f"{group} | {label} | {epsilon}"], kept[f"{group} | {FULL} | {epsilon}"]
            cells.append(format_interval([*values.values()]) if label == FULL else format_change(values, full))
        rows.append([label, *cells])
    heads = ["changed", *(f"{group}, ε = {epsilon.replace('inf', '∞')}" for group, epsilon in columns)]
    return make_table(heads, rows)


def main() -> None:
    options = ask_splits(__doc__, "ablation", splits=5)
    lines = computed()[2]
    features = extracted(lines)
    given = {release: turned(release, *features[of]) for release, (of, _) in RELEASES.items()}
    groups = {f"{3 * parts} hospitals": partial(lines_of, parts=parts, lines=lines, given=given) for parts in (1, 4)}
    collect_splits(options, groups)


if __name__ == "__main__":
    main()
