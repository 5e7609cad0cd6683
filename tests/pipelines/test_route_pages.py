"""External sites on pages: on their own page, which stays there, and on the coordinator's."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evaluation.adaptation import AdaptedLine, adaptation_curves
from evaluation.records import RunPage, SitePage, SplitCount
from evaluation.report import render_coordinator_page, render_site_page
from evaluation.rows import ScoreRow
from evaluation.site_page import OutsideDetails, select_best_rows
from pipelines.coordinator.audits import InversionAttempt, Inverted
from pipelines.coordinator.report.asking import find_field_setting
from pipelines.coordinator.report.methods import build_inversion_rows
from pipelines.hospital.adaptation import AFTER, BEFORE, COEFFICIENTS, SCORES, SHOWN, SPREAD, summarize_coefficients
from pipelines.hospital.segmentation import most_of, read_patient_scores, select_shown_patients
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.requests.route import ROUTE
from pipelines.run import main as run
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.message import Message, from_bytes
from privacy.release import ledger as ledgers
from route_settings import LINES, OPEN, settings

PICTURE = re.compile(r'data:image/png;base64,[^"]+')
HOSPITALS = ("north", "south", "west")


@pytest.fixture
def done(finished_run) -> Path:
    """One finished run, not to be changed."""
    return finished_run(settings()) / "runs" / "tiny"


def words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", text, flags=re.S))).split())


def own(done: Path) -> str:
    return (done / "sites" / "west" / "report.html").read_text()


def section(text: str, name: str) -> str:
    return text[text.index(f'aria-labelledby="{name}"') :].partition("</section>")[0]


def cells(table: str) -> list[list[str]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table.partition("<tbody>")[2], flags=re.S)
    return [[words(one) for one in re.findall(r"<t[hd].*?</t[hd]>", row, flags=re.S)] for row in rows]


def kept(done: Path) -> dict[str, Message]:
    files = (done / "sites" / "west" / "scores").glob("route-*.safetensors")
    found = [from_bytes(path.read_bytes()) for path in files]
    return {str(one.facts["line"]): one for one in found}


def told(done: Path) -> dict[str, object]:
    return json.loads(next(done.glob("report/*/report.json")).read_text())


def test_the_hospital_outside_reads_its_own_scores_and_which_line_was_best(done):
    rows = [row for row in told(done)["outside"] if row["protocol"] == "outside" and row["measure"] == "Dice"]
    table = {row[0].split(" same scores as ")[0]: row[1] for row in cells(section(own(done), "scores"))}
    assert table.keys() == LINES.keys()
    for row in rows:
        value, *interval = re.findall(r"\d\.\d{3}", table[row["method"]])[:3]
        assert value == f"{row['value']:.3f}"
        assert interval == [f"{row['low']:.3f}", f"{row['high']:.3f}"]
    top = max(row["value"] for row in rows)
    named = " and ".join(row["method"] for row in rows if row["value"] == top)
    assert f"Best by Dice: {named} , {top:.3f} (" in words(own(done))


def test_the_hospital_outside_reads_how_each_line_went(done):
    went = {row[0]: row for row in cells(section(own(done), "adaptation"))}
    account = kept(done)["routing"].facts
    losses, epoch = account["losses"], account["epoch"]
    assert went["routing"][1:3] == ["routing", "north, south, (shared)"]
    assert went["routing"][3] == f"{losses[0]:.4g} → {losses[epoch]:.4g}"
    assert went["routing"][4] == f"{1 - account['shares'][0][0]:.3f} → {1 - account['shares'][epoch][0]:.3f}"
    assert went["routing"][5:] == [f"{epoch} of 2", account["why"]]
    assert went["as_trained"][2:] == ["(shared)", "–", "–", "–", "nothing was adapted"]
    assert went["average"][2] == "north, south"


def test_the_heat_map_has_every_layer_and_every_model(done):
    one = kept(done)["routing"]
    layers = one.facts["layers"]
    mean, spread = one.tensors[COEFFICIENTS], one.tensors[SPREAD]
    assert mean.shape == spread.shape == (len(layers), 3)
    assert ((mean > 0) & (mean < 1)).all() and (spread >= 0).all()
    picture = section(own(done), "adaptation").partition("routing: how models are mixed")[2].partition("<h3>")[0]
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert {*layers, "north", "south", "(shared)", "layer", "model of", "coefficient"} <= set(drawn)
    assert [f"{v:.3f}" for v in mean.flatten().tolist()] == [t for t in drawn if re.fullmatch(r"0\.\d{3}", t)]
    assert COEFFICIENTS not in kept(done)["average"].tensors


@given(n=st.integers(1, 5), layers=st.integers(1, 4), experts=st.integers(2, 4), seed=st.integers(0, 99))
def test_coefficients_are_averaged_over_images(n, layers, experts, seed):
    r = torch.rand(n, layers, experts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = summarize_coefficients(r)
    for at in np.ndindex(layers, experts):
        values = [float(r[i][at]) for i in range(n)]
        mean = math.fsum(values) / n
        assert float(found[COEFFICIENTS][at]) == pytest.approx(mean)
        assert float(found[SPREAD][at]) == pytest.approx(math.sqrt(math.fsum((v - mean) ** 2 for v in values) / n))


def test_pictures_show_the_shared_model_before_and_routing_after(done):
    """The line of the shared model scored the same masks by itself."""
    routing, shared = kept(done)["routing"].tensors, read_patient_scores(kept(done)["as_trained"].tensors)
    scored = read_patient_scores(routing)
    chosen = [int(scored.patients[place]) for _, place in select_shown_patients(scored)]
    assert len(chosen) == 3 and len(routing[SHOWN]) == len(routing[BEFORE]) == len(routing[AFTER]) == 9
    places = [shared.patients.tolist().index(patient) for patient in chosen]
    assert np.array_equal(routing[SCORES].numpy(), shared.scores[places], equal_nan=True)
    page = own(done)
    sheet = page[page.index("<h3>routing: best, median") :].partition("</details>")[0]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", sheet)[:18]
    for i, (what, place) in enumerate(select_shown_patients(scored)):
        six = captions[6 * i : 6 * i + 6]
        assert [one.partition(":")[0] for one in six] == [f"{what}, before", "after", *["before", "after"] * 2]
        assert f"Dice {shared.scores[places[i], 0, 0]:.3f}" in six[0]
        assert f"Dice {scored.scores[place, 0, 0]:.3f}" in six[1]
    assert len(PICTURE.findall(sheet)) == 18 and "the shared model, fedavg, as it came; after: by routing" in sheet
    assert "average: best, median" not in page, "several models have no one mask"
    assert BEFORE not in kept(done)["as_trained"].tensors, "it is what it was"


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 99))
def test_equally_many_images_of_each_patient_are_shown_those_with_most_of_the_mask(sizes, seed):
    given_ = torch.randint(0, 3, (sum(sizes), 3, 3), generator=torch.Generator().manual_seed(seed))
    own_ = list(torch.split(torch.arange(sum(sizes)), sizes))
    for rows, shown in zip(own_, most_of(given_, own_), strict=True):
        assert len(shown) == min(3, *sizes) and shown.tolist() == sorted(set(shown.tolist()) & set(rows.tolist()))
        area = {row: int((given_[row] > 0).sum()) for row in rows.tolist()}
        left = [area[row] for row in rows.tolist() if row not in shown.tolist()]
        assert not left or max(left) <= min(area[row] for row in shown.tolist())


def test_what_adaptation_came_to_and_pictures_are_nowhere_but_at_that_hospital(done):
    account = kept(done)["routing"].facts
    secret = [account["why"], f"{account['losses'][0]:.4g} → ", "how models are mixed"]
    pictures = PICTURE.findall(own(done))
    home = done / "sites" / "west"
    files = [path for path in done.rglob("*") if path.is_file() and home not in path.parents]
    assert len(pictures) > 18 and len(files) > 20
    assert all(text in html.unescape(own(done)) for text in secret)
    for path in files:
        data = path.read_bytes()
        assert not [text[:80] for text in (*secret, *pictures) if text.encode() in data], path


def test_what_left_has_a_row_of_every_release_of_every_hospital(done):
    page, facts = (done / "report.html").read_text(), told(done)
    wanted: dict[tuple[str, str], tuple[int, int]] = {}
    for site in HOSPITALS:
        for line in ledgers.read_lines(done / "sites" / site / "ledger.jsonl"):
            if line["request"] == "report":
                continue  # the page tells of what was before it
            name = line["request"] + (" to outside" if line["recipient"] == "outside" else "")
            count, size = wanted.get((site, name), (0, 0))
            wanted[site, name] = count + 1, size + line["bytes"]
    assert {(one["site"], one["request"]): (one["messages"], one["bytes"]) for one in facts["left"]} == wanted
    assert ("west", "route") in wanted and ("north", "export to outside") in wanted
    rows = {row[0]: row for row in cells(section(page, "left"))}
    assert rows["export to outside"][1] == "its model, handed to external sites"
    assert rows["route"][1] == ROUTE.says and rows["route"][4].endswith(f"{len(LINES)} messages")
    assert rows["route"][2] == rows["route"][3] == "–" and "export" not in rows
    assert [row[0] for row in cells(section(page, "out"))] == ["north", "south", "west outside"]
    assert [one["site"] for one in facts["statements"]] == list(HOSPITALS)
    assert list(json.loads(next(done.glob("report/*/ledgers.json")).read_text())) == list(HOSPITALS)


def test_a_page_that_is_gone_at_the_hospital_outside_is_written_again(done, tmp_path, monkeypatch, capsys):
    shutil.copytree(done.parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    again = tmp_path / "runs" / "tiny"
    (again / "sites" / "west" / "report.html").unlink()
    assert run(["tiny.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == ["report"]
    assert "Outside the federation" in own(again)


def test_of_labels_the_page_has_scores_and_mixture_and_no_masks(finished_run):
    said = settings(audit={"membership": False}, model={"name": "cnn", "widths": [8, 8], "norm": "batch"})
    del said["task"]
    said["images"] = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    terms = {"terms": ["consistency", "entropy"]}
    said["route"]["lines"] = {
        "shared": LINES["as_trained"],
        "online": {"how": {"name": "routing", "mode": "online", **terms}},
        "routing": {"how": {"name": "routing", "epochs": 2, **terms}},
        "mean": {"how": {"name": "routing", "epochs": 0, **terms}},
    }
    root = finished_run(said) / "runs" / "tiny"
    page, went = own(root), {row[0]: row for row in cells(section(own(root), "adaptation"))}
    assert went["online"][5:] == ["–", "each image was predicted before the step on it"]
    refused = "every model predicts one class everywhere: not adapted, the shared model serves as it came"
    assert went["routing"][5:] == ["–", refused] and "→" not in went["routing"][3] + went["online"][3]
    assert went["mean"][5:] == ["–", "no epoch was asked for: nothing was trained"]
    assert page.count("how models are mixed</h3>") == 2 and page.count("how adaptation went</h3>") == 1
    assert page.count("each image was predicted by an earlier one") == 1
    assert "best, median" not in page and "positive slices" in page and "ROC curves" in page
    for text in (page, (root / "report.html").read_text()):
        assert (
            "cropped around their masks (images.centre: gland); adaptation itself saw neither mask nor label"
            in re.sub(r" (?=[);])|(?<=\() ", "", words(text))
        )


def config(**changes: object) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(settings(**changes)), environment={}), Config)


@pytest.mark.parametrize(
    ("images", "target", "said"),
    [
        ({"kind": "slices", "centre": "image"}, "gland", ""),
        ({"kind": "slices", "centre": "gland"}, "lesion", "images.centre: gland"),
        ({"kind": "slices", "centre": "image", "slices": "gland"}, "lesion", "images.slices: gland"),
        ({"kind": "slices", "slices": "gland"}, "lesion", "images.centre: gland, images.slices: gland"),
        ({"kind": "volumes", "centre": "gland"}, "lesion", "images.centre: gland"),
    ],
)
def test_masks_that_say_where_images_are_cut_are_named(images, target, said):
    made = config(images={"size": 16, **images}, task={"kind": "segmentation", "target": target}, route=None)
    assert find_field_setting(made) == said


def test_pictures_cut_about_masks_are_named():
    masks = {"folder": "m", "values": {"disc": [1]}}
    folder = {"kind": "picture", "table": "t.csv", "masks": masks}
    sites = {name: {"source": {**folder, "folder": name}, "policy": OPEN} for name in HOSPITALS}
    for fit, said in (({"fit": "around", "margin": 2.0}, "images.fit: around"), ({"fit": "squash"}, "")):
        task = {"kind": "segmentation", "target": "masks", "classes": ["disc"]}
        images = {"kind": "pictures", "size": 16, **fit}
        assert find_field_setting(config(sites=sites, images=images, task=task)) == said


def test_where_nobody_drew_a_gland_images_are_cut_about_their_middle():
    labels = {"kind": "table", "file": "labels.csv"}
    sites = {name: {"source": {"kind": "nifti", "folder": name}, "labels": labels} for name in HOSPITALS}
    cut = {"sites": sites, "route": None, "images": {"kind": "slices", "size": 16}}
    labelled = {**cut, "model": BASE["model"], "task": {"kind": "classification"}, "audit": {}}
    assert find_field_setting(config(**labelled)) == ""
    sites["north"]["gland"] = {"folder": "glands"}
    assert find_field_setting(config(**labelled)) == "", "north is inside"
    sites["west"]["gland"] = {"folder": "glands"}
    assert find_field_setting(config(**labelled)) == "images.centre: gland"


def row(method: str, value: float, measure: str = "Dice", protocol: str = "private") -> ScoreRow:
    nan, names = math.nan, ("west",)
    return ScoreRow(method, protocol, names, measure, value, nan, nan, 0, 0, 6, 24, 6, 0, 6, True, False, defined=6)


def site_of(*rows: ScoreRow) -> SitePage:
    split = (SplitCount("all patients", 6, 24, 0),)
    return SitePage("t", "west", "r", "d", True, "", split, rows, (), (), structures=("disc",))


@pytest.mark.parametrize("cut", ["images.fit: around", ""])
def test_both_pages_say_whether_masks_found_the_field_of_view(cut):
    none: dict[str, tuple] = dict.fromkeys(("sites", "scores", "gains", "methods", "missing", "stages", "commands"), ())
    there = row("routing", 0.5, protocol="outside")
    whole = RunPage("t", "r", "d", "w", True, "", left=(), settings="", outside=(there,), field=cut, **none)
    pages = (
        render_coordinator_page(RunPage(**{**vars(whole), "structures": ("disc",)})),
        render_site_page(
            site_of(row("routing", 0.5)), OutsideDetails((AdaptedLine("routing", "routing", ("a", "(shared)")),), cut)
        ),
    )
    for said in map(words, pages):
        assert (
            "cropped around their masks" in said and cut in said and "adaptation itself saw no mask" in said
        ) == bool(cut)
        assert ("without their masks" in said) != bool(cut)


@given(st.lists(st.sampled_from([0.25, 0.5, 0.75, math.nan]), max_size=5))
def test_the_best_lines_are_all_that_no_other_beats(values):
    rows = [row(f"l{i}", value) for i, value in enumerate(values)]
    known = [value for value in values if not math.isnan(value)]
    expected = [f"l{i}" for i, value in enumerate(values) if known and value == max(known)]
    others = [row("far", 9.0, "HD95")] if rows else []
    assert [one.method for one in select_best_rows([*rows, *others])] == expected


def test_a_measure_that_is_better_where_it_is_lower_chooses_no_best():
    with pytest.raises(ValueError, match="HD95"):
        select_best_rows([row("a", 9.0, "HD95"), row("b", 1.0, "HD95")])


def test_inversion_stands_on_the_coordinators_page_with_the_mean_image_beside_it(done):
    (path,) = done.glob("audit/*/audits.json")
    attacks = [one for one in json.loads(path.read_text())["inversion"] if one["found"]]
    section_ = section((done / "report.html").read_text(), "privacy").partition("attacks that reconstruct")[2]
    table = {tuple(one[:3]): one[3:] for one in cells(section_)}
    assert len(table) == 3 * 2 * 2  # methods, hospitals, gradient and features
    for one in attacks:
        means = one["found"]["attacks"]
        low = means["mean image"]
        for name in means.keys() - {"mean image"}:
            psnr, low_psnr, ssim, low_ssim, better = table[one["method"], one["site"], name]
            assert (psnr, ssim.replace("−", "-")) == (f"{means[name]['psnr']:.1f}", f"{means[name]['ssim']:.3f}")
            assert (low_psnr, low_ssim.replace("−", "-")) == (f"{low['psnr']:.1f}", f"{low['ssim']:.3f}")
            assert better == f"{means[name]['better']} of 1"


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (InversionAttempt("north", "fedavg", None), "kept on the hospital's own page, report.html in its folder"),
        (InversionAttempt("north", "fedavg", None, "policy_request"), "not made: policy_request"),
        (
            InversionAttempt("north", "fedavg", Inverted(reason="there is no image to draw")),
            "there is no image to draw",
        ),
    ],
)
def test_where_no_figure_left_the_page_says_where_it_is_or_why_there_is_none(attempt, said):
    rows = tuple(build_inversion_rows(attempt))
    none: dict[str, tuple] = dict.fromkeys(("sites", "scores", "gains", "methods", "missing", "stages", "commands"), ())
    page = render_coordinator_page(RunPage("t", "r", "d", "w", True, "", left=(), settings="", inversion=rows, **none))
    assert f"{said}: fedavg at north." in words(page).replace(" :", ":") or said in words(page)
    assert "fedavg at north" in words(page) and "PSNR, dB" not in page


def test_where_no_state_serves_the_page_shows_no_end():
    shares = ((0.9, 0.1), (1.0, 0.0))
    one = AdaptedLine("x", "routing", ("north",), (0.2, 0.1), shares, None, "not adapted")
    assert not one.chosen and one.foreground_shares == pytest.approx((0.1, 0.1))
    drawn = adaptation_curves("x", one.losses, shares, None, ["gland"], [0.2])
    assert "no state is used" in drawn.caption and "and no state is used" in drawn.html
    assert "loss, epoch 1: 0.1" in drawn.html and "data-points" in drawn.html
    assert "data-method" not in drawn.html, "a loss and a class are no methods that a reader could leave out"
