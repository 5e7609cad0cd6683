from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor

from consilium.testing.testbed import MemoryFolder
from harmonize.cyclegan import PAPER, Batch, CycleGan, _draw_rows, _rows_by_class, compute_losses, make_networks
from harmonize.distances import sliced_wasserstein
from harmonize.generators import Discriminator, Transformer, translate_images
from harmonize.networks import initialise_module
from harmonize.own import SiteImages, patient_means, shift_means
from harmonize.structure import structure_change
from harmonize.views import augment_views, mix_with_pool, step_seed
from privacy.message import Params

SMALL = CycleGan(steps=3, width=4, critic=4, classifier=4, copies=0, batch=2, every=2)
BOTH = pytest.mark.parametrize("norm", ["instance", "none"])


def textured(seed: int, n: int, level: float, side: int = 32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    coarse = torch.nn.functional.interpolate(torch.randn(n, 1, 8, 8, generator=g), size=side, mode="bilinear")
    return (level + 0.2 * coarse + 0.05 * torch.randn(n, 1, side, side, generator=g)).clamp(-0.99, 0.99)


def toy(side: int = 32, n: int = 16) -> tuple[SiteImages, Tensor]:
    patient = torch.arange(n)
    own = SiteImages(textured(1, n, -0.5, side), patient % 2, patient)
    return own, textured(2, n, 0.3, side)


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class CutOffError(RuntimeError):
    pass


# Equations 3 to 7


def written_out(s: CycleGan, nets: torch.nn.ModuleDict, batch: Batch) -> tuple[float, float]:
    """Equations 3 to 7 image by image, pixel by pixel, as they are printed (3 for Dis: as LSGAN)."""
    nets = nets.eval()
    T, F, C_T = nets["translator"], nets["back"], nets["classifier"]
    adversarial = cycle = identity = classify = critics = 0.0
    for x, y, z in zip(batch.x[:, None], batch.y, batch.z[:, None], strict=True):
        for forth, back, dis, mine, theirs in ((T, F, "dis_shared", x, z), (F, T, "dis_own", z, x)):
            made = forth(mine)
            scores, real = nets[dis](made).flatten().tolist(), nets[dis](theirs).flatten().tolist()
            adversarial += sum((1 - score) ** 2 for score in scores) / len(scores)
            critics += sum((score - 1) ** 2 for score in real) / len(real)
            critics += sum(score**2 for score in scores) / len(scores)
            there_and_back, kept = back(made).flatten().tolist(), forth(theirs).flatten().tolist()
            cycle += (
                sum(abs(a - b) for a, b in zip(there_and_back, mine.flatten().tolist(), strict=True)) / mine.numel()
            )
            identity += sum(abs(a - b) for a, b in zip(kept, theirs.flatten().tolist(), strict=True)) / theirs.numel()
        classify += (float(y) - torch.sigmoid(C_T(T(x))).item()) ** 2
    b = len(batch.x)
    total = adversarial + s.cycle * cycle + s.identity * identity + s.classification * classify
    return total / b, (critics + classify) / b


def example(s: CycleGan) -> tuple[torch.nn.ModuleDict, Batch]:
    own, shared = toy(16, 3)
    return initialise_module(lambda: make_networks(s, (1, 16, 16)), 0).double(), Batch(
        own.images.double(), own.labels, shared.double()
    )


def test_structure_is_added_to_the_loss_of_the_transformers_alone() -> None:
    s = replace(SMALL, norm="none")
    nets, batch = example(s)
    plain, more = compute_losses(s, nets, batch), compute_losses(replace(s, structure=2.5), nets, batch)
    changed = structure_change(nets["translator"](batch.x), batch.x)
    assert float(more.transformers.detach()) == pytest.approx(float((plain.transformers + 2.5 * changed).detach()))
    assert float(more.critics.detach()) == pytest.approx(float(plain.critics.detach()))


@BOTH
def test_the_losses_are_the_papers_equations(norm: str) -> None:
    s = replace(SMALL, norm=norm, cycle=3.0, identity=0.7, classification=1.9)
    nets, batch = example(s)
    found = compute_losses(s, nets, batch)
    assert (found.transformers.item(), found.critics.item()) == pytest.approx(written_out(s, nets, batch), rel=1e-9)


def gradients(s: CycleGan, part: str, side: str) -> list[Tensor]:
    nets, batch = example(s)
    found = compute_losses(s, nets, batch)
    return list(torch.autograd.grad(getattr(found, side), list(nets[part].parameters()), allow_unused=True))


def test_the_classifier_moves_t_by_equation_5_alone_and_f_not_at_all() -> None:
    without, with_it = replace(SMALL, classification=0.0), replace(SMALL, classification=2.0)
    pairs = zip(gradients(with_it, "back", "transformers"), gradients(without, "back", "transformers"), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    nets, batch = example(SMALL)
    probability = torch.sigmoid(nets["classifier"](nets["translator"](batch.x)))
    five = torch.autograd.grad(((batch.y - probability) ** 2).mean(), list(nets["translator"].parameters()))
    more, less = (gradients(s, "translator", "transformers") for s in (with_it, without))
    for a, b, c in zip(more, less, five, strict=True):
        assert torch.allclose(a - b, 2.0 * c, atol=1e-12)
    assert max(float(c.abs().max()) for c in five) > 0


@BOTH
def test_training_is_the_usual_alternation_of_t_and_f_with_their_critics(norm: str) -> None:
    own, shared = toy(16)
    s = replace(SMALL, steps=4, norm=norm, ema=0.0, copies=0, augment="none", noise=0.0, batch=4)
    params = s.fit(own, shared, seed=5)
    nets = initialise_module(lambda: make_networks(s, (1, 16, 16)), 5)
    T, F, C_T = nets["translator"], nets["back"], nets["classifier"]
    dis = [nets["dis_shared"], nets["dis_own"]]
    rules = [
        torch.optim.Adam([p for net in group for p in net.parameters()], lr=lr, betas=s.betas, foreach=False)
        for group, lr in (((T, F), s.lr_t), (dis, s.lr_d), ((C_T,), s.lr_c))
    ]
    for step, decay in enumerate((1.0, 1.0, 1.0, 0.5)):
        g = torch.Generator().manual_seed(step_seed(5, step))
        i, j = (torch.randint(16, (4,), generator=g) for _ in range(2))
        x, y, z = own.images[i], own.labels[i], shared[j]
        for rule, lr in zip(rules, (s.lr_t, s.lr_d, s.lr_c), strict=True):
            rule.param_groups[0]["lr"] = lr * decay
        made = [T(x).detach(), F(z).detach()]
        rules[0].zero_grad()
        compute_losses(s, nets, Batch(x, y, z)).transformers.backward()
        rules[0].step()
        for rule in rules[1:]:
            rule.zero_grad()
        critics = sum(((d(r) - 1) ** 2).mean() + (d(m) ** 2).mean() for d, r, m in zip(dis, (z, x), made, strict=True))
        (critics + ((y - torch.sigmoid(C_T(made[0]))) ** 2).mean()).backward()
        for rule in rules[1:]:
            rule.step()
    for name, net in (("translator", T), ("back", F)):
        for key, value in net.named_parameters():
            assert torch.allclose(params[f"{name}/{key}"], value, atol=2e-5), (name, key)


# A training that was cut off


@pytest.mark.parametrize(
    "extra", [pytest.param({}, marks=pytest.mark.slow), {"pool": 3, "norm": "none", "augment": "affine"}], ids=str
)
def test_a_training_that_was_cut_off_ends_with_the_same_bits(extra: dict[str, object]) -> None:
    own, shared = toy(16, 4)
    s = replace(SMALL, steps=22, every=7, copies=1, **extra)
    whole = s.fit(own, shared, seed=3)
    folder, seen = MemoryFolder(), []

    def told(done: int, total: int, what: str) -> None:
        seen.append(done)
        if seen in ([0, 10], [0, 10, 10, 20]):
            raise CutOffError

    for _ in range(2):
        with pytest.raises(CutOffError):
            s.fit(own, shared, seed=3, folder=folder, progress=told)
    assert equal(s.fit(own, shared, seed=3, folder=folder, progress=told), whole)
    assert seen == [0, 10, 10, 20, 20, 22]
    seen.clear()
    assert equal(s.fit(own, shared, seed=3, folder=folder, progress=told), whole) and seen == [22]


def test_a_state_of_something_else_or_a_damaged_one_is_not_gone_on_with() -> None:
    own, shared = toy(16, 4)
    folder = MemoryFolder()
    SMALL.fit(own, shared, seed=3, folder=folder)
    other = replace(SMALL, lr_t=2e-3)
    assert equal(other.fit(own, shared, seed=3, folder=folder), other.fit(own, shared, seed=3))
    assert equal(SMALL.fit(own, shared, seed=4, folder=folder), SMALL.fit(own, shared, seed=4))
    assert equal(SMALL.fit(own, shared + 0.01, seed=3, folder=folder), SMALL.fit(own, shared + 0.01, seed=3))
    for name in folder.names():
        folder.write(name, folder.read(name)[:-1] + b"\x00")
    assert equal(SMALL.fit(own, shared, seed=3, folder=folder), SMALL.fit(own, shared, seed=3))


def test_a_seed_fixes_everything_and_the_callers_numbers_go_on() -> None:
    own, shared = toy(16)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = SMALL.fit(own, shared, seed=3)
    assert torch.equal(torch.rand(2), expected)
    assert equal(first, SMALL.fit(own, shared, seed=3)) and not equal(first, SMALL.fit(own, shared, seed=4))


# What comes out


def test_a_few_seconds_bring_dark_images_to_the_bright_shared_ones() -> None:
    own, shared = toy()
    s = CycleGan(
        steps=40,
        batch=4,
        width=4,
        critic=8,
        classifier=4,
        copies=0,
        noise=0.0,
        ema=0.9,
        lr_t=5e-3,
        lr_d=1e-3,
        cycle=3.0,
        identity=1.0,
    )
    new = s.translate(s.fit(own, shared, seed=0), own.images, own.patient)
    before, after = (sliced_wasserstein(x, shared, seed=0) for x in (own.images, new))
    assert after < 0.6 * before


@pytest.mark.parametrize("keep_mean", ["none", "patient"])
@BOTH
def test_batches_do_not_matter_if_patients_stay_together(norm: str, keep_mean: str) -> None:
    own, shared = toy(16)
    own = own._replace(patient=torch.arange(16) // 3)
    s = replace(SMALL, norm=norm, keep_mean=keep_mean)
    params = s.fit(own, shared, seed=0)
    together = s.translate(params, own.images, own.patient)
    for one in own.patient.unique():
        rows = own.patient == one
        assert torch.allclose(s.translate(params, own.images[rows], own.patient[rows]), together[rows], atol=1e-6)
    mixed_up = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    there = s.translate(params, own.images[mixed_up], own.patient[mixed_up])
    assert torch.allclose(there, together[mixed_up], atol=1e-6)


def test_keep_mean_gives_back_every_patients_own_mean_and_with_it_their_order() -> None:
    own, shared = toy(16, 24)
    own = own._replace(patient=torch.arange(24) // 2)
    s = replace(SMALL, steps=20)
    params = s.fit(own, shared, seed=0)
    new = replace(s, keep_mean="patient").translate(params, own.images, own.patient)
    before, after = patient_means(own.images, own.patient), patient_means(new, own.patient)
    assert spearmanr(before, after).statistic == pytest.approx(1.0, abs=1e-12)
    plain = patient_means(s.translate(params, own.images, own.patient), own.patient)
    assert torch.allclose(after - before, (plain.mean(0) - before.mean(0)).expand_as(after), atol=1e-5)
    assert torch.allclose(after.mean(), plain.mean(), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), aim=st.floats(-0.9, 0.9), level=st.floats(-0.95, 0.95))
def test_a_shift_reaches_its_goal_in_spite_of_clipping(seed: int, aim: float, level: float) -> None:
    x = textured(seed, 3, level, 16)
    x[:, :, :2] = -1.0
    new = shift_means(x, torch.tensor([[aim]]), torch.zeros(3))
    assert float(patient_means(new, torch.zeros(3))) == pytest.approx(aim, abs=1e-5)
    assert new.min() >= -1 and new.max() <= 1 and (new[:, :, :2] == -1).all()
    order = x[0].flatten().argsort()
    assert new[0].flatten()[order].diff().min() >= -1e-6


def test_the_way_back_is_f_of_t() -> None:
    own, shared = toy(16)
    params = SMALL.fit(own, shared, seed=0)
    T, F = SMALL.transformer(1), SMALL.transformer(1)
    T.load_state_dict({k[11:]: v for k, v in params.items() if k.startswith("translator/")})
    F.load_state_dict({k[5:]: v for k, v in params.items() if k.startswith("back/")})
    with torch.no_grad():
        expected = F(T(own.images))
    assert torch.allclose(SMALL.translate_back(params, own.images), expected, atol=1e-6)


# Networks


@BOTH
@pytest.mark.parametrize("downs", [1, 2])
def test_transformers_and_discriminators_take_any_size(norm: str, downs: int) -> None:
    for h, w in ((16, 24), (48, 32)):
        x = torch.rand(2, 3, h, w) * 2 - 1
        made = Transformer(3, width=4, downs=downs, norm=norm)(x)
        assert made.shape == x.shape and made.abs().max() <= 1
        scores = Discriminator(3, width=4)(x)
        assert scores.shape[:2] == (2, 1) and min(scores.shape[2:]) > 1


def test_instance_norm_divides_an_images_contrast_out_and_no_norm_does_not() -> None:
    x = textured(0, 2, 0.0)
    inside = (..., slice(10, -10), slice(10, -10))  # beyond the reach of the border
    changes = {}
    for norm in ("instance", "none"):
        first = initialise_module(lambda norm=norm: Transformer(1, width=4, blocks=1, norm=norm), 2).layers[:2]
        with torch.no_grad():
            once, thrice = first(x + 1.0)[inside], first(3 * (x + 1.0))[inside]
        changes[norm] = float((thrice - once).abs().mean() / once.abs().mean())
    assert changes["instance"] < 0.02 and changes["none"] > 0.5


def test_a_residual_transformer_can_be_the_identity() -> None:
    net = Transformer(1, width=4, norm="instance", residual=True)
    torch.nn.init.zeros_(net.layers[-1].weight)
    torch.nn.init.zeros_(net.layers[-1].bias)
    x = textured(0, 2, 0.0)
    assert torch.equal(net(x), x)


def test_pieces_of_a_translation_are_the_whole() -> None:
    net, x = Transformer(1, width=4, norm="instance"), textured(0, 7, 0.0)
    assert torch.allclose(translate_images(net, x, chunk=2), translate_images(net, x, chunk=7), atol=1e-6)


def test_a_pool_gives_back_what_was_put_in() -> None:
    pool: dict[str, Tensor] = {}
    g = torch.Generator().manual_seed(0)
    shown = [mix_with_pool(pool, "a", torch.arange(4.0 * i, 4.0 * i + 4).view(4, 1, 1, 1), 6, g) for i in range(50)]
    numbers = torch.cat(shown).flatten().tolist()
    left = pool["a"].flatten().tolist()
    assert numbers[:4] == [0.0, 1.0, 2.0, 3.0] and len(left) == 6
    older = sum(value < 4 * (i // 4) for i, value in enumerate(numbers))
    assert 60 < older < 140
    assert set(numbers) | set(left) == {float(i) for i in range(200)}


def test_views_keep_what_is_in_an_image() -> None:
    x = textured(0, 64, 0.0, 16)
    flipped = augment_views(x, "flip", torch.Generator().manual_seed(0))
    turned = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(x, flipped, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(x, flipped, strict=True)])
    assert (turned ^ same).all() and 16 < turned.sum() < 48
    assert torch.equal(augment_views(x, "none", torch.Generator()), x)
    moved = augment_views(x, "affine", torch.Generator().manual_seed(0))
    assert moved.shape == x.shape and moved.abs().max() <= 1
    assert float((moved - flipped).abs().mean()) < float((moved.roll(1, 0) - flipped).abs().mean())


# Refusals


def test_the_papers_variant_fixes_what_the_paper_says() -> None:
    s = CycleGan(variant="paper", steps=9, width=4).with_variant()
    assert (s.batch, s.lr_t, s.lr_d, s.cycle, s.identity, s.classification) == (24, 1e-4, 1e-4, 10.0, 5.0, 1.0)
    assert (s.decay, s.pool, s.noise, s.keep_mean, s.steps, s.width) == (False, 0, 0.0, "none", 9, 4)
    assert s.with_variant() == s and PAPER.keys() <= vars(s).keys()
    assert (s.betas, s.ema, s.norm, s.residual) == ((0.9, 0.999), 0.0, "instance", False)
    with pytest.raises(ValueError, match="variant: paper fixes batch, decay: remove them"):
        CycleGan(variant="paper", decay=False, batch=3)
    quick = CycleGan(variant="paper", lr=1e-3).with_variant()
    assert (quick.lr_t, quick.lr_d, quick.lr_c) == (1e-3, 1e-3, 1e-3), "the paper's rate goes with the paper's steps"
    with pytest.raises(ValueError, match=r"lr: is of variant paper, found 0\.5 without it: say lr_t, lr_d, lr_c"):
        CycleGan(lr=0.5)


def test_the_papers_variant_trains() -> None:
    own, shared = toy(16)
    s = CycleGan(variant="paper", steps=2, width=4, critic=4, classifier=4, copies=0)
    assert s.translate(s.fit(own, shared, seed=0), own.images, own.patient).isfinite().all()


def test_all_that_is_wrong_with_settings_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"steps must .* width must .* cycle must .* lr_d must .* betas must"):
        CycleGan(steps=0, width=6, cycle=float("nan"), lr_d=0.0, betas=(0.5, 1.0))


def test_all_that_is_wrong_with_images_is_said_at_once() -> None:
    bad = SiteImages(torch.full((3, 1, 18, 16), 2.0), torch.tensor([0, 1, 2]), torch.zeros(2))
    with pytest.raises(
        ValueError, match=r"multiples of 4 .* outside.* own images are .* patient must be .* labels must"
    ):
        SMALL.fit(bad, torch.zeros(2, 1, 16, 16), seed=0)
    with pytest.raises(ValueError, match="shared images must be"):
        SMALL.fit(toy(16)[0], torch.zeros(0, 1, 16, 16), seed=0)


def test_a_few_steps_warn_of_nothing() -> None:
    own, shared = toy(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SMALL.fit(own, shared, seed=0)


# Discriminators that see classes, small patches, several members


def test_discriminators_that_see_classes_are_told_each_images_own(monkeypatch) -> None:
    """Dis_shared judges T(x) as of x's class, and Dis_own F(z) as of z's."""
    s = replace(SMALL, by_class=True)
    nets, batch = example(s)
    batch = batch._replace(y=torch.tensor([0, 1, 0]), w=torch.tensor([1, 1, 0]))
    told: dict[str, list[list[int]]] = {"dis_shared": [], "dis_own": []}
    for name, seen in told.items():
        forward = nets[name].forward

        def spy(x: Tensor, y: Tensor, forward=forward, seen=seen) -> Tensor:
            seen.append(y.tolist())
            return forward(x, y)

        monkeypatch.setattr(nets[name], "forward", spy)
    compute_losses(s, nets, batch)
    assert told == {"dis_shared": [[0, 1, 0], [1, 1, 0]], "dis_own": [[1, 1, 0], [0, 1, 0]]}


def test_a_class_is_planes_beside_the_image() -> None:
    dis = initialise_module(lambda: Discriminator(1, width=4, classes=2), 0)
    x, y = torch.randn(3, 1, 16, 16), torch.tensor([0, 1, 1])
    planes = torch.zeros(3, 2, 16, 16)
    for row, label in enumerate(y.tolist()):
        planes[row, label] = 1.0
    assert torch.equal(dis(x, y), dis.net(torch.cat([x, planes], dim=1))[-1])
    assert not torch.equal(dis(x, y), dis(x, 1 - y))


@pytest.mark.parametrize(("layers", "side"), [(1, 16), (2, 34)])
def test_a_patch_is_as_wide_as_is_said(layers: int, side: int) -> None:
    dis, x = Discriminator(1, layers=layers), torch.randn(1, 1, 64, 64, requires_grad=True)
    scores = dis(x)
    scores[0, 0, scores.shape[2] // 2, scores.shape[3] // 2].backward()
    assert x.grad is not None
    assert int((x.grad[0, 0].abs().sum(dim=0) > 0).sum()) == side


@given(st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=20)
def test_batches_by_class_hold_both_equally_often(batch: int, seed: int) -> None:
    labels = torch.tensor([0] * 17 + [1] * 3)
    rows = _draw_rows(_rows_by_class(labels), len(labels), batch, torch.Generator().manual_seed(seed))
    assert abs(int((labels[rows] == 0).sum()) - int((labels[rows] == 1).sum())) == batch % 2


def test_members_are_trainings_of_other_seeds_and_t_is_their_mean() -> None:
    own, shared = toy()
    one, three = SMALL.fit(own, shared, seed=5), replace(SMALL, members=3)
    told: list[tuple[int, int]] = []
    params = three.fit(own, shared, seed=5, progress=lambda done, total, what: told.append((done, total)))
    assert equal(
        {name: params[name] for name in one if "keep" not in name}, {n: v for n, v in one.items() if "keep" not in n}
    )
    parts = [
        {f"translator/{name.split('/', 1)[1]}": value for name, value in params.items() if name.startswith(f"{part}/")}
        for part in ("translator", "translator-2", "translator-3")
    ]
    single = [SMALL.translate({**one, **part}, own.images, own.patient) for part in parts]
    assert not torch.equal(single[0], single[1]) and not torch.equal(single[1], single[2])
    assert torch.equal(three.translate(params, own.images, own.patient), torch.stack(single).mean(dim=0))
    assert [done for done, _ in told] == sorted(done for done, _ in told) and {total for _, total in told} == {9}


def test_translation_by_class_needs_both_classes_on_both_sides() -> None:
    own, shared = toy()
    s, labels = replace(SMALL, by_class=True), torch.arange(len(shared)) % 2
    assert set(s.fit(own, shared, seed=0, shared_labels=labels)) == set(SMALL.fit(own, shared, seed=0))
    for site_images, of_shared in (
        (own, None),
        (own, labels[:3]),
        (own, labels * 0),
        (own._replace(labels=own.labels * 0), labels),
    ):
        with pytest.raises(ValueError, match="by_class needs"):
            s.fit(site_images, shared, seed=0, shared_labels=of_shared)
    with pytest.raises(ValueError, match="pool"):
        replace(s, pool=10)
