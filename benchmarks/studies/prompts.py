"""What prompts of a small frozen CLIP are worth on HAM10000's seven diagnoses: pFedMoAP beside its floors.

    CONSILIUM_DATA=... python -m benchmarks.studies.clip_pair     # once: the pair of transformers
    CONSILIUM_DATA=... python -m benchmarks.studies.prompts [--splits 3 | --choose | --private 8 | --draw]

Lesions of the pair's public stripe are left out. Hospitals: the four sources, or ten with shares of each diagnosis by a
Dirichlet distribution of 0.5; lesions, not pictures, are dealt and cut (60 % train, 10 % left out, 30 % test). Vectors
of pictures come from the pair, 15 rounds of one epoch in batches of 32 for all lines that learn round after round; the
moments' lines are those of many_classes.py, on vectors and on `colour` features. Measures are of each hospital's own
model on its own test pictures: AUC as in many_classes.py, accuracy as in the paper, a mean over hospitals. Privately,
(epsilon, 1e-5) for each lesion, add or remove: 8 rounds of 3 steps with q = .25 and clip 1. Splits 0, 1, ... are
reported; settings were chosen on split 100 (`--choose`). Figures are kept in measured/prompts.json after each cell;
what stands there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import BUILD, PICTURES
from benchmarks.shared.records import make_table, read_measured, say_epsilon, write_measured
from benchmarks.shared.rounds import find_noise, run_rounds
from benchmarks.shared.skin import cut_lesions, number_lesions, open_picture, read_lines
from benchmarks.studies import many_classes, one_message
from benchmarks.studies.clip_pair import NAMES, OUT, public
from benchmarks.studies.one_message import scaled
from federation.descent import Site, Work
from federation.features.whitening import fit_whitening, whiten_features
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.local import Local
from federation.models.clip import Clip, ClipPictures, read_tensors
from federation.models.clip_towers import select_text_tensors
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize.fedavg_local import FedAvgLocal
from personalize.pfedmoap import MixedPrompts, PFedMoAP
from personalize.prompts import ZeroShot
from pipelines.data.clip_file import read_clip
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

PICTURE = PICTURES / "experts.png"
GROUPS = ("four sources", "Dirichlet 0.5")
ROUNDS, PRIVATE_ROUNDS, STEPS, SAMPLING, CLIP, DELTA = 15, 8, 3, 0.25, 1.0, 1e-5
TEMPLATES = ("a dermatoscopic picture of a {}.",)
BATCH = 32
MOMENTS = {"alone": one_message.ALONE, "together, firmer": one_message.FIRMER}


@dataclass(frozen=True)
class Line:
    """A method, whether it learns a prompt, or a linear head, and how; None = as was chosen."""

    method: object
    prompt: bool = True
    work: Work | None = None


BY_NAME = {
    "zero-shot": Line(ZeroShot()),
    "CoOp": Line(Local()),
    "PromptFL": Line(FedAvg()),
    "PromptFL, fine-tuned": Line(FedAvgLocal()),
    "PromptFL + FedProx": Line(FedProx(mu=0.1)),
    "pFedMoAP": Line(PFedMoAP()),
    "pFedMoAP, λ = 0": Line(PFedMoAP(lam=0.0)),
    "pFedMoAP, drawn experts, 3 of them": Line(PFedMoAP(choice="random", experts=3)),
    "pFedMoAP, nearest experts, 3 of them": Line(PFedMoAP(experts=3)),
    "pFedMoAP, d = 32": Line(PFedMoAP(d=32)),
    "pFedMoAP, linear projection": Line(PFedMoAP(gate="projection")),
    "linear head on the vectors, alone": Line(Local(), False),
    "linear head on the vectors, FedAvg": Line(FedAvg(), False),
    "linear head on the vectors, FedAvg, fine-tuned": Line(FedAvgLocal(), False),
}
PRIVATELY = ("CoOp", "PromptFL", "pFedMoAP")
FIRST = "PromptFL, fine-tuned"  # with which pFedMoAP is compared


class World(NamedTuple):
    """vectors (n, d) of pictures, unit ones; whitened (n, 24) by the stripe's; y; lesion; lines."""

    model: Clip
    frozen: Mapping[str, torch.Tensor]
    vectors: torch.Tensor
    whitened: np.ndarray
    y: np.ndarray
    lesion: np.ndarray
    lines: list[dict[str, str]]


