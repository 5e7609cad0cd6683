"""Variants: a trained method scored once more, calibrated at each hospital. From the YAML to a line of the tables."""

from __future__ import annotations

import copy
import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import TypeAdapter
from sklearn.metrics import roc_auc_score

from evaluation.histograms import count_scores, from_tensors
from evaluation.rows import MAJORITY
from federation.calibration import QUANTILE, adapt_batch_norms, log_odds
from federation.randomness import derive_seed
from pipelines.clean import main as clean
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file, rows_of, write_cohort_file
from pipelines.hospital.kept import scores_name
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.file import read_ready
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import short_digest
from pipelines.settings.config import Config
from pipelines.settings.sites import SiteSettings
from pipelines.settings.variants import Variant
from pipelines_settings import BASE
from privacy.dp.batches import iterate_minibatches
from privacy.dp.events import NON_PRIVATE, parse_event
from privacy.dp.protection import Protection
from privacy.message import Call, Message, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

METHODS = {"fedavg": {"name": "fedavg"}, "local": {"name": "local"}, "pooled": {"name": "central"}}
VARIANTS = {
    "fedavg_centred": {"of": "fedavg", "calibration": "centred", "quantile": 0.5},
    "fedavg_prevalence": {"of": "fedavg", "calibration": "centred", "quantile": "prevalence"},
    "fedavg_adabn": {"of": "fedavg", "calibration": "adabn"},
    "local_adabn_centred": {"of": "local", "calibration": "adabn_centred"},
    "pooled_centred": {"of": "pooled", "calibration": "centred"},
    "local_latest": {"of": "local", "checkpoint": "latest"},
    "fedavg_ft": {"of": "fedavg", "calibration": "fine_tuned", "tuning": {"epochs": 2}},
}


def settings(**evaluate) -> dict:
    """The smallest run with a network that can be adapted."""
    made = copy.deepcopy(BASE) | {"model": {"name": "cnn", "widths": [8, 8]}, "audit": {"membership": False}}
    made["train"] = {"schedule": {"rounds": 1}, "work": {"lr": 0.01}, "methods": METHODS}
    return made | {"evaluate": {"copies": 5, "variants": VARIANTS, **evaluate}}


def config(made: dict) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def complaints(made: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(made)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("label", "variant", "said"),
    [
        ("fedavg", {"of": "fedavg", "calibration": "centred"}, "variants.fedavg: is a method already"),
        ("Fed Avg", {"of": "fedavg", "calibration": "centred"}, "the label 'Fed Avg' is not made of a-z 0-9 _ -"),
        ("manifest", {"of": "fedavg", "calibration": "centred"}, "or is the reserved 'manifest'"),
        ("x" * 61, {"of": "fedavg", "calibration": "centred"}, "(at most 60)"),
        ("v", {"of": "nobody", "calibration": "centred"}, "variants.v.of: 'nobody' is no method; methods are"),
        ("v", {"of": "fedavg_centred", "calibration": "centred"}, "'fedavg_centred' is no method"),
        ("v", {"of": "fedavg", "calibration": "platt"}, "variants.v.calibration: must be 'centred', 'adabn'"),
        ("v", {"of": "fedavg"}, "variants.v: says nothing that differs from the method; give a calibration or"),
        ("v", {"of": "fedavg", "checkpoint": "best"}, "variants.v.checkpoint: must be 'latest', 'global', 'local'"),
        ("v", {"of": "fedavg", "calibration": "centred", "quantile": 1.5}, "variants.v.quantile: must be in [0, 1]"),
        ("v", {"of": "fedavg", "calibration": "centred", "quantile": "median"}, "a number or 'prevalence', found"),
        ("v", {"of": "fedavg", "calibration": "adabn", "quantile": 0.5}, "quantile: must be null for adabn"),
        (
            "v",
            {"of": "fedavg", "calibration": "fine_tuned"},
            "tuning: belongs to fine_tuned, as in tuning: {epochs: 5}",
        ),
        ("v", {"of": "fedavg", "calibration": "adabn", "tuning": {"epochs": 1}}, "found one with adabn"),
        ("v", {"of": "fedavg", "calibration": "fine_tuned", "tuning": {}}, "give either epochs or steps, found None"),
        (
            "v",
            {"of": "fedavg", "calibration": "fine_tuned", "tuning": {"steps": 0}},
            "tuning.steps: must be in [1, 100000], found 0",
        ),
        ("v", {"of": "fedavg", "calibration": "centred", "quantil": 0.5}, "unknown key (did you mean 'quantile'?)"),
    ],
)
def test_a_variant_that_makes_no_sense_is_named_with_its_place(label, variant, said):
    assert said in "\n".join(complaints(settings(variants={**VARIANTS, label: variant})))


