"""FedDG: laws of the frequency space, edges and contrast in slow loops, episodes by hand, and what is released."""

from __future__ import annotations

import copy
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

import reference
from consilium.testing import testbed
from federation import feddg
from federation.amplitude import interpolate_amplitudes, low_amplitudes
from federation.boundary import boundary_contrast, find_edges, info_nce
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.feddg import SHARE, SPECTRA, WINDOW, FedDG
from federation.models.unet import UNet
from federation.parameters import section
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import Schedule
from federation.task import IGNORED, Task
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NON_PRIVATE
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

SITES = {"a": testbed.make_scenes(1, n=7), "b": testbed.make_scenes(2, n=5, shift=0.1)}
SGD = Work(optimizer="sgd", lr=0.05, batch=4)
SHAPES = st.sampled_from([(1, 8, 8), (2, 6, 9), (1, 7, 4), (1, 4, 5, 6), (2, 1, 3)])


@pytest.fixture(autouse=True)
def every_frequency(monkeypatch):
    """Of scenes of 8 pixels too."""
    monkeypatch.setattr(feddg, "SHARE", 1.0)


def images(seed, shape, n=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=g, dtype=torch.float64) + 0.5


def slowly(x, other, lam, window):
    """One image (C, *spatial) in numpy: the whole spectrum, frequency by frequency."""
    own, theirs = (np.fft.fftn(np.asarray(z), axes=range(1, z.dim())) for z in (x, other))
    mixed = np.abs(own)
    for place in np.ndindex(own.shape):
        cycles = [min(k, side - k) for k, side in zip(place[1:], own.shape[1:], strict=True)]
        if max(cycles) <= window:
            mixed[place] = (1 - lam) * abs(own[place]) + lam * abs(theirs[place])
    return np.fft.ifftn(mixed * np.exp(1j * np.angle(own)), axes=range(1, x.dim()))


@given(st.integers(0, 10**6), SHAPES, st.integers(0, 5), st.floats(0, 1))
@settings(max_examples=60)
def test_it_is_the_slow_interpolation_of_the_whole_spectrum_and_real(seed, shape, window, lam):
    x, other = images(seed, shape), images(seed + 1, shape)
    found = interpolate_amplitudes(x, low_amplitudes(other, window), torch.full((3,), lam), window)
    assert found.dtype == x.dtype and found.shape == x.shape
    for one, own, theirs in zip(found, x, other, strict=True):
        slow = slowly(own, theirs, torch.tensor(lam, dtype=torch.float32).item(), window)
        assert np.abs(slow.imag).max() < 1e-9, "the window is symmetric, so an image comes out"
        assert np.allclose(one.numpy(), slow.real, atol=1e-9)


@given(st.integers(0, 10**6), SHAPES, st.integers(0, 5))
@settings(max_examples=40)
def test_lambda_0_leaves_the_image_and_lambda_1_in_a_full_window_carries_over_all_amplitudes(seed, shape, window):
    x, other = images(seed, shape), images(seed + 1, shape)
    assert torch.allclose(interpolate_amplitudes(x, low_amplitudes(other, window), torch.zeros(3), window), x)
    whole = interpolate_amplitudes(x, low_amplitudes(other, 99), torch.ones(3), 99)
    assert torch.allclose(low_amplitudes(whole, 99), low_amplitudes(other, 99))
    assert torch.allclose(torch.fft.rfftn(whole, dim=(2, 3)).abs(), torch.fft.rfftn(other, dim=(2, 3)).abs()) or (
        x.dim() > 4
    )


