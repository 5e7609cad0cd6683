"""How often the veto forbids a translation that would have helped, and lets one through that harmed, on the phantom.

    python -m benchmarks.studies.veto_calibration    # figures of quality, and gains that nobody recorded yet
    python -m benchmarks.tables.derived --write veto-calibration

A case is one translator at one hospital with one population of patients: what its hospital would have measured on its
n training patients (`harmonize/quality.py`), and what translating at both hospitals then did to the AUC of FedAvg on
the hospital's 60 test patients, beside images as they were read. Translators that no patient shapes, since their gains
are recorded for each seed: `randomized` and `reinhard` as in measured/no_patient.json; `z_score` and `histogram` were
trained here in the same way. A gain of less than .01 either way is neither help nor harm.

Of CycleGANs (docs/results/harmonization.md) only means over three seeds are recorded, and how often each limit was
exceeded; a second table sets the two beside each other.

Limits are chosen on seeds 0 to 2 and judged on seeds 3 and 4.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.phantoms import read_slices
from benchmarks.shared.places import TABLES
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.studies import no_patient as base
from harmonize.intensity import HistogramMatch, ZScore
from harmonize.own import SiteImages
from harmonize.quality import Quality, measure_quality
from harmonize.randomized import Randomized
from harmonize.reinhard import Reinhard
from harmonize.scale import ignore_progress
from harmonize.translation import Translator
from harmonize.veto import HARMLESS, Limits, list_vetoes
from pipelines.hospital.public_networks import learn_translation as public_translation
from pipelines.phantom.patients import PhantomSource

TRANSLATORS: Mapping[str, Translator] = {
    "translator": Randomized(),
    "reinhard": Reinhard(),
    "z_score": ZScore(),
    "histogram": HistogramMatch(),
}
"""Line of no_patient.json, or of the book -> how; the first two were trained there."""
SITES = (("P", 11), ("L", 22))
SLICES = 6
MATTERS = 0.01
CHOICE, REPORT = (0, 1, 2), (3, 4)
SHARED = 200


class Case(NamedTuple):
    """quality: what the hospital measured. gain: of its AUC. whole: of the overall AUC of that run."""

    n: int
    seed: int
    translator: str
    site: str
    quality: Quality
    gain: float
    whole: float


def own(scanner: str, population: int, n: int) -> dict[str, Tensor]:
    """A hospital's training patients with their masks, as benchmarks/studies/no_patient.py reads them."""
    source = PhantomSource(scanner=scanner, patients=n + base.TEST, seed=population)  # type: ignore[arg-type]
    return read_slices(source, first=n)._asdict()


