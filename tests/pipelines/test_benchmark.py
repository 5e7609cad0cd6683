"""Signed models at hospitals that never trained: what is scored, what is refused, and who stands first."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from other_device import OTHER, other_device

import pipelines.benchmark.run
import pipelines.hospital.benchmark
from consilium.testing import testbed
from evaluation.histograms import count_scores, from_tensors, to_tensors
from evaluation.metrics import AUC
from federation.engine import Answers, InProcess
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from flare_in_process import flare
from pipelines.data.images import Features, Slices
from pipelines.data.sources import NiftiSource, TableSource
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.files import CONFIGS
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.file import parse_ready
from pipelines.models.signed import TENSOR, to_tensor
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.benchmark import BenchmarkSettings
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from pipelines.sign import main as sign
from privacy.dp.accounting import compute_cost
from privacy.message import Call, Message, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Policy
from privacy.release.refusals import may_tell
from privacy.release.signature import Signature, sign_statement, statement_of
from signed_models import TODAY, finished, key_file, public_key, sees, signature_of, table, write_signed

GOOD = sees(2.0)
TRUSTED = {"trusted_models": {"owner": public_key()}}


def site(folder: Path, name: str, seed: int, policy: Mapping[str, Any] = TRUSTED, **how: Any) -> dict[str, Any]:
    """A hospital with a table of its own."""
    file = table(folder / f"{name}.csv", seed, **how)
    return {"source": {"kind": "table", "file": str(file), "label": "y"}, "policy": dict(policy)}


def hospitals(folder: Path) -> dict[str, Any]:
    return {name: site(folder, name, seed) for seed, name in enumerate(("east", "north", "west"), 1)}


def settings(folder: Path, sites: Mapping[str, Any], models: Mapping[str, Path] | None = None, **plan: Any) -> str:
    """A benchmark's file; without models, of one good model."""
    chosen = models or {"ours": write_signed(folder / "ours.safetensors", finished(params=GOOD))}
    said = {"models": {label: str(path) for label, path in chosen.items()}, "copies": 50, **plan}
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump({"name": "bench", "benchmark": said, "sites": dict(sites)}))
    return str(path)


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "runs" / "bench" / "benchmark.json").read_text())


def order(folder: Path) -> list[str]:
    return [one["site"] for one in facts(folder)["hospitals"]]


def replies(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "runs" / "bench" / "replies").iterdir())}