@cache
def world() -> World:
    model = read_clip(Clip(weights=str(OUT / "model.safetensors"), classes=NAMES, templates=TEMPLATES))
    w = read_tensors(model, (OUT / "model.safetensors").read_bytes())
    lines = read_lines()
    kept = BUILD / "prompts" / f"{model.sha256[:16]}.npy"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        extractor = ClipPictures(model, w)
        pictures = (np.asarray(open_picture(one)) / 127.5 - 1 for one in lines)
        np.save(kept, np.concatenate([extractor.extract(x.transpose(2, 0, 1)[None]) for x in pictures]))
    vectors = np.load(kept)
    stripe = np.array([public(one) for one in lines])
    by_stripe = whiten_features(vectors, fit_whitening(vectors[stripe], components=24, softness=1.0))
    own = [one for one in lines if not public(one)]
    return World(
        model,
        select_text_tensors(w),
        torch.from_numpy(vectors[~stripe]).float(),
        by_stripe[~stripe],
        np.array([list(NAMES).index(one["dx"]) for one in own]),
        np.array([one["patient"] for one in own]),
        own,
    )


@cache
def colour() -> np.ndarray:
    """The 24 `colour` features (n, 24) of one_message.py, of the same pictures."""
    found, prior, lines = one_message.computed()
    return scaled(found, prior, one_message.LINEAR)[~np.array([public(one) for one in lines])]


def hospitals(group: str, split: int) -> np.ndarray:
    """The hospital of each picture."""
    now = world()
    if group == "four sources":
        return np.array([one["site"] for one in now.lines])
    random, of = np.random.default_rng(20_000 + split), {}
    for c in range(len(NAMES)):
        dealt = np.unique(now.lesion[now.y == c])
        random.shuffle(dealt)
        ends = np.round(np.cumsum(random.dirichlet([0.5] * 10)) * len(dealt)).astype(int)
        of |= {one: int(np.searchsorted(ends, k, side="right")) for k, one in enumerate(dealt)}
    return np.array([f"h{of[one]}" for one in now.lesion])


class Cut(NamedTuple):
    """Rows of each hospital."""

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]


def divided(group: str, split: int) -> Cut:
    """Hospitals with fewer than 20 training pictures take no part, as with a Dirichlet distribution some may."""
    site = hospitals(group, split)
    place = cut_lesions(site, world().lesion, split)
    rows = [{name: np.flatnonzero((site == name) & (place == k)) for name in np.unique(site)} for k in (0, 2)]
    names = [name for name in rows[0] if len(rows[0][name]) >= 20 and len(rows[1][name])]
    return Cut({name: rows[0][name] for name in names}, {name: rows[1][name] for name in names})


def scores(test: Mapping[str, np.ndarray], probabilities: Callable[[str], np.ndarray]) -> dict[str, float]:
    """Mean AUC of hospitals with three diagnoses of 5 lesions or more, and mean accuracy of all."""
    now = world()
    held = {name: many_classes.judged(now.y[rows], now.lesion[rows]) for name, rows in test.items()}
    told = {name: probabilities(name) for name in test}
    auc = [many_classes.macro(now.y[test[name]], told[name], own) for name, own in held.items() if len(own) >= 3]
    right = [(told[name].argmax(1) == now.y[rows]).mean() for name, rows in test.items()]
    return {"auc": round(float(np.mean(auc)), 5), "accuracy": round(float(np.mean(right)), 5)}


def private(lr: float) -> Work:
    return Work(lr=lr, epochs=None, steps=STEPS)


def chosen(line: Line, epsilon: float | None) -> Line:
    """The line with the rates that were chosen on split 100."""
    rates = read_measured("prompts_chosen")
    method = replace(line.method, gate_lr=rates["gate"]) if isinstance(line.method, PFedMoAP) else line.method
    if epsilon is not None:
        return replace(line, method=method, work=private(rates["prompt"]))
    return replace(line, method=method, work=Work(lr=rates["prompt" if line.prompt else "head"], batch=BATCH))


class Trained(NamedTuple):
    """Each hospital's own network, and its last notes."""

    networks: dict[str, torch.nn.Module]
    notes: dict[str, dict[str, float]]
    seconds: float


