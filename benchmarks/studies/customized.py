"""CusFL's tables on HAM10000 at the size of one processor core: 2 to 32 hospitals, private and public testing.

    CONSILIUM_DATA=... python -m benchmarks.studies.customized [--folds 3]

Pictures of 24 x 24 without augmentation, half of vidir_molemax's benign ones left out (then it has 36 % of all, in the
paper 39 %). A CNN of widths 8, 16, 32, 64 with group norm, split after its third block; 12 rounds of one epoch, Adam
1e-3, batches of 32. Five disjoint folds of each source's lesions, of which the first are reported; what is not in the
fold trains. Hospitals as in section IV.D: 2 = rosendahl and the three Viennese sources; 4 = the sources; 8, 16 and 32 =
each source's training lesions dealt out over 2, 4 and 8. Private: each model on the test fold of its source; public:
each on the test folds of all; then the mean over models. `judged` leaves out models of the two sources that have few
malignant lesions in a fold. Balanced accuracy is at threshold 0.5, loss is the private cross-entropy. Fine-tuned: 6
epochs more at home. Colour: each picture is brought to the colours of a public prior. `growing`: the first 2, 4 and 8
of 16 hospitals alone (figure 6).

The norms in CusFL's g and its cap were chosen on another division of lesions (seed 100), from ten combinations; all
else is the paper's. Every figure is kept in measured/customized.json as soon as it is there, and is not made again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from torch import Tensor, nn

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.rounds import run_rounds
from benchmarks.shared.skin import column, number_lesions, read_lines, shrink_pictures
from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.fedopt import FedOpt
from federation.finetuning import Tuning, fine_tuned
from federation.local import Local
from federation.models.cnn import Cnn
from federation.moon import Moon
from federation.rehearsal import initial_parameters
from federation.task import Task
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.translation import Reinhard
from personalize.cusfl import CusFL
from personalize.moe import MoE
from personalize.partial import Partial
from privacy.dp.access import Rows, open_access

FOLDS, SIDE, ROUNDS = 5, 24, 12
NETWORK = Cnn(widths=(8, 16, 32, 64), norm="group")
TASK = Task(NETWORK, (3, SIDE, SIDE), 2)
SHARES = (0.1, 0.3, 0.5, 0.7)
WORK = Work(lr=1e-3, batch=32)
AFTER = Tuning(epochs=6)
LARGEST = "vidir_molemax"
VIENNA = ("vidir_modern", "vienna_dias", "vidir_molemax")
JUDGED = ("rosendahl", "vidir_modern", "vidir")
MAIN: dict[str, Algorithm] = {
    "local (LL)": Local(),
    "FedAvg (FL)": FedAvg(),
    "CusFL": CusFL(),
    "SplitNN": Partial(name="splitnn"),
    "MOON": Moon(),
    "MoE": MoE(),
    "CusFL, as printed": CusFL(normalize="none", balance="paper"),
}
ABLATION: dict[str, Algorithm] = {
    "r = .3": CusFL(r=0.3),
    "r = .7": CusFL(r=0.7),
    "asleep: no norms in g, cap 1 (the old default)": CusFL(normalize="none", cap=1.0),
    "MOON's contrast (table IX)": CusFL(contrast="moon"),
    "not frozen (table X)": CusFL(freeze=False),
    "r = .1": CusFL(r=0.1),
    "no projection (figure 3)": CusFL(projection=None),
    "f starts from the federated one each round (ours)": CusFL(resync=True),
}
FIRST = 3
FEW = ("local (LL)", "FedAvg (FL)", "CusFL")
MOST = (*FEW, "SplitNN", "CusFL, as printed")


@dataclass(frozen=True)
class Pictures:
    """pixels: (n, 3, 32, 32) in [-1, 1]. y: malignant. source, lesion: of each picture."""

    pixels: Tensor
    y: np.ndarray
    source: np.ndarray
    lesion: np.ndarray


class Hospital(NamedTuple):
    """train: rows. sources: whose test fold is its own."""

    train: np.ndarray
    sources: Sequence[str]


@cache
def pictures(colour: bool) -> Pictures:
    """All pictures, as they are or each brought to the prior's colours."""
    lines = read_lines()
    benign = [k for k, line in enumerate(lines) if line["site"] == LARGEST and line["label"] == "0"]
    left_out = set(np.random.default_rng(0).permutation(benign)[::2].tolist())
    lines = [line for k, line in enumerate(lines) if k not in left_out]
    pixels = shrink_pictures(lines, SIDE)
    if colour:
        shared = draw_pictures(PRIORS["skin_lesion"], torch.arange(64) % 2, TASK.inputs, 0)
        own = SiteImages(pixels[:2], torch.tensor([0, 1]), torch.arange(2))
        pixels = Reinhard().translate(Reinhard().fit(own, shared), pixels, torch.arange(len(pixels)))
    return Pictures(pixels, *(column(lines, key) for key in ("label", "site", "patient")))


