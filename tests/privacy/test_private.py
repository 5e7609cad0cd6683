"""Private data access: every patient clipped once, noise added once, and exactly that booked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fixed_bytes import bytes_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from consilium.testing import testbed
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.task import Task
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.access_limit import LOOKS, NUMBERS, AccessLimit, TooLong
from privacy.dp.events import NON_PRIVATE, Declared, Gaussian, Part, PoissonSampled, SelfComposed, compose_events
from privacy.dp.modules import find_unfit_parts
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.dp.units import all_views, some_views, units_of

QUIET = Protection(clip=1e2, sampling=1.0, views=3, noise=0.0)


def images(patients: int = 7, seed: int = 0, dtype=torch.float64) -> Rows:
    g = torch.Generator().manual_seed(seed)
    patient = torch.repeat_interleave(torch.arange(patients), torch.arange(patients) % 3 + 1)
    x = torch.randn(len(patient), 1, 8, 8, generator=g, dtype=dtype)
    return Rows(x, torch.randint(2, (len(patient),), generator=g), patient)


NETWORKS = {
    "cnn": Task(Cnn(widths=(8, 16), norm="group"), (1, 8, 8), 2),
    "mlp": testbed.make_task(64),
    "cam": Task(Cam(widths=(16, 16, 16, 16), norm="group"), (1, 32, 32), 2),
}


def by_vmap(module: nn.Module, objective, views: list[Batch]) -> dict[str, torch.Tensor]:
    """The second implementation: gradients of all patients at once, by torch.func. All have as many views."""
    params = {name: p.detach() for name, p in module.named_parameters()}

    def loss(params, x, y, aux):
        def forward(*inputs):
            return torch.func.functional_call(module, params, inputs)

        return objective(forward, Batch(x, y, aux)).mean()

    x, y = torch.stack([batch.x for batch in views]), torch.stack([batch.y for batch in views])
    aux = None if views[0].aux is None else torch.stack([batch.aux for batch in views])
    axes = (None, 0, 0, None if aux is None else 0)
    return torch.func.vmap(torch.func.grad(loss), in_dims=axes, randomness="different")(params, x, y, aux)


def furthest(patients, other: dict[str, torch.Tensor]) -> float:
    """The largest difference of patients' gradients from (U, *shape) by name."""
    gradients = list(patients)
    assert all(set(gradient) == set(other) for gradient in gradients)
    return max(
        float((gradient[name] - other[name][u]).abs().max()) for u, gradient in enumerate(gradients) for name in other
    )


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_of_patients_are_those_of_vmap_in_float64(kind):
    task = NETWORKS[kind]
    torch.manual_seed(0)
    module = task.network().double()
    views = [Batch(torch.randn(3, *task.inputs, dtype=torch.float64), torch.randint(2, (3,))) for _ in range(5)]
    patients = list(patient_gradients(module, task.objective, views))
    assert furthest(patients, by_vmap(module, task.objective, views)) < 1e-10


def test_parameters_that_the_loss_does_not_reach_have_zeros():
    module = nn.ModuleDict({"used": nn.Linear(2, 1), "spare": nn.Linear(2, 1)})
    views = [Batch(torch.ones(1, 2), torch.zeros(1))]
    for objective, names in ((lambda f, b: f["used"](b.x)[:, 0], {"used"}), (lambda f, b: b.x.sum(dim=1), set())):
        (patient,) = patient_gradients(module, objective, views)
        reached = {name.split(".")[0] for name, value in patient.items() if bool((value != 0).any())}
        assert reached == names and len(patient) == 4


def test_a_gradient_penalty_inside_the_loss_works_and_takes_what_is_no_patients():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def wgan_gp(forward, batch):
        def score(one):
            return forward(one).sum()

        between = 0.3 * batch.x + 0.7 * batch.aux
        slope = torch.func.grad(score)(between).norm(dim=1)
        return forward(batch.aux)[:, 0] - forward(batch.x)[:, 0] + 10 * (slope - 1) ** 2

    x, fakes = torch.randn(2, 4, 3, 6, dtype=torch.float64)
    views = [Batch(own, torch.zeros(3, dtype=torch.long), fake) for own, fake in zip(x, fakes, strict=True)]
    patients = patient_gradients(critic, wgan_gp, views)
    assert furthest(patients, by_vmap(critic, wgan_gp, views)) < 1e-10


