from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from harmonize.embedding import compute_basis, project_images
from harmonize.neighbours import make_reference, meets_requirements, neighbour_distances
from harmonize.sampling import Sampling, TooFew, sample_images

SHAPE = (1, 3, 3)
PAPER = Sampling(name="raw", neighbours_of="any", features="pca", components=4)


def noise(n: int, seed: int, *shape: int) -> Tensor:
    return torch.randn(n, *(shape or SHAPE), generator=torch.Generator().manual_seed(seed))


def distance(a: Tensor, b: Tensor) -> float:
    return math.dist(a.flatten().tolist(), b.flatten().tolist())


def lines_9_to_23(d_syn: Tensor, f_syn: Tensor, d_k: Tensor, f_k: Tensor, delta: float) -> list[int]:
    """Algorithm 1, line by line; which candidates are inserted."""
    inserted = []
    C = max(distance(f_k[i], f_k[j]) for i in range(len(f_k)) for j in range(len(f_k)))
    for hat in range(len(d_syn)):
        x = min(range(len(d_k)), key=lambda i: distance(d_k[i], d_syn[hat]))
        if distance(f_syn[hat], f_k[x]) < delta * C:
            x_5nn: list[int] = []
            while len(x_5nn) <= 5:
                rest = [i for i in range(len(d_k)) if i not in x_5nn]
                x_5nn.append(min(rest, key=lambda i: distance(f_k[x], f_k[i])))
            epsilon = max(distance(d_k[x], d_k[i]) for i in x_5nn)
            if distance(d_syn[hat], d_k[x]) > epsilon:
                inserted.append(hat)
    return inserted


def algorithm_1(draw: Callable[[int], Tensor], d_k: Tensor, delta: float, number: int) -> list[Tensor]:
    """Algorithm 1 with PCA features, stopped at exactly `number`."""
    d_shared: list[Tensor] = []
    turn = 0
    while len(d_shared) < number:
        d_syn = draw(turn)
        both = torch.cat([d_syn, d_k])
        f = project_images(compute_basis(both, 4), both)
        kept = lines_9_to_23(d_syn, f[: len(d_syn)], d_k, f[len(d_syn) :], delta)
        d_shared += [d_syn[i] for i in kept][: number - len(d_shared)]
        turn += 1
    return d_shared


seeds = st.integers(0, 10**6)


@given(
    n=st.integers(6, 14), m=st.integers(1, 12), d=st.integers(1, 5), k=st.integers(1, 3), spread=st.floats(0.1, 3),
    delta=st.floats(0.05, 1), seed=seeds,
)  # fmt: skip
def test_both_requirements_are_those_of_the_printed_lines(
    n: int, m: int, d: int, k: int, spread: float, delta: float, seed: int
) -> None:
    reference = make_reference(noise(n, seed, d), torch.zeros(n, dtype=torch.int64))
    candidates, features = spread * noise(m, seed + 1, d).double(), noise(m, seed + 2, k)
    of_reference = noise(n, seed + 3, k)
    close, distinct = meets_requirements(
        candidates, features, reference, of_reference, closeness=delta, neighbours=5, others=False
    )
    expected = lines_9_to_23(candidates, features, reference.pixels, of_reference, delta)
    assert (close & distinct).nonzero().flatten().tolist() == expected


@given(n=st.integers(4, 12), patients=st.integers(2, 4), seed=seeds)
def test_neighbours_of_others_are_the_nearest_images_of_other_patients(n: int, patients: int, seed: int) -> None:
    reference = make_reference(noise(n, seed, 3), torch.arange(n) % patients)
    candidates, features, of_reference = (
        2 * noise(9, seed + 1, 3).double(),
        noise(9, seed + 2, 2),
        noise(n, seed + 3, 2),
    )
    found = meets_requirements(candidates, features, reference, of_reference, closeness=1.0, neighbours=5, others=True)[
        1
    ].tolist()
    for candidate, distinct in zip(candidates, found, strict=True):
        x = min(range(n), key=lambda i: distance(reference.pixels[i], candidate))
        others = [i for i in range(n) if reference.patient[i] != reference.patient[x]]
        nearest = sorted(others, key=lambda i: distance(of_reference[x], of_reference[i]))[:5]
        epsilon = max(distance(reference.pixels[x], reference.pixels[i]) for i in nearest)
        assert distinct == (distance(candidate, reference.pixels[x]) > epsilon)


@budget(max_examples=8)
@given(number=st.integers(1, 25), seed=seeds)
def test_what_is_sampled_is_what_the_printed_algorithm_samples(number: int, seed: int) -> None:
    reference = noise(12, seed)

    def draw(turn: int) -> Tensor:
        return 1.3 * noise(12, seed + 1 + turn)

    settings = Sampling(name="raw", neighbours_of="any", features="pca", components=4, closeness=0.9, max_passes=200)
    found = sample_images(settings, lambda y, turn: draw(turn), reference, torch.zeros(12), count={0: number}, seed=0)
    assert torch.equal(found.images, torch.stack(algorithm_1(draw, reference, 0.9, number)))
    assert found.tried == number + found.far + found.near and found.same == 0


