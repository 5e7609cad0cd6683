"""The Python API is the command line: the same bits, the same guarantees, the same refusals."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import consilium
from consilium import ConfigError, Examples, PatientLevel, Policy, Results, RunFailed, Split, Work
from consilium.running import derived_key
from federation.algorithm import State
from federation.fedavg import FedAvg
from federation.parameters import read_parameters
from federation.registry import unregister
from personalize import ALGORITHMS
from personalize.fenda import Fenda
from pipelines.hospital.hospital import KEY
from pipelines.loader.files import read_document
from pipelines.models.recommended import read_recommended
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.message import Call, Message

FAILS_AT = "CONSILIUM_TEST_FAILS_AT"
"""In the environment: the round of training in which `Failing` fails. In a list of this module it would be its code."""


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """FedAvg whose coordinator fails before a round."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["failing"] = "failing"  # type: ignore[assignment]

    def send(self: object, state: State, site: str, call: Call) -> Message:
        if call.request == "train" and call.round == int(os.environ.get(FAILS_AT, "0")):
            raise RuntimeError("the coordinator burns")
        return FedAvg.send(self, state, site, call)


def hospital(seed: int, count: int = 48, **more: Any) -> Examples:
    chance = np.random.default_rng(seed)
    y = np.arange(count) // 2 % 2
    x = chance.normal(size=(count, 4)) + y[:, None]
    return Examples(x, y, [f"{seed}-{row // 2}" for row in range(count)], **more)


def two(**more: Any) -> dict[str, Examples]:
    return {"north": hospital(1, **more), "south": hospital(2, **more)}


SMALL: dict[str, Any] = {"evaluate": {"copies": 10}, "audit": {"membership": False, "canaries": 0}}


def train(folder: Path, hospitals: Any = None, **changes: Any) -> Results:
    asked: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [6]},
        "method": "fenda",
        "rounds": 2,
        "work": Work(batch=8, lr=0.05),
        "settings": SMALL,
        "quiet": True,
    }
    return consilium.train(two() if hospitals is None else hospitals, folder=folder, **{**asked, **changes})


def models(results: Results) -> dict[tuple[str, str], dict[str, Tensor]]:
    pairs = [(method, site) for method, sites in results.losses.items() for site in sites]
    return {pair: dict(read_parameters(results.model(*pair))) for pair in pairs}


def same(one: Results, other: Results) -> bool:
    ours, theirs = models(one), models(other)
    assert ours.keys() == theirs.keys() and ours
    return str(one.rows) == str(other.rows) and all(
        torch.equal(ours[pair][name], theirs[pair][name]) for pair in ours for name in ours[pair]
    )


def only_the_key(folder: str, names: list[str]) -> set[str]:
    return {*names} - {KEY}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return train(tmp_path_factory.mktemp("api") / "f")


def test_the_command_line_trains_the_same_models(plain: Results, tmp_path: Path) -> None:
    for site in ("north", "south"):
        (tmp_path / f"{site}.st").write_bytes((plain.folder.parent / "data" / f"{site}.safetensors").read_bytes())
    text = f"""
name: again
privacy: none
runs: {tmp_path}
sites:
  north: {{source: {{kind: tensors, file: {tmp_path}/north.st}}}}
  south: {{source: {{kind: tensors, file: {tmp_path}/south.st}}}}
images: {{kind: tensors, inputs: [4]}}
model: {{name: mlp, hidden: [6]}}
train:
  schedule: {{rounds: 2}}
  work: {{batch: 8, lr: 0.05}}
  methods: {{fenda: {{name: fenda}}}}
evaluate: {{copies: 10}}
audit: {{membership: false, canaries: 0}}
"""
    (tmp_path / "run.yaml").write_text(text)
    for site in ("north", "south"):  # keys order patients
        shutil.copytree(plain.folder / "sites" / site, tmp_path / "again/sites" / site, ignore=only_the_key)
    assert main([str(tmp_path / "run.yaml")]) == Exit.OK
    for site in ("north", "south"):
        ours, theirs = (folder / "sites" / site / "ready" for folder in (plain.folder, tmp_path / "again"))
        one, two_ = (
            read_parameters(consilium.results.read_ready(path / "fenda.safetensors").module) for path in (ours, theirs)
        )
        assert one.keys() == two_.keys() and all(torch.equal(one[name], two_[name]) for name in one)
    again = consilium.run(tmp_path / "run.yaml", quiet=True)
    assert same(plain, again) and again.ran == () and "train" in again.kept


