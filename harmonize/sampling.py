"""Which synthetic images are shared: VAFL's Algorithm 1, against private images or against synthetic ones.

Yan et al., IEEE JBHI 2021, section II.B. A candidate is kept if, with x the reference image nearest to it in pixels,
it lies close to x in features (nearer than `closeness` times the largest distance between references) and far from x in
pixels (farther than any of the 5 references nearest to x in features). As x is the nearest, no reference is nearer.

Our readings where Algorithm 1 is loose: its loop collects six neighbours of which x itself is the first, so 5
others; it ends at exactly the given number; it gives up after `max_passes`. Classes are sampled separately, with as
many candidates in a pass as the class has references; the paper has no classes, which labels that are all 0 reproduce.
In `raw` no candidate may be nearer to a reference of another class than any other reference (of another patient) is to
that one, so that no copy is accepted under another label.
Each pass computes its own features, as in the paper: PCA, then t-SNE, of its candidates and the references together.

`raw` compares with the patients' own images: an extra defence that no guarantee covers, because whether a candidate is
kept depends on the patient image near it. `surrogate` compares with images that are private or public already, as a
second draw of the same generator: post-processing that costs no privacy and adds none; it selects a varied set.

Variant `paper` of `raw` is Algorithm 1 as written: t-SNE features, delta 0.2, 5 neighbours, which may be of the same
patient; no classes; and as many images as the target trains on, which tells how many these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from harmonize.embedding import FEWEST, compute_basis, project_images, tsne
from harmonize.neighbours import Reference, make_reference, meets_requirements, neighbour_distances
from harmonize.scale import Progress, ignore_progress
from privacy.settings_error import Problem, out_of_range, refuse

PAPER: Mapping[str, Any] = {
    "features": "pca_tsne", "closeness": 0.2, "neighbours": 5, "neighbours_of": "any", "spacing": 0.0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """name: raw or surrogate, see above. variant: paper, of raw, fixes what `PAPER` lists; those fields may not be set
    otherwise, and `harmonize.shared` is not used. features: pca_tsne = the paper's; pca = faster; null = pca_tsne for
    raw, pca for surrogate. components, perplexity: of both.

    closeness: delta of the paper; null = 0.2, the paper's, for pca_tsne, 0.3 for pca and raw, 0.7 for pca and
    surrogate: neighbours are farther apart the more dimensions images differ in (synthetic ones with noise: in all),
    and 0.7 rejects only outliers. neighbours: null = 5, the paper's, for raw, 1 for surrogate, whose references need no
    protection and often come in families. neighbours_of: others = images of the same patient are not neighbours, which
    is stricter, because slices of one patient are alike; any = the paper's. spacing: of surrogate; a candidate is
    rejected that is nearer to a kept image than `spacing` times the median distance between a reference and the one
    nearest to it; 0 = none is. max_passes: after this many closeness is doubled, `doublings` times at most, and then an
    error says what rejected the candidates. The paper's 0.2 admits none of the images of a GAN trained with noise.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["surrogate", "raw"] = "surrogate"
    variant: Literal["consilium", "paper"] = "consilium"
    closeness: float | None = None
    neighbours: int | None = None
    neighbours_of: Literal["others", "any"] = "others"
    max_passes: int = 50
    features: Literal["pca", "pca_tsne"] | None = None
    components: int = 40
    perplexity: float = 30.0
    spacing: float = 0.5
    doublings: int = 0

    def __post_init__(self) -> None:
        problems = out_of_range(
            self,
            closeness=(1e-6, 1.0),
            neighbours=(1, 1000),
            max_passes=(1, 10_000),
            components=(1, 1000),
            perplexity=(1, 1000),
            spacing=(0, 100),
            doublings=(0, 20),
        )
        paper_values = PAPER if self.variant == "paper" else {}
        if paper_values and self.name != "raw":
            text = f"paper compares with the patients' own images, found name {self.name}: write name: raw"
            problems.append(Problem(("variant",), text))
        fixed = {f.name: (f.default, paper_values[f.name]) for f in fields(self) if f.name in paper_values}
        if wrong := [name for name, allowed in fixed.items() if getattr(self, name) not in allowed]:
            expected = ", ".join(f"{name} {paper_values[name]}, found {getattr(self, name)}" for name in wrong)
            problems.append(Problem(("variant",), f"paper has {expected}; remove it, or set variant: consilium"))
        refuse(problems)
        for name, value in paper_values.items():
            object.__setattr__(self, name, value)

    @property
    def in_use(self) -> tuple[str, float]:
        """features and closeness, with null replaced."""
        features = self.features or ("pca_tsne" if self.name == "raw" else "pca")
        usual = 0.7 if self.name == "surrogate" else 0.3
        return features, self.closeness or (0.2 if features == "pca_tsne" else usual)

    @property
    def last_closeness(self) -> float:
        """The closeness after the last doubling."""
        return float(self.in_use[1] * 2**self.doublings)

    @property
    def nearest(self) -> int:
        """neighbours, with null replaced."""
        return self.neighbours or (5 if self.name == "raw" else 1)


