"""Privacy on the pages: what a ledger came to, in the words and numbers of the statement, and nothing kinder."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from evaluation import records, report
from evaluation.attacks import MembershipRow
from evaluation.histograms import count_scores
from evaluation.leaving import Left
from evaluation.scoring import score_rows
from privacy.dp.events import (
    NON_PRIVATE,
    Declared,
    Gaussian,
    Part,
    PoissonSampled,
    SelfComposed,
    compose_events,
    describe_event,
)
from privacy.release import meaning
from privacy.release.build_statement import build_statement
from privacy.release.statement import Audit, Details, from_json, to_json

CUT, DELTA = "0123456789abcdef", 1e-5
STEP = Part(CUT, "train", PoissonSampled(0.25, Gaussian(4.0)))
AUDIT = Audit(1.0, 0.14, 1000, 200, DELTA, 0.95)
EVIL = '<b>St. Mary & "Co"</b>'


class Text(HTMLParser):
    """Cells of all tables by row, and all that is read; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.rows = [], [], []
        self.feed(text)
        self.close()
        assert not self.open
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.open += [tag] if tag not in {"meta", "br"} else []
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def ledger(bare=False):
    def line(request, event, number=0, size=1000):
        said = {"time": "2026-11-21T12:07:40+00:00", "run": "fedavg", "round": number, "request": request}
        more = {"sha256": f"{request}{number}", "bytes": size, "again": False, "refused": None}
        return {**said, "recipient": "coordinator", "event": describe_event(event), **more}

    private = compose_events([SelfComposed(STEP, 10), Declared("counts")])
    return [line("train", private, n) for n in (1, 2, 3)] + ([line("export", NON_PRIVATE, size=5000)] if bare else [])


def made(site="a", *, bare=False, budget=(8.0, DELTA), caps=None):
    return build_statement(
        ledger(bare),
        site=site,
        delta=DELTA,
        budget=budget,
        caps=caps,
        details={"fedavg": Details(1.5, 4, 30.0)},
        contents={"export": "its model"},
        audit=AUDIT,
    )


def shown(*args, **more):
    return from_json(json.loads(json.dumps(to_json(made(*args, **more)), allow_nan=False)))


def run_page(**more):
    page = records.RunPage(
        title="Hearts",
        run="demo",
        date="today",
        what="",
        simulation=False,
        reference="",
        sites=(),
        scores=(),
        gains=(),
        methods=(),
        left=(Left("a", "train", 3, 3000, "1.2 at δ = 1e-05"), Left("b", "export", 1, 5000)),
        missing=(),
        stages=(),
        settings="{}",
        commands=(),
    )
    return report.render_coordinator_page(replace(page, **more))


def site_page(**more):
    page = records.SitePage(
        title="Hearts",
        site="a",
        run="demo",
        date="today",
        simulation=False,
        reference="",
        splits=(),
        scores=(),
        left=(Left("a", "train", 3, 3000),),
        quarantine=(),
    )
    return report.render_site_page(replace(page, **more))


def test_a_statement_comes_back_from_json_as_it_was():
    for bare in (False, True):
        assert shown(bare=bare) == made(bare=bare)


def test_what_is_no_statement_is_refused():
    said = to_json(made())
    with pytest.raises(ValueError, match="epsilon"):
        from_json({name: value for name, value in said.items() if name != "epsilon"})


@pytest.mark.parametrize(("caps", "said"), [(None, ""), ((2.0, 5.0), "at most 2 in one release, 5 in one run")])
def test_caps_of_one_release_and_one_run_stand_beside_the_budget(caps, said):
    page = Text(run_page(statements=(from_json(to_json(made(caps=caps))),)))
    assert (said in page.text) and ("in one release" in page.text) == (caps is not None)


def test_the_coordinators_page_has_a_line_for_each_hospital_and_a_row_for_each_mechanism():
    one, other = shown("a"), shown("b", bare=True, budget=None)
    page = Text(run_page(statements=(one, other)))
    epsilon = f"{one.epsilon:g}"
    by = ["PLD, dp-accounting 0.6.0"]
    both = f"{epsilon}one patient replaced by another: {one.replaced:g}"
    assert ["a", epsilon, both, "1e-05", "8", f"{one.budget.remaining:g}", *by] == page.rows[row(page, "a", epsilon)]
    assert ["b", "∞: no formal guarantee", both, "1e-05", "none set", "–", *by] in page.rows
    assert page.rows.count(["train", "train", "Gaussian noise", "0.25", "4", "30", epsilon]) == 2
    assert ["export", "its model", "1", "5.0\u202fkB"] in page.rows
    assert "Clip C = 1.5. K = 4 views of a patient" in page.text and "30 patients expected" in page.text
    assert one.meaning in page.text and other.meaning in page.text
    assert "counts of files and bytes, studies" in page.text
    for text in (*one.outside, *(p.text for p in one.paragraphs)):
        assert page.text.count(text) == 1


