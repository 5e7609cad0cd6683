"""What one message of moments is worth on real pictures: hospitals of HAM10000, with and without privacy.

    CONSILIUM_DATA=... python -m benchmarks.studies.one_message [--splits 10]

Every figure is kept in benchmarks/measured/one_message.json; the table goes into docs/results/data/one-message.json.

Pictures of 112 x 112; features `colour`, scaled by the prior `skin_lesion`. A lesion's pictures are in one split: 60 %
train, 10 % are left out (validation), 30 % test. AUC of each hospital's model on its own test pictures; the mean over
the hospitals that can be assessed (20 pictures and 5 lesions of each class). Every private line is (epsilon, 1e-5) for
each lesion, add or remove; the noise of each split is its own. Splits 0 to 9 are reported. Settings were chosen on
splits 100 to 105.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from dp_accounting import get_sigma_gaussian
from PIL import Image
from scipy import stats
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from federation.descent import Site, Work
from federation.features import Colour
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
from privacy.message import Call, Message

DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[3] / "shared" / "data")) / "ham10000"
HERE = Path(__file__).parents[1] / "measured"
CACHE = HERE.parents[1] / "build" / "one_message"
TABLE = HERE.parents[1] / "docs/results/data/one-message.json"
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


def computed() -> tuple[np.ndarray, np.ndarray, list[dict[str, str]]]:
    """Features of all pictures and of the prior's, kept in build/ under a digest of the extractor's source."""
    lines = list(csv.DictReader((DATA / "labels.csv").open()))
    sources = "".join(
        (HERE.parents[1] / f"federation/features/{name}.py").read_text() for name in ("colour", "texture")
    )
    kept = CACHE / f"{hashlib.sha256(sources.encode()).hexdigest()[:16]}.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        public = draw_pictures(PRIORS["skin_lesion"], torch.arange(PICTURES) % 2, (3, SIDE, SIDE), 0).double().numpy()
        one_by_one = (np.asarray(Image.open(DATA / line["image"]).convert("RGB")) / 127.5 - 1 for line in lines)
        found = np.concatenate([Colour().extract(x.transpose(2, 0, 1)[None]) for x in one_by_one])
        np.savez(kept, found=found, public=Colour().extract(public))
    with np.load(kept) as arrays:
        return arrays["found"], arrays["public"], lines


def scaled(found: np.ndarray, public: np.ndarray, how: dict[str, float]) -> np.ndarray:
    x = whiten_features(found, fit_whitening(public, components=int(how["components"]), softness=how["softness"]))
    return fourier_features(x, int(how["fourier"]), how["bandwidth"]) if how.get("fourier") else x


def hospitals(lines: list[dict[str, str]], parts: int, seed: int) -> np.ndarray:
    """The hospital of each picture: three sources, vienna_dias with vidir_modern, each dealt into `parts` by lesion."""
    source = np.array([{"vienna_dias": "vidir_modern"}.get(line["site"], line["site"]) for line in lines])
    lesion = np.array([line["patient"] for line in lines])
    random, found = np.random.default_rng(10_000 + seed), np.empty(len(lines), dtype=object)
    for name in np.unique(source):
        dealt = np.unique(lesion[source == name])
        random.shuffle(dealt)
        number = {one: k % parts for k, one in enumerate(dealt)}
        for k in np.flatnonzero(source == name):
            found[k] = f"{name}_{number[lesion[k]]}"
    return found


def cut(site: np.ndarray, lesion: np.ndarray, seed: int) -> np.ndarray:
    """0 = train, 1 = left out, 2 = test, of each picture; a lesion is in one of them."""
    random, found = np.random.default_rng(seed), np.zeros(len(site), dtype=int)
    for name in np.unique(site):
        here = np.unique(lesion[site == name])
        random.shuffle(here)
        place = {one: 0 if k < 0.6 * len(here) else 1 if k < 0.7 * len(here) else 2 for k, one in enumerate(here)}
        found[site == name] = [place[one] for one in lesion[site == name]]
    return found


def models(x, y, lesion, train: dict[str, np.ndarray], epsilon: float | None, base=TOGETHER, initial=None):
    """A function from a method to each hospital's network; what leaves is the same for all methods, and leaves once.

    base: the method that decides what leaves. initial: the network's parameters that all hospitals get.
    """
    task = Task(Mlp(hidden=()), (x.shape[1],), int(y.max()) + 1)
    initial = initial_parameters(base, task, seed=0) if initial is None else initial
    sites, memories = {}, dict.fromkeys(train, Message())
    noises = base.rounds * getattr(base, "steps", 1)  # nothing is sampled: k of sigma sqrt(k) cost as one of sigma
    for name, rows in train.items():
        number = np.unique(lesion[rows], return_inverse=True)[1]
        own = Rows(torch.from_numpy(x[rows]).float(), torch.from_numpy(y[rows]), torch.from_numpy(number))
        access = open_access({"train": own}, batch=8, seed=0)
        if epsilon is not None:
            noise = float(get_sigma_gaussian(epsilon, DELTA)) * math.sqrt(noises)
            access = open_private({"train": own}, Protection(noise=noise, clip=1.0))
        sites[name] = Site(name, task, Work(), access)
    state = base.start(initial, {})
    for round_ in range(1, base.rounds + 1):
        call, replies = Call("one_message", round_, "train", {}), {}
        for name, site in sites.items():
            replies[name], memories[name] = base.train(site, base.send(state, name, call), memories[name], call)
        state = base.merge(state, replies)

    def by(how) -> dict[str, torch.nn.Module]:
        return {
            name: loaded(task.network(), how.model(site, how.send(state, name, FINISH), memories[name])).eval()
            for name, site in sites.items()
        }

    return by


def prior_head(public: np.ndarray) -> dict[str, torch.Tensor]:
    """A network whose head was learnt on the prior's pictures alone, whose classes are drawn in turn."""
    number = np.arange(len(public))
    made = models(public, number % 2, number, {"prior": number}, None, PRIOR)(PRIOR)["prior"]
    return {name: tensor.detach() for name, tensor in made.state_dict().items()}