def trained(line: Line, division: Cut, epsilon: float | None, seed: int) -> Trained:
    """The project's own method through its own data access."""
    now, method, began = world(), line.method, time.monotonic()
    model = now.model if line.prompt else Mlp(hidden=())
    task = Task(model, (now.vectors.shape[1],), len(NAMES), frozen=now.frozen if line.prompt else None)
    torch.manual_seed(seed)
    sites = {}
    noise = None if epsilon is None else find_noise(epsilon, DELTA, STEPS * PRIVATE_ROUNDS, SAMPLING)
    for k, (name, own) in enumerate(division.train.items()):
        rows = {"train": Rows(now.vectors[own], torch.from_numpy(now.y[own]), number_lesions(now.lesion[own]))}
        if noise is None:
            access = open_access(rows, batch=line.work.batch, seed=1000 * seed + k)
        else:
            access = open_private(rows, Protection(clip=CLIP, sampling=SAMPLING, views=1, noise=noise))
        sites[name] = Site(name, task, line.work, access)
    found = run_rounds(
        method, task, lambda name, _: sites[name], sites, run="prompts",
        rounds=getattr(method, "rounds", ROUNDS if epsilon is None else PRIVATE_ROUNDS),
        initial=initial_parameters(method, task, seed=seed),
    )  # fmt: skip
    networks = found.networks()
    notes = {name: dict(memory.facts.get("notes", {})) for name, memory in found.memories.items()}
    return Trained(networks, notes, time.monotonic() - began)


def by_networks(found: Trained, division: Cut) -> dict[str, float]:
    def told(name: str) -> np.ndarray:
        with torch.no_grad():
            return functional.softmax(found.networks[name](world().vectors[division.test[name]]).logits, 1).numpy()

    return scores(division.test, told)


