"""What VAFL's two choices do, Algorithm 1 and the complexity score: python -m benchmarks.studies.sampling_rules

The sampling rule. References are 200 slices of phantom P, all of one class. Of 200 candidates of each kind, the share
that the rule keeps in one pass: close to a reference in features, and far from all in pixels. Columns are the paper's
features and closeness, and the cheaper ones, each with images of the same patient as neighbours (`any`, the paper's)
and without (`others`, the default). Mean over draws of candidates, the range in brackets; the references stay.

The complexity score. The same images take the place of what a WGAN-GP makes, so that only the score is judged: how far
are they from P? The default score and the paper's as it is read here, mean and deviation over draws; a score should
rise from other patients of P over another scanner to the procedural prior. Then the score that can be noised: of 34
patients of each scanner the mean share of variance outside 40 components of the prior, and the standard deviation of
the noise at an epsilon.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from benchmarks.studies.synthesis import INPUTS, cohort
from harmonize.complexity import Outside, Score, deviation_of, score_site
from harmonize.embedding import Basis, compute_basis, project_images, tsne
from harmonize.neighbours import Reference, make_reference, meets_requirements
from harmonize.prior import PRIORS, draw_pictures
from harmonize.sampling import Sampling
from pipelines.phantom.scanner import SCANNERS
from privacy.dp.access import Rows

NUMBER, PATIENTS = 200, 34
FEATURES: dict[str, Literal["pca", "pca_tsne"]] = {
    "PCA, closeness 0.3": "pca",
    "PCA and t-SNE, closeness 0.2": "pca_tsne",
}
NEIGHBOURS: tuple[Literal["any", "others"], ...] = ("any", "others")
RULES = {
    f"{words}, {neighbours}": Sampling(name="raw", features=features, neighbours_of=neighbours)
    for words, features in FEATURES.items()
    for neighbours in NEIGHBOURS
}
EPSILONS, SITES = (1.0, 3.0, 10.0), (16, 48, 200)


def prior(number: int, seed: int) -> Tensor:
    return draw_pictures(PRIORS["prostate_adc"], torch.arange(number) % 2, INPUTS, seed)


def kinds(own: Rows, seed: int) -> dict[str, Tensor]:
    """Candidates (200, 1, 48, 48): good ones, copies, and wrong ones."""
    noise = torch.randn(own.x[:NUMBER].shape, generator=torch.Generator().manual_seed(seed))
    return {
        "other patients, same scanner": cohort("P", PATIENTS, seed + 2).x[:NUMBER],
        "scanner L": cohort("L", PATIENTS, seed + 2).x[:NUMBER],
        "the procedural prior": prior(NUMBER, seed),
        "the references with noise of 0.02": own.x[:NUMBER] + 0.02 * noise,
        "the references with noise of 0.1": own.x[:NUMBER] + 0.1 * noise,
        "copies of the references": own.x[:NUMBER],
        "white noise": noise.clamp(-1, 1),
    }


def kept(rule: Sampling, candidates: Tensor, reference: Reference, seed: int) -> float:
    """Share of the candidates that a rule keeps in one pass."""
    pixels = candidates.flatten(1).double()
    both = torch.cat([pixels, reference.pixels])
    features = project_images(compute_basis(both, rule.components), both)
    if rule.features == "pca_tsne":
        features = tsne(features, perplexity=rule.perplexity, seed=seed)
    close, distinct = meets_requirements(
        pixels,
        features[: len(pixels)],
        reference,
        features[len(pixels) :],
        closeness=rule.in_use[1],
        neighbours=rule.nearest,
        others=rule.neighbours_of == "others",
    )
    return float((close & distinct).float().mean())


def sampling(own: Rows, draws: Sequence[Mapping[str, Tensor]]) -> None:
    reference = make_reference(own.x[:NUMBER], own.patient[:NUMBER])
    print(f"| candidates | {' | '.join(RULES)} |\n|{'---|' * (len(RULES) + 1)}")
    spent = dict.fromkeys(RULES, 0.0)
    for name in draws[0]:
        cells = []
        for label, rule in RULES.items():
            begun = time.process_time()
            shares = [kept(rule, one[name], reference, seed) for seed, one in enumerate(draws)]
            spent[label] += time.process_time() - begun
            around = f" [{min(shares):.3f}, {max(shares):.3f}]" if min(shares) < max(shares) else ""
            cells.append(f"{statistics.mean(shares):.3f}{around}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    passes = len(draws) * len(draws[0])
    print(f"| CPU s a pass | {' | '.join(f'{seconds / passes:.1f}' for seconds in spent.values())} |")


def complexity(own: Rows, draws: Sequence[Mapping[str, Tensor]], public: Basis) -> None:
    print("\n| instead of synthetic images | default score | the paper's reading |\n|---|---|---|")
    for name in list(draws[0])[:3]:
        cells = []
        for settings in (Score(images=NUMBER), Score(images=NUMBER, variant="paper")):
            found = score_site(settings, own.x[:NUMBER], [one[name] for one in draws], public, seed=0)
            cells.append(f"{found.mean:.3g} ± {found.deviation:.2g}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def released(public: Basis) -> None:
    """The score that can be noised, of every scanner, and its noise."""
    print("\n| scanner | share outside | lowest and highest patient |\n|---|---|---|")
    rows = []
    for name in SCANNERS:
        own = cohort(name, PATIENTS, 1)  # type: ignore[arg-type]
        with torch.no_grad():
            share = Outside(public)(own.x)
        means = torch.stack([share[own.patient == patient].mean() for patient in range(PATIENTS)])
        rows.append((float(means.mean()), f"| {name} | {means.mean():.3f} | {means.min():.3f} to {means.max():.3f} |"))
    print("\n".join(text for _, text in sorted(rows)))
    print(f"\n| standard deviation of the noise | {' | '.join(f'{n} patients' for n in SITES)} |\n|---|---|---|---|")
    for epsilon in EPSILONS:
        cells = [f"{deviation_of(Score(release='dp', epsilon=epsilon), n):.3f}" for n in SITES]
        print(f"| ε = {epsilon:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    reader = make_parser(__doc__)
    reader.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the candidates")
    asked = reader.parse_args()
    torch.set_num_threads(1)
    own, public = cohort("P", PATIENTS, 1), compute_basis(prior(1000, 1), 40)
    draws = [kinds(own, seed) for seed in asked.seeds]
    sampling(own, draws)
    complexity(own, draws, public)
    released(public)