def test_several_mistakes_come_at_once():
    wrong = {
        "fedavg": {"of": "fedavg", "calibration": "centred"},
        "v": {"of": "nobody", "calibration": "centred"},
        "w": {"of": "fedavg", "calibration": "adabn"},
    }
    made = settings(variants=wrong, reference="nothing")
    made["model"]["norm"] = "group"
    found = complaints(made)
    assert len(found) == 4
    assert any("evaluate.reference: 'nothing' is no method and no variant; name one, or null" in one for one in found)


def test_a_network_without_batch_norm_cannot_be_adapted_and_that_of_the_method_counts():
    made = settings()
    made["model"]["norm"] = "group"
    found = complaints(made)
    assert [one.split("evaluate.variants.")[1].split(":")[0] for one in found] == [
        "fedavg_adabn.calibration",
        "local_adabn_centred.calibration",
    ]
    assert "recomputes batch-norm statistics, and the network of fedavg has none; give it norm: batch" in found[0]
    own = {"name": "cnn", "widths": [8, 8], "norm": "batch"}
    made["train"]["method_model"] = {"fedavg": own, "local": own}
    assert config(made).evaluate.variants["fedavg_adabn"].at == QUANTILE
    made = settings()
    made["train"]["method_model"] = {"fedavg": {"name": "mlp"}}
    assert ["fedavg_adabn" in one for one in complaints(made)] == [True]


def test_a_private_run_has_no_variants():
    made = settings(variants={"fedavg_centred": VARIANTS["fedavg_centred"]})
    made |= {"privacy": {"epsilon": 3.0}, "pooling": "refused"}
    made["model"]["norm"] = "group"
    made["train"]["methods"] = {"fedavg": METHODS["fedavg"]}
    for site in made["sites"].values():
        site["policy"] = {"public": ["counts"]}
    (found,) = complaints(made)
    assert "evaluate.variants: offsets, statistics and tuned models come from training patients without noise" in found
    assert found.endswith("which no epsilon covers; remove them, or say privacy: none")
    made["evaluate"]["variants"] = {}
    config(made)


def test_a_variant_has_a_plain_form_and_comes_back_from_it():
    made = config(settings())
    assert made.evaluate.variants["fedavg_prevalence"] == Variant(
        of="fedavg", calibration="centred", quantile="prevalence"
    )
    assert config(to_plain(made)) == made


# A hospital, asked directly


def hospital(folder: Path, **policy) -> tuple[Hospital, dict]:
    """A hospital of 24 patients with two images each; and the facts of a plain question about its test patients."""
    own = SiteSettings(source=PhantomSource(scanner="P", patients=4), policy=Policy(public=("counts",), **policy))
    made = Hospital("a", folder / "a", own, lambda: "2026-01-01T00:00:00Z")
    g = torch.Generator().manual_seed(0)
    patient = torch.arange(24).repeat_interleave(2)
    x = torch.randn(48, 1, 16, 16, generator=g) + 1
    empty = torch.zeros(48, 0, dtype=torch.uint8)
    cohort = Cohort(
        images=x,
        labels=(x[:, 0, 0, 0] > 1).long(),
        patient=patient,
        position=torch.zeros(48),
        lesion=empty,
        gland=empty.clone(),
        split=(patient % 3).to(torch.int8),
        patients=tuple(f"p{number:02}" for number in range(24)),
        recipe={"images": {"kind": "slices"}, "independent": True, "cut": "real"},
    )
    name = short_digest(write_cohort_file(made.scratch(), cohort, made.key()))
    facts = {"label": "mine", "train_run": "r/x", "checkpoint": "latest", "best": None, "cohort": name, "copies": 3}
    return made, facts