class Sampled(NamedTuple):
    """images (n, C, H, W) and labels (n,), class after class, on the CPU. tried = n + far + near + same.

    tried: candidates tested. far: rejected because not close in features. near: of the others, because not far in
    pixels. same: of the rest, because a kept image was near. doubled: how often closeness was doubled.
    """

    images: Tensor
    labels: Tensor
    tried: int
    far: int
    near: int
    same: int
    doubled: int


class TooFew(ValueError):
    """Too few candidates qualified within `max_passes`. The message contains counts that depend on patients: it stays
    at the hospital.
    """


Draw = Callable[[Tensor, int], Tensor]
"""draw(labels (m,) int64, pass from 0 on) -> candidates (m, C, H, W), new ones in every pass."""


def sample_images(
    settings: Sampling,
    draw: Draw,
    reference: Tensor,
    labels: Tensor,
    patient: Tensor | None = None,
    *,
    count: Mapping[int, int],
    seed: int,
    progress: Progress = ignore_progress,
) -> Sampled:
    """Draw candidates until exactly count[class] of each class are kept.

    Args:
        reference: (n, C, H, W) not augmented, in the space of the candidates. labels, patient: (n,); None = each
            image is a patient of its own, as synthetic ones are. The order of references does not matter.
        draw: candidates of all classes that are incomplete, as many of each as it has references.
        seed: of t-SNE.

    Raises:
        ValueError: the request is impossible, with all reasons; or a candidate is not finite or of another size.
        TooFew: naming for each incomplete class how many each condition rejected, and what to change.
    """
    patient = torch.arange(len(reference)) if patient is None else patient.cpu()
    labels = labels.cpu()
    counts = {label: number for label, number in sorted(count.items()) if number}
    if wrong := _find_request_problems(settings, reference, labels, patient, counts):
        raise ValueError("cannot sample: " + "; ".join(wrong))
    classes = {c: _empty_sample(settings, reference, patient, labels == c, n) for c, n in counts.items()}
    total, doubled = sum(counts.values()), 0
    for turn in range(settings.max_passes * (settings.doublings + 1)):
        progress(sum(len(class_sample.kept) for class_sample in classes.values()), total, f"sampling, pass {turn + 1}")
        short = {label: class_sample for label, class_sample in classes.items() if class_sample.short}
        if not short:
            break
        doubled = turn // settings.max_passes
        y = torch.cat(
            [torch.full((len(class_sample.reference.pixels),), label) for label, class_sample in short.items()]
        )
        candidates = _check_candidates(draw(y, turn), (len(y), *reference.shape[1:]))
        for label, class_sample in short.items():
            class_sample.take(candidates[y == label], seed + turn, settings.in_use[1] * 2**doubled)
    if complaints := [class_sample.complaint(label) for label, class_sample in classes.items() if class_sample.short]:
        raise TooFew("; ".join(complaints))
    kept_images = [image for class_sample in classes.values() for image in class_sample.kept]
    tried, far, near, same = (
        sum(getattr(class_sample, name) for class_sample in classes.values())
        for name in ("tried", "far", "near", "same")
    )
    return Sampled(
        torch.stack(kept_images) if kept_images else reference[:0].cpu().float(),
        torch.tensor([label for label, class_sample in classes.items() for _ in class_sample.kept], dtype=torch.int64),
        tried,
        far,
        near,
        same,
        doubled,
    )


@dataclass
class _ClassSample:
    """The kept images of one class, and counts of rejected ones. least: least distance in pixels between kept
    images.
    """

    settings: Sampling
    reference: Reference
    wanted: int
    least: float
    kept: list[Tensor] = field(default_factory=list)
    tried: int = 0
    far: int = 0
    near: int = 0
    same: int = 0

    @property
    def short(self) -> bool:
        """Whether images are missing."""
        return len(self.kept) < self.wanted

    def take(self, candidates: Tensor, seed: int, closeness: float) -> None:
        """Test a pass's candidates (m, C, H, W) one after the other, until enough are kept."""
        pixels = candidates.flatten(1).double()
        both = _compute_features(self.settings, torch.cat([pixels, self.reference.pixels]), seed)
        features, of_reference = both[: len(pixels)], both[len(pixels) :]
        verdicts = meets_requirements(
            pixels,
            features,
            self.reference,
            of_reference,
            closeness=closeness,
            neighbours=self.settings.nearest,
            others=self.settings.neighbours_of == "others",
        )
        for image, row, close, distinct in zip(candidates, pixels, *verdicts, strict=True):
            if not self.short:
                return
            self.tried += 1
            if not close:
                self.far += 1
            elif not distinct:
                self.near += 1
            elif self.least and self.kept and self._near_kept(row):
                self.same += 1
            else:
                self.kept.append(image)

    def _near_kept(self, row: Tensor) -> bool:
        """Whether a candidate lies nearer to a kept image than `least`."""
        return bool(((torch.stack(self.kept).flatten(1) - row).norm(dim=1) < self.least).any())

    def complaint(self, label: int) -> str:
        """Why there are too few, and a remedy for the condition that rejected most."""
        s = self.settings
        passes, closeness = s.max_passes * (s.doublings + 1), s.last_closeness
        remedies = {
            f"train the synthesis longer, or raise sampling.closeness or doublings above {closeness:g}": self.far,
            f"lower sampling.neighbours from {s.nearest}, or use a synthesis that copies less": self.near,
            f"lower sampling.spacing from {s.spacing:g}, or use a synthesis that varies more": self.same,
        }
        return (
            f"class {label}: {len(self.kept)} of {self.wanted} images were kept in {passes} passes of "
            f"{len(self.reference.pixels)} candidates; {self.far} were not close to a reference in features, "
            f"{self.near} too near to it in pixels, {self.same} too near to a kept one. Ask for fewer images, raise "
            f"sampling.max_passes, or {max(remedies, key=lambda remedy: remedies[remedy])}"
        )


