"""A study that is unlike the training patients is marked by `predict`; the statistics for it never leave."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from federation.models.unet import UNet
from federation.task import Task
from pipelines.data.cohort import Cohort
from pipelines.models.file import read_ready
from pipelines.models.likeness import ENDING, Likeness, likeness_of, read_likeness, studies_of, to_file
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts

COLUMNS = ("unlike_training", "distance", "p_value")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A finished run of two scanners, whose models are handed round and out."""
    folder = tmp_path_factory.mktemp("likeness")
    os.chdir(folder)
    made = {**BASE, "train": {**BASE["train"], "schedule": {"rounds": 1}}}
    made["train"]["methods"] = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    made["sites"] = json.loads(json.dumps(BASE["sites"]))
    for site in made["sites"].values():
        site["source"] |= {"patients": 32, "damaged": 0}
    made["split"] = {"train": 0.6, "validation": 0.1, "test": 0.3}
    made["evaluate"] = {"copies": 5, "reference": "local", "public": True}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(made))
    assert run(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / "tiny"


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def phantom(site: Path) -> Path:
    (images,) = site.glob("phantom/*/images")
    return images


def asked(model: Path, images: Path, out: Path, *more: str) -> list[dict[str, str]]:
    gland = str(images.parent / "masks" / "gland")
    assert predict([str(model), str(images), "--gland", gland, "--out", str(out), *more]) == Exit.OK
    return lines(out / "predictions.csv")


@pytest.mark.parametrize("label", [pytest.param("local", marks=pytest.mark.slow), "fedavg"])
def test_patients_of_the_hospital_are_like_and_those_of_another_scanner_are_not(runs, label, tmp_path, capsys):
    model = runs / "sites" / "a" / "ready" / f"{label}.safetensors"
    own = asked(model, phantom(runs / "sites" / "a"), tmp_path / "own")
    assert sum(int(line["unlike_training"]) for line in own) <= 2, "of 32, most of whom it learnt from"
    write(PhantomSource(scanner="B", patients=6, seed=3, slices=4), tmp_path / "b")
    capsys.readouterr()
    other = asked(model, tmp_path / "b" / "images", tmp_path / "other")
    said = " ".join(capsys.readouterr().err.split())
    assert [line["unlike_training"] for line in other] == ["1"] * 6
    assert "6 of 6 studies are unlike those that the model learnt from (unlike_training in predictions.csv;" in said
    for line in own + other:
        far, p_value = float(line["distance"]), float(line["p_value"])
        assert (line["unlike_training"] == "1") == (far > 1) == (p_value < 0.01)
    asked(model, tmp_path / "b" / "images", tmp_path / "other", "--json")
    assert json.loads(capsys.readouterr().out)["unlike_training"] == 6


def test_real_adc_is_unlike_phantoms_and_a_fundus_picture_is_refused(runs, data, tmp_path, capsys):
    if not (data / "prostatex").is_dir() or not (data / "fundus").is_dir():
        pytest.skip(f"no ProstateX or no fundus pictures below {data}")
    model = str(runs / "sites" / "a" / "ready" / "fedavg.safetensors")
    real = [model, str(data / "prostatex" / "dicom"), "--no-gland", "--out", str(tmp_path)]
    assert predict(real) == Exit.OK
    assert [line["unlike_training"] for line in lines(tmp_path / "predictions.csv")] == ["1", "1"]
    assert predict([model, str(data / "fundus"), "--no-gland", "--out", str(tmp_path / "no")]) != Exit.OK
    assert not (tmp_path / "no" / "predictions.csv").exists() or not lines(tmp_path / "no" / "predictions.csv")


def test_one_unlike_study_stands_out_among_others(runs, tmp_path, capsys):
    home = runs / "sites" / "b"
    shutil.copytree(phantom(home).parent, tmp_path / "in")
    write(PhantomSource(scanner="B", patients=1, seed=3, slices=4, format="nifti"), tmp_path / "b")
    for part in ("images", "masks/gland"):
        for path in (tmp_path / "b" / part).iterdir():
            shutil.copy(path, tmp_path / "in" / part / path.name)
    found = asked(home / "ready" / "local.safetensors", tmp_path / "in" / "images", tmp_path / "out")
    own = {path.name for path in phantom(home).iterdir()}
    strange = {line["study"]: line["unlike_training"] for line in found if line["study"] not in own}
    assert list(strange.values()) == ["1"]
    assert np.mean([line["unlike_training"] == "1" for line in found]) < 0.2


def test_without_its_statistics_a_model_predicts_the_same_and_says_that_it_cannot_tell(runs, tmp_path, capsys):
    model, images = runs / "sites" / "a" / "ready" / "local.safetensors", phantom(runs / "sites" / "a")
    shutil.copy(model, tmp_path / "handed_on.safetensors")
    before = asked(model, images, tmp_path / "one")
    capsys.readouterr()
    after = asked(tmp_path / "handed_on.safetensors", images, tmp_path / "two")
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot be told: no handed_on.statistics.safetensors lies beside it" in said
    assert [line["score"] for line in after] == [line["score"] for line in before]
    assert {tuple(line[name] for name in COLUMNS) for line in after} == {("", "", "")}
    asked(tmp_path / "handed_on.safetensors", images, tmp_path / "two", "--json")
    assert json.loads(capsys.readouterr().out)["unlike_training"] is None


def damaged(good: Message) -> dict[str, bytes]:
    facts, tensors = dict(good.facts), dict(good.tensors)

    def whole(tensors, facts) -> bytes:
        return seal_parts(to_bytes(Message(tensors, facts)))

    return {
        "is of another model": whole(tensors, {**facts, "model": "0" * 16}),
        "is damaged": b"PK\x03\x04 a zip file",
        "was made by a later version (format 2; this program reads up to 1)": whole(tensors, {**facts, "format": 2}),
        "is damaged ('inputs/mean')": whole({}, facts),
        "is damaged (inputs: numbers that": whole({**tensors, "inputs/scale": torch.zeros(3)}, facts),
        "is damaged (features: 2 patients": whole(tensors, {**facts, "features": {**facts["features"], "patients": 2}}),
        "holds nothing": whole({}, {name: facts[name] for name in ("what", "format", "model")}),
    }


def test_statistics_of_another_model_and_damaged_ones_are_not_used(runs, tmp_path):
    model = runs / "sites" / "a" / "ready" / "local.safetensors"
    good = from_bytes(unseal_parts(model.with_name(f"local{ENDING}").read_bytes()))
    digest = read_ready(model).digest
    path = tmp_path / f"m{ENDING}"
    for said, data in damaged(good).items():
        path.write_bytes(data)
        found = read_likeness(path, digest)
        assert isinstance(found, str) and said in found
    other = runs / "sites" / "b" / "ready" / f"local{ENDING}"
    assert "is of another model" in str(read_likeness(other, digest))


def test_the_statistics_are_nobodys_and_leave_in_no_message_and_no_file(runs):
    """They lie in the hospital's folder `ready` and nowhere else: not in the model beside them, no reply, no page."""
    everything = [path for path in runs.rglob("*") if path.is_file()]
    files = sorted(runs.glob(f"sites/*/ready/*{ENDING}"))
    assert len(files) == 4
    conversations = [path for path in everything if "conversations" in path.parts]
    assert len(conversations) > 10 and any(path.name.startswith("export") for path in conversations)
    data = {path: path.read_bytes() for path in everything}
    for file in files:
        found = from_bytes(unseal_parts(data[file]))
        pseudonyms = json.loads((file.parents[1] / "linkage.json").read_text())["patients"]
        assert len(pseudonyms) == 32 and not [name for name in pseudonyms if name.encode() in data[file]]
        for tensor in found.tensors.values():
            for numbers in (tensor, tensor.float()):
                piece = numbers.flatten()[:4].numpy().tobytes()
                allowed = {other for other in files if other.parent == file.parent}  # one hospital's own
                assert {path for path, content in data.items() if piece in content} <= allowed


def test_what_is_kept_is_as_large_for_many_patients_as_for_few():
    """No row of it is a patient."""
    shapes = set()
    for patients in (6, 60):
        cohort = cohort_of(patients)
        made = likeness_of(Task(UNet(width=4, levels=2), (1, 16, 16), 3, "segmentation").network(), cohort, None)
        kept = from_bytes(unseal_parts(to_file(made, "0" * 16)))
        shapes.add(tuple((name, tuple(tensor.shape)) for name, tensor in sorted(kept.tensors.items())))
        assert {name for said in kept.facts.values() if isinstance(said, dict) for name in said} == {
            *("patients", "centre", "spread")
        }
    assert len(shapes) == 1


def cohort_of(patients: int, shape: tuple[int, ...] = (1, 16, 16), examples: int = 2) -> Cohort:
    g = torch.Generator().manual_seed(0)
    n = patients * examples
    empty = torch.zeros(n, 0, dtype=torch.uint8)
    patient = torch.arange(patients).repeat_interleave(examples)
    return Cohort(
        images=torch.randn(n, *shape, generator=g)
        + torch.randn(patients, generator=g)[patient].view(-1, *[1] * len(shape)),
        labels=torch.zeros(n, dtype=torch.int64),
        patient=patient,
        position=torch.arange(examples).float().repeat(patients) if len(shape) == 3 else torch.zeros(n),
        lesion=empty,
        gland=empty.clone(),
        split=torch.zeros(n, dtype=torch.int8),
        patients=tuple(f"p{number:02}" for number in range(patients)),
    )


@pytest.mark.parametrize(("shape", "window"), [((1, 16, 16), None), ((1, 24, 24), (16, 16)), ((1, 8, 16, 16), None)])
def test_models_that_segment_slices_windows_and_volumes_tell_it_too(shape, window):
    cohort = cohort_of(20, shape)
    torch.manual_seed(0)
    module = Task(UNet(width=4, levels=2, norm="group"), shape, 3, "segmentation").network()
    found = likeness_of(module, cohort, window)
    assert set(found.references) == {"inputs", "features"}
    assert found.references["features"].mean.shape == (8,), "mean and standard deviation of 4 channels"
    assert not found.verdict(module, cohort.images[:2], window).unlike
    smooth = torch.linspace(0, 1, shape[-1]).expand(1, *shape)
    assert found.verdict(module, smooth, window).unlike
    assert found.verdict(module, torch.full((1, *shape), torch.nan), window)[:2] == (True, float("inf"))


def test_a_study_is_what_lies_between_two_first_positions_and_a_volume_is_one():
    patient = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    assert studies_of(patient, torch.tensor([0.0, 1, 2, 0, 1, 2, 3, 4])).tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert studies_of(patient, torch.zeros(8)).tolist() == list(range(8))
    assert studies_of(patient[:0], torch.zeros(0)).tolist() == []


def test_features_that_are_no_numbers_leave_what_the_images_say():
    cohort = cohort_of(20)
    module = Task(UNet(width=4, levels=2, norm="group"), (1, 16, 16), 3, "segmentation").network()
    with torch.no_grad():
        next(module.parameters()).fill_(torch.nan)
    found = likeness_of(module, cohort, None)
    assert isinstance(found, Likeness) and set(found.references) == {"inputs"}
    assert found.verdict(module, 40 * cohort.images[:2], None).unlike
    assert likeness_of(module, cohort_of(4), None) is None
