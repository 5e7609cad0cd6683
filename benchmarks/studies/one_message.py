"""What one message of moments is worth on real pictures: hospitals of HAM10000, with and without privacy.

    CONSILIUM_DATA=... python -m benchmarks.studies.one_message [--splits 10]

Every figure is kept in benchmarks/measured/one_message.json;
`python -m benchmarks.tables.derived --write one-message` writes the tables.

Pictures of 112 x 112; features `colour`, scaled by the prior `skin_lesion`. A lesion's pictures are in one split: 60 %
train, 10 % are left out (validation), 30 % test. AUC of each hospital's model on its own test pictures; the mean over
the hospitals that can be assessed (20 pictures and 5 lesions of each class). Every private line is (epsilon, 1e-5) for
each lesion, add or remove; the noise of each split is its own. Splits 0 to 9 are reported. Settings were chosen on
splits 100 to 105.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from dp_accounting import get_sigma_gaussian
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.places import BUILD, ROOT
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.rounds import run_rounds
from benchmarks.shared.skin import Line, number_lesions, open_picture, read_lines, split_hospitals
from federation.descent import Site, Work
from federation.features.colour import Colour
from federation.features.whitening import fit_whitening, fourier_features, whiten_features
from federation.models.mlp import Mlp
from federation.parameters import loaded
from federation.rehearsal import initial_parameters
from federation.task import Task
from harmonize.prior import PRIORS, draw_pictures
from personalize.dp_head import DpHead
from personalize.moments import Moments
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call

CACHE = BUILD / "one_message"
SIDE, PICTURES, DELTA = 112, 1200, 1e-5
FINISH = Call("one_message", 1000, "finish", {})
LINEAR = {"components": 24, "softness": 1.0}
KERNEL = {"components": 60, "softness": 1.0, "fourier": 300, "bandwidth": 2.0}
FLOOR = "SVM with a Gaussian kernel, alone"
NOBODY = "the prior's head, which no patient shaped (ε = 0)"
ALONE = Moments(others_gram=0.0, others_classes=0.0, ridge=0.1)
TOGETHER = Moments(others_gram=0.3, others_classes=0.1, ridge=0.1)
FIRMER = Moments(others_gram=1.0, others_classes=0.3, ridge=0.1)
DESCENT, DESCENT_TOGETHER, BY_NOISE = DpHead(others=0.0), DpHead(others=0.1), DpHead()
FEDERATED = DpHead(rounds=30, steps=1, lr=4.0, others=1.0)
PRIOR = DpHead(steps=50, lr=0.3)  # on the prior's own pictures
BEGUN, BEGUN_TOGETHER = DpHead(lr=1.0, others=0.0, begin="given"), DpHead(lr=1.0, others=0.1, begin="given")


def computed() -> tuple[np.ndarray, np.ndarray, list[Line]]:
    """Features of all pictures and of the prior's, kept in build/ under a digest of the extractor's source."""
    lines = read_lines()
    sources = "".join((ROOT / f"federation/features/{name}.py").read_text() for name in ("colour", "texture"))
    kept = CACHE / f"{hashlib.sha256(sources.encode()).hexdigest()[:16]}.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        public = draw_pictures(PRIORS["skin_lesion"], torch.arange(PICTURES) % 2, (3, SIDE, SIDE), 0).double().numpy()
        one_by_one = (np.asarray(open_picture(line)) / 127.5 - 1 for line in lines)
        found = np.concatenate([Colour().extract(x.transpose(2, 0, 1)[None]) for x in one_by_one])
        np.savez(kept, found=found, public=Colour().extract(public))
    with np.load(kept) as arrays:
        return arrays["found"], arrays["public"], lines


def scaled(found: np.ndarray, public: np.ndarray, how: dict[str, float]) -> np.ndarray:
    x = whiten_features(found, fit_whitening(public, components=int(how["components"]), softness=how["softness"]))
    return fourier_features(x, int(how["fourier"]), how["bandwidth"]) if how.get("fourier") else x


def models(x, y, lesion, train: dict[str, np.ndarray], epsilon: float | None, base=TOGETHER, initial=None):
    """A function from a method to each hospital's network; what leaves is the same for all methods, and leaves once.

    base: the method that decides what leaves. initial: the network's parameters that all hospitals get.
    """
    task = Task(Mlp(hidden=()), (x.shape[1],), int(y.max()) + 1)
    initial = initial_parameters(base, task, seed=0) if initial is None else initial
    noises, sites = base.rounds * getattr(base, "steps", 1), {}
    for name, rows in train.items():
        own = Rows(torch.from_numpy(x[rows]).float(), torch.from_numpy(y[rows]), number_lesions(lesion[rows]))
        access = open_access({"train": own}, batch=8, seed=0)
        if epsilon is not None:  # nothing is sampled: k steps of sigma sqrt(k) cost as one of sigma
            noise = float(get_sigma_gaussian(epsilon, DELTA)) * math.sqrt(noises)
            access = open_private({"train": own}, Protection(noise=noise, clip=1.0))
        sites[name] = Site(name, task, Work(), access)
    found = run_rounds(
        base, task, lambda name, _: sites[name], sites, run="one_message", rounds=base.rounds, initial=initial
    )
    return lambda how: replace(found, method=how).networks()


def prior_head(public: np.ndarray) -> dict[str, torch.Tensor]:
    """A network whose head was learnt on the prior's pictures alone, whose classes are drawn in turn."""
    number = np.arange(len(public))
    made = models(public, number % 2, number, {"prior": number}, None, PRIOR)(PRIOR)["prior"]
    return {name: tensor.detach() for name, tensor in made.state_dict().items()}