def test_its_settings_are_a_file_that_the_command_line_continues(plain: Results) -> None:
    assert plain.yaml is not None and main([str(plain.yaml)]) == Exit.OK
    data = read_document(plain.yaml).data
    assert same(plain, consilium.run(data, quiet=True))  # type: ignore[arg-type]


def test_a_second_call_does_nothing_anew(plain: Results) -> None:
    again = train(plain.folder.parent)
    assert again.ran == () and same(plain, again)
    assert plain.ran == ("ingest", "train", "evaluate", "audit", "report") and not plain.kept


def test_other_settings_ways_to_say_the_same_are_the_same(plain: Results, tmp_path: Path) -> None:
    from federation.models.mlp import Mlp

    for number, (method, model) in enumerate(
        [(Fenda(), Mlp(hidden=(6,))), ({"fenda": {"name": "fenda"}}, Mlp(hidden=(6,)))]
    ):
        assert same(plain, train(tmp_path / str(number), method=method, model=model))


def test_messages_as_bytes_train_the_same_models(plain: Results, tmp_path: Path) -> None:
    wired = train(tmp_path / "f", engine="wire")
    assert same(plain, wired)
    asked = ("introduce", "train", "finish", "export", "evaluate")
    left = [one.ledger("north") for one in (plain, wired)]
    bits = [{(line["request"], line["sha256"]) for line in lines if line["request"] in asked} for lines in left]
    assert bits[0] == bits[1] and len(bits[0]) > 4


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consilium.register(Failing)
    try:
        monkeypatch.setenv(FAILS_AT, "2")
        with pytest.raises(RunFailed, match="burns") as caught:
            train(tmp_path / "one", method="failing")
        assert caught.value.code is Exit.FAILED, "no command knows this method"
        assert str(caught.value).endswith("to go on:\nthe same call of consilium.train")
        monkeypatch.delenv(FAILS_AT)
        resumed, whole = train(tmp_path / "one", method=Failing()), train(tmp_path / "two", method=Failing())
        assert same(resumed, whole) and "ingest" in resumed.kept
        trained = [line for line in resumed.ledger("north") if line["request"] == "train"]
        assert len({(line["run"], line["round"]) for line in trained if not line["again"]}) == len(trained) == 2
    finally:
        unregister(ALGORITHMS, Failing)


def test_the_results_are_those_of_the_page(plain: Results) -> None:
    told = json.loads(next(plain.folder.glob("report/*/scores.json")).read_text())
    assert len(told) == len(plain.rows) and plain.page.is_file()
    found = plain.score("fenda", "north")
    row = next(
        r
        for r in told
        if (r["method"], r["measure"], r["sites"], r["protocol"]) == ("fenda", "AUC", ["north"], "private")
    )
    assert (found.value, found.low, found.high) == (row["value"], row["low"], row["high"])
    assert "fenda" in plain.table() and "page:" in str(plain) and str(plain).count("not guaranteed") == 2
    assert set(plain.losses["fenda"]["north"]) == {1, 2} and set(plain.recommended) == {"north", "south"}
    for site, method in plain.recommended.items():
        kept = read_recommended(plain.folder / "sites" / site)
        assert kept is not None and (kept.decision.method or None) == method, "as the hospital's page and `predict` say"
    x = torch.randn(3, 4)
    assert torch.allclose(plain.probabilities("fenda", "north", x).sum(dim=1), torch.ones(3))
    with pytest.raises(ValueError, match=r"x must be \(n, 4\), found \(3, 5\)"):
        plain.probabilities("fenda", "north", torch.randn(3, 5))
    for wrong in (lambda: plain.model("fedavg", "north"), lambda: plain.score("x", "y"), lambda: plain.ledger("west")):
        with pytest.raises(KeyError, match="no "):
            wrong()