def opening(cohort: str, norm: str = "batch", privacy: object = None) -> dict:
    work = to_plain(config(settings()).train.work)
    how = {"privacy": None} if privacy is None else {"privacy": to_plain(privacy), "evaluation_noise": 7.0}
    model = {"name": "cnn", "widths": [8, 8], "norm": norm}
    start = {"label": "mine", "algorithm": {"name": "fedavg"}, "model": model, "inputs": [1, 16, 16], "classes": 2}
    return {**start, "work": work, "seed": 0, "cohort": cohort, **how}


def model(norm: str = "batch") -> torch.nn.Module:
    made = config(settings())
    torch.manual_seed(0)
    task = made.task_of("fedavg")
    return type(task.model)(widths=(8, 8), norm=norm).build(inputs=(1, 16, 16), classes=2)


def asked(own: Hospital, facts: dict, norm: str = "batch", run: str = "r/s", privacy: object = None) -> Message:
    said = {**facts, "opening": opening(facts["cohort"], norm, privacy)}
    return make_worker(own)(Call(run, 0, "evaluate", {}), Message(model(norm).state_dict(), said))


def test_the_hospital_counts_what_a_slow_second_way_counts(tmp_path):
    own, facts = hospital(tmp_path)
    rows = rows_of(read_cohort_file(own.cohort_folder(facts["cohort"]) / COHORT))
    train, test = rows["train"], rows["test"]
    for how in ("centred", "adabn_centred"):
        for quantile in (0.3, "prevalence", None):
            calibration = {"of": "mine", "calibration": how, "quantile": quantile}
            reply = asked(
                own,
                {**facts, "calibration": calibration, "variant": "v"},
                run=f"r/{how}-{quantile}".replace(".", "-").lower(),
            )
            network = model() if how == "centred" else adapt_batch_norms(model(), train.x)
            known, tested = (log_odds(network, part).numpy() for part in (train.x, test.x))
            at = {"prevalence": 1 - train.y.double().mean().item(), None: 0.62}.get(quantile, quantile)
            p = 1 / (1 + np.exp(-(tested - np.quantile(known, at)) / known.std()))
            slow = count_scores(test.y, np.stack([1 - p, p], axis=1), test.patient, copies=0, seed=0)
            assert np.array_equal(from_tensors(reply.tensors).scores[0], slow.scores[0])
    events = [parse_event(line["event"]) for line in ledgers.read_lines(own.ledger)]
    assert events == [NON_PRIVATE] * 6


@pytest.mark.parametrize(
    ("calibration", "norm", "privacy"),
    [
        ({"of": "m", "calibration": "centred", "quantile": None}, "group", Protection(sampling=0.5, noise=4.0, cut="")),
        ({"of": "m", "calibration": "adabn", "quantile": None}, "group", None),
        ({"of": "m", "calibration": "centred", "quantile": 7.0}, "batch", None),
        ({"of": "m", "calibration": "magic", "quantile": None}, "batch", None),
        ("centred", "batch", None),
    ],
)
def test_a_hospital_refuses_a_calibration_that_its_own_rules_do_not_allow(tmp_path, calibration, norm, privacy):
    """A coordinator asks as it likes: its YAML may have been checked by nobody."""
    own, facts = hospital(tmp_path)
    asked(own, facts, norm, "r/plain", privacy)
    with pytest.raises(Refused, match="malformed_calibration"):
        asked(own, {**facts, "calibration": calibration, "variant": "v"}, norm, privacy=privacy)


def test_a_budget_lets_no_calibrated_counts_leave(tmp_path):
    own, facts = hospital(tmp_path, budget=Budget(epsilon=5.0))
    with pytest.raises(Refused, match="budget"):
        asked(own, {**facts, "calibration": {"of": "m", "calibration": "centred", "quantile": None}, "variant": "v"})