@given(st.integers(0, 10**6), SHAPES, st.integers(0, 3))
@settings(max_examples=40)
def test_phases_stay_and_so_does_what_lies_outside_the_window(seed, shape, window):
    x, lam = images(seed, shape), torch.tensor([0.2, 0.7, 1.0])
    axes = tuple(range(2, x.dim()))
    after = torch.fft.rfftn(
        interpolate_amplitudes(x, low_amplitudes(images(seed + 1, shape), window), lam, window), dim=axes
    )
    before = torch.fft.rfftn(x, dim=axes)
    turned = after * before.conj()
    assert torch.allclose(turned.imag, torch.zeros(()).double(), atol=1e-9) and (turned.real > -1e-9).all()
    outside = torch.ones_like(before.real, dtype=torch.bool)
    for place in np.ndindex(*before.shape[2:]):
        sides = (*x.shape[2:-1], 10**9)
        if all(min(k, side - k) <= window for k, side in zip(place, sides, strict=True)):
            outside[(..., *place)] = False
    assert torch.allclose(after[outside], before[outside])


def test_a_window_is_cycles_an_image_and_no_more_numbers_than_that():
    x = images(0, (3, 16, 12))
    assert low_amplitudes(x, 2).shape == (3, 3, 5, 3)
    assert low_amplitudes(x, 99).shape == (3, 3, 16, 7)
    assert torch.allclose(low_amplitudes(x, 0)[..., 0, 0], x.sum(dim=(2, 3)).abs()), "a window of 0 is the mean"


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([(9, 7), (4, 6, 5)]), st.floats(0.05, 0.95))
@settings(max_examples=40)
def test_edges_are_those_of_erosion_and_dilation(seed, rim, spatial, share):
    masks = torch.rand(2, 2, *spatial, generator=torch.Generator().manual_seed(seed)) < share
    edge, around = find_edges(masks.float(), rim, torch.ones(2, 1, *spatial))
    square = np.ones([3] * len(spatial))
    for mask, inner, outer in zip(masks.flatten(0, 1), edge.flatten(0, 1), around.flatten(0, 1), strict=True):
        eroded = ndimage.binary_erosion(mask.numpy(), square, border_value=1)
        dilated = ndimage.binary_dilation(mask.numpy(), square, iterations=rim)
        assert np.array_equal(inner.numpy() > 0, mask.numpy() & ~eroded)
        assert np.array_equal(outer.numpy() > 0, dilated & ~mask.numpy())


def slow_contrast(views, y, classes, rim, tau):
    """Pair by pair, example by example."""
    total = 0.0
    for c in range(1, classes):
        kinds: list[list] = [[], []]
        for view in views:
            for features, mask, known in zip(view, y == c, (y != IGNORED).numpy(), strict=True):
                square = np.ones([3] * mask.dim())
                edge = mask.numpy() & ~ndimage.binary_erosion(mask.numpy() | ~known, square, border_value=1)
                around = ndimage.binary_dilation(mask.numpy(), square, iterations=rim) & ~mask.numpy() & known
                if edge.any() and around.any():
                    for kind, region in zip(kinds, (edge, around), strict=True):
                        kind.append(features[:, torch.from_numpy(region)].mean(dim=1))
        h = [one / one.norm() for kind in kinds for one in kind]
        close = [[torch.exp((one * other).sum() / tau) for other in h] for one in h]
        own, of_class = range(len(kinds[0])), []
        for start, beyond in ((0, len(own)), (len(own), 0)):
            for m, p in ((m, p) for m in own for p in own if m != p):
                row = close[start + m]
                of_class.append(-torch.log(row[start + p] / (row[start + p] + sum(row[beyond + q] for q in own))))
        total = total + (sum(of_class) / len(of_class) if of_class else 0.0)
    return total


@given(
    st.integers(0, 10**6),
    st.integers(2, 4),
    st.sampled_from([(8, 6), (3, 4, 4)]),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=25)
def test_the_contrast_is_a_loop_over_pairs(seed, classes, spatial, tau, ignored):
    g = torch.Generator().manual_seed(seed)
    views = [torch.randn(3, 5, *spatial, generator=g, dtype=torch.float64) for _ in range(2)]
    y = torch.randint(0, classes, (3, *spatial), generator=g) * (torch.rand(3, *spatial, generator=g) < 0.3)
    y[0], y[1, ..., :2] = 0, 0  # an example without structures
    y = y.masked_fill(torch.rand(y.shape, generator=g) < ignored, IGNORED)
    found = boundary_contrast(views, y, classes=classes, rim=2, tau=tau)
    assert float(found) == pytest.approx(float(slow_contrast(views, y, classes, 2, tau)), rel=1e-9, abs=1e-12)
    unknown = (y == IGNORED).unsqueeze(1)
    other = [torch.where(unknown, torch.randn_like(view), view) for view in views]
    assert torch.equal(boundary_contrast(other, y, classes=classes, rim=2, tau=tau), found)