def into(how: Translator) -> Callable[[Tensor], Tensor]:
    """The way into a translator's space for images in 1e-3 mm²/s, whole patients one after another."""
    scale, (x, y) = base.KINDS["adc"].scale, base.public("adc")
    if isinstance(how, Randomized):
        params = public_translation(base.CACHE, how, base.INPUTS, progress=ignore_progress, device="cpu")
    else:
        params = how.fit(SiteImages(x, y, y), x, seed=0)
    return lambda x: scale.back(how.translate(params, scale.into(x), torch.arange(len(x)) // SLICES))


def judged(how: Translator, scanner: str, population: int, n: int) -> Quality:
    """What the veto looks at, as pipelines/hospital/translation.py measures it."""
    mine, scale, (x, _) = own(scanner, population, n), base.KINDS["adc"].scale, base.public("adc")
    after = into(how)(mine["x"])
    masks = mine["lesion"], mine["gland"]
    return measure_quality(
        scale.into(mine["x"]), scale.into(after), mine["y"], mine["patient"], *masks, x[:SHARED], seed=0
    )  # fmt: skip


def measure(ns: Sequence[int], seeds: Sequence[int], names: Sequence[str], train: Sequence[str]) -> None:
    """Fill the book: first figures of quality, which take seconds, then trainings of the lines named in `train`."""
    known = read_measured("no_patient")
    for n, seed, name in itertools.product(ns, seeds, names):
        for site, population in SITES:
            key = f"{n}|{seed}|{name}|{site}"
            if key not in (book := read())["quality"]:
                found = judged(TRANSLATORS[name], site, population + 1000 * seed, n)
                numbers = {k: None if math.isnan(v) else round(v, 5) for k, v in asdict(found).items()}
                book["quality"][key] = numbers
                write_measured("veto_calibration", book)
                print(key, list_vetoes(found, Limits()), flush=True)
    for seed, n, name in itertools.product(seeds, ns, train):
        key = f"{n}|{seed}|{name}"
        if name not in known.get(str(n), {}).get(str(seed), {}) and key not in (book := read())["scores"]:
            book["scores"][key] = base.trained(base.Line(name), n, seed, into(TRANSLATORS[name]))
            write_measured("veto_calibration", book)
            print(key, book["scores"][key]["as it is"], flush=True)


def read() -> dict[str, Any]:
    found: dict[str, Any] = read_measured("veto_calibration") or {"quality": {}, "scores": {}}
    return found


def cases() -> list[Case]:
    """Every case with both its figures and its gain."""
    book, known, found = read(), read_measured("no_patient"), []
    for key, numbers in book["quality"].items():
        n, seed, name, site = key.split("|")
        lines = known.get(n, {}).get(seed, {})
        line, raw = lines.get(name) or book["scores"].get(f"{n}|{seed}|{name}"), lines.get("raw")
        if line is None or raw is None:
            continue
        quality = Quality(**{k: math.nan if v is None else v for k, v in numbers.items()})
        ours, theirs = line["as it is"], raw["as it is"]
        gains = (ours[where] - theirs[where] for where in (site, "overall"))
        found.append(Case(int(n), int(seed), name, site, quality, *gains))
    return found


def refused(case: Case, limits: Limits) -> tuple[str, ...]:
    """Reasons against a translator that does not learn from patients."""
    return tuple(reason for reason in list_vetoes(case.quality, limits) if reason not in HARMLESS)


NO_LIMITS = Limits(**dict.fromkeys(vars(Limits())))
OF: Mapping[str, tuple[str, ...]] = {
    "contrast": ("contrast_low", "contrast_high"),
    "cnr": ("cnr",),
    "lesion_order": ("lesion_order",),
    "gland_order": ("gland_order",),
    "edges": ("edges",),
    "class_drift": ("drift",),
    "prevalence": ("prevalence",),
}
"""Reason -> the fields of its limit. Cycle error belongs to CycleGANs."""
GRID: Mapping[str, Sequence[float | None]] = {
    "drift": (0.03, 0.05, 0.075, 0.1, 0.15, None),
    "gland_order": (0.6, 0.7, 0.75, 0.85, 0.9, None),
    "lesion_order": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, None),
    "contrast_low": (0.6, 0.7, 0.8, 0.9, None),
}
"""What is tried for each limit, all combinations."""


def only(reason: str) -> Limits:
    return replace(NO_LIMITS, **{field: getattr(Limits(), field) for field in OF[reason]})


def counts(found: Sequence[Case], limits: Limits) -> dict[str, int]:
    """Cases by what the limits say and what the translation did."""
    told = {f"{said} {did}": 0 for said in ("refused", "passed") for did in ("helped", "neither", "harmed")}
    for case in found:
        said = "refused" if refused(case, limits) else "passed"
        did = "helped" if case.gain > MATTERS else "harmed" if case.gain < -MATTERS else "neither"
        told[f"{said} {did}"] += 1
    return told


def wrong(found: Sequence[Case], limits: Limits) -> float:
    """Mean of the share of helpful cases that are refused and of harmful ones that pass: .5 = a coin."""
    told = counts(found, limits)
    shares = [
        told[f"{bad} {did}"] / max(1, told[f"refused {did}"] + told[f"passed {did}"])
        for bad, did in (("refused", "helped"), ("passed", "harmed"))
    ]
    return float(np.mean(shares))


def best(found: Sequence[Case]) -> Limits:
    """The limits of the grid that are wrong least often; of equals those with the fewest changes."""
    tried = [replace(Limits(), **dict(zip(GRID, values, strict=True))) for values in itertools.product(*GRID.values())]
    return min(tried, key=lambda limits: (wrong(found, limits), len(changes(limits))))


def changes(limits: Limits) -> list[str]:
    usual = vars(Limits())
    return [f"{name} {value}" for name, value in vars(limits).items() if value != usual[name]]


def interval(gains: Sequence[float]) -> str:
    """Mean and Student's 95 % interval, as if cases were independent, which two hospitals of one run are not."""
    return format_interval(gains, sign="+").replace("-", "−") if gains else "–"


def row(name: str, found: Sequence[Case], limits: Limits) -> list[str]:
    told = counts(found, limits)
    no = [case.gain for case in found if refused(case, limits)]
    yes = [case.gain for case in found if not refused(case, limits)]
    numbers = [str(told[f"{said} {did}"]) for did in ("helped", "neither", "harmed") for said in ("refused", "passed")]
    pairs = [f"{a} / {b}" for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return [name, *pairs, interval(no), interval(yes), f"{wrong(found, limits):.2f}"]


COLUMNS = ["refused / passed: helped", "neither", "harmed", "gain where refused", "gain where passed", "wrong"]


def limits_table(found: Sequence[Case]) -> dict[str, object]:
    rows = [row(reason, found, only(reason)) for reason in OF]
    return make_table(["limit alone", *COLUMNS], [*rows, row("all, as by default", found, Limits())])


def translators_table(found: Sequence[Case]) -> dict[str, object]:
    rows = []
    for n, name, site in itertools.product(sorted({c.n for c in found}), TRANSLATORS, ("P", "L")):
        own_ = [case for case in found if (case.n, case.translator, case.site) == (n, name, site)]
        if own_:
            said: dict[str, int] = {}
            for reason in itertools.chain.from_iterable(refused(case, Limits()) for case in own_):
                said[reason] = said.get(reason, 0) + 1
            why = ", ".join(f"{reason} {times}/{len(own_)}" for reason, times in said.items()) or "none"
            gain = interval([case.gain for case in own_])
            rows.append([name.replace("translator", "randomized"), f"{n}", site, f"{len(own_)}", gain, why])
    return make_table(["translator", "n", "hospital", "seeds", "gain in AUC", "refused by default, for"], rows)


def chosen_table(found: Sequence[Case]) -> dict[str, object]:
    first, second = ([c for c in found if c.seed in seeds] for seeds in (CHOICE, REPORT))
    limits = best(first)
    named = ", ".join(changes(limits)) or "the default"
    candidates = [("default", Limits()), (named, limits), ("no limit", NO_LIMITS)]
    rows = [row(f"{name}, seeds {seeds}", part, lim) for seeds, part in (("0–2", first), ("3, 4", second)) for name, lim in candidates]  # fmt: skip # noqa: E501
    return make_table(["limits", *COLUMNS], rows)


def lines_of(told: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    """Line, its mean overall AUC less that of FedAvg in ADC units, and what the veto would have said."""
    rows = told["rows"]
    raw = next(float(cells[1].split()[0]) for cells in rows if cells[0] == "FL, ADC units")
    last = ""
    for cells in rows:
        name, value, why = cells[0], float(cells[1].split()[0]), cells[-1]
        last = name if not name.startswith("—") else last
        if why:
            yield f"{last} {name.removeprefix('— ')}" if name.startswith("—") else name, value - raw, why


def share_refused(name: str, why: str) -> float:
    """Of the seeds: all but those in which no limit was exceeded. Without effect is no reason against a curve."""
    said = {reason: int(a) / int(b) for reason, a, b in re.findall(r"(\w+) (\d)/(\d)", why)}
    if not name.startswith("VAFL") and said.keys() <= {"no_effect", "none"}:
        return 0.0
    return 1.0 - said.get("none", 0.0)


def gans_table() -> dict[str, object]:
    rows = []
    recorded = json.loads((TABLES / "harmonization.json").read_text())
    for part, what in (("few", "16, equal"), ("many", "48, equal"), ("unequal", "16, unequal")):
        for name, gain, why in lines_of(recorded[part]):
            rows.append([name, what, f"{gain:+.3f}".replace("-", "−"), why, f"{share_refused(name, why):.0%}"])
    for cells in rows:
        cells[-1] = cells[-1].replace("%", " %")
    return make_table(
        ["line", "n, prevalence", "gain in overall AUC", "limits exceeded, of seeds", "seeds refused"], rows
    )


def tables(_: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the page."""
    return {
        "translators": translators_table(cases()),
        "limits": limits_table(cases()),
        "chosen": chosen_table(cases()),
        "recorded": gans_table(),
    }


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--translators", nargs="+", default=list(TRANSLATORS), choices=list(TRANSLATORS))
    parser.add_argument("--train", nargs="*", default=["z_score"], choices=list(TRANSLATORS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(options.n, options.seeds, options.translators, options.train)
