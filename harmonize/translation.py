"""One interface for every method that makes a site's images look like the shared ones (VAFL, section II.C)."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

from federation.registry import Group
from harmonize.cyclegan import CycleGan
from harmonize.intensity import HistogramMatch, Identity, Nyul, Percentile, ZScore
from harmonize.own import SiteImages, rows_of
from harmonize.randomized import Randomized
from harmonize.reinhard import Reinhard
from harmonize.scale import Progress, ignore_progress
from privacy.dp.chunks import compute_repeatably, copy_rows
from privacy.folder import Folder
from privacy.message import Params

__all__ = [
    "TRANSLATORS",
    "AnyTranslator",
    "CycleGan",
    "HistogramMatch",
    "Identity",
    "Nyul",
    "Percentile",
    "Randomized",
    "Reinhard",
    "SiteImages",
    "Translator",
    "Translators",
    "ZScore",
    "fit_translator",
    "list_curve_translators",
    "translate_back",
    "translate_each_patient",
]


class Translator(Protocol):
    """A frozen dataclass whose fields are its YAML keys."""

    @property
    def name(self) -> str:
        """Its name in YAML."""
        ...

    @property
    def learns(self) -> bool:
        """Whether a patient's translation depends on other patients, without an epsilon that covers it."""
        ...

    def fit(
        self,
        site_images: SiteImages,
        shared: Tensor,
        *,
        seed: int,
        folder: Folder | None = None,
        progress: Progress = ...,
        device: str | torch.device = "cpu",
    ) -> Params:
        """Compute the translation's parameters from a site's training images and the shared ones (m, C, H, W).

        folder: state from which an interrupted training resumes; it is made from patients and stays at the site.
        progress: shows progress; may raise to stop.

        Raises:
            ValueError: the images do not suit these settings; all reasons are named.
        """
        ...

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Translate (n, C, H, W) in [-1, 1]. All images of a patient must come in one call; other patients in the same
        call make no difference.
        """
        ...


Translators: TypeAlias = CycleGan | Identity | ZScore | Percentile | Nyul | HistogramMatch | Reinhard | Randomized
"""Our translators that a YAML can name. A new one needs its class, a member here, and its line in the documents."""
TRANSLATORS = Group("translators", "translator", get_args(Translators), Translator)
AnyTranslator: TypeAlias = Annotated[Translators, TRANSLATORS]
"""In settings: one of these, or of an installed package or registered (`federation.registry`)."""


def list_curve_translators() -> tuple[str, ...]:
    """Names of the translators that change images and by which a patient's images depend on no other patient."""
    kinds = (kind for kind in get_args(Translators) if not kind.learns and kind is not Identity)
    return tuple(kind.__dataclass_fields__["name"].default for kind in kinds)


def fit_translator(
    settings: Translator,
    site_images: SiteImages,
    shared: Tensor,
    shared_labels: Tensor,
    *,
    seed: int,
    folder: Folder | None = None,
    progress: Progress = ignore_progress,
    device: str | torch.device = "cpu",
) -> Params:
    """`Translator.fit`; a CycleGAN also sees the shared images' classes (m,), which only its `by_class` uses."""
    if isinstance(settings, CycleGan):
        return settings.fit(
            site_images,
            shared,
            seed=seed,
            folder=folder,
            progress=progress,
            device=device,
            shared_labels=shared_labels,
        )
    return settings.fit(site_images, shared, seed=seed, folder=folder, progress=progress, device=device)


def translate_each_patient(settings: Translator, params: Params, images: Tensor, patient: Tensor) -> Tensor:
    """Translate (n, C, H, W) in [-1, 1], one patient at a time: the other patients change no bit of an image."""
    new = torch.empty_like(images)
    with compute_repeatably():
        for rows in rows_of(patient):
            new[rows] = settings.translate(params, copy_rows(images, rows), patient[rows])
    return new


def translate_back(settings: Translator, params: Params, images: Tensor) -> Tensor | None:
    """F(T(x)) for the cycle error; None if the translator has no inverse.

    images: (n, C, H, W), the site's own images x, *not* translated ones: T is applied here too, without `keep_mean`.
    """
    return settings.translate_back(params, images) if isinstance(settings, CycleGan) else None