def folds(given: Pictures, seed: int = 0) -> np.ndarray:
    """The fold of each picture: lesions of each source, shuffled and dealt out in turn."""
    chance, found = np.random.default_rng(seed), np.zeros(len(given.y), dtype=int)
    for source in np.unique(given.source):
        here = given.source == source
        lesions = np.unique(given.lesion[here])
        chance.shuffle(lesions)
        place = {lesion: number % FOLDS for number, lesion in enumerate(lesions)}
        found[here] = [place[lesion] for lesion in given.lesion[here]]
    return found


def hospitals(given: Pictures, train: np.ndarray, clients: int, seed: int = 0) -> dict[str, Hospital]:
    """Hospitals in turn, one of each source before the second of any. train: whether a picture trains."""
    if clients == 2:
        kinds: dict[str, Sequence[str]] = {"rosendahl": ("rosendahl",), "vidir": VIENNA}
    else:
        kinds = {source: (source,) for source in ("rosendahl", *VIENNA)}
    parts, chance, found = clients // len(kinds), np.random.default_rng(10_000 + seed), {}
    for kind, sources in kinds.items():
        rows = np.flatnonzero(np.isin(given.source, sources) & train)
        lesions = np.unique(given.lesion[rows])
        chance.shuffle(lesions)
        place = {lesion: number % parts for number, lesion in enumerate(lesions)}
        part = np.array([place[lesion] for lesion in given.lesion[rows]])
        found[kind] = [Hospital(rows[part == number], sources) for number in range(parts)]
    return {f"{kind}-{n + 1}": found[kind][n] for n in range(parts) for kind in kinds}


def trained(
    method: Algorithm,
    dealt: Mapping[str, Hospital],
    given: Pictures,
    fold: int,
    *,
    task: Task = TASK,
    own: Mapping[str, Algorithm] | None = None,
) -> tuple[dict[str, Site], dict[str, nn.Module], dict[str, float]]:
    """Each hospital, its network after all rounds, and the mean of what hospitals noted in the last. own: the methods
    of hospitals with settings of their own.
    """
    sites = {}
    for k, (name, hospital) in enumerate(dealt.items()):
        own_rows, y = hospital.train, torch.from_numpy(given.y[hospital.train])
        rows = Rows(given.pixels[own_rows], y, number_lesions(given.lesion[own_rows]))
        sites[name] = Site(name, task, WORK, open_access({"train": rows}, batch=WORK.batch, seed=1000 * fold + k))
    found = run_rounds(
        method, task, lambda name, _: sites[name], sites, run="customized", rounds=ROUNDS,
        initial=initial_parameters(method, task, seed=fold), own=own, seed_of=lambda _, round_: 1000 * fold + round_,
    )  # fmt: skip
    noted = [one.facts.get("notes") or {} for one in found.memories.values()]
    means = {key: float(np.mean([one[key] for one in noted if key in one])) for key in noted[0]}
    return sites, found.networks(), means


def malignant(network: nn.Module, x: Tensor) -> np.ndarray:
    """(n,) The probability of class 1."""
    found: np.ndarray = TASK.probabilities(network, x)[:, 1].double().numpy()
    return found


