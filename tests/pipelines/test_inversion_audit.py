"""Hospitals draw their own patients from what a round would show: what they draw stays there, pictures above all."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from asking import asked

from pipelines.hospital import inversion
from pipelines.hospital.attacks import attack_models
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file, rows_of
from pipelines.hospital.inversion import FEATURES, MEAN, PLAIN, PROTECTED, select_images
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.requests.writing import to_message
from pipelines.run import main
from pipelines.settings.config import Config
from pipelines.settings.load import load_config
from pipelines_settings import BASE
from privacy.attacks.inversion import Inversion, compute_likeness
from privacy.dp.access import Rows
from privacy.message import Call, Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused

ASKED = {"images": 2, "steps": 6}
PICTURE = re.compile(r'data:image/png;base64,[^"]+')
TITLE = "fedavg: what could be drawn of training images"


def settings(**changes) -> dict:
    made = copy.deepcopy(BASE) | {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    for site in made["sites"].values():
        site["policy"] = {}
        site["source"] |= {"patients": 8, "slices": 4}
    methods = {"fedavg": {"name": "fedavg"}}
    made["train"] = {"schedule": {"rounds": 1}, "work": {"lr": 0.01}, "methods": methods}
    made["evaluate"] = {"copies": 0, "public": False}
    made["audit"] = {"membership": False, "canaries": 0, "inversion": ASKED}
    return made | changes


def finished(folder: Path, made: dict) -> Path:
    (folder / "it.yaml").write_text(yaml.safe_dump(made))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["it.yaml"]) == 0
    return folder / "runs" / "tiny"


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("plain"), settings())


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Path:
    privacy = {"epsilon": 3.0, "sampling": 0.5, "views": 2}
    return finished(tmp_path_factory.mktemp("private"), settings(privacy=privacy))


def audits(run: Path) -> dict:
    (found,) = run.glob("audit/*/audits.json")
    return json.loads(found.read_text())


def kept(run: Path, site: str = "a") -> tuple[Path, Message]:
    (path,) = (run / "sites" / site / "scores").glob("*.inversion.safetensors")
    return path, from_bytes(path.read_bytes())


def sheet(run: Path, site: str = "a") -> str:
    page = (run / "sites" / site / "report.html").read_text()
    start = page.index(TITLE)
    return page[start : page.index("</details>", start)]


def lines(run: Path) -> list[dict]:
    return [line for line in ledgers.read_lines(run / "sites" / "a" / "ledger.jsonl") if line["request"] == "audit"]


def asking(run: Path) -> tuple[Hospital, dict]:
    """A hospital of a finished run, and the facts of its audit."""
    config = load_config(str(run.parents[1] / "it.yaml"))
    own = Hospital("a", run / "sites" / "a", config.sites["a"], lambda: "2026-01-01T00:00:00Z")
    (trained,) = run.glob("train/*/fedavg.json")
    result = json.loads(trained.read_text())
    (cohort,) = own.root.glob(f"cohorts/*/{COHORT}")
    names = {"label": "fedavg", "train_run": result["train_run"], "best": result["best"], "checkpoint": "global"}
    return own, {**names, "cohort": cohort.parent.name, "membership": False, "inversion": to_plain(Inversion(**ASKED))}


def ask(own: Hospital, facts: dict) -> Message:
    return to_message(attack_models(own, asked(Call("again/audit", 0, "audit", {}), facts)).reply)


def test_means_leave_where_the_models_have_no_guarantee(plain):
    found = audits(plain)
    assert found["membership"] == [] and [one["site"] for one in found["inversion"]] == ["a", "b"]
    for one in found["inversion"]:
        assert one["found"].keys() == {"images", "steps", "attacks"}
        assert (one["method"], one["refused"], one["found"]["images"], one["found"]["steps"]) == ("fedavg", None, 2, 6)
        assert one["found"]["attacks"].keys() == {MEAN, PLAIN, FEATURES}
        _, home = kept(plain, one["site"])
        for name, means in one["found"]["attacks"].items():
            alike = [compute_likeness(a, b) for a, b in zip(home.tensors["image"], home.tensors[name], strict=True)]
            floor = [compute_likeness(a, b) for a, b in zip(home.tensors["image"], home.tensors[MEAN], strict=True)]
            assert means["psnr"] == pytest.approx(sum(each.psnr for each in alike) / 2)
            assert means["ssim"] == pytest.approx(sum(each.ssim for each in alike) / 2)
            assert means["better"] == sum(a.is_above(b) for a, b in zip(alike, floor, strict=True))
            assert home.facts["figures"][name] == [pytest.approx(list(each)) for each in alike]
    assert {line["event"]["kind"] for line in lines(plain)} == {"non_private"}


def test_a_method_whose_network_has_no_maps_is_attacked_by_the_loss_that_it_learns_by(tmp_path):
    made = settings(model={"name": "cam", "widths": [8, 8, 8, 8], "norm": "group"})
    made["train"]["methods"] = {"fenda": {"name": "fenda"}}
    for one in audits(finished(tmp_path, made))["inversion"]:
        assert one["method"] == "fenda" and one["found"]["attacks"].keys() == {MEAN, PLAIN, FEATURES}


def test_nothing_leaves_of_a_private_run_but_that_it_was_done(private):
    assert [one["found"] for one in audits(private)["inversion"]] == [None, None]
    assert [one["refused"] for one in audits(private)["inversion"]] == [None, None]
    assert {line["event"]["kind"] for line in lines(private)} == {"nothing"}
    own, facts = asking(private)
    assert ask(own, facts) == Message({}, {"found": None, "inversion": None})


def test_a_private_runs_page_shows_both_gradients_and_says_how_alike(private):
    _, home = kept(private)
    assert home.tensors.keys() == {"image", MEAN, PLAIN, PROTECTED, FEATURES}
    shown = sheet(private)
    assert len(PICTURE.findall(shown)) == 2 * 5 and '--columns: 5"' in shown
    for name in (MEAN, PLAIN, PROTECTED, FEATURES):
        for psnr, ssim in home.facts["figures"][name]:
            assert f"{name}: PSNR {psnr:.1f} dB, SSIM {ssim:.3f}" in shown.replace("\N{MINUS SIGN}", "-")
    for patient in home.facts["patients"]:
        assert shown.count(f"<figcaption>{patient[:8]}</figcaption>") == 1


def test_a_plain_runs_page_has_no_gradient_of_private_access(plain):
    shown = sheet(plain)
    assert len(PICTURE.findall(shown)) == 2 * 4 and PROTECTED not in shown


def test_no_picture_is_outside_the_hospital(plain, private):
    for run in (plain, private):
        pictures = {picture.encode() for site in "ab" for picture in PICTURE.findall(sheet(run, site))}
        images = [kept(run, site)[1].tensors["image"].numpy().tobytes() for site in "ab"]
        files = [p for p in run.rglob("*") if p.is_file() and "sites" not in p.relative_to(run).parts]
        assert len(pictures) >= 12 and len(files) > 10
        for path in files:
            data = path.read_bytes()
            assert TITLE.encode() not in data and not any(each in data for each in (*pictures, *images)), path


def test_asked_again_a_hospital_draws_the_same(private):
    own, facts = asking(private)
    path, _ = kept(private)
    before = path.read_bytes()
    path.unlink()
    ask(own, facts)
    assert path.read_bytes() == before


def test_the_floor_is_the_mean_of_the_other_patients(plain):
    own, facts = asking(plain)
    rows = rows_of(read_cohort_file(own.cohort_folder(facts["cohort"]) / COHORT))["train"]
    _, home = kept(plain)
    for number, place in enumerate(select_images(rows, 2)):
        others = [x for x, whose in zip(rows.x, rows.patient, strict=True) if int(whose) != int(rows.patient[place])]
        assert torch.equal(home.tensors["image"][number], rows.x[place])
        assert torch.allclose(home.tensors[MEAN][number], sum(others) / len(others), atol=1e-5)


def test_each_image_is_of_another_patient_from_the_middle_of_theirs():
    patient = torch.tensor([7, 3, 3, 7, 3, 9])
    rows = Rows(torch.zeros(6, 1, 4, 4), torch.zeros(6, dtype=torch.long), patient)
    assert select_images(rows, 2) == [2, 3] and select_images(rows, 5) == [2, 3, 5]


@pytest.mark.parametrize(
    "said",
    [{"steps": 2001}, {"images": 17}, {"steps": 10**9}, {"lr": 0.0}, {"steps": "many"}, {"restarts": 5}, "hard", [1]],
)
def test_a_hospital_does_no_more_than_its_limit_allows_whoever_asks(plain, said, monkeypatch):
    own, facts = asking(plain)
    monkeypatch.setattr(inversion, "_reconstruct_images", lambda *_: pytest.fail("it began"))
    code = "unknown_setting" if said == {"restarts": 5} else "malformed_inversion"
    with pytest.raises(Refused, match=code):
        ask(own, {**facts, "inversion": said})


def test_large_images_count_against_the_limit(plain, monkeypatch):
    own, facts = asking(plain)
    monkeypatch.setattr(inversion, "MOST", 2 * 6 * 32 * 32 - 1)
    with pytest.raises(Refused, match="malformed_inversion"):
        ask(own, facts)
    monkeypatch.setattr(inversion, "MOST", 2 * 6 * 32 * 32)
    assert ask(own, facts).facts["inversion"]["images"] == 2


def test_lines_of_a_table_have_no_picture(plain, monkeypatch):
    own, facts = asking(plain)
    table = {"train": Rows(torch.zeros(4, 7), torch.zeros(4, dtype=torch.long), torch.arange(4))}
    monkeypatch.setattr(inversion, "rows_of", lambda *_, **__: table)
    assert "reason" in ask(own, facts).facts["inversion"]


def test_what_is_asked_stands_in_the_settings_and_nothing_is_asked_by_default():
    def config(audit: dict) -> Config:
        return validate_settings(read_yaml(yaml.safe_dump(settings(audit=audit)), environment={}), Config)

    assert config({}).audit.inversion is None and config({"inversion": {}}).audit.inversion == Inversion()
    assert config({"inversion": {"images": 1, "sign": False}}).audit.inversion == Inversion(images=1, sign=False)
    with pytest.raises(ConfigError, match=r"audit\.inversion\.images: must be in \[1, 16\], found 40"):
        config({"inversion": {"images": 40}})
    with pytest.raises(ConfigError, match="restarts"):
        config({"inversion": {"restarts": 3}})


def test_a_patient_alone_has_a_floor_of_zeros():
    x = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    rows = Rows(x, torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    assert torch.equal(inversion._mean_without_patient(rows, 0), torch.zeros(1, 16, 16))