def test_two_methods_are_compared_either_way_round(tmp_path: Path) -> None:
    done = train(tmp_path / "two", method=["local", "fedavg"], rounds=1)
    for hospital in ("", "private mean", "north", "south"):
        gain, back = done.compare("fedavg", "local", hospital), done.compare("local", "fedavg", hospital)
        scores = [done.score(method, hospital or "private mean").value for method in ("fedavg", "local")]
        assert gain.value == pytest.approx(scores[0] - scores[1]) and gain.low <= gain.value <= gain.high
        assert back == replace(gain, method="local", other="fedavg", value=-gain.value, low=-gain.high, high=-gain.low)
        assert gain.hospital == (hospital or "private mean")
    with pytest.raises(KeyError, match="no comparison of 'local' with 'fenda' at 'north'"):
        done.compare("local", "fenda", "north")


def test_the_scores_are_a_frame(plain: Results) -> None:
    pandas = pytest.importorskip("pandas")
    frame = plain.frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(plain.rows)
    assert (
        frame.query("method == 'fenda' and hospital == 'north' and measure == 'AUC'").value.item()
        == plain.score("fenda", "north").value
    )


def test_without_pandas_it_is_told_what_to_install_and_with_it_every_score_is_a_row(
    plain: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both, whether or not pandas is here: in place of it stands what keeps the rows."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install consilium\[frame\]; `rows` are the same numbers"):
        plain.frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    frame: Any = plain.frame()
    assert str(frame) == str([asdict(row) for row in plain.rows]) and frame
    assert list(frame[0]) == [field.name for field in fields(consilium.Score)]


def test_a_private_run_says_what_it_promises(tmp_path: Path) -> None:
    done = train(
        tmp_path / "p", method="fedavg", rounds=1, privacy=PatientLevel(epsilon=8.0), policy=Policy(public=("counts",))
    )
    said = done.statements["north"]
    assert 0 < said.epsilon < 20 and said.unit == "patient" and said.outside and "add-or-remove" in said.adjacency
    assert "ε = " in said.meaning and "north" in said.text
    assert all(line["event"] for line in done.ledger("north"))
    assert (done.folder / "sites/north" / KEY).read_bytes() != derived_key(0, "north")
    assert not any("pseudonyms" in text for text in done.not_guaranteed)


def test_own_splits_and_names_of_patients_are_kept(tmp_path: Path) -> None:
    split = ["train"] * 24 + ["validation"] * 12 + ["test"] * 12
    done = train(tmp_path / "s", two(split=split), method="local", rounds=1)
    assert done.score("local", "north").patients == 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu())