def test_a_batch_without_structures_has_no_contrast_and_alike_edges_have_little():
    views = [torch.rand(2, 4, 6, 6, requires_grad=True) for _ in range(2)]
    assert boundary_contrast(views, torch.zeros(2, 6, 6, dtype=torch.int64), classes=3, rim=2, tau=0.05) == 0
    assert boundary_contrast(views, torch.ones(2, 6, 6, dtype=torch.int64), classes=3, rim=2, tau=0.05) == 0
    on, off = torch.tensor([[1.0, 0.0]]).repeat(4, 1), torch.tensor([[0.0, 1.0]]).repeat(4, 1)
    assert float(info_nce(on, off, 0.05)) == pytest.approx(math.log1p(4 * math.exp(-20)), abs=1e-7)
    assert float(info_nce(on, on, 0.05)) == pytest.approx(math.log(5), abs=1e-6)


def spectra_of(name, algorithm):
    """What a site releases: some of its images, drawn by the seed of its introduction."""
    x = SITES[name]["train"].x
    with use_seed(derive_seed(0, name, 0, "introduce")):
        return low_amplitudes(x[torch.randperm(len(x))[: algorithm.spectra]], algorithm.window)


def episode(theta, x, t, y, task, algorithm):
    """Slopes of one episode, written with two networks; buffers follow x, then t."""
    inner = theta(x)
    loss = task.model.losses(inner, y).mean()
    slopes = torch.autograd.grad(loss, list(theta.parameters()), retain_graph=True)
    fast = copy.deepcopy(theta)
    with torch.no_grad():
        for p, slope in zip(fast.parameters(), slopes, strict=True):
            p -= algorithm.beta * slope
    outer = fast(t)
    views = [inner.features, outer.features]
    total = loss + task.model.losses(outer, y).mean()
    total = total + algorithm.gamma * slow_contrast(views, y, task.classes, algorithm.rim, algorithm.tau)
    both = torch.autograd.grad(total, [*theta.parameters(), *fast.parameters()])
    half = len(both) // 2
    for own, seen in zip(theta.buffers(), fast.buffers(), strict=True):
        own.copy_(seen)
    return [a + b for a, b in zip(both[:half], both[half:], strict=True)]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_rounds_of_two_sites_by_hand(norm):
    task, algorithm = testbed.mask_task(norm=norm), FedDG(beta=0.3, gamma=0.2, tau=0.5, rim=2, spectra=3)
    model = reference.network(task)
    for round_ in (1, 2):
        locals_ = []
        for name, other in (("a", "b"), ("b", "a")):
            theta, bank = copy.deepcopy(model).train(), spectra_of(other, algorithm)
            chance = torch.Generator().manual_seed(derive_seed(0, name, round_, "train"))
            for x, y in reference.batches(SITES[name]["train"], round_, name, SGD):
                chosen = torch.randint(len(bank), (len(x),), generator=chance)
                lam = torch.rand(len(x), generator=chance)
                t = interpolate_amplitudes(x, bank[chosen], lam, algorithm.window)
                slopes = episode(theta, x, t, y, task, algorithm)
                with torch.no_grad():
                    for p, slope in zip(theta.parameters(), slopes, strict=True):
                        p -= SGD.lr * slope
            locals_.append(theta)
        model = reference.averaged(locals_, [7.0, 5.0])
    crew = testbed.make_federation(algorithm, SITES, task=task, work=SGD)
    outcome = testbed.train(algorithm, crew, task=task, work=SGD, schedule=Schedule(rounds=2))
    reference.agree(section(outcome.state.tensors, "model"), model.state_dict())