def test_private_descent_without_noise_and_with_a_huge_clip_is_the_plain_gradient_of_patient_means():
    rows = images()
    task = NETWORKS["cnn"]
    module = task.network().double()
    access = open_private({"train": rows}, QUIET)
    private = access.gradient(module, task.objective, access.draw(full=True)).gradient
    share = 1.0 / torch.bincount(rows.patient)[rows.patient].double() / 7

    def weighted(forward, batch):
        return task.objective(forward, batch) * share * len(share)

    plain = open_access({"train": rows}, batch=4, seed=0)
    wanted = plain.gradient(module, weighted, plain.draw(full=True)).gradient
    assert max(float((private[name] - wanted[name]).abs().max()) for name in wanted) < 1e-9, (
        "rounding to 2^-40 of the clip"
    )


@pytest.mark.chance(6e-9, "a deviation over 19,000 numbers is 3 % off")
def test_noise_has_the_standard_deviation_that_is_booked():
    task, rows = Task(Cnn(widths=(32, 64), norm="group"), (1, 8, 8), 2), images(20, dtype=torch.float32)
    module = task.network()
    p = Protection(clip=0.5, sampling=0.25, views=1, noise=1.7)
    access = open_private({"train": rows}, p)
    found = access.gradient(module, task.objective, access.draw())
    flat = torch.cat([g.flatten() for g in found.gradient.values()])
    assert found.deviation == pytest.approx(1.7 * 0.5 / (0.25 * 20))
    # What a sample of about five patients adds is at most 0.5 each in norm: nothing beside the noise of 19,000 numbers,
    # of which one run in 2e8 is 3 % off.
    assert float(flat.std()) * p.sampling * 20 == pytest.approx(1.7 * 0.5, rel=0.03)


def test_an_empty_sample_still_steps_and_is_booked():
    task, rows = NETWORKS["mlp"], testbed.make_table(0, d=64)
    access = open_private(rows, Protection(sampling=1e-6, noise=1.0, views=1), counts=Declared("counts"))
    gradient = access.gradient(task.network(), task.objective, access.draw()).gradient
    assert all(float(g.abs().sum()) > 0 for g in gradient.values())
    assert Part("", "train", PoissonSampled(1e-6, Gaussian(1.0))) in getattr(access.events[0], "events", ())


@given(st.integers(0, 1000), st.integers(1, 9))
def test_whatever_a_patient_holds_they_change_the_sum_by_the_clip_at_most(seed, scale):
    """Sensitivity as a law: one patient more, with any images of any size, NaN among them."""
    rows = testbed.make_table(seed, n=12)["train"]
    torch.manual_seed(seed)
    module, task = testbed.make_task().network(), testbed.make_task()
    wild = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    wild[0, 0] = [math.nan, math.inf, 0.0][seed % 3]
    more = Rows(
        torch.cat([rows.x, wild]),
        torch.cat([rows.y, torch.tensor([0, 1, 1])]),
        torch.cat([rows.patient, torch.tensor([99, 99, 99])]),
    )
    sums = []
    for each in (rows, more):
        access = open_private({"train": each}, replace(QUIET, clip=0.7))
        gradient = access.gradient(module, task.objective, access.draw(full=True)).gradient
        sums.append(torch.cat([g.flatten() for g in gradient.values()]) * len(torch.unique(each.patient)))
    assert float((sums[1] - sums[0]).norm()) <= 0.7 * (1 + 1e-4)


def test_patients_whose_gradient_is_no_number_are_left_out_and_counted_at_home():
    rows = images(dtype=torch.float32)
    rows.x[rows.patient == 2] = math.nan
    task = NETWORKS["cnn"]
    access = open_private({"train": rows}, QUIET)
    gradient = access.gradient(task.network(), task.objective, access.draw(full=True)).gradient
    assert all(bool(g.isfinite().all()) for g in gradient.values())
    assert sum(access.strays) == 1


