"""What a reader sees of both pages: words that fit, long lists folded, contrast, headings, print, no other document."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import figures, patients, records, report
from evaluation.drawing import COLOURS, DASHES
from evaluation.histograms import count_scores
from evaluation.leaving import Left
from evaluation.panels import line_style
from evaluation.scoring import score_rows
from evaluation.wording import Words, format_moment

LINES = Words("line", "lines", "line", "lines", looked_at=False)


class Seen(HTMLParser):
    """Text outside style and script, headings in order, and the tags with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.words, self.levels, self.tags, self.hidden = [], [], [], 0
        self.feed(text)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.hidden += tag in {"style", "script", "svg"}
        self.levels += [int(tag[1])] if re.fullmatch(r"h[1-6]", tag) else []

    def handle_endtag(self, tag):
        self.hidden -= tag in {"style", "script", "svg"}

    def handle_data(self, data):
        self.words += [] if self.hidden else [data]


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    found = {}
    for method, strength in (("local", 1), ("fedavg", 2)):
        found[method] = {}
        for site, n in (("a", 90), ("b", 8)):
            y = np.arange(n) % 2
            p = 1 / (1 + np.exp(-strength * (y - 0.5) + rng.normal(size=n)))
            found[method][site, site] = count_scores(y, np.c_[1 - p, p], np.arange(n), copies=20, seed=0, site=site)
    return found


def run_page(tables, **more):
    splits = tuple(records.SplitCount(split, 10, 20, 7) for split in ("train", "validation", "test"))
    page = records.RunPage(
        title="Heart disease",
        run="demo",
        date="2026-11-21T12:07:40+00:00",
        what="2 methods",
        simulation=True,
        reference="local",
        sites=(records.SiteCounts("a", splits, {"missing_value": 77}), records.SiteCounts("b", splits, {})),
        scores=score_rows(tables, reference="local"),
        gains=(),
        methods=(),
        left=(
            Left("a", "train", 3, 1500, content="parameters"),
            Left("b", "train", 4, 2500, "2 at δ = 1e-5", "parameters"),
            Left("b", "pool", 1, 99, records="left", of_patients="training examples with their labels"),
        ),
        missing=(),
        stages=(),
        settings="{}",
        commands=(records.Command("Use it", "python -m pipelines.predict MODEL FOLDER"),),
    )
    return report.render_coordinator_page(replace(page, **more))


def site_page(tables, **more):
    own = {method: {("a", "a"): table["a", "a"]} for method, table in tables.items()}
    page = records.SitePage(
        title="Heart disease",
        site="a",
        run="demo",
        date="2026-11-21T12:07:40+00:00",
        simulation=True,
        reference="local",
        splits=(records.SplitCount("train", 10, 20, 7),),
        scores=score_rows(own, reference="local"),
        left=(Left("a", "train", 3, 1500, content="parameters"),),
        quarantine=tuple(records.Quarantined(f"study-{i:08d}", "missing_value", "fill it in") for i in range(77)),
    )
    return report.render_site_page(replace(page, **more))


@pytest.fixture(scope="module")
def full(tables):
    """Both pages with everything that they can hold."""
    values = {"age": np.arange(20.0), "sex": np.arange(20) % 2.0}
    positive = np.arange(20) % 3 == 0
    gone = records.Withdrawn(2, 1, (records.Knew("demo/fedavg-0123456789ab", "its model was trained on them"),))
    look = figures.draw_learning_curves({"a": {"local": figures.Curve((1, 2), (0.7, 0.6))}}, order=["local"])
    site = records.SiteCounts("a", (records.SplitCount("test", 9, 9, 3),), {}, gone)
    return (
        run_page(tables, words=LINES, pictures=(look,), sites=(site,)),
        site_page(
            tables,
            words=LINES,
            withdrawn=gone,
            maps=(look, replace(look, title="more")),
            images=(patients.draw_features_by_class(values, positive),),
            characteristics=patients.compute_characteristics(values, positive),
            commands=(records.Command("Use it", "python -m pipelines.predict MODEL FOLDER"),),
        ),
    )


@pytest.mark.parametrize("which", [0, 1])
def test_pages_load_no_other_document_and_run_nothing(full, which):
    text = re.sub(r"data:image/png;base64,[\w+/=\s]+", "", full[which])
    assert text.count("<script") == text.count("<script>") == 1, "its own: tests/evaluation/test_report.py"
    assert not re.search(r"https?:|\bftp:|//\w|@import|@font-face|srcset|javascript:|<(link|iframe|object)", text)
    for tag, attrs in Seen(full[which]).tags:
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)
        for name in ("src", "href", "action", "poster", "data"):
            address = attrs.get(name, "#")
            assert address.startswith(("#", "data:image/png;base64,")) or (tag, address) == ("a", "../../report.html")


@pytest.mark.parametrize("which", [0, 1])
def test_headings_step_down_one_at_a_time_and_what_takes_focus_has_a_name(full, which):
    seen = Seen(full[which])
    assert seen.levels[0] == 1 and seen.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(seen.levels, seen.levels[1:], strict=False))
    assert ("html", {"lang": "en"}) in seen.tags
    for tag, attrs in seen.tags:
        if "tabindex" in attrs or attrs.get("class") == "scroll" or tag == "pre":
            assert attrs["tabindex"] == "0" and attrs["role"] == "group" and attrs["aria-label"], (tag, attrs)


def test_pages_of_a_table_speak_of_lines_and_those_of_pictures_do_not(full, tables):
    for text in full:
        said = Seen(text).text.replace("no patient's image, label or record", "")
        assert not re.search(r"\bimages?\b|\bslices?\b|\boutlined\b|pictures of patients", said, re.IGNORECASE)
        assert "lines" in said
    pictures = Seen(site_page(tables, words=Words("picture", "pictures", "picture", "pictures"))).text
    assert "shows pictures of patients" in pictures and "positive pictures" in pictures and "lines" not in pictures
    assert "77 pictures could not be used" in pictures