def _empty_sample(settings: Sampling, images: Tensor, patient: Tensor, in_class: Tensor, count: int) -> _ClassSample:
    """An empty sample of the class whose images `in_class` (n,) marks."""
    other_patients = settings.neighbours_of == "others"
    check_other_classes = settings.name == "raw" and not bool(in_class.all())
    rest = (
        (images[~in_class], neighbour_distances(images, patient, other_images=other_patients)[~in_class])
        if check_other_classes
        else None
    )
    reference = make_reference(images[in_class], patient[in_class], rest)
    nearest = reference.between.clone().fill_diagonal_(torch.inf).amin(dim=1)
    least = settings.spacing * float(nearest.median()) if settings.name == "surrogate" else 0.0
    return _ClassSample(settings, reference, count, least)


def measure_gaps(settings: Sampling, candidates: Tensor, reference: Tensor, *, seed: int = 0) -> Tensor:
    """How far candidates (m, C, H, W) lie in features from the reference image (of (n, C, H, W)) that is nearest to
    them in pixels: (m,), in shares of the largest distance between references. Those below `closeness` are close.
    """
    known = make_reference(reference, torch.arange(len(reference)))
    pixels = _check_candidates(candidates, (len(candidates), *reference.shape[1:])).flatten(1).double()
    both = _compute_features(settings, torch.cat([pixels, known.pixels]), seed).double()
    features, of_reference = both[: len(pixels)], both[len(pixels) :]
    nearest = torch.cdist(pixels, known.pixels).argmin(dim=1)
    gaps: Tensor = (features - of_reference[nearest]).norm(dim=1) / torch.cdist(of_reference, of_reference).max()
    return gaps


def measure_spread(reference: Tensor) -> float:
    """The largest distance in pixels between images (n, C, H, W), n >= 2, divided by the median distance from one to
    the nearest other: what `spacing` is a multiple of.
    """
    between = make_reference(reference, torch.arange(len(reference))).between
    return float(between.max() / between.clone().fill_diagonal_(torch.inf).amin(dim=1).median())


def _compute_features(settings: Sampling, pixels: Tensor, seed: int) -> Tensor:
    """Line 8: features of candidates and references together."""
    components = project_images(compute_basis(pixels, settings.components), pixels)
    if settings.in_use[0] == "pca":
        return components
    return tsne(components, perplexity=settings.perplexity, seed=seed)


def _check_candidates(candidates: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Candidates on the CPU, after a check of shape and values."""
    if tuple(candidates.shape) != shape:
        raise ValueError(f"candidates have shape {tuple(candidates.shape)}, needed is {shape}, as the references")
    if not bool(candidates.isfinite().all()):
        raise ValueError("candidates hold numbers that are not finite: the synthesis diverged; lower its learning rate")
    return candidates.detach().cpu().float()


def _find_request_problems(
    settings: Sampling, reference: Tensor, labels: Tensor, patient: Tensor, counts: Mapping[int, int]
) -> list[str]:
    """Everything that is wrong with the request."""
    wrong = []
    if labels.shape != (len(reference),) or patient.shape != (len(reference),):
        shapes = f"{tuple(labels.shape)} and {tuple(patient.shape)}"
        return [f"labels and patient have shapes {shapes}, needed is ({len(reference)},), one for each reference image"]
    if reference.ndim < 2 or not bool(reference.isfinite().all()):
        wrong.append(f"references must be finite and (n, ...), found shape {tuple(reference.shape)}")
    for label, number in counts.items():
        in_class = labels == label
        images, patients = int(in_class.sum()), len(set(patient[in_class].tolist()))
        if number < 0:
            wrong.append(f"count of class {label} is {number}, allowed is 0 or more")
        if images < FEWEST:
            wrong.append(f"class {label} has {images} reference images, needed are {FEWEST}")
        elif settings.neighbours_of == "others" and patients < 2:
            wrong.append(
                f"class {label} has references of one patient, who has no other patient's images for neighbours; "
                f"write sampling.neighbours_of: any"
            )
    return wrong