def test_k_uses_of_one_draw_are_k_gaussians_on_one_sample():
    task, rows = testbed.make_task(), testbed.make_table(0)
    access = open_private(rows, Protection(sampling=0.3, noise=1.2, cut="c"), counts=Declared("counts"))
    one, two = access.draw(), access.draw()
    access.draw()  # never used: nobody saw anything
    module = task.network()
    for draw in (one, two, one, one):
        access.gradient(module, task.objective, draw)
    thrice = Part("c", "train", PoissonSampled(0.3, SelfComposed(Gaussian(1.2), 3)))
    once = Part("c", "train", PoissonSampled(0.3, Gaussian(1.2)))
    assert compose_events(access.events) == compose_events([Declared("counts"), thrice, once])


def test_a_draw_shows_the_same_views_each_time_it_is_used():
    task, rows = NETWORKS["cnn"], images()

    def turned(x, y, generator):
        return torch.where(torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x), y

    access = open_private({"train": rows}, QUIET, augment=turned)
    module, draw = task.network().double(), access.draw()
    one, two = (access.gradient(module, task.objective, draw).gradient for _ in range(2))
    assert testbed.are_equal(one, two)


def test_nothing_leaves_data_access_but_noised_numbers():
    task, rows = testbed.make_task(), testbed.make_table(0)
    access = open_private(rows, Protection(noise=1.0))
    draw = access.draw()
    assert not any(isinstance(value, torch.Tensor) for value in draw)
    assert math.isnan(access.gradient(task.network(), task.objective, draw).loss)
    assert math.isnan(access.measure(task.network(), task.validation, "validation")), "validation was not paid for"
    assert access.shares(2).tolist() == [0.5, 0.5], "counts were not paid for"
    assert math.isnan(access.measure(task.network(), task.validation, "test"))


def test_a_measure_is_a_bounded_mean_over_patients_with_noise_that_is_booked():
    rows, task = testbed.make_table(0), testbed.make_task()
    module = task.network()
    quiet = open_private(rows, Protection(validation_noise=0.0, loss_bound=50.0, cut="c"), counts=Declared("counts"))
    found = quiet.measure(module, task.validation, "validation")
    losses = task.validation(module, Batch(rows["validation"].x, rows["validation"].y)).detach()
    whose = rows["validation"].patient
    wanted = torch.stack([losses[whose == p].mean() for p in whose.unique()]).mean()
    assert found == pytest.approx(float(wanted), abs=1e-6)
    noisy = open_private(rows, Protection(validation_noise=2.0, loss_bound=4.0, cut="c"), counts=Declared("counts"))
    assert 0 <= noisy.measure(module, task.validation, "validation") <= 4
    assert compose_events(noisy.events) == compose_events([Declared("counts"), Part("c", "validation", Gaussian(2.0))])


def test_shares_of_classes_count_patients_not_rows():
    x = torch.zeros(6, 4)
    rows = Rows(x, torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 2]))
    access = open_private({"train": rows}, Protection(counts_noise=0.0))
    assert access.shares(2).tolist() == pytest.approx([1 / 3, 2 / 3])


def voted(x, y):
    return (x.flatten(1).sum(dim=1).nan_to_num(0.0) * 7).long() % 5


def test_private_votes_without_noise_are_those_of_plain_access_and_their_event_says_so():
    rows = images()
    quiet = open_private({"train": rows}, Protection(votes_noise=0.0, cut="c"))
    plain = open_access({"train": rows}, batch=4, seed=0)
    assert quiet.votes(voted, 5).tolist() == pytest.approx(plain.votes(voted, 5).tolist())
    loud = open_private({"train": rows}, Protection(votes_noise=3.0, cut="c"), source=bytes_of(1))
    found = torch.stack([loud.votes(voted, 5) for _ in range(400)])
    assert float(found.std(dim=0).mean()) == pytest.approx(3.0, rel=0.05)
    assert float((found.mean(dim=0) - plain.votes(voted, 5)).abs().max()) < 4 * 3.0 / 20
    assert compose_events(loud.events) == SelfComposed(Part("c", "train", Gaussian(3.0)), 400)


