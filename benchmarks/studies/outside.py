"""Routing at hospitals outside the federation: figures 5 to 8 of IOP-FL in small, and when adapting pays.

    CONSILIUM_DATA=... python -m benchmarks.studies.outside measure    # seeds 0 to 2
    CONSILIUM_DATA=... python -m benchmarks.studies.outside choose     # signs without labels, seeds 100 and 101
    CONSILIUM_DATA=... python -m benchmarks.studies.outside inside     # figure 5, figure 6 inside, optic cups

Every cell goes into benchmarks/measured/outside.json, and what stands there is not measured again;
`outside_tables.py` writes the tables. Optic discs of Drishti-GS and RIM-ONE, cut about their true masks as
in pipelines/configs/fundus_disc.yaml, at 32 x 32 pixels in place of 96, and at most 25 pictures a hospital: four
hospitals, Drishti and RIM-ONE dealt out to two each. U-Net of width 4 and three levels, batch norm, Adam 1e-3, 20
rounds of 8 batches of 8, uniform means. One training gives the shared model and the hospitals' own for every tau: local
training does not depend on it. Dice is the mean over pictures; 60 % train, 20 % test inside, all pictures outside.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import BUILD, DATA
from benchmarks.shared.records import read_measured, write_measured

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.studies.partitions import Run
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.local import Local
from federation.models.unet import UNet
from federation.parameters import average_models, loaded, section
from federation.task import Task
from personalize.adaptation_baselines import Tent, ensemble, tent
from personalize.adaptation_norms import calibrate
from personalize.iopfl import IopFL
from personalize.partial import Partial
from personalize.routing import build_routed, set_coefficients
from personalize.routing_losses import Term, Unsupervised
from personalize.routing_outside import Routing, route_experts
from pipelines.data.pictures.label_maps import square_around
from privacy.dp.access import Rows, Split

FUNDUS = DATA / "fundus"
SIDE, MOST = 32, 25
TASK = Task(UNet(width=4, levels=3, norm="batch"), (3, SIDE, SIDE), 2, "segmentation")
CUPS = Task(UNet(width=4, levels=3, norm="batch"), (3, SIDE, SIDE), 3, "segmentation")
ROUNDS, STEPS = 20, 8
SEEDS, CHOICE = [0, 1, 2], (100, 101)
TAUS = (0.1, 0.5, 0.9, 1.0)
STORE: dict[str, Any] = {}
ALL: tuple[Term, ...] = ("consistency", "shape", "entropy")


def pictures() -> dict[str, tuple[Tensor, Tensor]]:
    """Source -> pictures (n, 3, 32, 32) in [-1, 1] and their classes (n, 32, 32): 1 disc, 2 cup, of Drishti alone."""
    kept = BUILD / f"outside-{SIDE}.npz"
    if not kept.exists():
        found: dict[str, Any] = {}
        for source in ("drishti", "rimone"):
            xs, ys = [], []
            for path in sorted((FUNDUS / source / "images").iterdir()):
                mask = next((FUNDUS / source / "masks").glob(f"{path.stem}.*"))
                values = np.asarray(Image.open(mask).convert("L"))
                classes = values if source == "drishti" else (values == 255).astype(np.uint8)
                if not classes.any():
                    continue
                box = square_around((classes > 0).astype(np.uint8), 1.5, 0.2, path.stem)
                picture = Image.open(path).convert("RGB").resize(classes.shape[::-1], Image.Resampling.BILINEAR)
                xs.append(np.asarray(picture.crop(box).resize((SIDE, SIDE), Image.Resampling.BOX)))
                nearest = Image.Resampling.NEAREST
                ys.append(np.asarray(Image.fromarray(classes.astype(np.uint8)).crop(box).resize((SIDE, SIDE), nearest)))
            found |= {f"{source}_x": np.stack(xs), f"{source}_y": np.stack(ys)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found)
    with np.load(kept) as arrays:
        return {
            source: (
                torch.from_numpy(arrays[f"{source}_x"]).permute(0, 3, 1, 2).float() / 127.5 - 1,
                torch.from_numpy(arrays[f"{source}_y"]).long(),
            )
            for source in ("drishti", "rimone")
        }


def dealt(seed: int, *, cups: bool = False) -> dict[str, dict[Split, Rows]]:
    """Each hospital's pictures. cups: Drishti's alone, dealt out to four hospitals."""
    found: dict[str, dict[Split, Rows]] = {}
    for source, (x, y) in pictures().items():
        order = torch.from_numpy(np.random.default_rng([seed, len(x)]).permutation(len(x)))
        for number in range(4 if cups else 2):
            own = order[number :: 4 if cups else 2][:MOST]
            n = len(own)
            cuts = {"train": own[: int(0.6 * n)], "validation": own[int(0.6 * n) : int(0.8 * n)]}
            cuts |= {"test": own[int(0.8 * n) :]}
            labels = y if cups else (y > 0).long()
            splits = {cast(Split, kind): Rows(x[rows], labels[rows], rows) for kind, rows in cuts.items()}
            if not cups or source == "drishti":
                found[f"{source}-{number + 1}"] = splits
    return found


def dice(network: nn.Module, x: Tensor, y: Tensor, *, classes: tuple[int, ...] = (1,)) -> float:
    """The mean over pictures; the foreground is of any of the classes."""
    with torch.no_grad():
        found = torch.cat([network.eval()(part).logits.argmax(dim=1) for part in torch.split(x, 16)])
    there, seen = (sum((one == c) for c in classes) > 0 for one in (y, found))
    both, total = (there & seen).sum(dim=(1, 2)), there.sum(dim=(1, 2)) + seen.sum(dim=(1, 2))
    return float((2 * both / total.clamp(min=1)).mean())


def trained(splits: Mapping[str, Any], seed: int, *, rounds: int, steps: int = STEPS, task: Task = TASK):
    """The shared model, and tau -> each hospital's own, after as many rounds."""
    run = Run(IopFL(), work(steps), splits, seed, task)
    own = {tau: {name: section(run.state.tensors, "model") for name in splits} for tau in TAUS}
    for number in range(1, rounds + 1):
        replies = run.round(number, list(splits))
        for tau in TAUS:
            for name, reply in replies.items():
                newest = section(reply.tensors, "model")
                own[tau][name] = average_models([own[tau][name], newest], [1 - tau, tau])
    shared = loaded(task.network(), section(run.state.tensors, "model")).eval()
    networks = {tau: [loaded(task.network(), one).eval() for one in each.values()] for tau, each in own.items()}
    return shared, networks


