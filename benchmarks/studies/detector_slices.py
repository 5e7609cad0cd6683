"""The detector that only drawn masks taught, on the slices of `no_patient.py`: without any head, and under moments.

    python -m benchmarks.studies.detector_slices [--splits 5] [--contrasts adc t2w]

Two phantom hospitals, n training patients and 60 test patients each, the slices and seeds of no_patient.py;
AUC of slices, of both hospitals' scores in one sample. A private line is (epsilon, 1e-5) for each patient, add or
remove. Nothing was chosen here: components and softness are those of `one_message_phantom.py`, weights the defaults of
`moments`, and the detector of a contrast differs from the other's in its prior and window alone. Figures go into
measured/detector_slices.json as they come; what stands there is not run again. `no_patient_tables.py` makes the
table, gains over lines of `no_patient.py` in pairs of seeds.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import read_measured, say_epsilon, write_measured
from benchmarks.studies.no_patient import INPUTS, KINDS, hospitals, public
from benchmarks.studies.one_message import margins, models, scaled
from benchmarks.studies.one_message_phantom import CACHE, SCALES
from federation.features.detector import Detector, load_detector, train_detector_network
from federation.features.extracting import Extractor
from harmonize.prior import PRIORS, draw_with_marks
from personalize.moments import Moments
from pipelines.phantom.patients import Contrast

SPOT, HEAD = "surest spot", "moments"
SUREST = 2  # the feature: how sure the detector is of its surest 1/240 of a slice
SOURCES = ("federation/features/detector.py", "harmonize/prior_prostate.py", "harmonize/prior_prostate_t2w.py")


@cache
def detector(contrast: Contrast) -> Extractor:
    """What learnt from the prior's pictures of a contrast, whose weights are kept in build/."""
    scale, prior = KINDS[contrast]
    settings = Detector(on=prior, window=(scale.low, scale.high))
    told = "".join((ROOT / one).read_text() for one in SOURCES) + repr(settings)
    kept = CACHE / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.safetensors"
    if not kept.exists():
        y = torch.arange(settings.pictures) % 2
        x, marks = draw_with_marks(PRIORS[settings.on], y, (INPUTS[0], settings.size, settings.size), 0)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(train_detector_network(settings, x, marks, lambda done, total: None))
    return load_detector(settings, kept.read_bytes())


def lines_of(contrast: Contrast, n: int, seed: int) -> dict[str, float]:
    """Line -> AUC of both hospitals' scores in one sample."""
    of, both = detector(contrast), hospitals(n, seed, contrast)["raw"]
    train = [of.extract(one.train.x.double().numpy()) for one in both]
    test = [of.extract(one.x.double().numpy()) for one in both]
    labels = np.concatenate([one.y.numpy() for one in both])
    found = {SPOT: float(roc_auc_score(labels, np.concatenate(test)[:, SUREST]))}
    scale, drawn = SCALES["detector"], of.extract(KINDS[contrast].scale.back(public(contrast)[0]).double().numpy())
    x, y = np.concatenate(train), np.concatenate([one.train.y.numpy() for one in both])
    patient = np.concatenate([one.train.patient.numpy() + 10_000 * number for number, one in enumerate(both)])
    rows = {"P": np.arange(len(train[0])), "L": np.arange(len(train[0]), len(x))}
    x = scaled(x, drawn, scale)
    for epsilon in (1.0, 3.0, None):
        networks = models(x, y, patient, rows, epsilon, Moments())(Moments())
        scores = []
        for name, features in zip(rows, test, strict=True):
            scores.append(margins(networks[name], scaled(features, drawn, scale)))
        said = say_epsilon(epsilon).replace("inf", "∞")
        found[f"{HEAD}, ε = {said}"] = float(roc_auc_score(labels, np.concatenate(scores)))
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--contrasts", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--n", type=int, nargs="+", default=[16, 48])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for contrast in options.contrasts:
        for n in options.n:
            for seed in range(options.splits):
                book = read_measured("detector_slices")
                of = book.setdefault(contrast, {}).setdefault(str(n), {})
                if str(seed) not in of:
                    of[str(seed)] = lines_of(contrast, n, seed)
                    write_measured("detector_slices", book)
                    print(contrast, n, seed, of[str(seed)], flush=True)


if __name__ == "__main__":
    main()