@given(st.integers(0, 500), st.integers(1, 6), st.integers(0, 5))
def test_one_patient_moves_the_votes_by_one_at_most_whatever_they_hold(seed, more, wild):
    """In L2, which the noise is relative to; and the others' votes stay, in a batch of any size."""
    rows = images(6, seed)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(more, 1, 8, 8, generator=g, dtype=torch.float64) * 10.0**wild
    x[0, 0, 0, 0] = [math.nan, math.inf, 1.0][seed % 3]
    joined = Rows(
        torch.cat([rows.x, x]),
        torch.cat([rows.y, torch.zeros(more, dtype=torch.long)]),
        torch.cat([rows.patient, torch.full((more,), 99)]),
    )
    one, two = (open_private({"train": each}, Protection(votes_noise=0.0)).votes(voted, 5) for each in (rows, joined))
    assert float((two - one).norm()) <= 1 + 1e-12 and float((two - one).min()) >= -1e-12


def test_votes_that_were_not_paid_for_are_refused_and_dry_ones_look_at_nobody():
    rows = images()
    with pytest.raises(ValueError, match="votes_noise is null"):
        open_private({"train": rows}, Protection()).votes(voted, 5)

    def never(x, y):
        raise AssertionError("a patient was looked at")

    dry = open_private({"train": rows}, Protection(votes_noise=2.0, cut="c"), dry=True)
    assert dry.votes(never, 5).shape == (5,)
    assert compose_events(dry.events) == Part("c", "train", Gaussian(2.0))


def test_without_a_declaration_a_size_is_non_private():
    access = open_private(testbed.make_table(0), Protection())
    assert access.size("train") == 12, "patients, of whom each has two rows"
    assert compose_events(access.events) is NON_PRIVATE


def test_the_kinds_of_draw_do_not_mix():
    task, rows = testbed.make_task(), testbed.make_table(0)
    plain, private = open_access(rows, batch=4, seed=0), open_private(rows, Protection())
    with pytest.raises(TypeError, match="private data access"):
        plain.gradient(task.network(), task.objective, private.draw())
    with pytest.raises(TypeError, match="plain data access"):
        private.gradient(task.network(), task.objective, plain.draw())


def test_dropout_and_augmentation_do_not_follow_from_a_seed():
    task, rows = testbed.make_task(hidden=(30,)), testbed.make_table(0)
    module = nn.Sequential()
    module = Task(replace(task.model, dropout=0.5), (4,), 2).network()  # type: ignore[type-var]
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        access = open_private(rows, replace(QUIET, views=1))
        found.append(access.gradient(module, task.objective, access.draw(full=True)).gradient)
    assert not testbed.are_equal(*found)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    access.gradient(module, task.objective, access.draw())
    assert torch.equal(torch.get_rng_state(), before), "the logged seed's generator is left alone"


BAD = {
    "running statistics without parameters": nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, affine=False)),
    "instance norm that keeps statistics": nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True, affine=False)
    ),
    "batch norm": nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)),
    "batch norm of the batch": nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)),
    "spectral norm": nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
}
GOOD = {
    "group norm": nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(4, 8)),
    "layer norm": nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)),
    "instance norm of one image": nn.Sequential(nn.Conv2d(1, 8, 3), nn.InstanceNorm2d(8)),
}


@pytest.mark.parametrize("kind", BAD)
def test_networks_that_cannot_be_private_are_refused_with_a_remedy(kind):
    said = find_unfit_parts(BAD[kind])
    assert said and all(said)
    assert "norm" not in kind or any("norm: group" in text for text in said)


def test_every_layer_at_fault_is_told_at_once():
    both = nn.Sequential(BAD["batch norm"], BAD["batch norm of the batch"], BAD["spectral norm"])
    assert len(find_unfit_parts(both)) == 3


@pytest.mark.parametrize("kind", GOOD)
def test_networks_that_can_be_private_are_not_refused(kind):
    assert find_unfit_parts(GOOD[kind]) == []