def lines(folder: Path, name: str) -> list[Mapping[str, Any]]:
    return list(ledgers.read_lines(folder / "runs" / "bench" / "sites" / name / "ledger.jsonl"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# What is scored ------------------------------------------------------------------------------------------------------


def test_a_hospitals_score_is_that_of_predict_and_our_measures_on_the_same_studies(place: Path) -> None:
    """Slices of NIfTI volumes, about the gland, as `predict` reads, sees and scores them."""
    images = Slices(size=16, spacing_mm=4.0)
    data = finished(model=Cnn(widths=(8, 8), norm="group"), images=images, source=NiftiSource(folder="."), gland=True)
    model = write_signed(place / "cnn.safetensors", data)
    phantom = {"kind": "phantom", "scanner": "L", "patients": 5, "seed": 3, "slices": 4, "format": "nifti"}
    assert run([settings(place, {"east": {"source": phantom, "policy": TRUSTED}}, {"cnn": model})]) == Exit.OK
    root = place / "runs" / "bench" / "sites" / "east"
    (files,) = root.glob("phantom/*/images")
    gland = str(files.parent / "masks" / "gland")
    assert predict([str(model), str(files), "--gland", gland, "--out", str(place / "out")]) == Exit.OK
    (cohort,) = (read_cohort_file(path) for path in root.glob(f"cohorts/*/{COHORT}"))
    found = pipelines.hospital.benchmark.predict_probabilities(parse_ready(data), cohort)
    highest = [float(found[cohort.patient == number, 1].max()) for number in range(len(cohort.patients))]
    with (place / "out" / "predictions.csv").open() as file:
        told = sorted(row["score"] for row in csv.DictReader(file))
    assert told == sorted(f"{score:.6f}" for score in highest) and len(told) == 5
    reply = from_tensors(from_bytes(replies(place)["cnn.east.safetensors"]).tensors)
    same = count_scores(cohort.labels, found, cohort.patient, copies=0, seed=0)
    assert (reply.scores[0] == same.scores[0]).all() and (reply.confusion[0] == same.confusion[0]).all()
    assert facts(place)["hospitals"][0]["by"]["value"] == pytest.approx(AUC.of(same)[0])


def test_on_another_device_a_hospitals_score_is_that_of_the_cpu(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = finished(model=Cnn(widths=(8, 8), norm="group"), images=Slices(size=16, spacing_mm=4.0), gland=True)
    model = write_signed(place / "cnn.safetensors", data)
    phantom = {"kind": "phantom", "scanner": "L", "patients": 5, "seed": 3, "slices": 4, "format": "nifti"}
    plan = settings(place, {"east": {"source": phantom, "policy": TRUSTED}}, {"cnn": model})
    assert run([plan]) == Exit.OK
    here = from_tensors(from_bytes(replies(place)["cnn.east.safetensors"]).tensors)
    shutil.rmtree(place / "runs")
    monkeypatch.setattr(pipelines.benchmark.run, "select_device", lambda device: OTHER)
    with other_device(1e-7) as crossings:
        assert run([plan]) == Exit.OK
    there = from_tensors(from_bytes(replies(place)["cnn.east.safetensors"]).tensors)
    assert crossings.uploads, "it did not compute there"
    assert np.allclose(here.scores, there.scores, atol=1e-5) and np.array_equal(here.confusion, there.confusion)


def test_all_patients_are_scored_and_the_digest_stands_in_reply_ledger_and_page(place: Path) -> None:
    assert run([settings(place, hospitals(place))]) == Exit.OK
    said = facts(place)
    (model,) = said["models"]
    digest = model["sha256"]
    for one in said["hospitals"]:
        assert one["by"]["patients"] == 60 and one["digests"] == {"ours": digest}
        (line,) = [line for line in lines(place, one["site"]) if line["request"] == "benchmark"]
        assert line["run"].startswith(f"bench/{digest}-") and line["refused"] is None
    assert digest in (place / "runs" / "bench" / "benchmark.html").read_text()


def test_the_order_of_hospitals_does_not_matter(place: Path) -> None:
    sites = hospitals(place)
    assert run([settings(place, sites)]) == Exit.OK
    first, sent = facts(place), replies(place)
    assert run([settings(place, dict(reversed(sites.items())))]) == Exit.OK
    assert {**facts(place), "date": ""} == {**first, "date": ""} and replies(place) == sent


@pytest.mark.parametrize("way", [testbed.SerializingEngine, flare])
def test_over_a_wire_and_over_flares_two_sides_it_is_the_same(place, monkeypatch, way) -> None:
    sites = {**hospitals(place), "south": site(place, "south", 9, policy={})}
    config = settings(place, sites)
    assert run([config]) == Exit.OK
    near, sent = facts(place), replies(place)
    far = place / "far"
    for key in place.glob("runs/bench/sites/*/pseudonym.key"):  # from which a hospital draws its bootstrap copies
        (far / key.relative_to(place)).parent.mkdir(parents=True)
        shutil.copy(key, far / key.relative_to(place))
    monkeypatch.chdir(far)
    monkeypatch.setattr(pipelines.benchmark.run, "InProcess", way)
    assert run([config]) == Exit.OK
    assert replies(far) == sent and {**facts(far), "date": ""} == {**near, "date": ""}


# Who stands first ----------------------------------------------------------------------------------------------------


def test_the_hospital_with_flipped_labels_comes_first_and_the_mean_hides_it(place: Path) -> None:
    sites = {**hospitals(place), "wrong": site(place, "wrong", 4, flip=True)}
    assert run([settings(place, sites, least=0.6)]) == Exit.OK
    said = facts(place)
    worst, *others = said["hospitals"]
    assert worst["site"] == "wrong" and worst["verdict"] == "below" and worst["by"]["value"] < 0.2
    assert all(one["verdict"] == "reached" for one in others)
    assert all(row["value"] > worst["by"]["high"] for row in said["hiding"])
    page = (place / "runs" / "bench" / "benchmark.html").read_text()
    assert page.index('scope="row">wrong<') < min(page.index(f'scope="row">{name}<') for name in hospitals(place))
    assert "Worst: wrong" in page


def test_a_scanner_that_the_model_never_saw_comes_first(place: Path) -> None:
    sites = {**hospitals(place), "blurred": site(place, "blurred", 4, noise=20.0)}
    assert run([settings(place, sites)]) == Exit.OK
    assert order(place)[0] == "blurred"


def test_hospitals_that_give_no_score_stand_before_all_others_with_their_reason(place: Path) -> None:
    sites = {**hospitals(place), "wrong": site(place, "wrong", 4, flip=True)}
    sites["aloof"] = site(place, "aloof", 5, policy={})
    sites["mute"] = site(place, "mute", 6, policy={**TRUSTED, "requests": ["survey", "ingest"]})
    sites["other"] = site(place, "other", 7)
    sites["other"]["source"]["label"] = "nothing"
    assert run([settings(place, sites)]) == Exit.OK
    said = facts(place)["hospitals"]
    assert [one["site"] for one in said][:4] == ["aloof", "mute", "other", "wrong"]
    why = {one["site"]: one["reasons"]["ours"]["code"] for one in said[:3]}
    assert why == {"aloof": "policy_model", "mute": "policy_request", "other": "bad_source"}
    page = (place / "runs" / "bench" / "benchmark.html").read_text()
    assert "3 hospitals gave no score: aloof, mute, other." in page and "<code>bad_source</code>" in page


def test_where_no_hospital_gives_a_score_there_is_a_page_and_an_exit_code(place: Path) -> None:
    assert run([settings(place, {"aloof": site(place, "aloof", 5, policy={})})]) == Exit.SITE
    assert facts(place)["scores"] == [] and "no score" in (place / "runs" / "bench" / "benchmark.html").read_text()


def test_two_models_are_compared_on_the_same_patients_of_each_hospital(place: Path) -> None:
    models = {
        "good": write_signed(place / "good.safetensors", finished("good", params=GOOD)),
        "bad": write_signed(place / "bad.safetensors", finished("bad", params=sees(-2.0))),
    }
    assert run([settings(place, hospitals(place), models, reference="good")]) == Exit.OK
    rows = [r for r in facts(place)["scores"] if r["measure"] == "AUC" and r["protocol"] == "private"]
    for name in hospitals(place):
        good, bad = (next(r for r in rows if r["method"] == m and r["sites"] == [name]) for m in models)
        assert bad["gain"] == pytest.approx(bad["value"] - good["value"])
        assert bad["gain_high"] < 0 and bad["value"] == pytest.approx(1 - good["value"])


# What is refused -----------------------------------------------------------------------------------------------------


class Home:
    """A hospital that is asked past every check of the coordinator."""

    def __init__(self, folder: Path, policy: Mapping[str, Any], *, lines: int = 60) -> None:
        folder.mkdir()
        source = TableSource(file=str(table(folder / "own.csv", 1, patients=lines)), label="y")
        own = validate_settings(read_yaml(json.dumps(dict(policy)), environment={}), Policy)
        settings = SiteSettings(source=source, policy=own, home=str(folder / "home"))
        self.hospital = Hospital("own", folder / "own", settings, lambda: "2026-01-01T00:00:00Z")
        self.engine = InProcess({"own": make_worker(self.hospital)})
        read: dict[str, Any] = {"images": {"kind": "features", "numbers": ["x"], "categories": {}, "normalize": "none"}}
        read |= {"split": to_plain(Split()), "seed": 0, "independent": True}
        self.cohort = str(self.ask("ingest", "r/in", read, {}).facts["cohort"])

    def ask(self, request: str, conversation: str, facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> Message:
        answers = self.engine.ask(Call(conversation, 0, request, {}), {"own": Message(tensors, facts)})
        if answers.missing:
            raise Refused(answers.missing["own"])
        return answers.replies["own"]

    def evaluate(self, data: bytes, said: Signature, *, conversation: str = "", **more: Any) -> Message:
        facts = {"cohort": self.cohort, "copies": 3, "epsilon": 1.0, "signature": to_plain(said), **more}
        name = conversation or f"r/{hashlib.sha256(data).hexdigest()}-x"
        return self.ask("benchmark", name, facts, {TENSOR: to_tensor(data)})

    def code(self, data: bytes, said: Signature, **more: Any) -> str:
        with pytest.raises(Refused) as refused:
            self.evaluate(data, said, **more)
        return refused.value.code

    @property
    def ledger(self) -> list[Mapping[str, Any]]:
        return list(ledgers.read_lines(self.hospital.ledger))


def other_statement(said: Signature, **changes: Any) -> Signature:
    """Another statement under the old signature."""
    return replace(said, statement=replace(said.statement, **changes))


def changed(data: bytes) -> bytes:
    """One byte of a weight is another, and the file's own checksum is right again."""
    body = bytearray(unseal_parts(data))
    body[-1] ^= 1
    return seal_parts(bytes(body))


LATER = {"signed": "2020-01-01", "expires": "2099-01-01"}
BEFORE_PARSING: dict[str, tuple[str, Callable[[Path, bytes], tuple[bytes, Signature]], dict[str, Any]]] = {
    "no key is trusted": ("policy_model", lambda p, d: (d, signature_of(p, d)), {}),
    "another key is trusted": ("policy_model", lambda p, d: (d, signature_of(p, d, number=2)), TRUSTED),
    "a byte is another": ("tampered_model", lambda p, d: (changed(d), signature_of(p, d)), TRUSTED),
    "a foreign signature under a trusted name": (
        "tampered_model",
        lambda p, d: (d, replace(signature_of(p, d, number=2), key=public_key(1))),
        TRUSTED,
    ),
    "a longer life is written in": (
        "tampered_model",
        lambda p, d: (d, other_statement(signature_of(p, d), **LATER)),
        TRUSTED,
    ),
    "the signature of another model": (
        "tampered_model",
        lambda p, d: (d, signature_of(p, finished("other", params=GOOD))),
        TRUSTED,
    ),
    "it expired": (
        "expired_model",
        lambda p, d: (d, signature_of(p, d, today=date(2025, 1, 1), days=30)),
        TRUSTED,
    ),
    "it is of the future": ("expired_model", lambda p, d: (d, signature_of(p, d, today=date(2026, 2, 1))), TRUSTED),
    "it is too large": (
        "oversized_model",
        lambda p, d: (d, signature_of(p, d)),
        {**TRUSTED, "max_model_bytes": 100},
    ),
}


@pytest.mark.parametrize("how", BEFORE_PARSING)
def test_what_is_not_signed_by_a_trusted_key_is_refused_before_a_byte_is_parsed(tmp_path, monkeypatch, how) -> None:
    code, made, policy = BEFORE_PARSING[how]
    data, said = made(tmp_path, finished(params=GOOD))
    home = Home(tmp_path / "h", policy)
    monkeypatch.setattr(pipelines.hospital.benchmark, "parse_ready", forbidden)
    before = home.ledger
    assert home.code(data, said, conversation=f"r/{said.statement.sha256}-x") == code
    (line,) = home.ledger[len(before) :]
    assert line["refused"] == code and line["bytes"] == 0 and line["event"] == {"kind": "declared", "what": "failure"}
    assert not may_tell(code), "the code follows from what was asked, and from the policy"


def forbidden(data: bytes) -> None:
    raise AssertionError("the file was parsed")


def signed_anyhow(folder: Path, data: bytes, settings: Mapping[str, Any]) -> Signature:
    said = statement_of(data, title="odd", settings=settings, today=TODAY, days=30)
    return sign_statement(said, key_file(folder))


def test_what_a_trusted_key_signed_must_be_a_finished_model_with_the_signed_settings(tmp_path, monkeypatch) -> None:
    home = Home(tmp_path / "h", TRUSTED)
    monkeypatch.setattr(pipelines.hospital.benchmark, "predict_probabilities", forbidden)
    good = finished(params=GOOD)
    odd_target = finished(params=GOOD, target="odd")
    for data in (b"", b"a pickle", seal_parts(to_bytes(Message({}, {"format": 1}))), good[:-4], odd_target):
        assert home.code(data, signed_anyhow(tmp_path, data, {})) == "malformed_model"
    wide = finished(params={}, model=Mlp(hidden=(2**15, 2**15)))
    assert home.code(wide, signed_anyhow(tmp_path, wide, {})) == "malformed_model"
    assert home.code(good, signed_anyhow(tmp_path, good, {"label": "another"})) == "tampered_model"
    assert home.code(good, signature_of(tmp_path, good), conversation=f"r/{'0' * 64}-x") == "tampered_model"
    other = finished(images=Features(numbers=("z",), normalize="none"), params=GOOD)
    assert home.code(other, signature_of(tmp_path, other)) == "malformed_cohort"
    said = to_plain(signature_of(tmp_path, good))
    assert home.code(good, said, signature={**said, "more": 1}) == "unknown_setting"  # type: ignore[arg-type]
    for odd in ({"key": 1}, {**said, "statement": {}}):
        assert home.code(good, said, signature=odd) == "malformed_request"  # type: ignore[arg-type]
    facts = {"cohort": home.cohort, "copies": 3, "signature": said}
    with pytest.raises(Refused, match="malformed_request"):
        home.ask("benchmark", f"r/{'0' * 64}-x", facts, {TENSOR: torch.zeros(3)})


def test_a_hospital_that_trained_a_model_does_not_evaluate_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "h", TRUSTED)
    data = finished(params=GOOD)
    (home.hospital.root / "conversations" / "theirs" / "fedavg-0").mkdir(parents=True)
    assert home.code(data, signature_of(tmp_path, data)) == "policy_inside"


def test_nothing_about_single_patients_leaves(tmp_path: Path) -> None:
    home = Home(tmp_path / "h", TRUSTED, lines=40)
    data = finished(params=GOOD)
    reply = home.evaluate(data, signature_of(tmp_path, data))
    assert set(reply.tensors) == {"scores", "columns", "shape", "confusion", "patients", "class_patients"}
    assert reply.facts == {"model": hashlib.sha256(data).hexdigest()}
    known = read_cohort_file(home.hospital.cohort_folder(home.cohort) / COHORT).patients
    assert not any(name.encode() in to_bytes(reply) for name in known)
    assert home.ledger[-1]["event"] == {"kind": "non_private"} and home.ledger[-1]["bytes"] == len(to_bytes(reply))


# Privacy -------------------------------------------------------------------------------------------------------------


CAREFUL: dict[str, Any] = {
    "budget": {"epsilon": 1.3},
    "most": {"release": 1.1},
    "public": ["counts"],
    "min_patients": 1,
}


def test_a_hospital_with_a_budget_tells_noised_counts_once_and_pays_what_was_said(tmp_path: Path) -> None:
    home = Home(
        tmp_path / "h",
        {**TRUSTED, **CAREFUL},
    )
    data = finished(params=GOOD)
    said = signature_of(tmp_path, data)
    assert home.code(data, said, epsilon=None, conversation=f"r/{said.statement.sha256}-y") == "policy_privacy"
    reply = home.evaluate(data, said)
    assert "noised" in reply.tensors and "scores" not in reply.tensors
    spent = compute_cost(ledgers.spent_events(home.ledger), 1e-5).epsilon
    assert spent == pytest.approx(1.0, rel=0.02)
    assert to_bytes(home.evaluate(data, said)) == to_bytes(reply) and home.ledger[-1]["again"] is True
    assert compute_cost(ledgers.spent_events(home.ledger), 1e-5).epsilon == spent
    other = finished("other", params=sees(1.0))
    assert home.code(other, signature_of(tmp_path, other)) == "budget"


@pytest.mark.chance(1e-12, "a noised AUC is nine deviations (0.011 each) away")
def test_noised_and_counted_hospitals_stand_on_one_page(place: Path) -> None:
    private = {**TRUSTED, "budget": {"epsilon": 2.0}, "public": ["counts"], "min_patients": 1}
    sites = {**hospitals(place), "careful": site(place, "careful", 8, private, patients=400)}
    assert run([settings(place, sites)]) == Exit.OK
    said = next(one for one in facts(place)["hospitals"] if one["site"] == "careful")
    assert said["by"]["noise"] > 0 and said["by"]["value"] == pytest.approx(0.92, abs=0.1)


def test_a_newer_program_is_told_the_same_and_nobody_pays_twice_unasked(place, monkeypatch) -> None:
    private = {**TRUSTED, "budget": {"epsilon": 2.0}, "public": ["counts"], "min_patients": 1}
    config = settings(place, {"careful": site(place, "careful", 8, private, patients=40)})

    def paid() -> list[str]:
        (path,) = place.rglob("ledger.jsonl")
        lines = (line for line, _ in ledgers.charged_lines(ledgers.read_lines(path)))
        return [str(line["commit"]) for line in lines if line["event"]["kind"] not in ("nothing", "declared")]

    assert run([config]) == Exit.OK
    before = paid()
    monkeypatch.setattr(pipelines.benchmark.run, "VERSION", pipelines.benchmark.run.VERSION + 1)
    assert run([config]) == Exit.OK and paid() == before != []
    run([config, "--spend"])
    assert len(paid()) > len(before)


# Kills, and answers that are none ------------------------------------------------------------------------------------


class Cut(InProcess):
    """Dies as the second hospital is asked to evaluate."""

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        if call.request == "benchmark" and "north" in messages:
            raise KeyboardInterrupt
        return super().ask(call, messages, deadline_s=deadline_s)


def test_a_killed_benchmark_goes_on_and_nobody_works_twice(place, monkeypatch) -> None:
    config = settings(place, hospitals(place))
    with monkeypatch.context() as patch:
        patch.setattr(pipelines.benchmark.run, "InProcess", Cut)
        assert run([config]) == Exit.INTERRUPTED
    assert not (place / "runs" / "bench" / "benchmark.html").exists()
    worked: list[str] = []
    real = pipelines.hospital.benchmark.predict_probabilities
    monkeypatch.setattr(
        pipelines.hospital.benchmark, "predict_probabilities", lambda *a: [worked.append("once"), real(*a)][1]
    )
    assert run([config]) == Exit.OK
    assert len(worked) == 2, "east had answered before"
    again = [line["again"] for line in lines(place, "east") if line["request"] == "benchmark"]
    assert again == [False, True]
    resumed = replies(place)
    assert run([config]) == Exit.OK and len(worked) == 2 and replies(place) == resumed


class Liar(InProcess):
    """Replaces one hospital's replies."""

    told: Message

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = super().ask(call, messages, deadline_s=deadline_s)
        if call.request == "benchmark" and "north" in answers.replies:
            return Answers({"north": type(self).told}, {})
        return answers


@pytest.mark.parametrize("tensors", ["none", "fewer copies", "another model"])
def test_a_reply_that_is_no_score_of_the_model_is_none(place, monkeypatch, tensors) -> None:
    sent = hashlib.sha256(finished(params=GOOD)).hexdigest()
    y, p = np.array([0, 1]), np.array([[0.9, 0.1], [0.1, 0.9]])
    counts = to_tensors(count_scores(y, p, y, copies=3 if tensors == "fewer copies" else 50, seed=0))
    digest = "0" * 64 if tensors == "another model" else sent
    Liar.told = Message({} if tensors == "none" else counts, {"model": digest})
    monkeypatch.setattr(pipelines.benchmark.run, "InProcess", Liar)
    assert run([settings(place, hospitals(place))]) == Exit.OK
    assert order(place)[0] == "north"
    assert facts(place)["hospitals"][0]["reasons"]["ours"]["code"] == "unexpected_reply"


# Settings, keys and signatures of the owner --------------------------------------------------------------------------


def test_everything_that_is_wrong_with_settings_is_said_at_once(place: Path, capsys) -> None:
    good = write_signed(place / "good.safetensors", finished(params=GOOD))
    (place / "bare.safetensors").write_bytes(good.read_bytes())
    bad = write_signed(place / "bad.safetensors", finished("bad", params=GOOD))
    bad.write_bytes(changed(bad.read_bytes()))
    models = {"lost": place / "lost", "bare": place / "bare.safetensors", "bad": bad}
    assert run([settings(place, hospitals(place), models)]) == Exit.CONFIG
    said = " ".join(capsys.readouterr().err.split())
    for words in ("lost does not exist", "does not lie beside it; sign it: consilium sign", "tampered_model"):
        assert words in said
    odd = {**hospitals(place), "central": site(place, "c", 1)}
    odd["east"] |= {"work": {"lr": 1.0}}
    assert run([settings(place, odd, {"good": good}, least=2, epsilon=-1, reference="x")]) == Exit.CONFIG
    said = " ".join(capsys.readouterr().err.split())
    for words in ("least", "epsilon", "is none of the models", "central", "nothing is trained here"):
        assert words in said
    assert run([settings(place, hospitals(place), {"good": good}), "--fresh"]) == Exit.CONFIG
    assert not (place / "runs" / "bench" / "sites").exists()


def test_check_says_what_would_be_sent_and_asks_nobody(place: Path, capsys) -> None:
    sites = {**hospitals(place), "aloof": site(place, "aloof", 5, policy={})}
    assert run([settings(place, sites), "--check", "--json"]) == Exit.OK
    said = json.loads(capsys.readouterr().out)
    assert said["sites"]["east"]["trusts"] == ["ours"] and said["sites"]["aloof"]["trusts"] == []
    assert said["models"]["ours"]["key"] == public_key()
    assert not (place / "runs" / "bench" / "sites").exists()


def test_a_key_is_for_its_owner_only_and_signs_what_hospitals_take(place: Path, capsys) -> None:
    assert sign(["--new", "owner.key", "--json"]) == Exit.OK
    key = json.loads(capsys.readouterr().out)["key"]
    assert (place / "owner.key").stat().st_mode & 0o777 == 0o600
    kept = (place / "owner.key").read_bytes()
    assert sign(["--new", "owner.key"]) == Exit.CONFIG and (place / "owner.key").read_bytes() == kept
    (place / "m.safetensors").write_bytes(finished(params=GOOD))
    assert sign(["m.safetensors", "--key", "owner.key"]) == Exit.OK
    sites = {"east": site(place, "east", 1, {"trusted_models": {"them": key}})}
    assert run([settings(place, sites, {"ours": place / "m.safetensors"})]) == Exit.OK
    assert facts(place)["hospitals"][0]["verdict"] == "scored"
    capsys.readouterr()
    (place / "owner.key").chmod(0o644)
    (place / "none").write_text("no model")
    (place / "nokey").write_text("no key")
    (place / "nokey").chmod(0o600)
    for arguments, words in (
        (["m.safetensors", "--key", "owner.key"], "others may read the key"),
        (["m.safetensors", "--key", "nokey"], "no private key of Ed25519"),
        (["none", "--key", "owner.key"], "no finished model"),
        (["m.safetensors"], "--key: missing"),
        (["m.safetensors", "--key", "lost"], "lost"),
        (["m.safetensors", "--key", "owner.key", "--days", "0"], "--days"),
    ):
        assert sign(arguments) == Exit.CONFIG
        assert words in capsys.readouterr().err


def test_the_shipped_benchmark_is_one_once_a_key_is_filled_in() -> None:
    text = (CONFIGS / "benchmark.yaml").read_text()
    assert text.count("FILL IN") == 1
    said = read_yaml(text.replace("FILL IN", public_key()), environment={})
    made = validate_settings(said, BenchmarkSettings)
    assert len(made.sites) == 4 and all(
        one.policy.trusted_models == {"owner": public_key()} for one in made.sites.values()
    )


@pytest.mark.parametrize("key", ["0" * 64, "FILL IN", public_key().upper(), public_key()[:-2]])
def test_a_policy_takes_no_key_that_is_none(key: str) -> None:
    with pytest.raises(ConfigError, match="trusted_models"):
        validate_settings(read_yaml(json.dumps({"trusted_models": {"x": key}}), environment={}), Policy)
