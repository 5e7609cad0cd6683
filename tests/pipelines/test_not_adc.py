"""What is no ADC map is not scored, learnt from or translated as one, whatever was selected: the commands say so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml

from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.task import Task
from harmonize.cyclegan import CycleGan
from pipelines.data.alike import adapt_source
from pipelines.data.sources import DicomSource, NiftiSource, Unit
from pipelines.loader.validation import to_plain
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import Message, seal_parts, to_bytes
from translating import run as translate
from translating import table, translator

IMAGES = {"kind": "slices", "values": "adc", "spacing_mm": 1.5, "size": 48, "slices": "all", "context": 1}
DECLARED = DicomSource(folder=".", select={"ImageType": "ADC"}, unit="1e-5 mm2/s")
SELECTIONS = (
    ("ImageType=ADC",),
    ("SeriesDescription=t2",),
    ("SeriesDescription=diff", "ImageType=TRACEW"),
    ("SequenceName=b50t",),
    ("SequenceName=b800t",),
)


def classifier(path: Path, source: dict[str, object]) -> str:
    """A file as `ready` holds them, of a classifier of ADC that has learnt nothing."""
    task = Task(Cam(widths=(8, 8, 8, 8)), (1, 48, 48), 2)
    facts = {
        "format": 1,
        "site": "north",
        "label": "fedavg",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(task.model),
        "inputs": list(task.inputs),
        "kind": "classification",
        "classes": 2,
        "names": [],
        "source": source,
        "gland": False,
        "images": IMAGES,
        "scale": None,
    }
    params = dict(FedAvg().network(task).state_dict())
    path.write_bytes(seal_parts(to_bytes(Message(params, facts))))  # type: ignore[arg-type]
    return str(path)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def prostatex(data: Path) -> str:
    if not (data / "prostatex" / "dicom").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    return str(data / "prostatex" / "dicom")


@pytest.mark.parametrize("unit", ["auto", "1e-6 mm2/s"])
def test_predict_scores_adc_maps_and_nothing_else_whatever_is_selected(prostatex, tmp_path, unit, thorough):
    file = classifier(tmp_path / "m", {"kind": "dicom", "folder": ".", "select": {"ImageType": "ADC"}, "unit": unit})
    for number, chosen in enumerate(SELECTIONS if thorough else SELECTIONS[: 2 if unit == "auto" else 3]):
        out = tmp_path / str(number)
        words = [word for one in chosen for word in ("--select", one)]
        said = ["--unit", unit] if unit != "auto" else []
        code = predict([file, prostatex, "--out", str(out), *words, *said])
        scored, refused = lines(out / "predictions.csv"), lines(out / "quarantine.csv")
        if chosen == ("ImageType=ADC",):
            assert (code, len(scored), len(refused)) == (Exit.OK, 2, 0)
        else:
            assert (code, scored) == (Exit.DATA, [])
            assert [line["reason"] for line in refused] == ["not_adc"] * 2
            assert all("ImageType says" in one["detail"] or "t2_tse_tra" in one["detail"] for one in refused)


def test_translate_writes_nothing_of_what_is_no_adc_map(prostatex, tmp_path, thorough):
    file = translator(tmp_path, CycleGan())
    for number, chosen in enumerate(SELECTIONS[1:] if thorough else SELECTIONS[1:3]):
        out = tmp_path / str(number)
        assert translate(file, Path(prostatex), out, *(w for one in chosen for w in ("--select", one))) == Exit.DATA
        assert [line["reason"] for line in table(out, "quarantine")] == ["not_adc"] * 2
        assert not list(out.rglob("*.dcm"))


def test_a_run_stops_at_a_hospital_whose_selection_is_t2(prostatex, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = {"kind": "dicom", "folder": prostatex, "select": {"SeriesDescription": "t2"}}
    (tmp_path / "labels.csv").write_text("patient,label\nProstateX-0000,1\nProstateX-0001,0\n")
    labels = {"kind": "table", "file": "labels.csv"}
    sites = {**BASE["sites"], "real": {"source": source, "labels": labels}}
    (tmp_path / "t2.yaml").write_text(yaml.safe_dump({**BASE, "name": "t2", "pooling": "refused", "sites": sites}))
    assert run(["t2.yaml"]) == Exit.DATA
    assert "real: 2 of 2 studies were rejected, and max_rejected allows 20%: not_adc (2)." in " ".join(
        capsys.readouterr().err.split()
    )
    (found,) = (tmp_path / "runs" / "t2" / "sites" / "real").glob("cohorts/*/rejected.json")
    assert [one["reason"] for one in json.loads(found.read_text())] == ["not_adc"] * 2


def test_nifti_files_that_say_nothing_need_a_unit_and_others_are_refused_all_the_same(tmp_path):
    for name in ("P1", "P2", "sub-03_dwi", "sub-03_adc"):
        values = np.random.default_rng(0).uniform(500, 2000, (48, 48, 6)).astype(np.float32)
        (tmp_path / "new").mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(values, np.diag([1.5, 1.5, 3, 1])), tmp_path / "new" / f"{name}.nii.gz")
    file = classifier(tmp_path / "m", {"kind": "nifti", "folder": "."})
    arguments = [file, str(tmp_path / "new"), "--out", str(tmp_path / "out")]
    assert predict(arguments) == Exit.OK
    assert [line["patient"] for line in lines(tmp_path / "out" / "predictions.csv")] == ["sub-03"]
    refused = {line["study"]: line["reason"] for line in lines(tmp_path / "out" / "quarantine.csv")}
    assert refused == dict.fromkeys(("P1.nii.gz", "P2.nii.gz", "sub-03_dwi.nii.gz"), "not_adc")
    assert predict([*arguments, "--unit", "1e-6 mm2/s"]) == Exit.OK
    assert len(lines(tmp_path / "out" / "predictions.csv")) == 3
    assert [line["study"] for line in lines(tmp_path / "out" / "quarantine.csv")] == ["sub-03_dwi.nii.gz"]


@pytest.mark.parametrize(
    ("known", "words", "unit"),
    [
        (DECLARED, {}, "1e-5 mm2/s"),
        (DECLARED, {"select": ["ImageType=ADC"]}, "1e-5 mm2/s"),
        (DECLARED, {"select": ["Modality=MR"]}, "auto"),
        (DicomSource(folder=".", unit="1e-5 mm2/s"), {"kind": "nifti"}, "auto"),
        (NiftiSource(folder=".", unit="1e-5 mm2/s"), {}, "1e-5 mm2/s"),
        (NiftiSource(folder=".", unit="1e-5 mm2/s"), {"kind": "dicom", "select": ["ImageType=ADC"]}, "auto"),
        (NiftiSource(folder="."), {"kind": "dicom", "select": ["Modality=MR"], "unit": "mm2/s"}, "mm2/s"),
    ],
)  # fmt: skip
def test_a_unit_holds_for_what_it_was_said_of(known, words, unit: Unit):
    words = {"kind": None, "select": [], "unit": None, **words}
    assert adapt_source(known, "new", **words, trained_name="model").unit == unit
