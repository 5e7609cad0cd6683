"""What is computed of one patient is the same, bit for bit, whoever else is there.

Nothing that is released with noise may hang on others by rounding: crafted weights amplify a last bit as they like.

Each release is computed for a hospital, and again after patients are removed, come, change places or change what they
hold. All that leads to it of everybody else must have the same bits. Then weights that were crafted to show rounding
are tried, without noise: what leaves moves by what is booked and no more.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import small_clip
from evaluation.scale import cell_of
from evaluation.votes import BINS, class_votes, tree_votes
from federation.features.radiomics import Radiomics
from federation.features.whitening import multiply_by_row
from federation.models.adapted import adapted
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.monai import Monai
from federation.models.own import Own, register_network
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.task import Task
from harmonize import drift
from harmonize.complexity import Basis, Outside, measure_outside
from harmonize.game import make_critic_losses, make_fakes, make_players
from harmonize.translation import list_curve_translators
from harmonize.veto import Limits
from pipelines.hospital import released_scores, translation
from pipelines.hospital.benchmark import predict_probabilities
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.loader.validation import to_plain
from privacy.dp import private_access
from privacy.dp.access import Batch, Rows
from privacy.dp.chunks import compute_repeatably as repeatably
from privacy.dp.modules import find_unfit_parts
from privacy.dp.moments import SLACK
from privacy.dp.private_access import PrivateAccess, open_private
from privacy.dp.protection import Protection
from small_site import PATIENTS, SCALE, SIDE, ask, hospital

QUIET = Protection(clip=1.0, sampling=1.0, views=2, noise=0.0, validation_noise=0.0, votes_noise=0.0, loss_bound=1e6)
N = 11
DENSE = Monai(
    network="DenseNet", norm="group", arguments={"init_features": 16, "growth_rate": 16, "block_config": (1, 1)}
)


class Attending(nn.Module):
    """Rows of an image as a sequence: attention, then a recurrent layer."""

    def __init__(self, inputs: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(inputs[-1], 2, 24, dropout=0.0, batch_first=True)
        self.recurrent, self.head = nn.GRU(inputs[-1], 12, batch_first=True), nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.attention(x[:, 0]))[1][-1])
        return logits


class Remembering(nn.Module):
    """Keeps what it sees wherever a layer can: in a parameter, a frozen one, an attribute and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.frozen = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1), requires_grad=False)
        self.mean, self.seen = 0.0, list[float]()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            new = float(x.mean())
            self.bias.add_(new)
            self.frozen.mul_(0.5).add_(new)
            self.mean += new
            self.seen.append(new)
        return x + self.bias + self.frozen + self.mean + sum(self.seen)


class Embedded(nn.Module):
    """Pixels as tokens, whose vectors torch shortens in `forward`, in place."""

    def __init__(self, inputs: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.memory, self.words = Remembering(), nn.Embedding(20, 8, max_norm=0.1)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (self.memory(x.flatten(1)) * 9).long().abs() % 20
        logits: Tensor = self.head(self.words(tokens).mean(dim=1))
        return logits


CODE = register_network("attending", Attending)
WRITES = Own(
    network="embedded", stem=("memory",), blocks=("words",), head="head", code=register_network("embedded", Embedded)
)
SEQUENCE = Own(network="attending", stem=("attention",), blocks=("recurrent",), head="head", code=CODE)
NETWORKS: dict[str, Task] = {
    "mlp": Task(Mlp(hidden=(17, 5)), (13,), 2),
    "mlp, one logit": Task(Mlp(hidden=(25, 1), logits="one"), (16,), 2),
    "linear": Task(Mlp(hidden=()), (110,), 2),
    "cnn": Task(Cnn(norm="group"), (1, 16, 16), 3),
    "cnn of volumes": Task(Cnn(widths=(8, 16), norm="group"), (1, 8, 8, 8), 2),
    "cam": Task(Cam(norm="group"), (3, 16, 16), 2),
    "resnet": Task(ResNet18(norm="group", width=16), (1, 32, 32), 2),
    "resnet of 64 channels": Task(ResNet18(norm="group"), (1, 32, 32), 2),
    "monai": Task(DENSE, (1, 32, 32), 2),
    "unet": Task(UNet(width=4, levels=2, norm="group"), (1, 8, 8), 3, "segmentation"),
    "prompt": small_clip.task(),
    "attention": Task(SEQUENCE, (1, 16, 16), 2),
    "own code that writes its weights and remembers": Task(WRITES, (1, 8, 8), 2),
}  # fmt: skip
NAMES = [pytest.param(name, marks=pytest.mark.slow if "64" in name else ()) for name in NETWORKS]


GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
)