def work(steps: int) -> Work:
    return Work(optimizer="adam", lr=1e-3, batch=8, epochs=None, steps=steps, augment="flip")


def whole(splits: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    return torch.cat([rows.x for rows in splits.values()]), torch.cat([rows.y for rows in splits.values()])


def routing(**said: Any) -> Routing:
    return Routing(**{"noise": 0.2, "radius": 2, "tried_below": None, **said})


LINES: dict[str, Routing] = {
    "means": routing(),
    "paper": routing(variant="paper"),
    "paper, statistics of all images": routing(variant="paper", statistics="set"),
    "paper, noise .085": routing(variant="paper", noise=0.085),
    "official": routing(variant="official", affine="trained"),
    "paper, without shape": routing(variant="paper", terms=("consistency", "entropy")),
    "paper, without entropy": routing(variant="paper", terms=("consistency", "shape")),
    "paper, without consistency": routing(variant="paper", terms=("shape", "entropy")),
    "start": routing(epochs=0),
    "start, statistics of all images": routing(epochs=0, statistics="set"),
}


def lines(shared: nn.Module, own: list[nn.Module], x: Tensor, y: Tensor, asked: Mapping[str, Routing]):
    """Dice of every way at one hospital outside, and the epoch that each adaptation chose."""
    found: dict[str, Any] = {"as trained": dice(shared, x, y), "ensemble": dice(ensemble(own), x, y)}
    for label, epochs in (("statistics", 0), ("tent", 10)):
        network, adapted = tent(shared, x, Tent(epochs=epochs), kind="segmentation")
        found[label] = dice(network, x, y)
        found[f"{label}, epoch"] = adapted.epoch
    for label, how in asked.items():
        network, adapted = route_experts([*own, shared], x, how, kind="segmentation")
        found[label] = dice(network, x, y)
        found[f"{label}, epoch"] = adapted.epoch
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def overlap(one: nn.Module, two: nn.Module, x: Tensor) -> float:
    """Dice of two networks' masks, the mean over pictures."""
    with torch.no_grad():
        seen = torch.cat([two.eval()(part).logits.argmax(dim=1) for part in torch.split(x, 16)])
    return dice(one, x, seen)


def signs(shared: nn.Module, own: list[nn.Module], x: Tensor) -> dict[str, float]:
    """What pictures without masks tell: overlap of the shared model's masks with its own by the pictures' statistics,
    and with those of the hospitals' models; of all pairs of models, by their own statistics and by the pictures'
    (experts); consistency and entropy of the shared model by either statistics.
    """
    by_pictures = tent(shared, x, Tent(epochs=0), kind="segmentation")[0]
    found = {"statistics": overlap(shared, by_pictures, x)}
    found["own"] = float(np.mean([overlap(shared, one, x) for one in own]))
    pairs = [(a, b) for k, a in enumerate(own) for b in own[:k]]
    found["pairs"] = float(np.mean([overlap(a, b, x) for a, b in pairs])) if pairs else 1.0
    for statistics in ("image", "set"):
        mixed = build_routed([*own, shared], statistics=statistics)
        calibrate(mixed, x, 16)
        masks = []
        for r in torch.eye(mixed.experts):
            set_coefficients(mixed, r)
            calibrate(mixed, x, 16)
            with torch.no_grad():
                masks.append(torch.cat([mixed(part).logits.argmax(dim=1) for part in torch.split(x, 16)]))
        both = [
            2 * ((a > 0) & (b > 0)).sum(dim=(1, 2)) / ((a > 0).sum(dim=(1, 2)) + (b > 0).sum(dim=(1, 2))).clamp(min=1)
            for k, a in enumerate(masks)
            for b in masks[:k]
        ]
        found[f"experts, {statistics}"] = float(torch.stack(both).mean())
    for name, network in (("as trained", shared), ("by pictures", by_pictures)):
        for term in ("consistency", "entropy"):
            loss = Unsupervised(terms=(term,), beta=1.0, noise=0.2)
            with torch.no_grad():
                judged = loss(network.eval(), x, torch.Generator().manual_seed(0))
            found[f"{term}, {name}"] = float(judged.losses.mean())
    return {name: round(value, 5) for name, value in found.items()}


def measure(kept: dict[str, Any]) -> None:
    """Table II and figures 6, 7b and 8: every hospital outside once."""
    for seed in SEEDS:
        splits = dealt(seed)
        for outside in splits:
            if (key := f"{outside} | {seed}") in kept["outside"]:
                continue
            begun, x_y = time.process_time(), whole(splits[outside])
            inside = {name: rows for name, rows in splits.items() if name != outside}
            shared, own = trained(inside, seed, rounds=ROUNDS)
            asked = {name: how for name, how in LINES.items() if not seed or how.noise == 0.2}
            cell = lines(shared, own[0.9], *x_y, asked)
            if outside.endswith("1"):  # figures 6 and 7b, at two hospitals
                for tau in TAUS:
                    for label, epochs in (("start", 0), ("paper", 10)):
                        network = route_experts([*own[tau], shared], x_y[0], routing(variant="paper", epochs=epochs),
                                        kind="segmentation")[0]  # fmt: skip
                        cell[f"tau {tau}, {label}"] = round(dice(network, *x_y), 4)
                for epochs in (1, 3, 30):
                    how = routing(variant="paper", epochs=epochs)
                    network = route_experts([*own[0.9], shared], x_y[0], how, kind="segmentation")[0]
                    cell[f"epochs {epochs}"] = round(dice(network, *x_y), 4)
            cell["signs"] = signs(shared, own[0.9], x_y[0])
            kept["outside"][key] = cell
            done(key, cell, begun)


def choose(kept: dict[str, Any]) -> None:
    """What the rule is chosen on: other seeds, models of 4 and of 20 rounds, and of one hospital fewer."""
    asked = {name: LINES[name] for name in ("paper", "start", "start, statistics of all images")}
    for seed in CHOICE:
        splits = dealt(seed)
        for outside in splits:
            x_y = whole(splits[outside])
            for left_out in ("", *([n for n in splits if n[0] == outside[0] and n != outside] if seed == 100 else [])):
                inside = {name: rows for name, rows in splits.items() if name not in (outside, left_out)}
                for rounds in (20,) if left_out else (4, 20):
                    if (key := f"{outside} | without {left_out or 'nobody'} | {rounds} | {seed}") in kept["choice"]:
                        continue
                    begun = time.process_time()
                    shared, own = trained(inside, seed, rounds=rounds)
                    cell = lines(shared, own[0.9], *x_y, asked) | {"signs": signs(shared, own[0.9], x_y[0])}
                    kept["choice"][key] = cell
                    done(key, cell, begun)


def inside(kept: dict[str, Any]) -> None:
    """Figures 5 and 6 inside, and optic cups: hospitals of Drishti alone."""
    cases: list[tuple[str, Task, int]] = [("disc", TASK, steps) for steps in (8, 2)] + [("cup", CUPS, 8)]
    methods: dict[str, Algorithm] = {"local": Local(), "FedBN": Partial(name="fedbn")}
    for seed in SEEDS:
        for what, task, steps in cases:
            if (key := f"{what} | {steps} | {seed}") in kept["inside"]:
                continue
            begun, splits = time.process_time(), dealt(seed, cups=what == "cup")
            shared, own = trained(splits, seed, rounds=ROUNDS, steps=steps, task=task)
            models = {"FedAvg": [shared] * len(splits)}
            models |= {f"IOP-FL, tau {tau}": each for tau, each in own.items()}
            for label, method in methods.items():
                run = Run(method, work(steps), splits, seed, task)
                for number in range(1, ROUNDS + 1):
                    run.round(number, list(splits))
                models[label] = [deepcopy(run.model(name, ROUNDS)) for name in splits]
            cell: dict[str, Any] = {}
            for label, each in models.items():
                tests = [rows["test"] for rows in splits.values()]
                for part, classes in {"disc": (1, 2), **({"cup": (2,)} if what == "cup" else {})}.items():
                    scores = [dice(m, t.x, t.y, classes=classes) for m, t in zip(each, tests, strict=True)]
                    cell[f"{label}, {part}"] = [round(one, 4) for one in scores]
            kept["inside"][key] = cell
            done(key, cell, begun)


def done(key: str, cell: Mapping[str, Any], begun: float) -> None:
    print(f"{key}: {cell.get('as trained', '')} {time.process_time() - begun:.0f} s", flush=True)
    write_measured("outside", STORE, indent=0)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("part", choices=("measure", "choose", "inside"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[*SEEDS])
    said = parser.parse_args()
    SEEDS[:] = said.seeds
    torch.set_num_threads(1)
    STORE.update(read_measured("outside"))
    for name in ("outside", "choice", "inside"):
        STORE.setdefault(name, {})
    {"measure": measure, "choose": choose, "inside": inside}[said.part](STORE)


if __name__ == "__main__":
    main()