def untracked(network: nn.Module, x: Tensor) -> np.ndarray:
    """(n,) The same, where batch norms go by the statistics of each batch of 32."""
    blind = copy.deepcopy(network)
    for part in blind.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train()
            part.track_running_stats = False
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    found = np.empty(len(x))
    with torch.no_grad():
        for rows in order.split(WORK.batch):
            found[rows] = blind(x[rows]).logits.softmax(dim=1)[:, 1].double().numpy()
    return found


def scored(
    networks: Mapping[str, nn.Module],
    dealt: Mapping[str, Hospital],
    given: Pictures,
    test: np.ndarray,
    predicted: Callable[[nn.Module, Tensor], np.ndarray] = malignant,
) -> dict[str, float]:
    """The means over models of what the tables hold. test: rows of all sources' test folds."""
    found: dict[str, list[float]] = {}
    for name, network in networks.items():
        p = predicted(network, given.pixels[test])
        home, y = np.isin(given.source[test], dealt[name].sources), given.y[test]
        figures = {
            "private AUC": roc_auc_score(y[home], p[home]),
            "private ACC": balanced_accuracy_score(y[home], p[home] >= 0.5),
            "loss": log_loss(y[home], p[home]),
            "public AUC": roc_auc_score(y, p),
            "public ACC": balanced_accuracy_score(y, p >= 0.5),
        }
        if name.rsplit("-", 1)[0] in JUDGED:
            figures |= {"judged AUC": figures["private AUC"], "judged ACC": figures["private ACC"]}
        for key, value in figures.items():
            found.setdefault(key, []).append(float(value))
    return {key: round(float(np.mean(values)), 5) for key, values in found.items()}


class Cell(NamedTuple):
    """What is trained on one fold. name: `table | line`."""

    name: str
    method: Algorithm
    clients: int
    first: int | None = None
    colour: bool = False
    tuned: str = ""


def central(fold: int) -> Iterator[tuple[str, dict[str, float]]]:
    """One network on all training pictures, tested at each source and on all: the paper's CL."""
    given = pictures(False)
    place = folds(given)
    everything = Hospital(np.flatnonzero(place != fold), ())
    _, networks, _ = trained(Local(), {"all": everything}, given, fold)
    homes = hospitals(given, place != fold, 4)
    yield "central", scored(dict.fromkeys(homes, networks["all"]), homes, given, np.flatnonzero(place == fold))


