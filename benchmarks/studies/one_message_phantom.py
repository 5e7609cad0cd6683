"""One message of moments at two hospitals of the prostate phantom, with 640 or 80 patients each, private and not.

    python -m benchmarks.studies.one_message_phantom [--splits 5]

Volumes of 6 x 48 x 48 voxels (3.6 and 1.5 mm), one for each patient; features `detector`, of a network that learnt from
the prior `prostate_adc`, and `radiomics`, both scaled by stacks that the prior draws; a patient is positive with 3
voxels or more of clinically significant cancer. Every population has patients of its own: scanners P and L, 640
patients each, of whom 384 are trained on (48 in the case of 80) and 192 tested, the same 192 in both cases. AUC at each
hospital, mean of the two. Every private line is (epsilon, 1e-5) for each patient, add or remove. Populations 0 to 4 are
reported (`--splits`); settings were chosen on populations 100 and 101. Floors that cost no epsilon: an SVM that each
hospital keeps at home, the area that the detector marks with the most certainty, and a head learnt on the prior's
labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.shared.options import ask_splits
from benchmarks.shared.places import BUILD, ROOT
from benchmarks.shared.records import collect_splits
from benchmarks.studies.one_message import margins, models, scaled, score_svm
from federation.features.detector import Detector, load_detector, train_detector_network
from federation.features.extracting import Extractor
from federation.features.radiomics import Radiomics
from harmonize.prior import PRIORS, draw_with_marks
from harmonize.stacks import draw_in_form
from personalize.moments import Moments
from pipelines.data.images import Volumes
from pipelines.data.prepare import prepare_volume
from pipelines.data.study import Volume
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.harmonization import default_scale

CACHE = BUILD / "one_message_phantom"
PATIENTS_FILE = "pipelines/phantom/patients.py"
SOURCES = {
    "radiomics": ("federation/features/radiomics.py", "federation/features/texture.py", PATIENTS_FILE),
    "detector": ("federation/features/detector.py", "harmonize/prior_prostate.py", PATIENTS_FILE),
}
IMAGES = Volumes(spacing_mm=1.5, size=48, depth=6, depth_mm=3.6)
PATIENTS, TESTED, TRAINED = 640, 192, {640: 384, 80: 48}
PICTURES = 600
EPSILONS = (1.0, 3.0, 8.0, None)
FLOOR = "SVM with a Gaussian kernel, {}, alone"


def digest(name: str) -> str:
    """Of the sources on which features depend."""
    told = "".join((ROOT / one).read_text() for one in (*SOURCES[name], PATIENTS_FILE))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def extractor(name: str) -> Extractor:
    """Radiomics, or the detector, whose weights are kept in build/."""
    if name == "radiomics":
        return Radiomics()
    settings, kept = Detector(on="prostate_adc"), CACHE / f"{digest(name)}.safetensors"
    if not kept.exists():
        y = torch.arange(settings.pictures) % 2
        x, marks = draw_with_marks(PRIORS[settings.on], y, (1, settings.size, settings.size), 0)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(train_detector_network(settings, x, marks, lambda done, total: None))
    return load_detector(settings, kept.read_bytes())


def computed(name: str, population: int) -> dict[str, np.ndarray]:
    """Features and labels of both hospitals' patients, and features of the prior's stacks; kept in build/."""
    kept = CACHE / f"{digest(name)}-{population}.npz"
    if not kept.exists():
        of, arrays = extractor(name), {}
        for number, scanner in enumerate(("P", "L")):
            source = PhantomSource(scanner=scanner, patients=PATIENTS, seed=10 * population + number)
            each = [_patient(of, source, patient) for patient in range(PATIENTS)]
            arrays[f"x{number}"] = np.stack([x for x, _ in each])
            arrays[f"y{number}"] = np.array([y for _, y in each])
        public = torch.cat(list(draw_in_form(PRIORS["prostate_adc"], torch.arange(PICTURES) % 2, IMAGES.inputs, 0)))
        arrays["public"] = of.extract(default_scale(IMAGES).back(public).double().numpy())
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **arrays)
    with np.load(kept) as arrays:
        return dict(arrays)


def _patient(of: Extractor, source: PhantomSource, patient: int) -> tuple[np.ndarray, int]:
    seen = render(source, patient)
    image = Volume(np.asarray(seen.image.values, np.float32) * np.float32(1e-3), seen.image.affine)
    examples = prepare_volume(image, lesion=seen.lesion, gland=seen.gland, images=IMAGES)
    return of.extract(examples.images.astype(float))[0], int(examples.lesion.sum(dtype=np.int64) >= 3)


def lines_of(population: int, patients: int, tried) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) of one population. tried: features' name -> name -> (scale, method)."""
    for name, methods in tried.items():
        for line, epsilon, value in _lines_of(computed(name, population), patients, methods):
            yield line.format(name), epsilon, value