def floors(group: str, split: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Lines that learn nothing round after round."""
    now, division = world(), divided(group, split)
    counts = {name: np.bincount(now.y[own], minlength=len(NAMES)) for name, own in division.train.items()}
    yield (
        "majority guess",
        scores(division.test, lambda name: np.tile(counts[name] / counts[name].sum(), (len(division.test[name]), 1))),
    )
    for what, x in (("vectors", now.whitened), ("colour", colour())):
        solve = one_message.models(x, now.y, now.lesion, division.train, None)
        for how, method in MOMENTS.items():
            networks = solve(method)

            def told(name: str, x=x, networks=networks) -> np.ndarray:
                given = torch.from_numpy(x[division.test[name]]).float()
                return softmax(networks[name](given).logits.detach().numpy().astype(float), axis=1)

            yield f"moments on {what}, {how}", scores(division.test, told)

        def alone(name: str, x=x) -> np.ndarray:
            own = division.train[name]
            fit = make_pipeline(StandardScaler(), LogisticRegression(C=0.03, max_iter=2000)).fit(x[own], now.y[own])
            told = np.zeros((len(division.test[name]), len(NAMES)))
            told[:, fit[-1].classes_] = fit.predict_proba(x[division.test[name]])
            return told

        yield f"logistic regression on {what}, alone", scores(division.test, alone)


def keep(kept: dict[str, dict[str, dict[str, float]]], name: str, split: int, values: dict[str, float]) -> None:
    kept.setdefault(name, {})[str(split)] = values
    write_measured("prompts", kept, sort=True)
    print(name, split, values, flush=True)


def completed(splits: range, lines: Mapping[str, Line], epsilons: tuple[float | None, ...]) -> dict:
    """`group | line | epsilon` -> split -> measures."""
    kept = read_measured("prompts")
    for split, epsilon, group in product(splits, epsilons, GROUPS if None in epsilons else GROUPS[1:]):
        said = say_epsilon(epsilon)
        for name, line in lines.items():
            key = f"{group} | {name} | {said}"
            if str(split) in kept.get(key, {}):
                continue
            division = divided(group, split)
            found = trained(chosen(line, epsilon), division, epsilon, split)
            keep(kept, key, split, {**by_networks(found, division), "seconds": round(found.seconds, 1)})
        if epsilon is None and str(split) not in kept.get(f"{group} | majority guess | inf", {}):
            for name, values in floors(group, split):
                keep(kept, f"{group} | {name} | inf", split, values)
    return kept


def choose() -> None:
    """Rates on split 100 of the Dirichlet hospitals, by AUC: of prompts with PromptFL, then of the gate, and of the
    linear head. All that was tried stays in prompts_chosen.json; privately the same rates are taken.
    """
    division, tried = divided(GROUPS[1], 100), dict[str, dict[str, float]]()

    def best(what: str, rates: tuple[float, ...], made: Callable[[float], Line]) -> float:
        tried[what] = {}
        for rate in rates:
            tried[what][f"{rate:g}"] = by_networks(trained(made(rate), division, None, 100), division)["auc"]
            print(what, rate, tried[what], flush=True)
        return float(max(tried[what], key=lambda rate: tried[what][rate]))

    lr = best("prompt", (3e-3, 1e-2, 3e-2), lambda r: replace(BY_NAME["PromptFL"], work=Work(lr=r, batch=BATCH)))
    mixed = Line(PFedMoAP(), work=Work(lr=lr, batch=BATCH))
    gate = best("gate", (1e-3, 1e-2), lambda r: replace(mixed, method=PFedMoAP(gate_lr=r)))
    tuned = BY_NAME["linear head on the vectors, FedAvg, fine-tuned"]
    head = best("head", (3e-3, 1e-2, 3e-2, 1e-1, 3e-1), lambda r: replace(tuned, work=Work(lr=r, batch=BATCH)))
    said = {"prompt": lr, "gate": gate, "head": head, "tried": tried}
    write_measured("prompts_chosen", said)


def draw() -> None:
    """How much each hospital's gate counts each expert on its test pictures, split 0; of both groups."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9.5, 4.2), width_ratios=(4, 10))
    told = {}
    for group, axis in zip(GROUPS, axes, strict=True):
        division = divided(group, 0)
        found = trained(chosen(BY_NAME["pFedMoAP"], None), division, None, 0)
        names = sorted(division.train)
        share = np.full((len(names), len(names)), np.nan)
        for k, name in enumerate(names):
            network = cast(MixedPrompts, found.networks[name])
            with torch.no_grad():
                trust = network(world().vectors[division.test[name]], True)[1].mean(0).numpy()
            others = [one for one in names if one != name]  # all are asked, in the order of their names
            share[k, k] = trust[0]
            for place, one in enumerate(others[: len(trust) - 1]):
                share[k, names.index(one)] = trust[1 + place]
        told[group] = {"hospitals": names, "share": np.round(share, 4).tolist()}
        drawn = axis.imshow(share, vmin=0, cmap="viridis")
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.set_title(group, fontsize=9)
        axis.set_xlabel("expert", fontsize=8)
        figure.colorbar(drawn, ax=axis, shrink=0.8)
    axes[0].set_ylabel("hospital", fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)
    write_measured("prompts_experts", told)


def tables(kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, object]:
    """AUC and accuracy of each line, and the AUC's gain over PromptFL with fine-tuning, in pairs of splits."""
    found: dict[str, object] = {}
    for group in GROUPS:
        rows, base = [], kept.get(f"{group} | {FIRST} | inf", {})
        order = {name: k for k, name in enumerate(["majority guess", *BY_NAME])}
        names = dict.fromkeys(key.split(" | ")[1] for key in kept if key.startswith(group) and key.endswith("| inf"))
        for name in sorted(names, key=lambda one: (order.get(one, 99), one)):
            values = kept[f"{group} | {name} | inf"]
            both = {s: one["auc"] for s, one in values.items() if s in base}
            gain = "" if name == FIRST or len(both) < 2 else format_change(both, {s: base[s]["auc"] for s in both})
            cells = [format_interval([one[what] for one in values.values()]) for what in ("auc", "accuracy")]
            rows.append([name, *cells, gain, f"{len(values)}"])
        columns = ["line", "AUC", "accuracy", f"AUC over {FIRST}", "splits"]
        found[group.replace(" ", "-").replace(".", "").lower()] = make_table(columns, rows)
    said = [one for one in ("3", "8", "50") if any(f"{GROUPS[1]} | {name} | {one}" in kept for name in PRIVATELY)]
    known = [kept.get(f"{GROUPS[1]} | {name} | {one}", {}) for name in PRIVATELY for one in said]
    splits = sorted(set.intersection(*(set(one) for one in known))) if known else []
    rows = []
    for name in PRIVATELY if splits else ():
        of = [kept[f"{GROUPS[1]} | {name} | {one}"] for one in (*said, "inf")]
        mean = [[np.mean([each[s][what] for s in splits]) for what in ("auc", "accuracy")] for each in of]
        rows.append([name, *(f"{auc:.3f} / {accuracy:.3f}" for auc, accuracy in mean)])
    columns = ["line", *(f"ε = {one}" for one in said), "ε = ∞"]
    found["private"] = make_table(columns, rows)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--private", type=float, nargs="+", help="epsilons")
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.choose:
        choose()
    elif options.draw:
        draw()
    elif options.private:
        completed(range(options.splits), {name: BY_NAME[name] for name in PRIVATELY}, tuple(options.private))
    else:
        completed(range(options.splits), BY_NAME, (None,))


if __name__ == "__main__":
    main()