def measured(cell: Cell, fold: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Figures of a cell, and of its fine-tuned networks."""
    given = pictures(cell.colour)
    place = folds(given)
    dealt = hospitals(given, place != fold, cell.clients)
    dealt = dict([*dealt.items()][: cell.first])
    test = np.flatnonzero(place == fold)
    sites, networks, noted = trained(cell.method, dealt, given, fold)
    told = {key: round(noted[key], 5) for key in ("share", "between", "similarity", "lambda2") if key in noted}
    yield cell.name, scored(networks, dealt, given, test) | told
    if cell.tuned:
        after = {name: fine_tuned(sites[name], network, AFTER) for name, network in networks.items()}
        yield cell.tuned, scored(after, dealt, given, test)


def by_statistics(fold: int) -> Iterator[tuple[str, dict[str, float]]]:
    """FedAdam and FedAvg with batch norms, by averaged statistics and by those of each batch (FENDA, appendix H)."""
    given, task = pictures(False), replace(TASK, model=replace(NETWORK, norm="batch"))
    place = folds(given)
    dealt, test = hospitals(given, place != fold, 4), np.flatnonzero(place == fold)
    for line, method in {"FedAvg": FedAvg(), "FedAdam": FedOpt()}.items():
        _, networks, _ = trained(method, dealt, given, fold, task=task)
        yield f"statistics | {line}, of each batch", scored(networks, dealt, given, test, untracked)
        yield f"statistics | {line}, averaged", scored(networks, dealt, given, test)


def by_validation(fold: int) -> Iterator[tuple[str, dict[str, float]]]:
    """CusFL's r chosen on the next fold, which then does not train: one for all by the aggregated loss, which weighs
    pictures, and each hospital's own.
    """
    given = pictures(False)
    place, after = folds(given), (fold + 1) % FOLDS
    dealt = hospitals(given, (place != fold) & (place != after), 4)
    test, losses = np.flatnonzero(place == fold), dict[float, dict[str, float]]()
    for r in (0.0, *SHARES):
        _, networks, _ = trained(CusFL(r=r), dealt, given, fold)
        losses[r] = {}
        for name, network in networks.items():
            rows = np.flatnonzero((place == after) & np.isin(given.source, dealt[name].sources))
            p = malignant(network, given.pixels[rows])
            losses[r][name] = log_loss(given.y[rows], p, labels=[0, 1]) * len(rows)
        whole = sum(losses[r].values()) / float((place == after).sum())
        yield f"own r | r = {r:g}", scored(networks, dealt, given, test) | {"validation": round(whole, 5)}
    common = min(losses, key=lambda r: sum(losses[r].values()))
    own = {name: min(losses, key=lambda r, name=name: losses[r][name]) for name in dealt}
    told = {"common": common, **{f"r of {name}": r for name, r in own.items()}}
    _, networks, _ = trained(CusFL(r=common), dealt, given, fold, own={name: CusFL(r=r) for name, r in own.items()})
    yield "own r | each hospital's own", scored(networks, dealt, given, test) | told


Made = Callable[[int], Iterator[tuple[str, dict[str, float]]]]


def jobs() -> Iterator[dict[str, Made]]:
    """All figures of a fold in blocks, the most telling first; a block is made for all folds before the next. By the
    last line that a job makes.
    """

    def lines(*cells: Cell) -> dict[str, Made]:
        return {cell.tuned or cell.name: partial(measured, cell) for cell in cells}

    def both(names: Sequence[str], counts: Sequence[int]) -> dict[str, Made]:
        return lines(*(Cell(f"{n} hospitals | {one}", MAIN[one], n) for n in counts for one in names))

    ablation = {line: Cell(f"ablation | {line}", method, 4) for line, method in ABLATION.items()}
    tuned = (Cell(f"fine-tuned before | {one}", MAIN[one], 16, tuned=f"fine-tuned after | {one}") for one in FEW)
    first = [*ablation.values()][:FIRST]
    yield both((*FEW, "CusFL, as printed"), (4,)) | lines(*first) | both(FEW, (16,)) | {"central": central}
    yield both(FEW, (8, 2)) | lines(*[*ablation.values()][FIRST:6])
    yield {"own r | each hospital's own": by_validation, "statistics | FedAdam, averaged": by_statistics}
    yield lines(*tuned)
    yield both(FEW, (32,)) | both(("SplitNN", "MOON", "MoE"), (4, 16)) | both(MOST[3:], (2, 8, 16))
    yield lines(*(Cell(f"colour | {line}", MAIN[line], 4, colour=True) for line in FEW))
    yield lines(*[*ablation.values()][6:])
    yield lines(*(Cell(f"growing {n} | {line}", MAIN[line], 16, first=n) for n in (2, 4, 8) for line in FEW))


def collected(count: int, seconds: float) -> None:
    """`table | line` -> fold -> figures, written after each cell; what is kept already is not made again.

    Raises:
        SystemExit: there is more to do, and the seconds are over.
    """
    torch.set_num_threads(1)
    kept: dict[str, dict[str, dict[str, float]]] = read_measured("customized")
    began = time.monotonic()

    def keep(name: str, fold: int, figures: dict[str, float]) -> None:
        kept.setdefault(name, {})[str(fold)] = figures
        write_measured("customized", kept, sort=True)
        print(fold, name, figures, flush=True)
        if time.monotonic() - began > seconds:
            raise SystemExit(3)

    def keep_all(fold: int, found: Sequence[tuple[str, dict[str, float]]]) -> None:
        for name, figures in found[:-1]:
            kept.setdefault(name, {})[str(fold)] = figures
        keep(found[-1][0], fold, found[-1][1])

    for block, fold in ((block, fold) for block in jobs() for fold in range(count)):
        for last, made in block.items():
            if str(fold) not in kept.get(last, {}):
                keep_all(fold, [*made(fold)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end with code 3 when they are over")
    options = parser.parse_args()
    collected(options.folds, options.seconds)


if __name__ == "__main__":
    main()