def _lines_of(held: dict[str, np.ndarray], patients: int, tried) -> Iterator[tuple[str, float | None, float]]:
    found = np.concatenate([held["x0"], held["x1"]])
    y = np.concatenate([held["y0"], held["y1"]])
    whose = np.arange(2 * PATIENTS)
    train, test = {}, {}
    for number, name in enumerate("PL"):
        own = whose - number * PATIENTS
        train[name] = np.flatnonzero((own >= 0) & (own < TRAINED[patients]))
        test[name] = np.flatnonzero((own >= PATIENTS - TESTED) & (own < PATIENTS))

    def mean(score: Callable[[str, np.ndarray], np.ndarray]) -> float:
        return float(np.mean([roc_auc_score(y[test[name]], score(name, test[name])) for name in test]))

    for epsilon in EPSILONS:
        solved: dict[str, Callable[[Moments], dict[str, torch.nn.Module]]] = {}
        for label, (how, method) in tried.items():
            x = scaled(found, held["public"], how)
            key = json.dumps([how, method.radius])
            networks = solved.setdefault(key, models(x, y, whose, train, epsilon, method))(method)

            yield label, epsilon, mean(lambda name, rows, x=x, nets=networks: margins(nets[name], x[rows]))
    yield FLOOR, None, mean(lambda name, rows: score_svm(found, y, train[name], rows))
    drawn = np.arange(PICTURES) % 2
    nobody = make_pipeline(StandardScaler(), LogisticRegression(C=0.03, max_iter=500)).fit(held["public"], drawn)
    yield NOBODY, None, mean(lambda name, rows: nobody.decision_function(found[rows]))
    if len(found[0]) == DETECTED:
        yield MARKED, None, mean(lambda name, rows: found[rows, 2])


NOBODY = "{}: a head learnt on the prior's labels, which no patient shaped (ε = 0)"
MARKED = "{}: how sure it is of its surest 1/240 of a slice, which no patient shaped (ε = 0)"
DETECTED = 62  # features of a detector
ALONE = Moments(others_gram=0.0, others_classes=0.0, radius=0.7)
TOGETHER = Moments(others_gram=1.0, others_classes=0.5, radius=0.7)
FIRMER = Moments(others_gram=1.0, others_classes=1.0, radius=0.7)
METHODS = {"alone": ALONE, "together": TOGETHER, "together, firmer": FIRMER}
SCALES = {"detector": {"components": 12, "softness": 0.1}, "radiomics": {"components": 48, "softness": 0.1}}
REPORTED = {
    name: {f"moments, {{}}, {label}": (scale, method) for label, method in METHODS.items()}
    for name, scale in SCALES.items()
}


def main() -> None:
    options = ask_splits(__doc__, "one_message_phantom", splits=5)
    given = partial(lines_of, tried=REPORTED)
    collect_splits(options, {f"2 x {patients} patients": partial(given, patients=patients) for patients in TRAINED})


if __name__ == "__main__":
    main()
