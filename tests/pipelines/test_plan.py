"""The request `fingerprint` at a hospital, and the command that plans by it."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import yaml
from PIL import Image

from federation.flare import COORDINATOR, ClientApp, build_reach
from federation.models.planned import Planned
from flare_in_process import InProcessProxy
from pipelines.coordinator.arguments import transport_free_arguments
from pipelines.coordinator.run import simulated_workers
from pipelines.data.images import Volumes
from pipelines.data.sources import GlandMask, NiftiSource, PictureMasks, PictureSource, VolumeMasks
from pipelines.hospital.fingerprint import SHARE, count_comparisons, noise_of
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.quarantine import MEANING, read_linkage
from pipelines.hospital.worker import make_worker
from pipelines.loader.files import CONFIGS
from pipelines.loader.validation import to_plain
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.plan import main, parse_memory
from pipelines.remote import operate
from pipelines.remote.order import DONE, Ended, Order, write_order
from pipelines.remote.server import execute_order
from pipelines.run import main as run_main
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.load import load_config
from pipelines.settings.sites import SiteSettings
from privacy.dp import entropy
from privacy.dp.accounting import compute_cost, mu_of
from privacy.dp.events import Gaussian, SelfComposed, describe_event
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

ASKED: dict[str, Json] = {"images": "volumes", "values": "standardized", "target": "gland", "classes": ["gland"]}
BUDGET = Budget(epsilon=8.0)
PATIENTS = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("files")
    write(PhantomSource(scanner="P", patients=PATIENTS, seed=1, slices=4, format="nifti"), folder)
    return folder


def hospital(folder: Path, files: Path, policy: Policy = Policy(), **changes: Any) -> Hospital:  # noqa: B008 - frozen
    settings = SiteSettings(
        source=NiftiSource(folder=str(files / "images")),
        gland=GlandMask(folder=str(files / "masks" / "gland")),
        policy=policy,
        **changes,
    )
    return Hospital("a", folder / "a", settings, lambda: "2026-01-01T00:00:00Z")


def ask(site: Hospital, run: str = "r/fingerprint", **changes: Json) -> dict[str, Json]:
    return dict(make_worker(site)(Call(run, 0, "fingerprint", {}), Message({}, {**ASKED, **changes})).facts)


def copied(files: Path, folder: Path) -> Path:
    shutil.copytree(files, folder / "files")
    return folder / "files"


def names(files: Path) -> list[str]:
    return sorted(path.name for path in (files / "images").iterdir())


def lines_of(site: Hospital) -> list[dict[str, Json]]:
    return [dict(line) for line in ledgers.read_lines(site.ledger)]


def test_figures_are_those_of_the_files(tmp_path, files) -> None:
    """A slow second reading, by nibabel, of what is in the folder."""
    told = ask(hospital(tmp_path, files))
    volumes, means = [], []
    for name in names(files):
        image = nibabel.load(files / "images" / name)
        mask = np.asarray(nibabel.load(files / "masks" / "gland" / name).dataobj) > 0
        volumes.append(mask.sum() * math.prod(image.header.get_zooms()))
        means.append(float(np.asarray(image.dataobj)[mask].mean()))
    assert told["studies"] == PATIENTS and told["rejected_by_reason"] == {}
    assert told["volumes"]["gland"]["p50"] == pytest.approx(np.median(volumes), rel=1e-4)
    assert told["intensity"]["mean"] == pytest.approx(np.mean(means), rel=1e-4)
    columns, rows, slices = image.shape
    assert told["voxels"]["p50"] == [slices, rows, columns]
    assert told["spacing"]["p50"] == pytest.approx([*image.header.get_zooms()][::-1], rel=1e-4)


def test_what_cannot_be_measured_is_set_aside_with_its_reason(tmp_path, files) -> None:
    own = copied(files, tmp_path)
    one, two, *_ = names(own)
    (own / "masks" / "gland" / one).unlink()
    image = nibabel.load(own / "images" / two)
    nibabel.save(image.slicer[:, :, :1], own / "images" / two)
    site = hospital(tmp_path, own)
    told = ask(site)
    assert told["rejected_by_reason"] == {"no_gland": 1, "single_slice": 1}
    assert told["studies"] == PATIENTS - 2
    reasons = {each["reason"] for each in read_linkage(site)["studies"].values()}
    assert reasons == {"no_gland", "single_slice"} <= set(MEANING)


def test_excluded_and_named_test_patients_do_not_count(tmp_path, files) -> None:
    one, two, *_ = (name.removesuffix(".nii.gz") for name in names(files))
    assert ask(hospital(tmp_path, files, exclude=(one,), test=(two,)))["studies"] == PATIENTS - 2


def test_values_are_in_the_unit_of_adc_where_the_run_says_adc(tmp_path, files) -> None:
    raw = ask(hospital(tmp_path / "raw", files))["intensity"]["p50"]
    adc = ask(hospital(tmp_path / "adc", files), values="adc")["intensity"]["p50"]
    assert 0.3 < adc < 3.0 and raw != adc


def test_neither_size_nor_spacing_is_asked_so_that_another_plan_costs_nothing(tmp_path, files) -> None:
    site = hospital(tmp_path, files, Policy(budget=BUDGET))
    assert ask(site) == ask(site)
    first, again = lines_of(site)
    assert first["again"] is False and again["again"] is True and first["sha256"] == again["sha256"]
    events = ledgers.spent_events(ledgers.read_lines(site.ledger))
    assert compute_cost(list(events), 1e-5).epsilon == pytest.approx(
        compute_cost([SelfComposed(Gaussian(noise_of(BUDGET, "volumes")), count_comparisons("volumes"))], 1e-5).epsilon
    )


@pytest.mark.parametrize("images", ["volumes", "slices", "pictures"])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_all_comparisons_together_cost_their_share_of_the_budget(images, epsilon) -> None:
    budget = Budget(epsilon=epsilon)
    total = count_comparisons(images) / noise_of(budget, images) ** 2
    assert total == pytest.approx(SHARE * mu_of(epsilon, budget.delta) ** 2)


def test_a_noised_fingerprint_is_booked_before_it_leaves_with_all_of_its_noise(tmp_path, files, monkeypatch) -> None:
    drawn: list[float] = []
    true = entropy.draw_gaussian

    def record(shape: tuple[int, ...], std: float, source: Any = None) -> Any:
        drawn.extend([std] * max(1, math.prod(shape)))
        return true(shape, std)

    monkeypatch.setattr(entropy, "draw_gaussian", record)
    site = hospital(tmp_path, files, Policy(budget=BUDGET))
    told = ask(site)
    (line,) = lines_of(site)
    noise = noise_of(BUDGET, "volumes")
    assert line["event"] == describe_event(SelfComposed(Gaussian(noise), count_comparisons("volumes")))
    assert len(drawn) == count_comparisons("volumes"), "each draw is one of the booked ones"
    assert set(drawn) == {0.5 * noise, 0.75 * noise, noise}, "medians, quartiles, and the number of patients"
    assert set(told) == {"noised_patients", "noise", "comparisons", "spacing", "extent"}


def test_where_the_ledger_cannot_be_written_nothing_leaves(tmp_path, files, monkeypatch) -> None:
    site = hospital(tmp_path, files, Policy(budget=BUDGET))

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "no space")

    monkeypatch.setattr("privacy.release.gate.ledgers.open_transaction", fail)
    with pytest.raises(Refused) as refused:
        ask(site)
    assert refused.value.code == "disk" and not site.ledger.exists()


def test_what_a_budget_cannot_pay_is_refused_before_a_patient_is_looked_at(tmp_path, files, monkeypatch) -> None:
    site = hospital(tmp_path, files, Policy(budget=BUDGET))
    codes = []
    for number in range(20):
        try:
            ask(site, run=f"r/fingerprint-{number}")
        except Refused as error:
            codes.append(error.code)
            break
    assert codes == ["budget"], "each new conversation is charged anew, until the budget ends"
    monkeypatch.setattr("pipelines.hospital.fingerprint.open_source", lambda *_: pytest.fail("files were opened"))
    with pytest.raises(Refused) as refused:
        ask(site, run="r/fingerprint-last")
    assert refused.value.code == "budget"


def test_a_hospital_may_declare_its_fingerprint_public(tmp_path, files) -> None:
    site = hospital(tmp_path, files, Policy(budget=BUDGET, public=("fingerprint",)))
    assert ask(site) == ask(hospital(tmp_path / "plain", files))
    assert [line["event"] for line in lines_of(site)] == [{"kind": "declared", "what": "fingerprint"}]


def test_without_a_promise_nothing_is_said_to_protect(tmp_path, files) -> None:
    site = hospital(tmp_path, files)
    ask(site)
    assert [line["event"] for line in lines_of(site)] == [{"kind": "non_private"}]


def draw_pictures(folder: Path) -> list[int]:
    """Four pictures of 40 columns and 30 rows or a little more, with masks; how many pixels each mask has."""
    chance, counts = np.random.default_rng(0), []
    for name in ("pictures", "masks"):
        (folder / name).mkdir()
    for number in range(4):
        grey = chance.integers(0, 255, (30 + number, 40), np.uint8)
        mask = (chance.random(grey.shape) < 0.3).astype(np.uint8)
        Image.fromarray(grey).save(folder / "pictures" / f"p{number}.png")
        Image.fromarray(mask * 255).save(folder / "masks" / f"p{number}.png")
        counts.append(int(mask.sum()))
    return counts


def test_pictures_are_measured_as_they_are(tmp_path) -> None:
    counts = draw_pictures(tmp_path)
    masks = PictureMasks(folder=str(tmp_path / "masks"), values={"disc": (255,)})
    source = PictureSource(folder=str(tmp_path / "pictures"), table=None, masks=masks)
    site = Hospital("a", tmp_path / "a", SiteSettings(source=source), lambda: "2026-01-01T00:00:00Z")
    told = ask(site, images="pictures", target="masks", classes=["disc"])
    assert told["voxels"]["p50"] == [31.5, 40.0] and told["spacing"]["p50"] == [1.0, 1.0]
    assert told["volumes"]["disc"]["p50"] == np.median(counts) and 0 <= told["intensity"]["mean"] <= 1


def test_label_maps_of_volumes_are_measured_by_class(tmp_path, files) -> None:
    """The gland as two classes, of which a union is the gland."""
    (tmp_path / "zones").mkdir()
    for name in names(files):
        image = nibabel.load(files / "masks" / "gland" / name)
        zones = (np.asarray(image.dataobj) > 0).astype(np.uint8)
        zones[: zones.shape[0] // 2] *= 2
        nibabel.save(nibabel.Nifti1Image(zones, image.affine), tmp_path / "zones" / name)
    of = NiftiSource(
        folder=str(files / "images"),
        masks=VolumeMasks(folder=str(tmp_path / "zones"), values={"left": (1,), "right": (2,)}),
    )
    site = Hospital("b", tmp_path / "b", SiteSettings(source=of), lambda: "2026-01-01T00:00:00Z")
    told, whole = ask(site, target="masks", classes=["right", "left"]), ask(hospital(tmp_path, files))
    volumes = {"left": [], "right": []}
    for name in names(files):
        image = nibabel.load(tmp_path / "zones" / name)
        for zone, value in (("left", 1), ("right", 2)):
            count = int((np.asarray(image.dataobj) == value).sum())
            volumes[zone].append(count * math.prod(image.header.get_zooms()))
    for zone, mm3 in volumes.items():
        assert told["volumes"][zone]["p50"] == pytest.approx(np.median([each for each in mm3 if each]), rel=1e-4)
    assert told["intensity"] == whole["intensity"] and told["spacing"] == whole["spacing"]


def settings(tmp_path: Path, **changes: Any) -> Path:
    source = {"kind": "phantom", "patients": 4, "slices": 4}
    made: dict[str, Any] = {
        "name": "tiny",
        "privacy": "none",
        "task": {"kind": "segmentation", "target": "gland"},
        "sites": {
            name: {"source": {**source, "scanner": scanner, "seed": seed}}
            for name, scanner, seed in (("b", "D", 1), ("a", "L", 2))
        },
        "images": {
            "kind": "volumes",
            "values": "standardized",
            "size": 16,
            "spacing_mm": 4.0,
            "depth": 4,
            "centre": "image",
        },
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
        "model": {"name": "unet", "width": 4, "levels": 2, "norm": "batch"},
        "train": {"schedule": {"rounds": 1}, "work": {"batch": 2}, "methods": {"fedavg": {"name": "fedavg"}}},
        "audit": {"membership": False},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(made | changes, sort_keys=False))
    return path


def test_the_command_writes_a_plan_and_leaves_the_rest(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path)
    assert main([str(path), "--small", "-o", "planned.yaml"]) == Exit.OK
    before, after = yaml.safe_load(path.read_text()), yaml.safe_load(Path("planned.yaml").read_text())
    for key in ("name", "privacy", "task", "sites", "split", "audit"):
        assert after[key] == before[key]
    assert after["train"]["methods"] == before["train"]["methods"]
    assert after["model"]["name"] == "planned" and after["train"]["schedule"] == {"rounds": 40}
    images = Volumes(**after["images"])
    patch, strides = after["model"]["patch"], np.array(after["model"]["strides"])
    assert all(side >= least for side, least in zip(images.inputs[1:], patch, strict=True))
    assert all(side % step == 0 for side, step in zip(images.inputs[1:], strides.prod(axis=0), strict=True))
    assert "read it; then" in capsys.readouterr().err
    for site in ("a", "b"):
        requests = [line["request"] for line in ledgers.read_lines(Path("runs/tiny/sites") / site / "ledger.jsonl")]
        assert requests == ["survey", "fingerprint"]
    assert main([str(path), "--small"]) == Exit.OK, "without -o it is printed, and hospitals repeat what they said"
    assert yaml.safe_load(capsys.readouterr().out) == after
    with pytest.raises(SystemExit):
        main([str(path), "-o", "planned.yaml"])


@pytest.mark.parametrize("kind", ["volumes", "slices", "pictures"])
def test_what_is_written_is_accepted_by_check(tmp_path, monkeypatch, capsys, kind) -> None:
    """From files to a plan to `--check`, which builds the network and rehearses every method."""
    monkeypatch.chdir(tmp_path)
    changes: dict[str, Any] = {"images": {"kind": kind, "values": "standardized", "centre": "image"}}
    if kind == "pictures":
        draw_pictures(tmp_path)
        source = {"kind": "picture", "folder": "pictures", "table": None}
        changes["sites"] = {"a": {"source": {**source, "masks": {"folder": "masks", "values": {"disc": [255]}}}}}
        changes |= {"images": {"kind": "pictures", "channels": 1}}
        changes |= {"task": {"kind": "segmentation", "target": "masks", "classes": ["disc"]}}
    assert main([str(settings(tmp_path, **changes)), "--small", "-o", "planned.yaml"]) == Exit.OK
    assert run_main(["planned.yaml", "--check"]) == Exit.OK, capsys.readouterr().err
    config = load_config("planned.yaml")
    assert isinstance(config.model, Planned) and config.train.work.foreground in (0.25, 0.5)
    assert config.train.work.rate.name == "polynomial" and config.train.work.nesterov
    assert config.images.kind == kind and config.train.schedule.rounds == 40


def test_the_order_of_hospitals_in_a_file_changes_no_plan(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path)
    said = yaml.safe_load(path.read_text())
    plans = []
    for sites in (said["sites"], dict(reversed(said["sites"].items()))):
        settings(tmp_path, sites=sites)
        assert main([str(path), "--small"]) == Exit.OK
        plans.append(yaml.safe_load(capsys.readouterr().out))
    assert plans[0] == plans[1]


def test_a_hospital_that_refuses_is_left_out_and_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    said = yaml.safe_load(settings(tmp_path).read_text())["sites"]
    others = [name for name in to_plain(Policy())["requests"] if name != "fingerprint"]
    said["a"]["policy"] = {"requests": others}
    assert main([str(settings(tmp_path, sites=said)), "--small"]) == Exit.OK
    assert "# a: refused (policy_request), and the plan is made without it" in capsys.readouterr().out
    said["b"]["policy"] = {"requests": others}
    assert main([str(settings(tmp_path, sites=said)), "--small"]) == Exit.CONFIG
    assert "no hospital answers (a: policy_request, b: policy_request)" in capsys.readouterr().err


def test_what_is_no_segmentation_is_refused_before_anybody_is_asked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path, task={"kind": "classification"}, model={"name": "cnn"})
    path.write_text(path.read_text().replace("kind: volumes", "kind: slices").replace("  depth: 4\n", ""))
    assert main([str(path)]) == Exit.CONFIG
    assert "a plan is for masks" in " ".join(capsys.readouterr().err.split()) and not Path("runs").exists()


def test_a_route_that_looks_at_whole_images_is_refused_before_anybody_is_asked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = (CONFIGS / "prostate_gland_volumes.yaml").read_text()
    assert shipped.count("name: routing") == 1
    Path("run.yaml").write_text(shipped.replace("name: routing", "name: routing, mode: online"))
    assert main(["run.yaml", "--small"]) == Exit.CONFIG
    assert "in route, routing: routing online predicts each image in one piece" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("keys", "what"), [({"benchmark": {}, "sites": {}}, "benchmark"), ({"models": {}}, "external site")]
)
def test_files_of_other_kinds_are_named(tmp_path, keys, what, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.yaml").write_text(yaml.safe_dump({"name": "benchmark", **keys}))
    for command, words in ((main, []), (run_main, ["--fingerprint"])):
        assert command(["other.yaml", *words]) == Exit.CONFIG
        assert f"holds the settings of {'an' if what[0] == 'e' else 'a'} {what}" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused_before_anybody_is_asked(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(settings(tmp_path)), "--small", "-o", "nowhere/planned.yaml"])
    assert ended.value.code == Exit.CONFIG and not Path("runs").exists()
    assert "there is no folder nowhere" in capsys.readouterr().err


def test_what_does_not_go_with_the_plan_is_told_with_it(tmp_path, monkeypatch, capsys) -> None:
    """A window of other sides than the patch is left as a person wrote it, and cannot be run."""
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path, evaluate={"window": [4, 8, 8]})
    assert main([str(path), "--small", "-o", "planned.yaml"]) == Exit.OK
    told = capsys.readouterr().err
    assert "before it can be run" in told and "is predicted by windows of its patch" in told
    assert main([str(settings(tmp_path)), "--small"]) == Exit.OK
    assert "before it can be run" not in capsys.readouterr().err


def test_too_little_memory_ends_with_what_would_do(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(settings(tmp_path)), "--memory", "0.01MiB"]) == Exit.CONFIG
    assert "GiB hold the smallest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "gib"), [("8GiB", 8.0), ("8", 8.0), ("512MiB", 0.5), (".5 GiB", 0.5), ("1GB", 1e9 / 2**30)]
)
def test_memories_are_read_with_their_units(text, gib) -> None:
    assert parse_memory(text) == pytest.approx(gib)


@pytest.mark.parametrize("text", ["0", "-1GiB", "8 TB", "", "much"])
def test_other_memories_are_refused(tmp_path, text, capsys) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "x.yaml"), f"--memory={text}"])
    assert "must be above 0, as in 8GiB or 500MiB" in capsys.readouterr().err


def test_a_run_prints_fingerprints_for_a_coordinator_elsewhere(tmp_path, monkeypatch, capsys) -> None:
    """What `consilium plan --engine flare` reads from the coordinator's process."""
    from pipelines.coordinator.fingerprint import parse_json

    monkeypatch.chdir(tmp_path)
    assert run_main([str(settings(tmp_path)), "--fingerprint"]) == Exit.OK
    prints = parse_json(json.loads(capsys.readouterr().out))
    assert set(prints.replies) == {"a", "b"} and not prints.refusals
    assert all(reply.studies == 4 for reply in prints.replies.values())


