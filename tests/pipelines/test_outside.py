"""A hospital that never was in the federation: exported models, its own unlabelled images, and what comes of them."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from other_device import OTHER, other_device
from PIL import Image

from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.unet import UNet
from federation.randomness import derive_seed
from federation.task import Task
from personalize.routing import coefficients
from personalize.routing_outside import Routing, route_experts
from pipelines.data.dicom.segmentation import read_segmentation
from pipelines.data.images import Features, Pictures, Slices
from pipelines.data.nifti.reader import read_volume
from pipelines.data.pictures.reader import read_picture
from pipelines.data.pseudonym import make_pseudonym
from pipelines.external.adapted import build_networks
from pipelines.external.models_file import Models, ModelsDescription, Part, image_problems, models_bytes, read_models
from pipelines.external.offer import list_offers, problems, write_offers
from pipelines.external.settings import ExternalSettings, is_external
from pipelines.hospital.hospital import COHORT, all_rows, read_cohort_file
from pipelines.loader.document import read_yaml
from pipelines.loader.files import CONFIGS
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.files import write as write_phantom
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines.settings.route import AsTrained, Route
from pipelines_settings import BASE
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.release import ledger as ledgers
from translating import errors

OPEN = {"recipients": ["coordinator", "outside"]}
LINES = {
    "average": {"how": {"name": "average"}},
    "tent": {"how": {"name": "tent", "epochs": 1}},
    "ensemble": {"how": {"name": "ensemble"}, "personal": "local"},
    "routing": {"how": {"name": "routing", "epochs": 2, "radius": 2}},
}
SLICES = Slices(size=16, spacing_mm=4.0, centre="image")
SMALL = UNet(width=4, levels=1)


def federation() -> dict[str, Any]:
    """Two hospitals inside, and `west` outside, whom the stage `route` adapts by the same images as we do here."""
    made = copy.deepcopy(BASE)
    site = {"kind": "phantom", "scanner": "A", "patients": 6, "slices": 4}
    made["sites"] = {
        "north": {"source": {**site, "seed": 1}, "policy": OPEN},
        "south": {"source": {**site, "seed": 2, "scanner": "L", "format": "nifti"}, "policy": OPEN},
        "west": {"source": {**site, "seed": 3, "scanner": "D", "format": "nifti"}},
    }
    methods: dict[str, Any] = {label: {"name": label} for label in ("iopfl", "local")}
    methods["fedavg"] = {"name": "fedavg", "weights": "uniform"}
    return {
        **made,
        "title": "A federation of phantoms",
        "pooling": "refused",
        "task": {"kind": "segmentation", "target": "gland"},
        "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
        "model": {"name": "unet", "width": 4, "levels": 1},
        "train": {"schedule": {"rounds": 1}, "work": {"lr": 0.01, "batch": 8}, "methods": methods},
        "evaluate": {"checkpoint": "latest", "copies": 0, "public": False},
        "audit": {"membership": False},
        "outside": ["west"],
        "route": {"shared": "fedavg", "personal": "iopfl", "lines": LINES},
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, and west's files under names that sort as its pseudonyms do."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(federation()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["tiny.yaml", "--until", "route"]) == Exit.OK
    root = folder / "runs" / "tiny"
    (files,) = (root / "sites" / "west").glob("phantom/*/images")
    key = hashlib.sha256(b"phantom west").digest()
    (folder / "images").mkdir()
    for path in files.iterdir():
        name = make_pseudonym(key, path.name.removesuffix(".nii.gz"))
        shutil.copy(path, folder / "images" / f"{name}.nii.gz")
    return folder


def models_of(done: Path) -> Path:
    (found,) = (done / "runs" / "tiny").glob("route/*/models.safetensors")
    return found


def asked(folder: Path, **said: object) -> str:
    (folder / "route.yaml").write_text(yaml.safe_dump(said))
    return str(folder / "route.yaml")


def west(done: Path, out: Path, **more: object) -> dict[str, object]:
    return {
        "name": "west",
        "models": str(models_of(done)),
        "source": {"kind": "nifti", "folder": str(done / "images")},
        "how": LINES["routing"]["how"],
        "out": str(out),
        **more,
    }


@pytest.fixture(scope="module")
def routed(done: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("west") / "out"
    assert run([asked(out.parent, **west(done, out))]) == Exit.OK
    return out


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def account_of_the_stage(done: Path, line: str) -> Mapping[str, Any]:
    files = (done / "runs" / "tiny" / "sites" / "west").glob("*/route-*.safetensors")
    (found,) = (facts for path in files if (facts := from_bytes(path.read_bytes()).facts)["line"] == line)
    return found


def test_the_same_images_come_to_the_state_of_the_stage(done, routed, tmp_path):
    found = json.loads((routed / "adaptation.json").read_text())
    assert run([asked(tmp_path, **west(done, tmp_path / "out", how=LINES["tent"]["how"]))]) == Exit.OK
    of_tent = json.loads((tmp_path / "out" / "adaptation.json").read_text())
    for line, own in (("routing", found), ("tent", of_tent)):
        of_stage = account_of_the_stage(done, line)
        assert own["losses"] == pytest.approx(of_stage["losses"], abs=1e-6)
        assert np.allclose(own["shares"], of_stage["shares"], atol=1e-6)
        assert (own["epoch"], own["why"]) == (of_stage["epoch"], of_stage["why"])
    assert (found["experts"], of_tent["experts"]) == (["north", "south", "*"], ["*"])


def test_coefficients_are_those_of_routing_on_the_hospitals_cohort(done, routed):
    (cohort,) = (done / "runs" / "tiny" / "sites" / "west").glob(f"cohorts/*/{COHORT}")
    x = all_rows(read_cohort_file(cohort), target="gland").x
    how = Routing(epochs=2, radius=2)
    seed = derive_seed(0, "west", "routing")
    module, _ = route_experts(build_networks(read_models(models_of(done)), how), x, how, kind="segmentation", seed=seed)
    found = json.loads((routed / "adaptation.json").read_text())["coefficients"]
    expected = coefficients(module, x).mean(dim=0)
    assert list(found) == list(module.layers)
    assert np.allclose([list(one.values()) for one in found.values()], expected.numpy(), atol=1e-6)


def test_every_study_gets_a_mask_on_its_own_grid(done, routed):
    table = lines(routed / "predictions.csv")
    assert len(table) == 6 and lines(routed / "quarantine.csv") == []
    for line in table:
        image, mask = read_volume(done / "images" / line["study"]), read_volume(routed / line["mask"])
        assert mask.values.shape == image.values.shape and np.allclose(mask.affine, image.affine, atol=1e-4)
        assert set(np.unique(mask.values)) <= {0, 1}
        ml = abs(float(np.linalg.det(mask.affine[:3, :3]))) / 1000
        assert float(line["gland_ml"]) == pytest.approx((mask.values == 1).sum() * ml, rel=1e-4)
    assert {path.stat().st_mode & 0o077 for path in routed.rglob("*.*") if path.is_file()} == {0}
    with Image.open(routed / "adaptation.png") as picture:
        assert picture.size == (960, 450)


def test_later_images_need_no_adaptation(done, routed, tmp_path):
    assert predict([str(routed / "routed.safetensors"), str(done / "images"), "--out", str(tmp_path)]) == Exit.OK
    assert (tmp_path / "predictions.csv").read_bytes() == (routed / "predictions.csv").read_bytes()
    for path in (routed / "masks").iterdir():
        assert (tmp_path / "masks" / path.name).read_bytes() == path.read_bytes()


def test_the_file_of_models_holds_what_was_handed_out_and_names_no_folder_and_no_patient(done):
    path = models_of(done)
    message = from_bytes(unseal_parts(path.read_bytes()))
    text = json.dumps(dict(message.facts))
    sites = done / "runs" / "tiny" / "sites"
    names = [file.name.partition(".")[0] for file in sites.glob("*/phantom/*/images/*")]
    splits = [json.loads(file.read_text()) for file in sites.glob("*/cohorts/*/split.json")]
    pseudonyms = [one for split in splits for part in split.values() for one in part]
    assert len(names) == 18 and len(pseudonyms) == 18
    assert [word for word in (*names, *pseudonyms, str(done), "/", "images/", "west") if word in text] == []
    assert {name.partition("/")[0] for name in message.tensors} == {"north", "south", "*"}
    described = read_models(path).described
    assert (described.title, described.gland) == ("A federation of phantoms", False)
    assert described.names == ("background", "gland")
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["summary"]["models"] == {"models.safetensors": "", "models.fedavg+local.safetensors": ""}
    for site in ("north", "south"):
        exports = [line for line in ledgers.read_lines(sites / site / "ledger.jsonl") if line["request"] == "export"]
        assert len(exports) == 3 and {line["recipient"] for line in exports} == {"outside"}


def test_each_pair_of_methods_has_a_file_of_what_its_lines_need(done):
    (other,) = (done / "runs" / "tiny").glob("route/*/models.fedavg+local.safetensors")
    assert read_models(other).described.shared is None
    assert list(read_models(other).experts) == ["north", "south"]
    plan = validate_settings(
        read_yaml(yaml.safe_dump({"shared": "f", "personal": "i", "lines": LINES}), environment={}), Route
    )
    assert {one.name: dict(one.methods) for one in list_offers(plan)} == {
        "models.safetensors": {"shared": "f", "personal": "i"},
        "models.f+local.safetensors": {"personal": "local"},
    }
    assert list_offers(replace(plan, lines={"average": plan.lines["average"]})) == []


def test_what_a_stranger_cannot_use_is_not_written_and_said(tmp_path):
    around = Pictures(fit="around", margin=1.5)
    assert "own mask" in str(image_problems(around)[0])
    assert "nobody agreed" in str(image_problems(Features(numbers=("age",), normalize="pooled"))[0])
    assert len(image_problems(Features(numbers=("age", "bmi"), components=1))) == 2
    assert image_problems(Features(numbers=("age",), normalize="declared", ranges={"age": (0.0, 99.0)})) == []
    config = validate_settings(read_yaml(yaml.safe_dump(federation()), environment={}), Config)
    (offer,) = (one for one in list_offers(config.route) if one.name == "models.safetensors")
    assert problems(config, offer) == []
    translated = replace(config.train, method_images={"iopfl": "common"})
    object.__setattr__(config, "train", translated)
    said = write_offers(config, replace(config.route, lines={"routing": config.route.lines["routing"]}), {}, tmp_path)
    assert list(said) == ["models.safetensors"] and "no translator" in said["models.safetensors"]
    assert list(tmp_path.iterdir()) == []


def described(**changes: Any) -> ModelsDescription:
    part = Part(algorithm=FedAvg(), model=SMALL)
    said: dict[str, Any] = {
        "run": "theirs",
        "title": "",
        "kind": "segmentation",
        "names": ("background", "gland"),
        "inputs": (1, 16, 16),
        "images": SLICES,
        "gland": False,
        "experts": ("north", "south", "*"),
        "personal": part,
        "shared": part,
    }
    return ModelsDescription(**{**said, **changes})


def models(path: Path, said: ModelsDescription | None = None) -> Path:
    """A file of networks that have learnt nothing."""
    said = said or described()
    experts = {}
    for seed, name in enumerate(said.experts):
        torch.manual_seed(seed)
        experts[name] = dict(said.part_of(name).algorithm.network(said.task(said.part_of(name))).state_dict())
    path.write_bytes(models_bytes(said, experts))
    return path


def test_what_is_written_is_read_again(tmp_path):
    found = read_models(models(tmp_path / "m"))
    assert found.described == described()
    assert isinstance(found, Models) and list(found.experts) == ["north", "south", "*"]


BROKEN: dict[str, dict[str, Any]] = {
    "format 9": {"format": 9},
    "a ready model": {"what": "ready"},
    "a key more": {"hook": "import os"},
    "no images": {"images": None},
    "other inputs": {"inputs": [1, 32, 32]},
    "too wide": {"personal": to_plain(Part(algorithm=FedAvg(), model=UNet(width=4096, levels=4)))},
    "another network": {"shared": to_plain(Part(algorithm=FedAvg(), model=UNet(width=8, levels=1)))},
    "odd classes": {"names": ["background", "../gland"]},
    "a lost expert": {"experts": ["north", "*"]},
    "an expert too many": {"experts": ["north", "south", "east", "*"]},
    "the shared one first": {"experts": ["*", "north", "south"]},
    "nobody's models": {"experts": []},
}


WORDS = {
    "too wide": "at most 268435456 parameters",
    "another network": "the model * is not of its network",
    "a lost expert": "tensors of no expert: 'south/",
    "short": "do not match their checksum",
    "infinite": "not finite",
}


@pytest.mark.parametrize("case", [*BROKEN, "missing", "short", "foreign", "infinite", "double"])
def test_a_malformed_file_is_a_named_error(tmp_path, capsys, case):
    path = models(tmp_path / "m")
    good = path.read_bytes()
    message = from_bytes(unseal_parts(good))
    tensors = dict(message.tensors)
    first = sorted(tensors)[0]
    if case == "missing":
        path.unlink()
    elif case in ("short", "foreign"):
        path.write_bytes(good[:-40] if case == "short" else b"PK\x03\x04 a zip file")
    else:
        if case == "infinite":
            tensors[first] = torch.full_like(tensors[first], torch.inf)
        if case == "double":
            tensors[first] = tensors[first].double()
        path.write_bytes(seal_parts(to_bytes(Message(tensors, {**message.facts, **BROKEN.get(case, {})}))))
    (tmp_path / "in").mkdir()
    said = {"name": "west", "models": str(path), "source": {"kind": "nifti", "folder": str(tmp_path / "in")}}
    assert run([asked(tmp_path, **said, out=str(tmp_path / "out"))]) == Exit.CONFIG
    told = capsys.readouterr().err
    known = ("is not a file of models", "cannot be read", "made by a later version (format 9")
    assert "route.yaml:1: models: " in told and any(words in told for words in known)
    assert WORDS.get(case, "") in told
    assert not (tmp_path / "out").exists()


def test_all_that_is_wrong_is_told_at_once(tmp_path, capsys):
    file = models(tmp_path / "m", described(gland=True, experts=("*",), personal=None, images=Slices(size=16)))
    (tmp_path / "in").mkdir()
    said = {"name": "west", "models": str(file), "out": str(tmp_path / "out")}
    source = {"kind": "picture", "folder": str(tmp_path / "in")}
    wrong = {"source": source, "how": {"name": "routing"}, "threshold": 0.4}
    assert run([asked(tmp_path, **said, **wrong)]) == Exit.CONFIG
    told = capsys.readouterr().err
    for words in ("images of kind slices: say dicom or nifti", "needs the models that are personal"):
        assert words in told
    assert "cut about the gland" in told and "threshold: is for scores" in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sourec": {}}, "sourec: unknown key (did you mean 'source'?)"),
        ({"name": "The West"}, "name: made of a-z"),
        ({"how": {"name": "ttt"}}, "how.name: unknown"),
        ({"how": {"name": "routing", "epochs": -1}}, "how.epochs: must be"),
        ({"how": {"name": "routing", "lr": "fast"}}, "how.lr: must be a number"),
        ({"source": {"kind": "dicom", "folder": "in"}}, "source.select: missing"),
        ({"source": {"kind": "nifti", "folder": "nowhere"}}, "'nowhere' does not exist"),
        ({"source": {"kind": "nifti", "folder": "in"}}, "no file below 'in' matches"),
        ({"out": "in/out"}, "out: lies in the folder of images"),
        ({"gland": "in"}, "did not learn from images cut about gland masks"),
        ({"gland": "in", "no_gland": True}, "no_gland: and gland contradict"),
        ({"readers": -1, "threads": 0}, "readers must be >= 0"),
    ],
)
def test_wrong_settings_are_told(tmp_path, capsys, monkeypatch, change, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    plain = {"name": "west", "models": str(models(tmp_path / "m")), "source": {"kind": "nifti", "folder": "in"}}
    assert run([asked(tmp_path, **{**plain, "out": "out", **change})]) == Exit.CONFIG
    assert said.replace("readers must", "readers: must") in " ".join(capsys.readouterr().err.split())


def test_stages_cannot_be_chosen_where_there_are_none(tmp_path, capsys):
    source = {"kind": "picture", "folder": "in"}
    assert run([asked(tmp_path, name="w", models="m", source=source, out="out"), "--only", "train"]) == Exit.CONFIG
    assert "a file with models: has none" in capsys.readouterr().err


def test_dicom_is_adapted_to_and_gets_valid_segmentations(tmp_path, capsys):
    write_phantom(PhantomSource(scanner="E", patients=2, slices=4, seed=9, format="dicom", damaged=1), tmp_path / "p")
    source = {"kind": "dicom", "folder": str(tmp_path / "p" / "images"), "select": {"ImageType": "ADC"}}
    said = {"name": "east", "models": str(models(tmp_path / "m")), "source": source, "out": str(tmp_path / "out")}
    how = {"name": "routing", "epochs": 1, "radius": 2, "mode": "online"}
    path = asked(tmp_path, **said, how=how)
    assert run([path, "--check", "--json"]) == Exit.OK
    looked = json.loads(capsys.readouterr().out)
    assert (looked["studies"], looked["experts"]) == (2, ["north", "south", "*"])
    assert not (tmp_path / "out").exists()
    assert run([path, "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["exit"], told["studies"], told["quarantined"]) == (0, 2, 1)
    assert "before the step" in told["why"]
    for line in lines(tmp_path / "out" / "predictions.csv"):
        assert read_segmentation(tmp_path / "out" / line["mask"], ["gland"]).values.ndim == 3
        assert line["study_uid"] and line["model"] == "routing of theirs" and line["model_digest"]
    assert errors(tmp_path / "out") == set()
    hidden = [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    assert not hidden, "the folder is handed on as it is"


def pictures(folder: Path) -> tuple[Path, Pictures]:
    """A file of classifiers of pictures; and five pictures, and one that is none."""
    part = Part(algorithm=FedAvg(), model=Cnn(widths=(8, 8), norm="batch"))
    images = Pictures(size=16)
    said = described(kind="classification", names=("negative", "positive"), inputs=(3, 16, 16), images=images)
    file = models(folder / "m", replace(said, personal=part, shared=part))
    (folder / "in").mkdir()
    chance = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(chance.integers(0, 255, (20, 30, 3), np.uint8)).save(folder / "in" / f"{number}.png")
    (folder / "in" / "broken.png").write_bytes(b"none")
    return file, images


def test_each_picture_has_the_score_of_before_its_own_step(tmp_path):
    file, images = pictures(tmp_path)
    how = {"name": "routing", "mode": "online", "batch": 2, "lr": 0.1}
    source = {"kind": "picture", "folder": str(tmp_path / "in")}
    said = {"name": "w", "models": str(file), "source": source, "how": how, "out": str(tmp_path / "out")}
    assert run([asked(tmp_path, **said)]) == Exit.OK
    x = torch.from_numpy(np.stack([read_picture(tmp_path / "in" / f"{n}.png", images) for n in range(5)]))
    way = Routing(mode="online", batch=2, lr=0.1)
    _, adapted = route_experts(
        build_networks(read_models(file), way), x, way, kind="classification", seed=derive_seed(0, "w", "routing")
    )
    scores = [float(line["score"]) for line in lines(tmp_path / "out" / "predictions.csv")]
    assert len(set(scores)) == 5
    assert adapted.probabilities is not None
    assert scores == pytest.approx(adapted.probabilities[:, 1].tolist(), abs=1e-6)


@pytest.mark.parametrize(
    "how",
    [
        {"name": "routing", "mode": "online", "batch": 2, "lr": 0.1},
        *({"name": name} for name in ("routing", "tent", "ensemble", "as_trained")),
    ],
)
def test_on_another_device_the_scores_are_those_of_the_cpu(tmp_path, monkeypatch, how):
    file, _ = pictures(tmp_path)
    source = {"kind": "picture", "folder": str(tmp_path / "in")}
    scores = []
    for place in ("here", "there"):
        said = {"name": "w", "models": str(file), "source": source, "how": how, "out": str(tmp_path / place)}
        with monkeypatch.context() as patch, other_device(1e-7) if place == "there" else nullcontext() as crossings:
            if crossings is not None:
                patch.setattr(ExternalSettings, "computes_on", OTHER)
            assert run([asked(tmp_path, **said)]) == Exit.OK
        assert crossings is None or crossings.uploads, "it did not compute there"
        scores.append([float(line["score"]) for line in lines(tmp_path / place / "predictions.csv")])
    assert len(set(scores[0])) == 5
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("how", ["routing", "tent", "ensemble", "as_trained"])
def test_pictures_are_scored_as_predict_scores_them(tmp_path, capsys, how):
    file, images = pictures(tmp_path)
    source = {"kind": "picture", "folder": str(tmp_path / "in")}
    out = tmp_path / "out"
    assert run([asked(tmp_path, name="w", models=str(file), source=source, how={"name": how}, out=str(out))]) == Exit.OK
    assert "For research use only" in capsys.readouterr().err
    table = lines(out / "predictions.csv")
    assert [line["study"] for line in table] == [f"{number}.png" for number in range(5)]
    assert [line["study"] for line in lines(out / "quarantine.csv")] == ["broken.png"]
    again = tmp_path / "again"
    assert predict([str(out / "routed.safetensors"), str(tmp_path / "in"), "--out", str(again)]) == Exit.OK
    assert lines(again / "predictions.csv") == table
    assert lines(again / "accounted.csv") == lines(out / "accounted.csv")
    classes = Counter(line["class"] for line in lines(out / "accounted.csv"))
    assert classes == {"used": 5, "quarantined": 1}
    account = json.loads((out / "adaptation.json").read_text())
    assert ("losses" in account) == (out / "adaptation.png").exists() == (how in ("routing", "tent"))
    if how == "as_trained":
        module = build_networks(read_models(file), AsTrained())[0]
        first = torch.from_numpy(read_picture(tmp_path / "in" / "0.png", images))[None]
        score = Task(Cnn(), (3, 16, 16), 2).probabilities(module, first)[0, 1]
        assert float(table[0]["score"]) == pytest.approx(float(score), abs=1e-6)


def test_where_no_state_counts_the_shared_model_serves_now_and_later(tmp_path, monkeypatch):
    """Models that call everything one class are no witnesses, so nothing passes the guard."""
    file, _ = pictures(tmp_path)
    monkeypatch.setattr("personalize.adaptation.Range.holds", lambda self, shares: False)
    source, found = {"kind": "picture", "folder": str(tmp_path / "in")}, {}
    for how in ("routing", "tent", "as_trained"):
        out = tmp_path / how
        said = {"name": "w", "models": str(file), "source": source, "how": {"name": how}, "out": str(out)}
        assert run([asked(tmp_path, **said)]) == Exit.OK
        found[how] = lines(out / "predictions.csv")
        assert predict([str(out / "routed.safetensors"), str(tmp_path / "in"), "--out", str(tmp_path / "x")]) == Exit.OK
        assert lines(tmp_path / "x" / "predictions.csv") == found[how]
    assert found["routing"] == found["tent"] == found["as_trained"]
    account = json.loads((tmp_path / "routing" / "adaptation.json").read_text())
    assert account["epoch"] is None and "the shared model serves as it came" in account["why"]
    assert account["coefficients"] == {} and (tmp_path / "routing" / "adaptation.png").exists()


def test_what_an_earlier_run_left_goes_where_nothing_can_be_read(tmp_path):
    file, _ = pictures(tmp_path)
    source, out = {"kind": "picture", "folder": str(tmp_path / "in")}, tmp_path / "out"
    how = {"name": "routing", "epochs": 1}
    settings_ = asked(tmp_path, name="w", models=str(file), source=source, how=how, out=str(out))
    assert run([settings_]) == Exit.OK and (out / "routed.safetensors").exists()
    for path in (tmp_path / "in").glob("*.png"):
        path.write_bytes(b"none")
    assert run([settings_]) == Exit.DATA
    assert sorted(path.name for path in out.glob("[!.]*") if path.is_file()) == [
        "accounted.csv",
        "predictions.csv",
        "quarantine.csv",
    ]


def test_studies_are_cut_about_the_gland_where_the_models_learnt_so(tmp_path):
    write_phantom(PhantomSource(scanner="L", patients=2, slices=4, seed=9, format="nifti"), tmp_path / "p")
    part = Part(algorithm=FedAvg(), model=Cnn(widths=(8, 8)))
    said = described(kind="classification", names=("negative", "positive"), gland=True, images=Slices(size=16))
    file = models(tmp_path / "m", replace(said, personal=part, shared=part))
    source = {"kind": "nifti", "folder": str(tmp_path / "p" / "images")}
    plain = {"name": "w", "models": str(file), "source": source, "how": {"name": "as_trained"}}
    found = {}
    for out, cut in (("gland", {"gland": str(tmp_path / "p" / "masks" / "gland")}), ("middle", {"no_gland": True})):
        assert run([asked(tmp_path, **plain, **cut, out=str(tmp_path / out))]) == Exit.OK
        found[out] = lines(tmp_path / out / "predictions.csv")
    assert len(found["gland"]) == len(found["middle"]) == 2 and found["gland"] != found["middle"]
    kept = [str(tmp_path / "gland" / "routed.safetensors"), source["folder"], "--out", str(tmp_path / "again")]
    assert predict(kept) == Exit.CONFIG
    assert predict([*kept, "--gland", str(tmp_path / "p" / "masks" / "gland")]) == Exit.OK
    assert lines(tmp_path / "again" / "predictions.csv") == found["gland"]


def test_lines_of_a_table_need_no_label(tmp_path, capsys):
    part = Part(algorithm=FedAvg(), model=Mlp(hidden=(4,)))
    images = Features(numbers=("age", "bmi"), normalize="declared", ranges={"age": (0.0, 100.0), "bmi": (10.0, 50.0)})
    said = described(kind="classification", names=("negative", "positive"), inputs=(2,), images=images)
    file = models(tmp_path / "m", replace(said, personal=part, shared=part))
    table = tmp_path / "new.csv"
    table.write_text("who,age,bmi\na,30,22\nb,80,31\nc,?,25\n")
    source = {"kind": "table", "file": str(table), "patient": "who"}
    plain = {"name": "w", "models": str(file), "source": source}
    assert run([asked(tmp_path, **plain, how={"name": "tent"}, out=str(tmp_path / "out"))]) == Exit.CONFIG
    assert "route.yaml:1: how: tent trains scales of normalization layers" in capsys.readouterr().err
    plain["how"] = {"name": "ensemble"}
    assert run([asked(tmp_path, **plain, out=str(tmp_path / "out"))]) == Exit.OK
    found = lines(tmp_path / "out" / "predictions.csv")
    assert [line["patient"] for line in found] == ["a", "b"]
    assert [line["reason"] for line in lines(tmp_path / "out" / "quarantine.csv")] == ["missing_value"]
    again = [str(tmp_path / "out" / "routed.safetensors"), str(table), "--out", str(tmp_path / "again")]
    assert predict(again) == Exit.OK
    assert lines(tmp_path / "again" / "predictions.csv") == found


def test_where_nothing_can_be_read_nothing_is_adapted(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.nii.gz").write_bytes(b"x")
    source = {"kind": "nifti", "folder": str(tmp_path / "in")}
    path = asked(tmp_path, name="w", models=str(models(tmp_path / "m")), source=source, out=str(tmp_path / "out"))
    assert run([path, "--json"]) == Exit.DATA
    assert json.loads(capsys.readouterr().out)["quarantined"] == 1
    assert len(lines(tmp_path / "out" / "quarantine.csv")) == 1
    assert not (tmp_path / "out" / "routed.safetensors").exists()


def test_an_adapted_model_that_was_tampered_with_is_refused(done, routed, tmp_path, capsys):
    message = from_bytes(unseal_parts((routed / "routed.safetensors").read_bytes()))
    tensors = {name: value for name, value in message.tensors.items() if not name.startswith("south/")}
    for number, broken in enumerate(
        (
            Message(tensors, message.facts),
            Message({**message.tensors, ":state/network.head": torch.zeros(1)}, message.facts),
            Message(message.tensors, {**message.facts, "how": {"name": "ttt"}}),
        )
    ):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(seal_parts(to_bytes(broken)))
        arguments = [str(path), str(done / "images"), "--no-gland", "--out", str(tmp_path / "out")]
        assert predict(arguments) == Exit.CONFIG
        assert "is not an adapted model" in capsys.readouterr().err


def test_the_shipped_configuration_is_a_template_of_this_kind():
    document = read_yaml((CONFIGS / "route.yaml").read_text(), environment={"CONSILIUM_DATA": "/data"})
    assert is_external(document.data)
    found = validate_settings(document, ExternalSettings)
    assert found.how.name == "routing"
    assert validate_settings(read_yaml(yaml.safe_dump(to_plain(found)), environment={}), ExternalSettings) == found