def test_data_access_itself_refuses_an_unfit_network_and_one_that_gets_buffers_later():
    rows = images(dtype=torch.float32)
    batch = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
    access = open_private({"train": rows}, Protection())
    with pytest.raises(ValueError, match="cannot be trained privately: BatchNorm2d"):
        access.gradient(batch.network(), batch.objective, access.draw())
    module = NETWORKS["cnn"].network()
    access.gradient(module, NETWORKS["cnn"].objective, access.draw())
    module.register_buffer("memory", torch.zeros(3))
    with pytest.raises(ValueError, match="got buffers"):
        access.gradient(module, NETWORKS["cnn"].objective, access.draw())


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 9))
def test_views_are_of_their_patient_and_all_views_are_each_row_once(patients, views, seed):
    g = torch.Generator().manual_seed(seed)
    patient = torch.randint(patients, (20,), generator=g)
    rows = Rows(torch.zeros(20, 1), torch.zeros(20, dtype=torch.long), patient)
    units = units_of(rows)
    who = torch.arange(len(units.sizes))
    some, every = some_views(units, who, views, bytes_of(seed)), all_views(units, who)
    numbers = patient.unique()
    assert len(some) == len(every) == len(numbers)
    for number, drawn, rows_ in zip(numbers, some, every, strict=True):
        assert drawn.shape == (views,) and bool((patient[drawn] == number).all())
        assert rows_.tolist() == (patient == number).nonzero()[:, 0].tolist()


def test_settings_that_protect_nobody_are_refused_together():
    with pytest.raises(ValueError, match=r"clip must be in.*views must be in"):
        Protection(clip=0.0, sampling=0.0, views=0)
    with pytest.raises(ValueError, match="no rows"):
        open_private({"train": Rows(torch.zeros(0, 1), torch.zeros(0), torch.zeros(0))}, Protection())


def test_functional_forward_reaches_every_parameter_of_a_wrapper():
    """A method that needs more wraps the network: what it trains are that module's parameters."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cores = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
            self.weight = nn.Parameter(torch.ones(3) / 3)

        def forward(self, x):
            return torch.einsum("c,cbk->bk", self.weight, torch.stack([core(x) for core in self.cores]))

    module = Mixture().double()

    def loss(forward, batch):
        return functional.cross_entropy(forward(batch.x), batch.y, reduction="none")

    views = [Batch(torch.randn(2, 4, dtype=torch.float64), torch.randint(2, (2,))) for _ in range(3)]
    assert furthest(patient_gradients(module, loss, views), by_vmap(module, loss, views)) < 1e-10


def test_a_rehearsal_ends_after_so_many_looks_of_each_kind_and_a_real_round_is_not_cut_off():
    task = testbed.make_task()
    module, rows = task.network(), images()
    dry = open_private({"train": rows, "validation": rows}, QUIET, dry=True)
    draw = dry.draw()
    for _ in range(LOOKS):
        dry.gradient(module, task.objective, draw)
    with pytest.raises(TooLong, match="a gradient more than 10,000 times"):
        dry.gradient(module, task.objective, draw)
    dry.measure(module, task.objective, "validation")
    dry.size("train")
    for _ in range(LOOKS - 1):
        dry.draw()
    with pytest.raises(TooLong, match="a draw more than"):
        dry.draw()
    real = open_private({"train": rows}, QUIET)
    assert [real.size("train") for _ in range(LOOKS + 1)] and not real.limit.asked


@given(st.lists(st.integers(1, 2**30), min_size=1, max_size=40))
def test_a_rehearsal_ends_where_its_gradients_together_are_too_large(sizes):
    limit, total = AccessLimit(), 0
    for size in sizes:
        total += size
        if total > NUMBERS:
            with pytest.raises(TooLong, match="17,179,869,184 numbers in all"):
                limit.count("gradient", size)
            return
        limit.count("gradient", size)
    assert limit.numbers == total <= NUMBERS


def test_a_rehearsal_books_what_is_done_and_keeps_no_state_of_a_generator():
    """Ten thousand of them were 50 MB."""
    task, rows = testbed.make_task(64), images(dtype=torch.float32)
    dry, real = (open_private({"train": rows}, QUIET, dry=told, source=bytes_of(0)) for told in (True, False))
    for access in (dry, real):
        module = task.network()
        for _ in range(3):
            access.gradient(module, task.objective, access.draw())
    assert compose_events(dry.events) == compose_events(real.events)
    assert sum(use.state.numel() + len(use.views) for use in dry.uses) == 0 < real.uses[0].state.numel()