def test_a_person_may_say_that_images_are_ct(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = settings(tmp_path)
    assert main([str(path), "--small", "--ct"]) == Exit.OK
    ct = yaml.safe_load(capsys.readouterr().out)["images"]["ct"]
    assert ct["low"] < ct["mean"] < ct["high"] and ct["sd"] > 0


@pytest.fixture
def far(tmp_path, monkeypatch) -> Path:
    """In place of FLARE: the job that it would start, in this process; hospitals' own settings lie in `near.yaml`."""

    def operated(said: Any, options: Any, console: Any) -> Ended:
        workers = simulated_workers(load_config(str(tmp_path / "near.yaml")), tmp_path / "hospitals", Stop())
        clients = {
            site: build_reach(InProcessProxy(ClientApp(worker, lambda: COORDINATOR)))
            for site, worker in workers.items()
        }
        path = tmp_path / "job" / "order.json"
        path.parent.mkdir()
        arguments = tuple(transport_free_arguments(options))
        write_order(path, Order(arguments, os.getcwd(), {}, tuple(clients), (), 60.0, "again"))
        execute_order(path, clients)
        done = json.loads((path.parent / DONE).read_text())
        return Ended(done["exit"], done["said"])

    monkeypatch.setattr(operate, "execute_remotely", operated)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "fed_admin.json").write_text("{}")
    settings(tmp_path).rename(tmp_path / "near.yaml")
    return settings(tmp_path, name="far", sites={name: {"source": {"kind": "elsewhere"}} for name in ("b", "a")})


def test_hospitals_on_their_own_machines_give_the_same_plan(far, capsys) -> None:
    plans = []
    for words in (["near.yaml"], [str(far), "--engine", "flare", "--kit", "kit"]):
        assert main([*words, "--small"]) == Exit.OK
        plans.append(yaml.safe_load(capsys.readouterr().out))
    for near, elsewhere in zip(*(plan.items() for plan in plans), strict=True):
        assert near == elsewhere or near[0] in ("name", "sites")


def test_a_coordinator_elsewhere_that_fails_ends_the_command_with_its_code(far, capsys) -> None:
    near = Path("near.yaml")
    said = yaml.safe_load(near.read_text())
    said["sites"]["b"] = {"source": {"kind": "nifti", "folder": "/nowhere"}, "gland": {"folder": "/nowhere"}}
    near.write_text(yaml.safe_dump(said))
    assert main([str(far), "--small", "--engine", "flare", "--kit", "kit"]) != Exit.OK
    captured = capsys.readouterr()
    assert captured.out == "" and "nothing to plan by: the coordinator's process ended with code" in captured.err