def assessable(y: np.ndarray, lesion: np.ndarray) -> bool:
    return all((y == c).sum() >= 20 and len(np.unique(lesion[y == c])) >= 5 for c in (0, 1))


def lines_of(split: int, parts: int, found, public, lines) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split."""
    y, lesion = np.array([int(line["label"]) for line in lines]), np.array([line["patient"] for line in lines])
    site = hospitals(lines, parts, split)
    place = cut(site, lesion, split)
    train = {name: np.flatnonzero((site == name) & (place == 0)) for name in np.unique(site)}
    test = {name: np.flatnonzero((site == name) & (place == 2)) for name in np.unique(site)}
    judged = [name for name, rows in test.items() if assessable(y[rows], lesion[rows])]

    def mean(score) -> float:
        return float(np.mean([roc_auc_score(y[test[name]], score(name, test[name])) for name in judged]))

    def by_network(x, networks) -> float:
        def score(name, rows):
            logits = networks[name](torch.from_numpy(x[rows]).float()).logits.detach()
            return (logits[:, 1] - logits[:, 0]).numpy()

        return mean(score)

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

    def svm(name, rows):
        fit = make_pipeline(StandardScaler(), SVC(C=1.0)).fit(found[train[name]], y[train[name]])
        return fit.decision_function(found[rows])

    yield FLOOR, None, mean(svm)
    task = Task(Mlp(hidden=()), (linear.shape[1],), 2)
    yield NOBODY, None, by_network(linear, dict.fromkeys(train, loaded(task.network(), begun)))


def main() -> None:
    options = asked(str(__doc__), HERE / "one_message.json", splits=10)
    found, public, lines = computed()
    kept = collected(
        options,
        {
            f"{3 * parts} hospitals": partial(lines_of, parts=parts, found=found, public=public, lines=lines)
            for parts in (1, 4)
        },
    )
    if options.out == HERE / "one_message.json":
        write_tables(TABLE, tables(kept, options.commit))


def asked(description: str, out: Path, *, splits: int) -> argparse.Namespace:
    """The options of a script whose figures are kept in `out`; another `--out` leaves the documents as they are."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--splits", type=int, default=splits)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--commit", default="0000000", help="of the code that is measured, for the table")
    parser.add_argument("--out", type=Path, default=out)
    return parser.parse_args()


def collected(
    options: argparse.Namespace, groups: Mapping[str, Callable[[int], Iterable[tuple[str, float | None, float]]]]
) -> dict[str, dict[str, float]]:
    """`group | line | epsilon` -> split -> value, kept after each split. groups: split -> lines, epsilon and value."""
    torch.set_num_threads(1)
    kept: dict[str, dict[str, float]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for split in range(options.first, options.first + options.splits):
        for group, lines in groups.items():
            for label, epsilon, value in lines(split):
                name = f"{group} | {label} | {'inf' if epsilon is None else f'{epsilon:g}'}"
                kept.setdefault(name, {})[str(split)] = round(value, 5)
        options.out.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        print(split, "done", flush=True)
    return kept


def write_tables(path: Path, made: Mapping[str, object]) -> None:
    """Tables of a page of results; those that were made otherwise stay."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **made}, indent=1, ensure_ascii=False) + "\n")


def interval(values: np.ndarray) -> str:
    """Mean and half of Student's 95 % interval."""
    half = float(stats.t.ppf(0.975, len(values) - 1)) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():.3f} ± {half:.3f}"


def change(values: dict[str, float], other: dict[str, float]) -> str:
    """The mean difference on the same splits, and half of its interval, with a sign."""
    text = interval(np.array([values[split] - other[split] for split in values]))
    return text if text.startswith("-") else f"+{text}"


def _place(model: str) -> tuple[bool, ...]:
    """The order of lines: moments, dp_head, floors."""
    return not model.startswith(("moments", "dp_head")), "dp_head" in model, "Fourier" in model, "begun" in model


def tables(
    kept: dict[str, dict[str, float]],
    commit: str,
    *,
    command: str = "CONSILIUM_DATA=… python -m benchmarks.studies.one_message",
    groups: tuple[str, ...] = ("3 hospitals", "12 hospitals"),
    floor: str = FLOOR,
    above: str = "the SVM",
) -> dict[str, object]:
    """For each number of hospitals: AUC by epsilon, and the gain over the same hospital alone, in pairs of splits.

    floor: the line that every gain is compared with, called `above` in the head of the table.
    """
    origin = {
        "command": command,
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
    }
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
                cells.append(interval(np.array(list(values.values()))))
                alone = kept.get(f"{hospitals_} | {model.partition(', together')[0]}, alone | {epsilon}", base)
                said = "∞" if epsilon == "inf" else epsilon
                if "together" in model:
                    gains.append(f"{said}: {change(values, alone)}")
                    over.append(f"{said}: {change(values, base)}")
            rows.append([model, *cells, "; ".join(gains), "; ".join(over)])
        columns = [
            "model",
            "ε = 1",
            "ε = 3",
            "ε = 8",
            "ε = ∞",
            "gain over alone, by ε",
            f"gain over {above} alone, by ε",
        ]
        found[hospitals_.replace(" ", "-")] = {**origin, "columns": columns, "rows": rows}
    return found


if __name__ == "__main__":
    main()
