"""--set: a value of the command line is as if the settings file had said so, and its errors name it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipelines.coordinator.arguments import command_of, parse_arguments, transport_free_arguments
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.set_values import apply_set_values
from pipelines.run import main
from pipelines.runs.exits import Exit

BASE = "a: {b: 1, c: [1, 2]}\nd: text\n"


def data_with(*texts: str) -> object:
    return apply_set_values(read_yaml(BASE, environment={}), texts).data


def test_values_are_read_as_yaml_and_stand_where_they_are_named():
    assert data_with("a.b=2", "a.c[1]=x", "e.f.g={h: [true, null]}") == {
        "a": {"b": 2, "c": [1, "x"]},
        "d": "text",
        "e": {"f": {"g": {"h": [True, None]}}},
    }
    assert data_with('d="1"') == {"a": {"b": 1, "c": [1, 2]}, "d": "1"}
    assert data_with() == read_yaml(BASE, environment={}).data


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a.b", "must be KEY=VALUE"),
        ("=1", "must be KEY=VALUE"),
        ("a..b=1", "must be KEY=VALUE"),
        (".a=1", "must be KEY=VALUE"),
        ("a.c[2]=1", "found a list of 2"),
        ("a[0]=1", "found no list"),
        ("d.e=1", 'found "text"'),
        ("a.b=[1", "not valid YAML"),
        ("a.b=!!python/none 1", "tags are refused"),
        ("a.b=${HOME}", "unknown substitution"),
    ],
)
def test_what_cannot_be_set_names_the_option(text: str, why: str):
    with pytest.raises(ConfigError) as refused:
        data_with("a.b=3" if text.startswith("d") else "d=x", text)
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"--set {text}: ") and why in problem.message


def test_a_place_is_set_once():
    with pytest.raises(ConfigError, match=r"--set a\.b=3: given twice"):
        data_with("a.b=2", "a.b=3")


def tiny(folder: Path) -> Path:
    source = {"kind": "phantom", "scanner": "P", "patients": 8, "slices": 4}
    settings = {
        "name": "tiny",
        "privacy": "none",
        "sites": {name: {"source": {**source, "seed": seed}} for seed, name in enumerate("ab", 1)},
        "images": {"kind": "slices", "size": 32},
        "model": {"name": "cnn", "widths": [8, 16]},
        "train": {"schedule": {"rounds": 1}, "work": {"epochs": 1}, "methods": {"fedavg": {"name": "fedavg"}}},
        "evaluate": {"copies": 5, "reference": None},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def planned(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Folder of each stage, of which the digest of its settings is a part."""
    assert main([*arguments, "--explain", "--json"]) == Exit.OK
    return json.loads(capsys.readouterr().out)


def test_a_run_with_a_value_is_the_run_of_the_file_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    path = tiny(tmp_path)
    before = planned(["tiny.yaml"], capsys)
    by_option = planned(["tiny.yaml", "--set", "train.schedule.rounds=2"], capsys)
    said = yaml.safe_load(path.read_text())
    said["train"]["schedule"]["rounds"] = 2
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(said))
    assert by_option == planned(["two.yaml"], capsys) != before


def test_errors_of_a_value_name_it_and_others_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path)
    wrong = ["train.schedule.rounds=many", "train.schedul.quorum=1", "model.widths=[3, 16]"]
    assert main(["tiny.yaml", *(word for text in wrong for word in ("--set", text))]) == Exit.CONFIG
    told = capsys.readouterr().err
    assert (
        'tiny.yaml: --set train.schedule.rounds=many: train.schedule.rounds: must be a whole number, found "many"'
        in told
    )
    assert "tiny.yaml: --set train.schedul.quorum=1: train.schedul: unknown key (did you mean 'schedule'?)" in told
    assert "tiny.yaml: --set model.widths=[3, 16]: model.widths: " in told
    (tmp_path / "tiny.yaml").write_text((tmp_path / "tiny.yaml").read_text().replace("copies: 5", "copies: none"))
    assert main(["tiny.yaml", "--set", "seed=x"]) == Exit.CONFIG
    of_value, of_line = capsys.readouterr().err.splitlines()[-2:]
    assert of_value.startswith("tiny.yaml: --set seed=x: seed: must be a whole number")
    assert of_line.startswith("tiny.yaml:2: evaluate.copies: must be a whole number")


def test_the_command_that_goes_on_and_the_order_to_flare_say_the_values():
    options = parse_arguments(["my run.yaml", "--set", "title=a b", "--set", "seed=2", "--engine", "flare", "--fresh"])
    assert command_of(options) == "python -m pipelines.run 'my run.yaml' --set 'title=a b' --set seed=2"
    ordered = parse_arguments(list(transport_free_arguments(options)))
    assert (ordered.values, ordered.fresh, ordered.config) == (options.values, True, "my run.yaml")