@pytest.fixture(
    params=[("cpu", 1), ("cpu", 2), pytest.param(("cuda", 1), marks=GPU)], ids=["1 thread", "2 threads", "GPU"]
)
def device(request) -> Iterator[str]:
    """Where networks and patients lie, with so many threads of the CPU."""
    before = torch.get_num_threads()
    place, threads = request.param
    torch.set_num_threads(threads)
    yield place
    torch.set_num_threads(before)


def crafted(task: Task, device: str = "cpu") -> nn.Module:
    """Weights of very different sizes: sums in which last bits decide."""
    torch.manual_seed(3)
    module = task.network()
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(10.0 ** torch.empty_like(p).uniform_(-1.0, 1.5))
    return module.to(device)


def rows_of(task: Task, device: str = "cpu") -> Rows:
    """N patients with one to three rows each, not in order."""
    g = torch.Generator().manual_seed(5)
    patient = torch.repeat_interleave(torch.arange(N), torch.arange(N) % 3 + 1)
    patient = patient[torch.randperm(len(patient), generator=g)]
    x = torch.randn(len(patient), *task.inputs, generator=g)
    y = torch.randint(task.classes, (len(patient), *task.spatial), generator=g)
    return Rows(x.to(device), y.to(device), patient.to(device))


def with_rows(rows: Rows, keep: Tensor) -> Rows:
    return Rows(rows.x[keep], rows.y[keep], rows.patient[keep])