def test_a_network_of_ones_own_with_classes_of_ones_own(tmp_path: Path) -> None:
    given = {name: Examples(one.x, np.arange(48) // 2 % 3, one.patient) for name, one in two().items()}
    net = consilium.own(Net, stem="one", head="two", name="mine")
    done = train(tmp_path / "o", given, model=net, method=["local", "fedavg"], rounds=1)
    assert done.model("fedavg", "north").get_parameter("head.weight").shape == (3, 6)
    assert any("what network mine computes" in text for text in done.not_guaranteed)
    with pytest.raises(ConfigError, match="2 names, and 3 classes occur; name each"):
        train(tmp_path / "o", given, model=net, classes=["benign", "malignant"])
    with pytest.raises(ConfigError, match=r"model: the network must return logits \['n', 2\], found \[2, 3\]"):
        train(tmp_path / "o", model=net)


def test_masks_are_segmented(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(24, 1, 8, 8))
    given = {
        name: Examples(x + n, patient="each", mask=(x[:, 0] > 0.5).astype(int)) for n, name in enumerate(("a", "b"))
    }
    done = train(
        tmp_path / "m",
        given,
        model={"name": "unet", "width": 4, "levels": 1},
        method="fedavg",
        rounds=1,
        classes=["spot"],
    )
    assert done.table().startswith("Dice") and done.probabilities("fedavg", "a", x[:2]).shape == (2, 2, 8, 8)


def other(x: Any = None, y: Any = None, patient: Any = None) -> Examples:
    base = hospital(2)
    return Examples(
        base.x if x is None else x, base.y if y is None else y, base.patient if patient is None else patient
    )


FEW = hospital(1)
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no hospital": ({"hospitals": {}}, ["hospitals: must be name -> examples"]),
    "a list": ({"hospitals": [FEW]}, ["hospitals: must be name -> examples"]),
    "a name": ({"hospitals": {"St. Mary": FEW}}, ['hospitals["St. Mary"]: must be named with a-z']),
    "no dataset": (
        {"hospitals": {"a": FEW, "b": 3, "c": []}},
        ["hospitals.b: int is no sequence", "hospitals.c: list has no item"],
    ),
    "other shapes": (
        {"hospitals": {"a": FEW, "b": other(np.zeros((48, 5)))}},
        ["hospitals.b.x: examples are [5], and those of a [4]"],
    ),
    "one class": (
        {"hospitals": {"a": Examples(FEW.x, FEW.y * 0, FEW.patient), "b": other(y=np.zeros(48, int))}},
        ["every class is 0; there is nothing to tell apart"],
    ),
    "a patient at two": (
        {"hospitals": {"a": FEW, "b": other(FEW.x, patient=FEW.patient)}},
        ["hospitals.b.patient: 24 patients ('1-0'", "at a"],
    ),
    "no such method": ({"method": "fenada"}, ['train.methods.fenada.name: unknown "fenada"', "did you mean 'fenda'?"]),
    "no method": ({"method": []}, ["method: give a method"]),
    "one twice": ({"method": ["fenda", Fenda()]}, ["method: give a method, a list of different ones"]),
    "no such model": ({"model": "mpl"}, ['model.name: unknown "mpl"']),
    "a module": ({"model": Net()}, ["model: must be settings", "found Net; consilium.own(Net"]),
    "a wrong range": ({"work": {"lr": -1.0, "batch": 0}}, ["train.work.lr", "train.work.batch"]),
    "rounds": ({"rounds": 0}, ["train.schedule.rounds"]),
    "a policy of nobody": ({"policy": {"west": Policy()}}, ["policy: of west, which are no hospitals"]),
    "splits": ({"split": {"train": 0.9, "validation": 0.2}}, ["split"]),
    "batch norm in private": (
        {
            "model": {"name": "cnn", "widths": [8, 16]},
            "privacy": PatientLevel(epsilon=1.0),
            "hospitals": {name: Examples(np.zeros((8, 1, 8, 8)), np.arange(8) % 2, "each") for name in "ab"},
        },
        ["cannot be trained privately", "use group norm"],
    ),
    "an unknown key": ({"settings": {"evaluate": {"copys": 3}}}, ["evaluate.copys: unknown key 'copies'"]),
}


@pytest.mark.parametrize("what", list(BAD))
def test_what_cannot_be_run_is_told_before_anything_is_written(what: str, tmp_path: Path) -> None:
    changes, words = BAD[what]
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "x", **changes)
    said = str(caught.value).replace("(did you mean 'copies'?)", "'copies'")
    assert all(word in said for word in words), said
    assert not (tmp_path / "x").exists()


def test_a_class_that_is_no_method_says_what_it_lacks(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Half:
        name: Literal["half"] = "half"

    with pytest.raises(ConfigError, match=r"(?s)Half is no method.*extra.*merge is missing"):
        train(tmp_path / "x", method=Half())
    assert not (tmp_path / "x").exists()


def test_files_that_cannot_be_read_end_with_the_hospitals_own_words(tmp_path: Path) -> None:
    (tmp_path / "north.st").write_bytes(b"none")
    settings = {"north": {"source": {"kind": "tensors", "file": str(tmp_path / "north.st")}}}
    with pytest.raises(RunFailed, match="cannot be read as safetensors") as caught:
        train(tmp_path / "x", settings, settings={**SMALL, "images": {"kind": "tensors", "inputs": [4]}})
    (detail,) = caught.value.details
    log = tmp_path / "x" / "run" / "sites" / "north" / "log.txt"
    assert caught.value.code is Exit.DATA and detail.endswith(f"what happened stands in {log}") and log.is_file()


def test_the_process_is_left_as_it_was(plain: Results) -> None:
    threads, mask, state = torch.get_num_threads(), os.umask(0o022), torch.get_rng_state()
    try:
        train(plain.folder.parent)
        assert (torch.get_num_threads(), os.umask(0o022)) == (threads, 0o022)
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        os.umask(mask)
    assert all(path.stat().st_mode & 0o077 == 0 for path in plain.folder.rglob("*.safetensors"))


def test_shares_are_the_runs(tmp_path: Path) -> None:
    done = train(tmp_path / "s", method="local", rounds=1, split=Split(train=0.5, validation=0.25, test=0.25))
    assert done.score("local", "south").patients == 6