def test_a_tuned_model_is_the_model_trained_on_at_home_by_a_plain_loop(tmp_path):
    own, facts = hospital(tmp_path)
    rows = rows_of(read_cohort_file(own.cohort_folder(facts["cohort"]) / COHORT))
    tuning = {"epochs": None, "steps": 3, "lr": 0.05, "trainable": "head"}
    said = {"of": "mine", "calibration": "fine_tuned", "quantile": None, "tuning": tuning}
    reply = asked(own, {**facts, "calibration": said, "variant": "v"})
    network, x, y = model().train(), rows["train"].x, rows["train"].y
    rule = torch.optim.Adam(network.head.parameters(), lr=0.05)
    draws = torch.Generator().manual_seed(derive_seed(derive_seed(0, "a", "fine_tuned"), "draws"))
    stream = iterate_minibatches(y, batch=24, balance=False, generator=draws)
    for _ in range(3):
        index = next(stream)
        rule.zero_grad()
        torch.nn.functional.cross_entropy(network(x[index]).logits, y[index]).backward()
        rule.step()
    p = network.eval()(rows["test"].x).logits.softmax(dim=1).detach().numpy()
    slow = count_scores(rows["test"].y, p, rows["test"].patient, copies=0, seed=0)
    assert np.array_equal(from_tensors(reply.tensors).scores[0], slow.scores[0])
    plain = asked(own, facts, run="r/plain")
    assert not np.array_equal(from_tensors(reply.tensors).scores[0], from_tensors(plain.tensors).scores[0])