def two_classes(seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(20) % 2
    return noise(20, seed) + labels[:, None, None, None], labels


def by_class(seed: int) -> Callable[[Tensor, int], Tensor]:
    return lambda y, turn: 1.3 * noise(len(y), seed + turn) + y[:, None, None, None]


@budget(max_examples=20)
@given(seed=seeds)
def test_classes_are_sampled_apart_to_the_asked_size(seed: int) -> None:
    reference, labels = two_classes(seed)
    settings = Sampling(closeness=0.9, components=4, max_passes=100)
    found = sample_images(settings, by_class(seed), reference, labels, count={1: 3, 0: 7}, seed=0)
    assert found.labels.tolist() == [0] * 7 + [1] * 3 and found.images.shape == (10, *SHAPE)
    assert found.tried == 10 + found.far + found.near + found.same
    for label in (0, 1):
        own = reference[labels == label]
        apart = torch.cdist(own.flatten(1), own.flatten(1)).fill_diagonal_(torch.inf).amin(dim=1)
        kept = found.images[found.labels == label].flatten(1)
        between = torch.cdist(kept, kept).fill_diagonal_(torch.inf)
        assert between.min() >= 0.5 * apart.median() * (1 - 1e-5)


@pytest.mark.parametrize("features", ["pca", "pca_tsne"])
def test_the_order_of_references_does_not_matter(features: str) -> None:
    reference, labels = two_classes(5)
    patient, count = torch.arange(20) // 2, {0: 3, 1: 3}
    settings = Sampling(name="raw", features=features, closeness=0.9, max_passes=100)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    shuffled = reference[order], labels[order], patient[order]
    one = sample_images(settings, by_class(0), reference, labels, patient, count=count, seed=4)
    other = sample_images(settings, by_class(0), *shuffled, count=count, seed=4)
    assert torch.equal(one.images, other.images) and one[2:] == other[2:]


@budget(max_examples=25)
@given(
    seed=seeds, name=st.sampled_from(["raw", "surrogate"]), whose=st.sampled_from(["any", "others"]),
    times=st.sampled_from([1, 2, 8]),
)  # fmt: skip
def test_a_copy_of_a_reference_is_never_kept(seed: int, name: str, whose: str, times: int) -> None:
    reference = noise(9, seed)
    reference = torch.cat([reference] * times)
    settings = Sampling(name=name, neighbours_of=whose, features="pca", max_passes=3)
    labels = torch.zeros(len(reference))
    calls: list[int] = []

    def draw(y: Tensor, turn: int) -> Tensor:
        calls.append(turn)
        return reference[torch.randperm(len(y), generator=torch.Generator().manual_seed(turn))]

    with pytest.raises(TooFew, match="class 0: 0 of 1 images were kept in 3 passes"):
        sample_images(settings, draw, reference, labels, count={0: 1}, seed=0)
    assert calls == [0, 1, 2]


def test_a_copy_does_not_pass_under_another_label() -> None:
    reference, labels = noise(30, 0), torch.arange(30) % 2
    settings = Sampling(name="raw", features="pca", closeness=1.0, max_passes=3)

    def draw(y: Tensor, turn: int) -> Tensor:
        return reference[labels == 1]

    kept = sample_images(settings, draw, reference[labels == 0], labels[labels == 0], count={0: 1}, seed=0)
    assert kept.near < kept.tried
    with pytest.raises(TooFew, match=r"0 of 1 images were kept .* 0 were not close .* 45 too near to it"):
        sample_images(settings, draw, reference, labels, count={0: 1}, seed=0)


@given(n=st.integers(4, 9), others=st.booleans(), seed=seeds)
def test_nobody_may_be_nearer_to_an_image_of_another_class_than_the_nearest_reference(
    n: int, others: bool, seed: int
) -> None:
    images, patient, own = noise(n, seed), torch.arange(n) // 2, torch.arange(n) < 2
    found = neighbour_distances(images, patient, other_images=others)
    for i in range(n):
        rest = [j for j in range(n) if (patient[j] != patient[i] if others else j != i)]
        assert float(found[i]) == pytest.approx(min(distance(images[i], images[j]) for j in rest), rel=1e-6)
    reference = make_reference(images[own], patient[own], (images[~own], found[~own]))
    apart = make_reference(images[own], patient[own])
    candidates = 2 * noise(9, seed + 1).flatten(1).double()
    z = [min((distance(c, images[j]), j) for j in range(2, n)) for c in candidates]
    f, fr = torch.zeros(9, 2), noise(2, seed, 2)
    how = {"closeness": 1.0, "neighbours": 5, "others": False}
    without, with_ = (meets_requirements(candidates, f, one, fr, **how)[1].tolist() for one in (apart, reference))
    assert with_ == [a and gap > float(found[j]) for a, (gap, j) in zip(without, z, strict=True)]


def test_an_error_tells_how_many_each_condition_rejected_and_what_to_change() -> None:
    reference = noise(10, 0)
    far = Sampling(max_passes=2)
    with pytest.raises(
        TooFew, match=r"2 passes of 10 candidates; 20 were not close .* 0 too near .* raise sampling.clo"
    ):
        sample_images(far, lambda y, turn: 50 + noise(10, turn), reference, torch.zeros(10), count={0: 4}, seed=0)
    with pytest.raises(TooFew, match=r"0 were not close .* 20 too near to it .* lower sampling.neighbours from 1"):
        sample_images(far, lambda y, turn: reference, reference, torch.zeros(10), count={0: 4}, seed=0)
    one = 1.3 * noise(10, 7)
    wide = Sampling(max_passes=2, closeness=1.0, neighbours=1, spacing=100.0)
    with pytest.raises(TooFew, match=r"class 0: 1 of 4 .* [1-9]\d* too near to a kept one.*"):
        sample_images(wide, lambda y, turn: one, reference, torch.zeros(10), count={0: 4}, seed=0)


def test_a_stop_that_was_asked_for_is_raised_between_passes() -> None:
    seen: list[tuple[int, int]] = []

    def told(done: int, total: int, what: str) -> None:
        seen.append((done, total))
        if len(seen) == 2:
            raise InterruptedError

    reference = noise(10, 0)
    with pytest.raises(InterruptedError):
        sample_images(
            Sampling(), lambda y, turn: reference, reference, torch.zeros(10), count={0: 4}, seed=0, progress=told
        )
    assert seen == [(0, 4), (0, 4)]


def test_no_image_asked_for_is_none_returned() -> None:
    found = sample_images(
        PAPER, lambda y, turn: noise(len(y), 0), noise(9, 0), torch.zeros(9), count={0: 0, 1: 0}, seed=0
    )
    assert found.images.shape == (0, *SHAPE) and found.labels.shape == (0,) and found[2:] == (0, 0, 0, 0, 0)


def test_everything_wrong_with_what_is_asked_is_told_at_once() -> None:
    images, labels, patient = noise(9, 0), torch.tensor([0] * 6 + [1] * 3), torch.zeros(9, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"class 0 has references of one patient.*class 1 has 3 reference images"):
        sample_images(Sampling(), lambda y, turn: images, images, labels, patient, count={0: 2, 1: 2}, seed=0)
    with pytest.raises(ValueError, match=r"shapes \(9,\) and \(8,\)"):
        sample_images(Sampling(), lambda y, turn: images, images, labels, patient[:8], count={0: 2}, seed=0)
    with pytest.raises(ValueError, match=r"candidates have shape \(2, 1, 3, 3\), needed is \(6, 1, 3, 3\)"):
        sample_images(Sampling(), lambda y, turn: images[:2], images, labels, count={0: 2}, seed=0)
    with pytest.raises(ValueError, match="the synthesis diverged"):
        sample_images(Sampling(), lambda y, turn: images[:6] * math.nan, images, labels, count={0: 2}, seed=0)


def test_settings_name_everything_that_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"closeness must be in \[1e-06, 1\], found 2; max_passes .* found 0"):
        Sampling(closeness=2, max_passes=0)
    with pytest.raises(ValidationError, match="spacin"):
        TypeAdapter(Sampling).validate_python({"name": "raw", "spacin": 1})


