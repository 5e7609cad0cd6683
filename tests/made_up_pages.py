"""A page of each kind that no small run writes, from records that were made up, with hostile names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from evaluation.adaptation import AdaptedLine
from evaluation.benchmark import BenchmarkPage, Reason, Visited, render_benchmark_page
from evaluation.drawing import png_uri
from evaluation.records import Command, SitePage, SplitCount
from evaluation.rendering import render_page
from evaluation.report import render_site_page
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.run_list import (
    HospitalModel,
    RunLine,
    RunProgress,
    RunState,
    StageLine,
    TaskLine,
    Training,
    render_progress_page,
    render_run_list,
)
from evaluation.site_page import OutsideDetails
from evaluation.study import StudyCase, StudyPage, StudyRow, StudyRun
from evaluation.study_page import render_study_page
from evaluation.wording import Words
from harmonize.quality import Quality
from harmonize.scale import Scale
from pipelines.batch import harmonized_page
from pipelines.batch.contact_sheet import SheetImage, UnknownLayout, View, build_sheet
from pipelines.nights.page import Week, build_page

EVIL = "<b>north & 'south'</b>"
DATE = "2026-11-29T10:00:00+00:00"


def make_pages(folder: Path) -> Mapping[str, str]:
    """Kind -> page. folder: for files."""
    return {
        "study": _make_study(),
        "benchmark": _make_benchmark(),
        "nights": _make_nights(),
        "sheet": _make_sheet(),
        "harmonize": _make_harmonized(folder),
        "outside": _make_outside(),
        "runs": _make_run_list(),
        "progress": _make_progress("done"),
        "at work": _make_progress("at work"),
    }


def _row(site: str, value: float, protocol: str = PRIVATE, measure: str = "AUC") -> ScoreRow:
    return ScoreRow(
        "ours", protocol, (site,), measure, value, value - 0.1, value + 0.1, 100, 0, 30, 30, 15, 15, 15, True, False
    )


def _make_study() -> str:
    cases, rows = [], []
    for name, share in (("few", 0.2), ("many", 0.6)):
        runs = tuple(StudyRun(f"s_{name}_s{n}", n, "done", f"../{n}/report.html") for n in range(3))
        cases.append(StudyCase(name, f"{name} in words", share, ("a", EVIL), ("local", "vafl"), "local", runs))
        for seed in range(3):
            for place, method in enumerate(("local", "vafl")):
                for site in ("a", EVIL):
                    gain = 0.01 * (place + seed) if place else math.nan
                    places = (name, seed, method, "AUC", PRIVATE, (site,))
                    rows.append(StudyRow(*places, 0.7 + 0.01 * seed, 0.6, 0.9, True, 30, 9, gain))
    command = Command("Run what is missing", "python -m pipelines.study s.yaml")
    return render_study_page(
        StudyPage("A study", "s", DATE, "base.yaml", "", "A seed.", tuple(cases), tuple(rows), (command,), "{}")
    )


def _make_benchmark() -> str:
    why = {"ours": Reason("benchmark", "policy_model", "it trusts no key")}
    sites = (Visited("a", reasons={}), Visited(EVIL, reasons={}), Visited("silent", reasons=why))
    rows = (_row("a", 0.8), _row(EVIL, 0.6))
    return render_benchmark_page(BenchmarkPage("t", "r", DATE, True, "ours", 0.7, (), sites, rows, Words(), "{}"))


def _make_nights() -> str:
    weeks = [Week("2026-W48", 40, 40, 9, 3, 2, Counter({"gap": 2})), Week("2026-W47", 5, 0, 0, 1, 0)]
    return render_page(build_page(weeks, {"waiting": 2, "done": 3}, model="0" * 64, label=EVIL, written=DATE))


def _make_sheet() -> str:
    picture = png_uri(np.zeros((40, 60), np.uint8))
    image = SheetImage(EVIL, "maker, 60 x 40", 40, 60, (), (View("", picture, picture, picture),))
    unknown = UnknownLayout(EVIL, "maker, 60 x 40", 40, 60, picture, "- {manufacturer: maker}")
    return render_page(build_sheet("/a b", [image], [unknown], digest="0" * 16, command="python -m x", later=0))


def _make_harmonized(folder: Path) -> str:
    views = harmonized_page.Views(*(torch.rand(4, 1, 16, 16) * 2 - 1 for _ in range(3)), torch.arange(4))
    path = folder / "harmonize.html"
    quality = Quality(0.3, 0.2, gradient_correlation=0.9)
    scale = Scale(low=0.0, high=3.0)
    harmonized_page.write_page(
        path, views, by="histogram", unit="1", scale=scale, quality=quality, vetoed=("gradient_correlation",)
    )
    return path.read_text(encoding="utf-8")


def _make_outside() -> str:
    rows = (_row("west", 0.5, measure="Dice"),)
    split = (SplitCount("all patients", 6, 24, 0),)
    page = SitePage("t", "west", "r", DATE, True, "", split, rows, (), (), structures=("disc",))
    return render_site_page(page, OutsideDetails((AdaptedLine("ours", "routing", ("a", "(shared)")),), "images.fit"))


def _make_run_list() -> str:
    training = Training("fedavg", 3, ((1, 0.7), (2, 0.6)), 9)
    done = RunLine(EVIL, "done", 1.8e9, 9.0, 10**6, "report", (HospitalModel("a", "m", "AUC", 0.8, True),), ("3",),
                   {"a": "1"}, "x/report.html")  # fmt: skip
    working = RunLine("b", "at work", None, 9.0, 10**6, "train", settings={"a": "2"}, trainings=(training,))
    return render_run_list([working, done], "runs", DATE)


def _make_progress(state: RunState) -> str:
    return render_progress_page(
        RunProgress(
            EVIL, "demo", state, DATE, DATE, [StageLine("ingest", "done", 12.0, EVIL), StageLine("train", "at work")],
            [TaskLine(("demo", "train"), "round 1", 0.5, 61.0)], [Training("fedavg", 2, ((1, 0.7), (2, 0.6)), 4)],
            [("north", True), (EVIL, False)], "report.html",
        )
    )  # fmt: skip