def row(page, *begin):
    return next(place for place, cells in enumerate(page.rows) if cells[: len(begin)] == list(begin))


def test_totals_come_from_the_statement_and_not_from_the_list_of_requests():
    one, other = shown("a"), shown("b", bare=True)
    plain, full = Text(run_page()), Text(run_page(statements=(one, other)))
    assert ["a", "3", "3.0\u202fkB", "1.2 at δ = 1e-05"] in plain.rows
    assert ["a", "3", "3.0\u202fkB", f"{one.epsilon:g} at δ = 1e-05"] in full.rows
    assert ["b", "1", "5.0\u202fkB", "∞: no formal guarantee"] in plain.rows
    assert ["b", "1", "5.0\u202fkB", "∞: no formal guarantee"] in full.rows


def test_who_says_nothing_of_the_cost_has_given_no_guarantee():
    assert Left("a", "train", 3, 3000).epsilon == "∞: no formal guarantee"
    for text in (run_page(), site_page()):
        assert "No statement was made. What left has no formal guarantee, unless" in Text(text).text


def test_the_hospitals_page_has_the_whole_statement():
    one = shown(bare=True)
    page = Text(site_page(statement=one))
    for text in (one.meaning, one.adjacency, *one.outside, *(p.text for p in one.paragraphs)):
        assert page.text.count(text) >= 1
    assert ["export", "its model", "1", "5.0\u202fkB"] in page.rows
    assert "privacy loss ε: ∞: no formal guarantee" in page.text.replace("Privacy", "privacy")
    assert re.findall(r"<h(\d)>No formal guarantee</h\1>", site_page(statement=one)) == ["3"]


def test_beside_the_hospitals_page_no_guarantee_is_not_a_missing_number():
    for one in (shown(bare=True), shown()):
        page = records.SitePage("t", "a", "r", "2026", True, "", (), (), (), (), statement=one)
        said = json.loads(report.write_site_json(page))["statement"]
        assert from_json(said) == one and (said["epsilon"] == "Infinity") == math.isinf(one.epsilon)


def test_audits_are_printed_once_with_their_verdict():
    bad = replace(AUDIT, bound=1.45)
    page = Text(run_page(statements=(shown("a"), shown("b")), audits=(bad, AUDIT)))
    numbers = ["1", "0.14", "1e-05", "95 %", "1\u202f000", "200"]
    assert page.rows.count(["not refuted", *numbers]) == 1
    assert page.rows.count(["refuted", "1", "1.45", *numbers[2:]]) == 1
    assert "None was run." in Text(run_page()).text


def test_attacks_stand_beside_their_control():
    found = MembershipRow("a", "fedavg", 0.513, 0.44, 0.585, 0.977, 120, 40, EVIL)
    for text in (run_page(membership=(found,)), site_page(membership=(found,))):
        assert ["fedavg", "a", "0.513 0.440 – 0.585", "0.977", "120", "40", f"not shown to succeed{EVIL}"] in Text(
            text
        ).rows
        assert "0.5 is chance" in text and EVIL not in text
    assert "attacks that detect who took part" not in run_page()


def test_scores_of_noised_counts_say_so_and_others_do_not():
    y = np.arange(8) % 2
    p = np.linspace(0.1, 0.9, 8)
    table = {"fedavg": {("a", "a"): count_scores(y, np.c_[1 - p, p], np.arange(8), copies=20, seed=0, site="a")}}
    rows = score_rows(table)
    noised = tuple(replace(one, noise=2.5) for one in rows)
    for make in (run_page, site_page):
        plain, loud = Text(make(scores=rows)).text, Text(make(scores=noised)).text
        assert "noise" not in plain.split("Privacy statement")[0]
        assert "These scores come from noised counts" in loud and "up to 2.5 patients in a bin" in loud
        assert "too few, or too much noise, to judge by: a (4 positive and 4 negative patients" in loud
        assert "too few to judge by: a (4 positive and 4 negative images" in plain


def test_names_from_a_ledger_are_escaped():
    one = shown()
    bad = replace(one, runs=(replace(one.runs[0], run=EVIL),), meaning=EVIL, outside=(EVIL,))
    for text in (run_page(statements=(bad,)), site_page(statement=bad)):
        assert EVIL not in text and Text(text).text.count(EVIL) >= 3


def test_a_loss_is_printed_as_it_was_rounded():
    assert meaning.format_loss(1.84) == "1.84" and meaning.format_loss(57400) == "57400"
    assert meaning.format_loss(math.inf) == meaning.UNBOUNDED