def test_the_papers_variant_fixes_algorithm_1_and_needs_the_patients_own_images() -> None:
    paper = Sampling(name="raw", variant="paper")
    assert (paper.in_use, paper.nearest, paper.neighbours_of, paper.spacing) == (("pca_tsne", 0.2), 5, "any", 0.0)
    assert Sampling(name="raw", variant="paper", neighbours=5, closeness=0.2) == paper
    with pytest.raises(ValueError, match=r"paper has closeness 0\.2, found 0\.9, neighbours 5, found 2; remove it"):
        Sampling(name="raw", variant="paper", closeness=0.9, neighbours=2)
    with pytest.raises(ValueError, match="found name surrogate: write name: raw"):
        Sampling(variant="paper")


@pytest.mark.parametrize("doublings", [0, 1, 2])
def test_closeness_is_doubled_only_where_passes_end_and_images_are_missing(doublings):
    """Candidates at a feature distance between C/4 and C/2 of their reference: closeness 0.2 admits none, 0.4 all."""
    reference = torch.stack([torch.full(SHAPE, float(k)) for k in range(8)])
    labels = torch.zeros(8, dtype=torch.int64)
    passes: list[int] = []

    def draw(y: Tensor, turn: int) -> Tensor:
        passes.append(turn)
        return torch.full((len(y), *SHAPE), 7 + 7 * 0.35)

    settings = Sampling(
        name="raw", neighbours=1, neighbours_of="any", features="pca", components=1, closeness=0.2, max_passes=3,
        doublings=doublings,
    )  # fmt: skip
    if not doublings:
        with pytest.raises(TooFew, match=r"kept in 3 passes(?s:.*)sampling.closeness or doublings above 0\.2"):
            sample_images(settings, draw, reference, labels, count={0: 5}, seed=0)
        return
    found = sample_images(settings, draw, reference, labels, count={0: 5}, seed=0)
    assert (len(found.images), found.doubled, found.far, passes) == (5, 1, 24, [0, 1, 2, 3])