def neighbours(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Other hospitals in which most patients are the same: their numbers stay."""
    for name, gone in (("first", 0), ("middle", N // 2), ("last", N - 1)):
        yield f"without the {name}", with_rows(rows, rows.patient != gone)
    yield "two left", with_rows(rows, (rows.patient == 3) | (rows.patient == 8))
    yield "alone", with_rows(rows, rows.patient == 5)
    more = rows.x[rows.patient == 1].flip(-1)
    numbers = torch.cat([torch.full_like(rows.patient[: len(more)], -1), rows.patient])
    added = Rows(torch.cat([more, rows.x]), torch.cat([rows.y[: len(more)], rows.y]), numbers)
    yield "one more before all", added
    yield "rows in another order", with_rows(rows, torch.arange(len(rows.y), device=rows.y.device).flip(0))
    changed = rows.x.clone()
    changed[rows.patient % 2 == 0] *= -1e3
    yield "every other patient holds something else", Rows(changed, rows.y, rows.patient)


def key(x: Tensor) -> bytes:
    """A patient's rows, whatever order they lie in: by them one is found again."""
    return b"".join(sorted(row.tobytes() for row in x.cpu().numpy()))


def digest(value: Tensor) -> bytes:
    return hashlib.sha256(value.detach().cpu().numpy().tobytes()).digest()


Seen = dict[bytes, tuple[bytes, ...]]
"""What was computed of each patient, by the rows."""


def gradients_of(task: Task, module: nn.Module, rows: Rows, monkeypatch, *, full: bool) -> Seen:
    """Each patient's gradient before it is clipped."""
    seen, keys = Seen(), list[bytes]()
    release = private_access.private_gradient

    def recorded(params, patients, **how):
        for gradient in patients:  # the objective saw whose it is
            seen[keys[-1]] = tuple(digest(gradient[name]) for name in sorted(gradient))
        return release(params, [], **how)

    def objective(forward, batch: Batch) -> Tensor:
        keys.append(key(batch.x))
        return task.objective(forward, batch)

    access = open_private({"train": rows}, QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(private_access, "private_gradient", recorded)
        access.gradient(module, objective, access.draw(full=full))
    return seen


def agree(whole: Seen, other: Seen, what: str) -> None:
    both = whole.keys() & other.keys()
    assert both, what
    different = [patient for patient in both if whole[patient] != other[patient]]
    assert not different, f"{what}: {len(different)} of {len(both)} patients who did not change are computed otherwise"


def ordered(rows: Rows) -> Rows:
    """Rows of a patient in one order: only other patients' places change."""
    order = torch.argsort(rows.x.flatten(1).sum(dim=1).double())
    return with_rows(rows, order[torch.argsort(rows.patient[order], stable=True)])


@pytest.mark.repeats(13)
@pytest.mark.parametrize("name", NAMES)
def test_a_patients_gradient_does_not_hang_on_others(name, device, monkeypatch):
    task = NETWORKS[name]
    module, rows = crafted(task, device), rows_of(task, device)
    if device == "cuda" and name == "cnn of volumes":
        with pytest.raises(ValueError, match="no deterministic algorithm for max_pool3d"):
            gradients_of(task, module, ordered(rows), monkeypatch, full=True)
        return
    whole = gradients_of(task, module, ordered(rows), monkeypatch, full=True)
    assert len(whole) == N
    large = name in ("resnet", "resnet of 64 channels", "cam", "cnn")
    few = slice(1, None, 6) if large else slice(None)  # the others take seconds each
    for what, other in list(neighbours(rows))[few]:
        agree(whole, gradients_of(task, module, ordered(other), monkeypatch, full=True), what)
    single = with_rows(rows, torch.tensor([int((rows.patient == k).nonzero()[0]) for k in range(N)], device=device))
    drawn = gradients_of(task, module, single, monkeypatch, full=False)
    for what, other in list(neighbours(single))[few]:
        agree(drawn, gradients_of(task, module, other, monkeypatch, full=False), f"views, {what}")


@pytest.mark.repeats(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_patients_loss_embedding_and_vote_do_not_hang_on_others(name, device):
    task = NETWORKS[name]
    module, rows = crafted(task, device), rows_of(task, device)

    def seen(here: Rows, ask_: Callable[[PrivateAccess, Callable], object]) -> Seen:
        computed = Seen()

        def noted(x: Tensor, value: Tensor) -> Tensor:
            computed[key(x)] = (value.detach().cpu().numpy().tobytes(),)
            return value

        access = open_private({"train": here, "validation": here}, QUIET)
        ask_(access, noted)
        return computed

    def features(x: Tensor) -> Tensor:
        module.eval()
        with torch.no_grad():
            z = module(x).features
        return z.flatten(2).mean(dim=2) if z.dim() > 2 else z

    def measured(access, noted):
        access.measure(module, lambda f, b: noted(b.x, task.validation(f, b)), "validation")

    def embedded(access, noted):
        with repeatably():
            width = features(rows.x[:1]).shape[1]
        access.moments(lambda x: noted(x, features(x)), task.classes, width=width, radius=1.0)

    def voted(access, noted):
        access.votes(lambda x, y: noted(x, (features(x).sum(dim=1) * 1e9).long() % 7), 7)

    of_labels = (embedded,) if task.kind == "classification" else ()  # moments are of one label an example
    for release in (measured, voted, *of_labels):
        whole = seen(ordered(rows), release)
        assert len(whole) == N
        for what, other in neighbours(rows):
            agree(whole, seen(ordered(other), release), f"{release.__name__}, {what}")


@pytest.mark.repeats(6)
@pytest.mark.parametrize("name", NAMES)
def test_an_examples_probabilities_do_not_hang_on_others(name, device):
    task = NETWORKS[name]
    module, rows = crafted(task, device), rows_of(task, device)

    def seen(here: Rows) -> Seen:
        p = task.probabilities(module, here.x, alone=True)
        return {key(x[None]): (own.cpu().numpy().tobytes(),) for x, own in zip(here.x, p, strict=True)}

    whole = seen(rows)
    for what, other in neighbours(rows):
        agree(whole, seen(other), what)


@pytest.mark.repeats(1)
def test_the_critic_of_a_gan_and_the_score_of_a_hospital_do_not_hang_on_others(device, monkeypatch):
    place = torch.device(device)
    own = make_players(4, (1, 8, 8), 2, ema=0.9, start=None, seed=1, device=place)
    aux = make_fakes(own.generator, torch.Generator().manual_seed(2), batch=1, views=2, device=place)
    task = Task(Mlp(hidden=()), (1, 8, 8), 2)
    rows = rows_of(task, device)
    losses = make_critic_losses((1, 8, 8), 10.0)

    def seen(here: Rows) -> Seen:
        found, keys = Seen(), list[bytes]()
        release = private_access.private_gradient

        def recorded(params, patients, **how):
            for gradient in patients:
                found[keys[-1]] = tuple(digest(value) for value in gradient.values())
            return release(params, [], **how)

        def objective(forward, batch: Batch) -> Tensor:
            keys.append(key(batch.x))
            return losses(forward, batch)

        access = open_private({"train": here}, QUIET)
        with monkeypatch.context() as patch:
            patch.setattr(private_access, "private_gradient", recorded)
            access.gradient(own.critic, objective, access.draw(full=True), aux)
        module = Outside(Basis(torch.zeros(64), torch.eye(64)[:5] * 1e3, torch.ones(5))).to(place)

        def scored(forward, batch: Batch) -> Tensor:
            value = measure_outside(forward, batch)
            found[b"score" + key(batch.x)] = (value.cpu().numpy().tobytes(),)
            return value

        open_private({"train": here}, QUIET).measure(module, scored, "train")
        return found

    whole = seen(ordered(rows))
    assert len(whole) == 2 * N
    for what, other in neighbours(rows):
        agree(whole, seen(ordered(other)), what)


def test_an_operation_that_a_gpu_only_rounds_by_chance_is_refused_in_words():
    """What torch says where there is one, in its words."""
    with (
        pytest.raises(ValueError, match=r"for max_pool3d_with_indices_backward_cuda, .* say device: cpu"),
        repeatably(),
    ):
        raise RuntimeError("max_pool3d_with_indices_backward_cuda does not have a deterministic implementation, but")
    with pytest.raises(RuntimeError, match="another"), repeatably():
        raise RuntimeError("another")


# At the hospital: what is computed of patients before a release.

NEVER = dict.fromkeys((field.name for field in fields(Limits)), None)
GONE = [(), (0,), (13,), (PATIENTS - 1,), (0, 1, 2, 3, 4, 5, 6)]


def by_patient(own: Hospital, cohort: str) -> Seen:
    read = cohort_of(own, cohort)
    return {
        read.patients[number].encode(): (read.images[read.patient == number].numpy().tobytes(),)
        for number in read.patient.unique().tolist()
    }


def test_features_do_not_hang_on_others(tmp_path):
    """The scale's product is the same for all extractors, and that each row is its own is a law of all of them."""
    width = Radiomics().extract(np.zeros((1, 1, SIDE, SIDE))).shape[1]
    axes = torch.randn(width, 7, generator=torch.Generator().manual_seed(0)).double() * 1e3
    scale = {"mean": torch.zeros(width).double(), "spread": torch.full((width,), 1e-3).double(), "axes": axes}
    model = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "components": 7}
    public = {"prior": "prostate_adc", "pictures": 1200}
    made = []
    for gone in GONE:
        own, cohort = hospital(tmp_path / str(len(made)), without=gone)
        reply = ask(own, "extract", 0, scale, cohort=cohort, model=model, public=public)
        made.append(by_patient(own, str(reply.facts["cohort"])))
    for gone, other in zip(GONE[1:], made[1:], strict=True):
        agree(made[0], other, f"without {gone}")


@pytest.mark.parametrize("offset", range(1, 8))
def test_a_row_of_features_is_whitened_in_the_same_way_wherever_it_lies_in_memory(offset):
    rng = np.random.default_rng(0)
    row, axes = rng.normal(size=110), rng.normal(size=(110, 32))
    shifted = np.zeros(118)[offset : offset + 110]
    shifted[:] = row
    assert np.array_equal(multiply_by_row(shifted[None], axes), multiply_by_row(row[None].copy(), axes))


@pytest.mark.repeats(3)
@pytest.mark.parametrize("name", list_curve_translators())
def test_translated_images_do_not_hang_on_others(name, tmp_path, monkeypatch):
    """The judge sees all patients, and may: it changes no image, and no limit is set. It, and a map for the hospital's
    own page, are made quick.
    """
    monkeypatch.setattr(drift, "REPEATS", 1)
    monkeypatch.setattr(translation, "write_points", lambda *_: None)
    made = []
    for gone in GONE:
        own, cohort = hospital(tmp_path / str(len(made)), without=gone)
        pictures = torch.rand(8, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(4)) * 2 - 1
        shared = {"images": pictures, "labels": torch.arange(8) % 2}
        facts = {"cohort": cohort, "scale": SCALE, "copies": 1, "seed": 0, "scanner": "P", "private": False}
        translator = {"name": name, **({"steps": 2} if name == "randomized" else {})}
        asked = {"space": "s", "translator": translator, "veto": NEVER, "is_target": False}
        made.append(by_patient(own, str(ask(own, "translate", 0, shared, **facts, **asked).facts["cohort"])))
    for gone, other in zip(GONE[1:], made[1:], strict=True):
        agree(made[0], other, f"{name} without {gone}")


TASK = Task(Cnn(widths=(8, 8), norm="group"), (1, SIDE, SIDE), 2)


OPENING = {
    **{"label": "x", "algorithm": {"name": "fedavg"}, "model": to_plain(TASK.model), "inputs": [1, SIDE, SIDE]},
    **{"classes": 2, "work": {"optimizer": "sgd", "lr": 0.1, "epochs": None, "steps": 1}, "seed": 0},
    **{"privacy": to_plain(QUIET), "evaluation_noise": 50.0},
}
SCORED = {"label": "x", "train_run": "r/none", "checkpoint": "latest", "best": None, "copies": 1, "central": True}


def test_scores_that_are_released_privately_do_not_hang_on_others(tmp_path, monkeypatch):
    module, release, seen = crafted(TASK), released_scores.vote_histogram, []
    for gone in GONE:
        own, cohort = hospital(tmp_path / str(len(seen)), without=gone)
        votes: list[Tensor] = []

        def recorded(cast: Tensor, votes=votes, **how):
            votes.append(cast)
            return release(cast, **how)

        with monkeypatch.context() as patch:
            patch.setattr(released_scores, "vote_histogram", recorded)
            opening = {**OPENING, "cohort": cohort}
            ask(own, "evaluate", tensors=dict(module.state_dict()), opening=opening, cohort=cohort, **SCORED)
        read = cohort_of(own, cohort)
        tested = sorted(read.patient[read.split == 2].unique().tolist())
        assert votes and all(len(level) == len(tested) for level in votes)
        levels = votes[:3]  # where bins lie hangs on noise
        names = [read.patients[number].encode() for number in tested]
        seen.append({name: tuple(level[k].numpy().tobytes() for level in levels) for k, name in enumerate(names)})
    for gone, other in zip(GONE[1:], seen[1:], strict=True):
        agree(seen[0], other, f"without {gone}")


def test_a_signed_models_predictions_are_made_study_by_study_on_one_thread(tmp_path):
    own, cohort = hospital(tmp_path)
    seen: list[tuple[int, int]] = []

    class Ready:
        module = nn.Linear(1, 1)

        def seen(self, images: Tensor) -> Tensor:
            return images

        def probabilities(self, x: Tensor) -> Tensor:
            seen.append((torch.get_num_threads(), len(x)))
            return torch.zeros(len(x), 2)

    torch.set_num_threads(2)
    assert len(predict_probabilities(Ready(), cohort_of(own, cohort))) == PATIENTS  # type: ignore[arg-type]
    assert seen == [(1, 1)] * PATIENTS and torch.get_num_threads() == 2


# Crafted weights, no noise: what leaves moves by what is booked.

INPUTS, WIDTH = 16, 24


def amplifier(seed: int, times: float = 1e9) -> tuple[Task, nn.Module]:
    """Its logit is 0 but for rounding, times so much: the sum of a layer minus the same sum in another order."""
    task = Task(Mlp(hidden=(WIDTH + 1, 1), logits="one"), (INPUTS,), 2)
    module = task.network()
    w = torch.rand(WIDTH, INPUTS, generator=torch.Generator().manual_seed(seed))
    first, second = module.stem[0], module.blocks[0][0]
    with torch.no_grad():
        first.weight.copy_(torch.cat([w, w.sum(dim=0, keepdim=True)]))
        second.weight.copy_(torch.tensor([[times] * WIDTH + [-times]]))
        for layer in (first, second):
            layer.bias.zero_()
        module.head.weight.fill_(1.0)
        module.head.bias.fill_(-20.0)
    return task, module.eval()


def histogram(task: Task, module: nn.Module, rows: Rows) -> np.ndarray:
    """All that `evaluate` releases, before noise: the levels of the scale, and the scores by class."""
    p = task.probabilities(module, rows.x, alone=True).double().cpu().numpy()
    y, whose = rows.y.cpu().numpy(), rows.patient.cpu().numpy()
    levels = [tree_votes(cell_of(p[:, 1]), whose, level) for level in (1, 2, 3)]
    edges = cell_of(np.linspace(0, 1, BINS + 1)[1:-1, None])[:, 0][None]
    votes = [*levels, class_votes(y, p, whose, edges)]
    return np.concatenate([(v / v.sum(axis=1, keepdims=True)).sum(axis=0) / 2 for v in votes])


def clipped_sum(task: Task, module: nn.Module, rows: Rows) -> Tensor:
    """In float64: the released sum is rounded to the parameters' type once, after the noise."""
    released: list[Tensor] = []
    true = private_access.private_gradient

    def in_double(params, patients, **how):
        doubles = {name: nn.Parameter(p.detach().double()) for name, p in params.items()}
        released.extend(true(doubles, patients, **how).values())
        return true(params, [], **how)

    access = open_private({"train": rows}, QUIET, sizes={"train": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_access, "private_gradient", in_double)
        access.gradient(module, task.objective, access.draw(full=True))
    return torch.cat([value.flatten() for value in released])


@pytest.mark.repeats(8)
@pytest.mark.parametrize("seed", range(8))
def test_what_leaves_of_a_crafted_network_moves_by_what_is_booked(seed, device):
    task, module = amplifier(seed)
    module = module.to(device)
    for p in module.parameters():
        p.requires_grad_(True)
    x = torch.rand(20, INPUTS, generator=torch.Generator().manual_seed(1000 + seed))
    rows = Rows(x.to(device), torch.zeros(20, dtype=torch.int64, device=device), torch.arange(20, device=device))
    whole = histogram(task, module, rows), clipped_sum(task, module, rows)
    for gone in (0, 9, 19):
        rest = with_rows(rows, rows.patient != gone)
        assert np.linalg.norm(whole[0] - histogram(task, module, rest)) <= 1.0
        assert float((whole[1] - clipped_sum(task, module, rest)).norm()) <= SLACK


@pytest.mark.parametrize("layer", [nn.LSTM(3, 4), nn.GRU(3, 4), nn.MultiheadAttention(4, 2), nn.EmbeddingBag(3, 2)])
def test_layers_that_give_no_gradient_of_each_example_can_be_trained_privately(layer: nn.Module) -> None:
    assert find_unfit_parts(layer) == []


def test_rounding_of_rows_that_pass_together_would_be_seen():
    """The control: among others, some of the crafted network's answers change."""
    task, module = amplifier(18)
    x = torch.rand(4000, INPUTS, generator=torch.Generator().manual_seed(5))
    apart, together = (task.probabilities(module, x, alone=alone)[:, 1] > 0.5 for alone in (True, False))
    assert int((apart != together).sum()) > 0


def test_a_network_that_writes_its_weights_in_forward_is_refused_where_it_does_not_run_in_a_copy() -> None:
    task = NETWORKS["own code that writes its weights and remembers"]
    bare = Embedded(task.inputs, task.classes)
    rows = rows_of(task)
    with pytest.raises(ValueError, match=r"its forward writes memory\.bias"):
        open_private({"train": rows}, QUIET).measure(bare, lambda f, b: f(b.x)[:, 0], "train")


def test_what_is_fixed_is_a_copy_in_each_network_so_that_none_changes_it_for_another() -> None:
    task = NETWORKS["own code that writes its weights and remembers"]
    one = task.network()
    one(torch.ones(2, *task.inputs))
    assert [float(value) for module in (one, task.network()) for value in module.read_fixed().values()] == [1.0, 0.0]


def test_a_network_that_cannot_be_copied_is_refused_in_words() -> None:
    class Locked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1))

    module = adapted(nn.Sequential(Locked(4, 3), nn.Linear(3, 2)), stem=("0",), blocks=(), head="1")
    module._whole[0][0].lock = threading.Lock()
    with pytest.raises(ValueError, match=r"cannot be copied .*lock.*each patient passes"), repeatably():
        module(torch.zeros(1, 2, 2))