def test_the_note_on_support_counts_what_was_learnt_from(full):
    assert "b (4 positive and 4 negative lines, 4 positive patients)" in Seen(full[0]).text
    assert "90 patients 45 +, 45 −" in Seen(full[0]).text


def test_a_long_quarantine_is_counted_by_reason_and_folded(tables):
    text = site_page(tables, quarantine=site_quarantine({"missing_value": 77, "gap": 3}))
    rows = re.findall(r'<th scope="row" class="code"><code>(\w+)</code></th><td class="num">(\d+)</td>', text)
    assert rows == [("missing_value", "77"), ("gap", "3")]
    assert text.count("<li><code>study-") == 80 and "<details><summary>Which studies: 80 codes" in text
    assert "linkage.json" in text and "pseudonym.key" in text
    few = site_page(tables, quarantine=site_quarantine({"gap": 3}))
    assert "<details open><summary>Which studies: 3 codes" in few
    assert "linkage.json" not in site_page(tables, quarantine=())


def site_quarantine(reasons):
    return tuple(
        records.Quarantined(f"study-{reason[:4]}{i:04d}", reason, "do it again")
        for reason, times in reasons.items()
        for i in range(times)
    )


def test_the_first_measure_is_open_and_the_others_are_folded(tables):
    text = run_page(tables)
    assert re.findall(r'<details class="fold"( open)?><summary><h3>([\w ]+)<', text) == [
        (" open", "AUC"),
        ("", "balanced accuracy"),
        ("", "accuracy"),
    ]


def test_withdrawal_is_told_with_numbers_and_otherwise_not_at_all(full, tables):
    run, site = (Seen(text).text for text in full)
    assert "2 lines left out; 1 excluded name matches no patient" in run and "demo/fedavg-0123456789ab" in run
    assert "2 lines left out" in site and "its model was trained on them" in site and "A model does not forget" in site
    assert "its model was trained on them" not in run
    for text in (run_page(tables), site_page(tables)):
        assert not re.search('withdrawn"|left out;|excluded name|not forget', text)


def test_what_left_is_a_row_for_each_request_and_a_column_for_each_hospital(full, tables):
    text = run_page(tables)
    row = re.search(r'<tr><th scope="row">train</th>(.*?)</tr>', text)[1]
    said = " ".join(re.sub(r"<[^>]+>", " ", row).split())
    assert said == "parameters 1.5 kB 3 messages 2.5 kB 4 messages ∞: no formal guarantee; 2 at δ = 1e-5"
    assert re.search(r'<th scope="row">pool</th><td class="told">–</td><td class="num">–</td>', text)


def test_times_are_printed_for_people(tables):
    assert format_moment("2026-11-21T12:07:40+00:00") == "21 November 2026, 12:07 UTC"
    assert format_moment("yesterday") == "yesterday"
    assert "21 November 2026, 12:07 UTC" in Seen(run_page(tables)).text


def test_a_method_looks_the_same_where_another_is_missing():
    curve = figures.Curve((1, 2), (0.7, 0.6))
    drawn = figures.draw_learning_curves({"a": {"fedavg": curve}}, order=["local", "central", "fedavg"]).html
    assert COLOURS[2] in drawn and COLOURS[0] not in drawn and COLOURS[1] not in drawn


def test_a_hospital_with_one_class_has_no_roc_curve_and_the_figure_says_so():
    one, both = np.zeros((2, 8), int), np.zeros((2, 8), int)
    one[0, 3], both[0, 1], both[1, 6] = 9, 9, 9
    drawn = figures.draw_roc_curves({"a": {"m": one}, "b": {"m": both}}).html
    assert drawn.count("one class only") == 1 and "a: m –" in drawn and "b: m 1.000" in drawn


def test_lines_that_share_a_colour_do_not_share_a_dash():
    looks = [
        (line_style(place)["color"], str(line_style(place)["linestyle"])) for place in range(len(COLOURS) * len(DASHES))
    ]
    assert len(set(looks)) == len(looks)
    assert len({dash for _, dash in looks[: len(COLOURS)]}) == len(COLOURS)


# Features.


def test_characteristics_are_those_of_a_papers_first_table():
    values = {"age": np.array([50.0, 60, 70, 40]), "sex": np.array([1.0, 0, 1, 0]), "zero": np.zeros(4)}
    age, sex, zero = patients.compute_characteristics(values, np.array([True, True, False, False]))
    assert (age.positive, age.negative) == ("55 ± 7.07", "55 ± 21.2")
    assert (sex.positive, sex.negative) == ("1 of 2 (50 %)", "1 of 2 (50 %)")
    assert zero.positive == "0 ± 0"
    assert patients.compute_characteristics({"age": np.array([50.0])}, np.array([True]))[0].negative == "–"
    assert patients.compute_characteristics({"age": np.array([50.0])}, np.array([True]))[0].positive == "50 ± –"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=40))
def test_every_value_falls_into_a_bin(values):
    edges = patients._bin_edges(np.array(values, float))
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert (np.diff(edges) > 0).all()


def test_features_that_are_yes_or_no_are_told_in_the_table_and_not_drawn():
    values = {"age": np.arange(9.0), "sex": np.arange(9) % 2.0}
    drawn = patients.draw_features_by_class(values, np.arange(9) < 4).html
    assert ">age<" in drawn and ">sex<" not in drawn
    assert "age: negative 6 ± 1.58, positive 1.5 ± 1.29" in drawn
    assert "None to be drawn" in patients.draw_features_by_class({"sex": values["sex"]}, np.arange(9) < 4).html