def test_without_spectra_inner_steps_and_contrast_it_is_fedavg_at_twice_the_rate():
    task, plain = testbed.mask_task(norm="group"), FedDG(beta=0.0, gamma=0.0, spectra=0)
    one = reference.trained(plain, SITES, task, SGD)[0]
    two = reference.trained(FedAvg(), SITES, task, Work(optimizer="sgd", lr=2 * SGD.lr, batch=SGD.batch))[0]
    assert testbed.are_close(section(one.state.tensors, "model"), section(two.state.tensors, "model"), 1e-5)
    with_others = reference.trained(FedDG(beta=0.0, gamma=0.0), SITES, task, SGD)[0]
    assert not testbed.are_close(section(one.state.tensors, "model"), section(with_others.state.tensors, "model"), 1e-4)


@pytest.mark.parametrize("change", [{"beta": 0.5}, {"gamma": 1.0}, {"window": 0}, {"tau": 1.0}, {"rim": 1}])
def test_every_setting_changes_what_is_learnt(change):
    settled = {"beta": 0.1, "gamma": 0.5, "window": 2, "tau": 0.2, "rim": 3}
    task = testbed.mask_task(norm="group")
    one, two = (
        section(reference.trained(FedDG(**said), SITES, task, SGD)[0].state.tensors, "model")
        for said in (settled, {**settled, **change})
    )
    assert not testbed.are_close(one, two, 1e-5)


def site_of(name, work=SGD):
    return Site(name, testbed.mask_task(), work, open_access(SITES[name], batch=work.batch, seed=0))


def test_a_site_releases_low_amplitudes_of_some_of_its_training_images_and_nothing_else():
    site, algorithm = site_of("a"), FedDG(spectra=3)
    with use_seed(5):
        said = algorithm.introduce(site)
    assert set(said.tensors) == {"spectra"} and not said.facts
    assert said.tensors["spectra"].shape == (3, 1, 3, 2)
    assert site.access.events == [NON_PRIVATE]
    own = low_amplitudes(SITES["a"]["train"].x, 1)
    whose = {tuple((own == one).flatten(1).all(dim=1).nonzero()[:, 0].tolist()) for one in said.tensors["spectra"]}
    assert len(whose) == 3 and all(len(row) == 1 for row in whose), "three different rows"
    with use_seed(6):
        assert not torch.equal(algorithm.introduce(site).tensors["spectra"], said.tensors["spectra"])
    assert FedDG(spectra=60).introduce(site).tensors["spectra"].shape == (7, 1, 3, 2)


def test_a_site_that_sets_0_is_not_looked_at_and_still_hears_the_others():
    site, algorithm = site_of("a"), FedDG()
    silent = FedDG(spectra=0).introduce(site)
    assert silent == Message() and site.access.events == []
    said = {"a": silent, "b": algorithm.introduce(site_of("b"))}
    state = algorithm.start(initial_parameters(algorithm, testbed.mask_task(), seed=0), said)
    call = Call("law", 1, "train", {})
    assert torch.equal(algorithm.send(state, "a", call).tensors["others"], said["b"].tensors["spectra"])
    assert "others" not in algorithm.send(state, "b", call).tensors


def test_a_site_gets_the_others_spectra_in_rounds_and_its_replies_hold_the_model_alone():
    algorithm, task = FedDG(spectra=4), testbed.mask_task()
    names = "abc"
    said = {n: algorithm.introduce(site_of(k)) for n, k in zip(names, "aba", strict=True)}
    state = algorithm.start(initial_parameters(algorithm, task, seed=0), said)
    sent = algorithm.send(state, "b", Call("law", 1, "train", {}))
    others = torch.cat([said["a"].tensors["spectra"], said["c"].tensors["spectra"]])
    assert torch.equal(sent.tensors["others"], others) and not sent.facts
    assert not any(
        "spectra" in name or "others" in name
        for name in algorithm.send(state, "b", Call("law", 2, "finish", {})).tensors
    )
    with use_seed(0):
        reply, _ = algorithm.train(site_of("b"), sent, Message(), Call("law", 1, "train", {}))
    assert {name.split("/")[0] for name in reply.tensors} == {"model"} and set(reply.facts) == {"n"}
    after = algorithm.merge(state, {"b": reply})
    assert testbed.are_equal(section(after.tensors, "spectra"), section(state.tensors, "spectra"))


