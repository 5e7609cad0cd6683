"""Figures by round (`evaluate: {rounds: true}`): they change no model, a private run has none, and each is booked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, mean_absolute_error, roc_auc_score

from consilium import ConfigError, Examples, PatientLevel, Policy, Results, train
from federation.conversation import load_memory, load_newest_intact_memory
from federation.findings import decode_findings, encode_findings
from federation.models.cnn import Cnn
from federation.models.unet import UNet
from federation.participant import FIGURES
from federation.task import STEPS, Task
from pipelines.hospital.figures import measure_model
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from privacy.dp.access import Rows
from privacy.message import Call, Message, from_bytes
from privacy.release.gate import Refused
from privacy.release.policy import REQUESTS

OFF: dict[str, Any] = {"audit": {"membership": False}, "evaluate": {"copies": 0, "checkpoint": "latest"}}
ON: dict[str, Any] = {**OFF, "evaluate": {**OFF["evaluate"], "rounds": True}}
MODEL = {"name": "mlp", "hidden": [8], "dropout": 0.5}
METHODS = ["fedavg", "ditto"]


def two(patients: int = 20) -> dict[str, Examples]:
    made = {}
    for seed, name in enumerate("ab"):
        chance, y = np.random.default_rng(seed), np.arange(2 * patients) // 2 % 2
        x = chance.normal(size=(len(y), 4)) + y[:, None]
        made[name] = Examples(x, y, [f"{name}{row // 2}" for row in range(len(y))])
    return made


def trained(folder: Path, settings: dict[str, Any] = ON, **more: Any) -> Results:
    arguments: dict[str, Any] = {"model": MODEL, "method": METHODS, "rounds": 3, "work": {"lr": 0.05}, "quiet": True}
    return train(two(), folder=folder, settings=settings, **arguments | more)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Results:
    return trained(tmp_path_factory.mktemp("figures"))


def hospital(results: Results, site: str = "a") -> Hospital:
    return Hospital(site, results.folder / "sites" / site, None, lambda: "2026-01-01T00:00:00+00:00")


def runs_of(results: Results, method: str, site: str = "a") -> str:
    (path,) = (results.folder / "sites" / site / "conversations/run").glob(f"{method}-*")
    return f"run/{path.name}"


def test_every_model_and_score_is_the_same_with_and_without_them(done, tmp_path):
    """Bit for bit, also with dropout, which draws."""
    plain = trained(tmp_path, OFF)
    assert not plain.rounds and len(done.rounds) == 2 * 2 * 3
    assert plain.losses == done.losses and repr(plain.rows) == repr(done.rows)
    for method in METHODS:
        for site in "ab":
            pair = [each.ready(method, site).module.state_dict() for each in (plain, done)]
            assert all(torch.equal(pair[0][name], pair[1][name]) for name in pair[0])
    memory = load_newest_intact_memory(hospital(plain).conversation(runs_of(plain, "ditto")))
    assert "losses" in memory.facts and FIGURES not in memory.facts


def test_the_figures_of_the_last_round_are_those_of_the_model_that_the_hospital_uses(done):
    for site in "ab":
        for method in METHODS:
            files = [*(done.folder / "sites" / site / "scores").iterdir()]
            (path,) = [path for path in files if runs_of(done, method, site).rpartition("/")[2] in path.name]
            kept = from_bytes(path.read_bytes()).tensors
            y, p = kept["validation/y"].numpy(), kept["validation/probabilities"].double().numpy()
            (last,) = [r for r in done.rounds if (r.method, r.hospital, r.round) == (method, site, 3)]
            assert last.measure == "AUC" and last.score == pytest.approx(roc_auc_score(y, p[:, 1]))
            assert last.scores["balanced accuracy"] == pytest.approx(balanced_accuracy_score(y, p.argmax(axis=1)))
            assert (np.array(last.confusion[0]) == confusion_matrix(y, p.argmax(axis=1), labels=[0, 1])).all()


def test_every_round_has_its_loss_and_its_seconds(done):
    for each in done.rounds:
        assert each.loss == done.losses[each.method][each.hospital][each.round]
        assert 0 < each.seconds < 100 and sum(map(sum, each.confusion[0])) > 0
    assert len({(r.method, r.hospital, r.round) for r in done.rounds}) == len(done.rounds)


def test_what_left_is_booked_and_said(done):
    for site in "ab":
        lines = [line for line in done.ledger(site) if line["request"] == "figures"]
        assert len(lines) == len(METHODS)
        assert all(line["event"] == {"kind": "non_private"} and not line["refused"] for line in lines)
    assert "confusion counts and seconds of local work" in done.statements["a"].text
    page = done.page.read_text()
    assert "scores and confusion counts by round" in page and "Validation AUC by round" in page
    assert "Validation AUC by round" in next((done.folder / "sites/a").rglob("*.html")).read_text()


def test_the_same_call_asks_nothing_again(done):
    again = trained(done.folder.parent)
    counts = [sum(line["request"] == "figures" for line in each.ledger("a")) for each in (done, again)]
    assert counts == [2, 2] and "figures" in again.kept and again.rounds == done.rounds


def test_a_hospital_may_forbid_them_and_the_run_goes_on_without(tmp_path):
    silent = Policy(requests=tuple(name for name in REQUESTS if name not in ("pool", "figures")))
    results = trained(tmp_path, method="fedavg", policy={"a": silent, "b": Policy()})
    assert {each.hospital for each in results.rounds} == {"b"}
    codes = [line["refused"] for line in results.ledger("a") if line["request"] == "figures"]
    assert codes == ["policy_request"] and "figures fedavg" in results.page.read_text()


def test_a_training_that_began_without_them_has_none_until_it_is_made_anew(tmp_path):
    trained(tmp_path, OFF, method="fedavg")
    later = trained(tmp_path, method="fedavg")
    assert not later.rounds and "no_figures" in later.page.read_text()
    assert {"train", "evaluate"} <= {*later.kept}, "asking for figures changes no digest of what was there before"


def test_a_private_run_refuses_them_before_anything_is_asked(tmp_path):
    with pytest.raises(ConfigError, match="would cost epsilon"):
        trained(tmp_path, privacy=PatientLevel(epsilon=8.0))
    assert not (tmp_path / "run").exists()


def test_a_hospital_in_a_private_run_measures_and_tells_none_whoever_asks(tmp_path):
    """A coordinator that sends the setting all the same gets a code, and no memory holds a figure."""
    results = trained(tmp_path, OFF | {"audit": {"membership": False, "canaries": 0}}, method="fedavg",
                      privacy=PatientLevel(epsilon=8.0))  # fmt: skip
    site = hospital(results)
    old = runs_of(results, "fedavg")
    opening = dict(load_memory(site.conversation(old), 0).facts["opening"]) | {"figures": True}
    answer = make_worker(site)
    answer(Call("run/asked", 0, "introduce", {}), Message({}, opening))
    model = {f"model/{n}": t for n, t in results.ready("fedavg", "a").module.state_dict().items()}
    said = {"algorithm": {}, "best": None}
    for number, request in ((1, "train"), (2, "train"), (3, "finish")):
        merged = {"a": number - 1} if number > 1 else {}
        answer(Call("run/asked", number, request, merged), Message(model, said))
    memory = load_newest_intact_memory(site.conversation("run/asked"))
    assert "losses" in memory.facts and FIGURES not in memory.facts
    with pytest.raises(Refused) as refused:
        answer(Call("run/figures-asked", 0, "figures", {}), Message({}, {"train_run": "run/asked", "last": 2}))
    assert refused.value.code == "unprotected_figures"


def rows_of(task: Task, patients: int = 20) -> Rows:
    chance = torch.Generator().manual_seed(0)
    x = torch.rand(2 * patients, *task.inputs, generator=chance)
    if task.kind == "findings":
        y = encode_findings(torch.randint(0, 3, (len(x), task.classes), generator=chance))
    elif task.kind == "regression":
        y = torch.randint(0, STEPS + 1, (len(x),), generator=chance)
    else:
        y = torch.randint(0, task.classes, (len(x), *task.spatial), generator=chance)
    return Rows(x, y, torch.arange(patients).repeat_interleave(2))


@pytest.mark.parametrize(
    ("task", "measures", "shape"),
    [
        (Task(Cnn(widths=(8, 8)), (1, 16, 16), 3), ["AUC", "balanced accuracy"], (1, 3, 3)),
        (Task(Cnn(widths=(8, 8)), (1, 16, 16), 4, ordered=True), ["AUC", "balanced accuracy"], (1, 4, 4)),
        (Task(Cnn(widths=(8, 8)), (1, 16, 16), 3, "findings"), ["AUC", "balanced accuracy"], (3, 2, 2)),
        (Task(Cnn(widths=(8, 8)), (1, 16, 16), 1, "regression"), ["MAE"], (0,)),
        (Task(UNet(width=4, levels=1), (1, 16, 16), 3, "segmentation"), ["Dice"], (1, 3, 3)),
    ],
    ids=lambda value: value.kind if isinstance(value, Task) else None,
)
def test_each_kind_of_task_has_its_measure_and_its_tables(task, measures, shape):
    torch.manual_seed(0)
    network, rows = task.network(), rows_of(task)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    measured = measure_model(task, rows, network, width=7.0)
    assert torch.equal(torch.get_rng_state(), state), "no random number is drawn"
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [*measured["scores"]] == measures and np.array(measured["confusion"]).shape == shape
    probabilities = task.probabilities(network, rows.x).double().numpy()
    table = np.array(measured["confusion"])
    if task.kind == "regression":
        error = mean_absolute_error(rows.y.numpy() / STEPS * 7, probabilities[:, 0] * 7)
        assert measured["scores"]["MAE"] == pytest.approx(error)
    elif task.kind == "findings":
        states = decode_findings(rows.y, 3).numpy()
        assert table.sum(axis=(1, 2)).tolist() == (states != 2).sum(axis=0).tolist()
    else:
        said = probabilities.argmax(axis=1)
        assert (table[0] == confusion_matrix(rows.y.numpy().ravel(), said.ravel(), labels=range(task.classes))).all()


def test_only_rounds_in_which_a_hospital_scored_a_model_are_told(tmp_path):
    """With half of the hospitals asked in each round: those that it has losses of, with seconds where it worked."""
    more = {**ON, "train": {"schedule": {"rounds": 4, "participation": 0.5}}}
    results = trained(tmp_path, more, method="fedavg")
    for site in "ab":
        mine = [each for each in results.rounds if each.hospital == site]
        assert [each.round for each in mine] == sorted(results.losses["fedavg"][site])
    assert any(np.isnan(each.seconds) for each in results.rounds)