# A whole run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """One finished run of three methods and five variants."""
    folder = tmp_path_factory.mktemp("variants")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "tiny.yaml").write_text(yaml.safe_dump(settings(reference="fedavg_centred"), sort_keys=False))
        assert main(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / "tiny"


def test_every_variant_is_a_line_of_every_table(run):
    (scores,) = run.glob("report/*/scores.csv")
    rows = list(csv.DictReader(scores.open()))
    labels = [*METHODS, *VARIANTS]
    assert list(dict.fromkeys(row["method"] for row in rows)) == [*labels, MAJORITY]
    lines = {
        label: {(r["protocol"], r["sites"], r["measure"]) for r in rows if r["method"] == label} for label in labels
    }
    for label, variant in VARIANTS.items():
        only_home = {"public"} if "tuning" in variant else set()
        assert lines[label] == {line for line in lines[variant["of"]] if line[0] not in only_home}
        protocols = {"private", "private mean", "overall", "public"}
        assert {protocol for protocol, _, _ in lines[label]} == protocols - only_home
    gains = {row["method"] for row in rows if row["gain"]}
    assert gains == {*labels, MAJORITY}, "a variant can be the reference"
    page = (run / "report.html").read_text()
    assert all(label in page for label in VARIANTS)


def test_centring_changes_the_scale_of_a_hospitals_scores_and_not_their_order(run):
    (index,) = run.glob("evaluate/*/index.json")
    names = {(e["label"], e["model_site"], e["test_site"]): e["file"] for e in json.loads(index.read_text())}
    for site in "ab":
        kept = {label: at_home(run, site, "fedavg", said) for label, said in [("fedavg", None), *VARIANTS.items()]}
        y = kept["fedavg"]["y"]
        for label in ("fedavg_centred", "fedavg_prevalence"):
            raw, made = kept["fedavg"]["probabilities"][:, 1], kept[label]["probabilities"][:, 1]
            assert not torch.allclose(raw.double(), made, atol=1e-3)
            assert roc_auc_score(y, made) == roc_auc_score(y, raw)
        for label in ("fedavg", "fedavg_centred", "fedavg_adabn"):
            reply = from_bytes((index.parent / names[label, site, site]).read_bytes())
            own = count_scores(y, kept[label]["probabilities"], kept[label]["patient"], copies=0, seed=0)
            assert np.array_equal(from_tensors(reply.tensors).scores[0], own.scores[0]), "what left is what was kept"


def at_home(run: Path, site: str, method: str, variant: dict | None) -> dict[str, torch.Tensor]:
    """The scores of single patients that a hospital kept."""
    (trained,) = run.glob(f"train/*/{method}.json")
    result = json.loads(trained.read_text())
    calibration = None if variant is None else TypeAdapter(Variant).validate_python(variant)
    checkpoint = "global" if variant is None else variant.get("checkpoint", "global")
    name = scores_name(result["train_run"], checkpoint, result["best"], calibration)
    path = run / "sites" / site / "scores" / name
    return from_bytes(path.read_bytes()).tensors if path.exists() else {}


@pytest.mark.parametrize("site", ["a", "b"])
def test_every_line_of_the_tables_has_a_usable_model_that_predicts_what_was_scored(run, site):
    """The central baseline alone has none: nobody's own, it is handed to no hospital."""
    home = run / "sites" / site
    own = dict.fromkeys(METHODS) | VARIANTS
    own = {label: said for label, said in own.items() if "pooled" not in (label, (said or {}).get("of"))}
    assert {path.name.partition(".")[0] for path in (home / "ready").iterdir()} == set(own)
    (cohort,) = home.glob(f"cohorts/*/{COHORT}")
    test = rows_of(read_cohort_file(cohort))["test"]
    page = (home / "report.html").read_text()
    for label, said in own.items():
        file = home / "ready" / f"{label}.safetensors"
        kept = at_home(run, site, label if said is None else said["of"], said)["probabilities"]
        assert torch.equal(read_ready(file).probabilities(test.x), kept), label
        assert f"python -m pipelines.predict runs/tiny/sites/{site}/ready/{label}.safetensors FOLDER" in page
    assert len({file.read_bytes()[32:] for file in (home / "ready").glob("*.safetensors")}) >= len(own)


@pytest.mark.parametrize("label", ["fedavg_centred", "local_adabn_centred", "fedavg_ft"])
def test_a_variant_scores_files_as_the_evaluation_scored_them(run, label, tmp_path):
    home = run / "sites" / "b"
    (images,) = home.glob("phantom/*/images")
    model, gland = home / "ready" / f"{label}.safetensors", images.parent / "masks" / "gland"
    assert predict([str(model), str(images), "--gland", str(gland), "--out", str(tmp_path)]) == Exit.OK
    lines = csv.DictReader((tmp_path / "predictions.csv").open())
    found = [float(line["score"]) for line in lines]
    said = VARIANTS[label]
    kept = at_home(run, "b", said["of"], said)
    for patient in kept["patient"].unique():
        highest = float(kept["probabilities"][kept["patient"] == patient, 1].max())
        assert min(abs(score - highest) for score in found) < 2e-6


def test_cleaning_leaves_the_models_of_variants_that_a_finished_run_speaks_of(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "runs" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert clean(["runs", "--older-than", "0h", "--yes"]) == Exit.OK
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("runs/tiny/sites/*/ready/*")}
    assert kept == {str(path.relative_to(run.parents[1])) for path in run.glob("sites/*/ready/*")}


def test_a_damaged_calibration_is_no_model(run, tmp_path):
    good = from_bytes(unseal_parts((run / "sites/a/ready/fedavg_centred.safetensors").read_bytes()))
    for wrong in ([0.0, 0.0], [0.0, -1.0], [math.nan, 1.0], [0.0], [0.0, math.nan]):
        tensors = {**good.tensors, "calibration:centring": torch.tensor(wrong)}
        (tmp_path / "m").write_bytes(seal_parts(to_bytes(Message(tensors, good.facts))))
        with pytest.raises(ValueError, match="is not a model to predict with"):
            read_ready(tmp_path / "m")


@pytest.mark.parametrize("label", ["../fedavg", "", "A b", None])
def test_a_label_that_is_no_file_name_makes_no_file(run, tmp_path, label):
    own, facts = hospital(tmp_path)
    said = {**facts, "calibration": {"of": "m", "calibration": "centred", "quantile": None}, "variant": label}
    with pytest.raises(Refused, match="malformed_calibration"):
        asked(own, said)


def test_each_line_of_the_ledger_says_that_no_epsilon_covers_it(run):
    for site in "ab":
        lines = [
            line for line in ledgers.read_lines(run / "sites" / site / "ledger.jsonl") if line["request"] == "evaluate"
        ]
        # Own models: fedavg and its 4 variants, local and its 2. Of the other site: local's three. The pooled two.
        assert len(lines) == 8 + 3 + 2
        assert {line["event"]["kind"] for line in lines} == {"non_private"}
        exports = [
            line for line in ledgers.read_lines(run / "sites" / site / "ledger.jsonl") if line["request"] == "export"
        ]
        assert len(exports) == 3, "a model is handed out once, for all its variants with one checkpoint"


def test_another_variant_trains_nothing(run, capsys, monkeypatch):
    monkeypatch.chdir(run.parents[1])
    again = {**VARIANTS, "local_centred": {"of": "local", "calibration": "centred"}}
    Path("more.yaml").write_text(yaml.safe_dump(settings(reference="fedavg_centred", variants=again), sort_keys=False))
    capsys.readouterr()
    assert main(["more.yaml", "--explain", "--json"]) == Exit.OK
    states = {row["stage"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert (states["train"], states["evaluate"], states["report"]) == ("keep", "run", "run")