def test_a_round_draws_the_same_whatever_was_drawn_before_it():
    algorithm, task = FedDG(), testbed.mask_task()
    state = algorithm.start(
        initial_parameters(algorithm, task, seed=0), {n: algorithm.introduce(site_of(n)) for n in SITES}
    )
    call, replies = Call("law", 1, "train", {}), []
    for before in (0, 3):
        with use_seed(11):
            torch.rand(before)
            replies.append(algorithm.train(site_of("a"), algorithm.send(state, "a", call), Message(), call)[0])
    assert testbed.are_equal(replies[0].tensors, replies[1].tensors)


def test_spectra_that_cannot_be_used_together_are_refused_by_name():
    initial, good = initial_parameters(FedDG(), testbed.mask_task(), seed=0), FedDG().introduce(site_of("a"))
    wide = FedDG(window=2).introduce(site_of("b"))
    with pytest.raises(ValueError, match=r"'b': \(1, 5, 3\).*let no site set a window"):
        FedDG().start(initial, {"a": good, "b": wide})
    for value in (-1.0, math.nan, math.inf):
        bad = Message({"spectra": torch.full((1, 1, 3, 2), value)})
        with pytest.raises(ValueError, match="others from b"):
            FedDG().start(initial, {"a": good, "b": bad})


def test_labels_and_private_training_are_refused_by_name():
    dense, table = testbed.mask_task().network(), testbed.make_task().network()
    assert FedDG().complaints(dense, SGD, False) == []
    (text,) = FedDG().complaints(table, SGD, False)
    assert "edges of masks" in text and "fedavg" in text
    (text,) = FedDG().complaints(dense, SGD, True)
    assert "no noise covers" in text and "fedavg" in text


def test_private_access_gives_no_spectra():
    noised = Protection(sampling=0.5, noise=1.0, counts_noise=1.0, cut="c")
    access = open_private(SITES["a"], noised, source=random.Random(0).randbytes)
    with pytest.raises(ValueError, match="under differential privacy"):
        FedDG().introduce(Site("a", testbed.mask_task(norm="group"), SGD, access))
    task = testbed.mask_task(norm="group")
    with pytest.raises(ValueError, match="under differential privacy"):
        rehearse_events(FedDG(), task, SGD, initial_parameters(FedDG(), task, seed=0), noised)


def test_settings_out_of_bounds_are_refused_all_at_once():
    FedDG(window=WINDOW, spectra=SPECTRA)
    with pytest.raises(ValueError, match=r"beta .*found -1; .*window must be in \[0, 8\], found 9; spectra .*65; tau"):
        FedDG(beta=-1, window=9, spectra=65, tau=0.0)
    with pytest.raises(ValueError, match="gamma must be in"):
        FedDG(gamma=math.nan)


@pytest.mark.parametrize(("side", "window", "good"), [(34, 8, True), (32, 8, False), (8, 2, False), (8, 1, True)])
def test_most_of_what_an_image_is_never_leaves_whoever_sets_the_window(monkeypatch, side, window, good):
    monkeypatch.setattr(feddg, "SHARE", SHARE)
    x, y = torch.randn(5, 1, side, side), torch.zeros(5, side, side, dtype=torch.int64)
    task = Task(UNet(width=4, levels=1), (1, side, side), 2, "segmentation")
    site = Site("a", task, SGD, open_access({"train": Rows(x, y, torch.arange(5))}, batch=4, seed=0))
    if good:
        assert FedDG(window=window).introduce(site).tensors["spectra"].shape[2] == 2 * window + 1
        return
    for ask in (FedDG(window=window).introduce, lambda one: FedDG(window=window).network(one.task)):
        with pytest.raises(ValueError, match="of the frequencies of images"):
            ask(site)