def margins(network: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    """(n,) How much more class 1 gets than class 0."""
    logits = network(torch.from_numpy(x).float()).logits.detach()
    return (logits[:, 1] - logits[:, 0]).numpy()


def score_svm(found: np.ndarray, y: np.ndarray, train: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """(n,) The floor: what an SVM with a Gaussian kernel says of rows, from a hospital's own training."""
    return make_pipeline(StandardScaler(), SVC(C=1.0)).fit(found[train], y[train]).decision_function(found[rows])


def lines_of(split: int, parts: int, found, public, lines) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split."""
    y, lesion, _, train, test, judged = split_hospitals(lines, parts, split)

    def mean(score) -> float:
        return float(np.mean([roc_auc_score(y[test[name]], score(name, test[name])) for name in judged]))

    def by_network(x, networks) -> float:
        return mean(lambda name, rows: margins(networks[name], x[rows]))

    linear, kernel = scaled(found, public, LINEAR), scaled(found, public, KERNEL)
    begun = prior_head(scaled(public, public, LINEAR))
    for epsilon in (1.0, 3.0, 8.0, None):
        solve = models(linear, y, lesion, train, epsilon)
        for label, how in (("alone", ALONE), ("together", TOGETHER), ("together, firmer", FIRMER)):
            yield f"moments, 24 components, {label}", epsilon, by_network(linear, solve(how))
        solve = models(linear, y, lesion, train, epsilon, DESCENT)
        yield "dp_head, 24 components, alone", epsilon, by_network(linear, solve(DESCENT))
        yield "dp_head, 24 components, together", epsilon, by_network(linear, solve(DESCENT_TOGETHER))
        yield "dp_head, 24 components, together by the noise", epsilon, by_network(linear, solve(BY_NOISE))
        solve = models(linear, y, lesion, train, epsilon, FEDERATED)
        yield "dp_head, 24 components, together, a step a round", epsilon, by_network(linear, solve(FEDERATED))
        solve = models(linear, y, lesion, train, epsilon, BEGUN, begun)
        yield "dp_head begun with the prior's head, alone", epsilon, by_network(linear, solve(BEGUN))
        yield "dp_head begun with the prior's head, together", epsilon, by_network(linear, solve(BEGUN_TOGETHER))
    solve = models(kernel, y, lesion, train, None)
    for label, how in (("alone", ALONE), ("together", TOGETHER), ("together, firmer", FIRMER)):
        yield f"moments, 300 Fourier features, {label}", None, by_network(kernel, solve(how))

    yield FLOOR, None, mean(lambda name, rows: score_svm(found, y, train[name], rows))
    task = Task(Mlp(hidden=()), (linear.shape[1],), 2)
    yield NOBODY, None, by_network(linear, dict.fromkeys(train, loaded(task.network(), begun)))


def main() -> None:
    options = ask_splits(__doc__, "one_message", splits=10)
    found, public, lines = computed()
    given = partial(lines_of, found=found, public=public, lines=lines)
    collect_splits(options, {f"{3 * parts} hospitals": partial(given, parts=parts) for parts in (1, 4)})


def _place(model: str) -> tuple[bool, ...]:
    """The order of lines: moments, dp_head, floors."""
    return not model.startswith(("moments", "dp_head")), "dp_head" in model, "Fourier" in model, "begun" in model


def tables(
    kept: dict[str, dict[str, float]],
    *,
    groups: tuple[str, ...] = ("3 hospitals", "12 hospitals"),
    floor: str = FLOOR,
    above: str = "the SVM",
) -> dict[str, object]:
    """For each number of hospitals: AUC by epsilon, and the gain over the same hospital alone, in pairs of splits.

    floor: the line that every gain is compared with, called `above` in the head of the table.
    """
    epsilons = ["1", "3", "8", "inf"]
    found: dict[str, object] = {}
    for hospitals_ in groups:
        models_ = dict.fromkeys(name.split(" | ")[1] for name in kept if name.startswith(hospitals_))
        base = kept[f"{hospitals_} | {floor} | inf"]
        rows = []
        for model in sorted(models_, key=_place):
            cells, gains, over = [], [], []
            for epsilon in epsilons:
                values = kept.get(f"{hospitals_} | {model} | {epsilon}")
                if values is None:
                    cells.append("")
                    continue
                cells.append(format_interval([*values.values()]))
                alone = kept.get(f"{hospitals_} | {model.partition(', together')[0]}, alone | {epsilon}", base)
                said = "∞" if epsilon == "inf" else epsilon
                if "together" in model:
                    gains.append(f"{said}: {format_change(values, alone)}")
                    over.append(f"{said}: {format_change(values, base)}")
            rows.append([model, *cells, "; ".join(gains), "; ".join(over)])
        heads = ["model", *(f"ε = {one.replace('inf', '∞')}" for one in epsilons), "gain over alone, by ε"]
        found[hospitals_.replace(" ", "-")] = make_table([*heads, f"gain over {above} alone, by ε"], rows)
    return found


if __name__ == "__main__":
    main()
