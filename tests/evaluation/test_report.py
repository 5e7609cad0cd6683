"""Pages and figures: self-contained, well formed, every picture named, every foreign word escaped."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from outlined import fill_path, read_paths, read_pictures

from evaluation import figures, heat, patients, pictures, protocols, records, report, scoring, wording
from evaluation.drawing import INK
from evaluation.histograms import count_scores
from evaluation.leaving import Left
from evaluation.metrics import AUC
from evaluation.rendering import write_policy

EVIL = '<b>St. Mary & "Co"</b>'
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Outline(HTMLParser):
    """What a page consists of; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.data = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs, tuple(self.open)))
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))
        self.ids += [dict(attrs)["id"]] if "id" in dict(attrs) else []

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.data.append(data)


def table(strength, sites):
    rng = np.random.default_rng(0)
    y = {s: rng.integers(0, 2, n) for s, n in sites.items()}
    p = {s: 1 / (1 + np.exp(-strength * (y[s] - 0.5) + rng.normal(0, 1, len(y[s])))) for s in sites}
    return {
        (m, t): count_scores(y[t], np.c_[1 - p[t], p[t]], np.arange(len(y[t])) // 2, copies=20, seed=0, site=t)
        for m in sites
        for t in sites
    }


@pytest.fixture(scope="module")
def found():
    sites = {EVIL: 80, "small": 8}
    tables = {"local": table(1, sites), "$fed$ <avg>": table(3, sites)}
    return tables, scoring.score_rows(tables, reference="local"), scoring.gain_rows(tables, reference="local")


@pytest.fixture(scope="module")
def drawn(found):
    tables, scores, _ = found
    roc = {s: {m: t[s, s].scores[0, 0] for m, t in tables.items()} for s in (EVIL, "small")}
    curve = figures.Curve((1, 2, 4), (0.7, 0.5, 0.45))
    return (
        figures.draw_score_dots(scores, "AUC"),
        figures.draw_gain_bars(scores, "AUC", "local"),
        figures.draw_roc_curves(roc),
        figures.draw_learning_curves(
            {s: {"local": curve, "other": figures.Curve((1,), (0.6,))} for s in (EVIL, "small")}
        ),
        heat.draw_cross_site(*protocols.score_matrix(tables["local"], AUC), "AUC", "local"),
        patients.draw_intensities({"train": np.arange(100), "test": np.arange(50)}, unit="1e-6 mm²/s"),
    )


@pytest.fixture(scope="module")
def pages(found, drawn):
    _, scores, gains = found
    counts = records.SiteCounts(EVIL, (records.SplitCount("test", 40, 80, 39),), {"gap": 2})
    left = (Left(EVIL, "train", 12, 1_234_567), Left("small", "train", 12, 999, "2.10 at δ = 1e-5"))
    run = records.RunPage(
        title="A run of " + EVIL,
        run="demo",
        date="21 November 2026",
        what="2 methods",
        simulation=True,
        reference="local",
        sites=(counts, replace(counts, site="small", splits=(), rejected={})),
        scores=scores,
        gains=gains,
        methods=(records.MethodCost("local", 12345, 0, 0, 5),),
        left=left,
        missing=(records.Missing("small", "train", "deadline", 3),),
        stages=(records.StageState("train", "run", 75.0, "method changed"),),
        settings="name: <script>alert(1)</script>",
        commands=(records.Command("Go on:", "python -m pipelines.run demo.yaml"),),
        pictures=drawn,
    )
    own = tuple(row for row in scores if row.protocol == "private" and row.sites == (EVIL,))
    image = np.random.default_rng(0).normal(size=(12, 20))
    sheet = pictures.contact_sheet([pictures.Tile(image, EVIL, lesion=image > 1)], title="Training")
    site = records.SitePage(
        title="A run",
        site=EVIL,
        run="demo",
        date="21 November 2026",
        simulation=False,
        reference="local",
        splits=counts.splits,
        scores=own,
        left=left[:1],
        quarantine=(records.Quarantined("0031/<adc>", "gap", "Slices jump by 9 mm."),),
        images=(sheet,),
        pictures=drawn[3:],
    )
    return {"run": report.render_coordinator_page(run), "site": report.render_site_page(site)}, run, site


@pytest.mark.parametrize("which", ["run", "site"])
def test_a_page_is_well_formed_and_self_contained(pages, which):
    text = pages[0][which]
    outline = Outline(text)
    assert len(outline.ids) == len(set(outline.ids))
    assert not re.search(r"https?:|//[a-z]|@import", re.sub(r"data:image/png;base64,[\w+/=\s]+", "", text))
    script = (Path(report.__file__).parent / "templates" / "page.js").read_text(encoding="utf-8")
    assert re.findall("<script.*?>(.*?)</script>", text, flags=re.DOTALL) == [script.rstrip("\n")]
    (policy,) = (attrs["content"] for _, attrs, _ in outline.tags if "http-equiv" in attrs)
    assert policy == write_policy(script.rstrip("\n"))
    for tag, attrs, _ in outline.tags:
        assert tag not in {"link", "iframe"} and not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href"):
            assert attrs.get(name, "#").startswith(("#", "data:image/png;base64,"))
    targets = {a["href"][1:] for _, a, _ in outline.tags if a.get("href", "").startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", text)) | {
        a["aria-labelledby"] for _, a, _ in outline.tags if "aria-labelledby" in a
    }
    assert targets <= set(outline.ids)


@pytest.mark.parametrize("which", ["run", "site"])
def test_everything_has_a_name_and_every_table_a_caption(pages, which):
    tags = Outline(pages[0][which]).tags
    assert any(tag == "svg" for tag, _, _ in tags)
    for tag, attrs, _ in tags:
        if tag == "svg":
            assert attrs.get("aria-hidden") == "true" or (attrs["role"] == "img" and len(attrs["aria-label"]) > 20)
        if attrs.get("class") == "panels":
            assert attrs["role"] == "img" and len(attrs["aria-label"]) > 20
        if tag == "img":
            assert attrs["alt"]
        if tag == "th":
            assert attrs["scope"] in {"row", "col"}
    count_of = [tag for tag, _, _ in tags].count
    assert count_of("table") == count_of("caption") > 2
    assert count_of("h1") == count_of("main") == 1


@pytest.mark.parametrize("which", ["run", "site"])
def test_names_are_escaped_wherever_they_stand(pages, which):
    text = pages[0][which]
    assert EVIL not in text and "<b>St" not in text and "<script>alert" not in text and "<avg>" not in text
    assert "&lt;b&gt;St. Mary" in text
    assert INK not in text


def test_the_coordinators_page_answers_how_good_for_whom_what_left(pages):
    text = " ".join("".join(Outline(pages[0]["run"]).data).split())
    _, run, _ = pages
    mean = next(r for r in run.scores if r.protocol == "private mean" and r.method == "$fed$ <avg>")
    for said in (
        f"{mean.value:.3f}",
        f"{mean.low:.3f} – {mean.high:.3f}",
        f"{run.gains[0].mean:+.3f}".replace("-", "−"),
        "2 × gap",
        "1.2\u202fMB",
        "999\u202fB",
        "∞: no formal guarantee",
        "2.10 at δ = 1e-5",
        "3 replies did not come",
        "Simulation.",
        "not assessable too few to judge by: small",
        "1 min 15 s",
        "12\u202f345",
        "For research use only.",
        "name: <script>alert(1)</script>",
        "python -m pipelines.run demo.yaml",
    ):
        assert " ".join(said.split()) in text, said
    order = [i for i in Outline(pages[0]["run"]).ids if i in {"good", "whom", "out", "scores", "left"}]
    assert order == ["good", "whom", "out", "scores", "left"]
    assert "no patient's image, label or record is among them" in text
    assert "is among them" not in report.render_coordinator_page(
        replace(run, left=(*run.left, replace(run.left[0], records="left")))
    )
    assert "Simulation." not in report.render_coordinator_page(replace(run, simulation=False))


def test_the_hospitals_page_stays(pages):
    text = pages[0]["site"]
    assert "This page stays at this hospital." in text
    assert "0031/&lt;adc&gt;" in text and "Slices jump by 9 mm." in text
    assert "Simulation." not in text
    assert "For research use only." in text


def test_pages_of_nothing_can_be_read(pages):
    _, run, site = pages
    empty = replace(
        run, sites=(), scores=(), gains=(), methods=(), left=(), missing=(), stages=(), commands=(), pictures=()
    )
    text = report.render_coordinator_page(empty)
    Outline(text)
    assert "No method was scored" in text and "Nothing left." in text
    bare = report.render_site_page(replace(site, splits=(), scores=(), left=(), quarantine=(), images=(), pictures=()))
    Outline(bare)
    assert "every study could be used" in bare


def test_one_hospital_alone_is_shown_by_its_own_score(pages):
    _, run, _ = pages
    own = tuple(r for r in run.scores if r.protocol == "private" and r.sites == (EVIL,))
    text = "".join(Outline(report.render_coordinator_page(replace(run, scores=own))).data)
    assert "The model on the hospital's own test patients" in text
    assert f"{own[0].value:.3f}" in text


def test_figures_are_the_same_each_time_and_tell_their_numbers(found, drawn):
    _, scores, _ = found
    again = figures.draw_score_dots(scores, "AUC")
    assert again == drawn[0]
    row = next(r for r in scores if r.measure == "AUC" and r.protocol == "private")
    assert f"{row.value:.3f} ({row.low:.3f} to {row.high:.3f})" in again.html
    assert ", not assessable" in again.html
    assert "$fed$ &lt;avg&gt;" in again.html


def test_roc_draws_only_corners_and_survives_a_missing_class():
    scores = np.zeros((2, 1024), int)
    scores[0, :5] = 1
    assert "–" in figures.draw_roc_curves({"a": {"m": scores}}).html
    scores[1, -3:] = 2
    text = figures.draw_roc_curves({"a": {"m": scores}}).html
    assert "m 1.000" in text
    assert len(text) < 30_000


def test_a_contact_sheet_outlines_the_lesion_and_lays_the_cam():
    image, lesion = np.zeros((10, 20)), np.zeros((10, 20), bool)
    lesion[3:7, 5:15] = True
    sheets = ({}, {"lesion": lesion}, {"cam": lesion * 1.0})
    plain, outlined, cammed = (
        pictures.contact_sheet([pictures.Tile(image, "x", **extra)], title="t", window=(0, 1)).html for extra in sheets
    )
    (ground,) = read_pictures(plain)
    assert ground.mode == "L" and ground.size == (20, 10) and not read_paths(plain, pictures.LESION)
    (path,) = read_paths(outlined, pictures.LESION)
    assert (fill_path(path, lesion.shape) == lesion).all()
    cover = np.asarray(read_pictures(cammed)[1].convert("RGBA"))[..., 3]
    assert ((cover > 0) == lesion).all()
    text = pictures.contact_sheet([pictures.Tile(image, "slice 3", lesion=lesion)], title="t").html
    assert 'role="img" aria-label="Image: slice 3, lesion outlined"' in text


def test_tiles_that_do_not_fit_are_all_named():
    image = np.zeros((4, 4))
    bad = [pictures.Tile(np.zeros((4, 4, 2)), ""), pictures.Tile(image, "", lesion=np.zeros((2, 4)), cam=np.zeros(4))]
    with pytest.raises(ValueError, match=r"image 0 .*lesion 1 .*cam 1 "):
        pictures.contact_sheet(bad, title="t")
    assert "No images." in pictures.contact_sheet([], title="t").caption


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (64_812_000, "64.8 MB"), (10**13, "10000 GB")],
)
def test_sizes(value, said):
    assert wording.format_size(value) == said.replace(" ", "\u202f")


@pytest.mark.parametrize(
    ("value", "said"),
    [(4.21, "4.2 s"), (59.96, "1 min 00 s"), (75, "1 min 15 s"), (7500, "2 h 05 min"), (math.nan, "–")],
)
def test_durations(value, said):
    assert wording.format_duration(value) == said


def test_numbers_with_a_sign_use_a_minus():
    assert (wording.format_signed(-0.1234), wording.format_signed(0.5), wording.format_signed(math.nan)) == (
        "−0.123",
        "+0.500",
        "–",
    )


def test_the_page_tells_how_much_work_a_round_is_and_whether_methods_differ(pages):
    run = pages[1]

    def told(*work: str) -> str:
        costs = tuple(
            records.MethodCost(f"m{k}", 10, 0, 0, 5, gradients=one, lowest=0.4321) for k, one in enumerate(work)
        )
        return report.render_coordinator_page(replace(run, methods=costs))

    equal, unequal = told("8", "8", ""), told("8", "2 epochs")
    assert '<td class="num">8</td>' in equal and '<td class="num">–</td>' in equal
    assert '<td class="num">0.432</td>' in equal
    assert "Methods do unequal work here" in unequal and "Methods do unequal work here" not in equal
