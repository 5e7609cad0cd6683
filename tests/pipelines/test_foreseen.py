"""What --check --headers passes, --until ingest passes: over mutated tables, labels and settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from small_run import smallest

from pipelines.hospital import foreseen
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main
from pipelines.runs.exits import Exit

ROWS = "id,age,pain,ill\n" + "".join(f"p{n},{40 + n},{'none' if n % 3 else 'much'},{n % 2}\n" for n in range(24))


def of_table(folder: Path) -> dict[str, Any]:
    made = smallest(pooling="refused", audit={"membership": False, "canaries": 0})
    for site, name in {"a": "t.csv", "b": "other.csv"}.items():
        (folder / name).write_text(ROWS)
        source = {"kind": "table", "file": str(folder / name), "patient": "id", "label": "ill"}
        made["sites"][site] = {"source": source}
    made["images"] = {"kind": "features", "numbers": ["age"], "categories": {"pain": ["none", "much"]}}
    made["model"] = {"name": "mlp"}
    made["train"]["work"] = {"lr": 0.01, "batch": 8}
    return made


def of_files(folder: Path) -> dict[str, Any]:
    made = smallest(pooling="refused")
    write(PhantomSource(scanner="P", patients=8, seed=1, slices=4), folder / "files")
    files = folder / "files"
    site = {
        "source": {"kind": "dicom", "folder": str(files / "images"), "select": {"ImageType": "ADC"}},
        "labels": {"kind": "table", "file": str(files / "labels.csv"), "slice": "slice"},
        "gland": {"folder": str(files / "masks" / "gland")},
    }
    made["sites"]["a"] = site
    made["sites"]["b"] = {"source": made["sites"]["b"]["source"]}
    return made


def text_in(name: str, change: Callable[[str], str]) -> Callable[[dict[str, Any], Path], None]:
    def mutate(made: dict[str, Any], folder: Path) -> None:
        (path,) = folder.rglob(name)
        path.write_text(change(path.read_text()))

    return mutate


def said(*path: str, value: object) -> Callable[[dict[str, Any], Path], None]:
    def mutate(made: dict[str, Any], folder: Path) -> None:
        place = made
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return mutate


def all_but_one_excluded(made: dict[str, Any], folder: Path) -> None:
    (path,) = folder.rglob("labels.csv")
    names = sorted({line.split(",")[0] for line in path.read_text().splitlines()[1:]})
    made["sites"]["a"]["exclude"] = names[1:]


def half_of_lines(change: Callable[[str], list[str]]) -> Callable[[dict[str, Any], Path], None]:
    """Change the lines of every second patient in the table of labels."""

    def of_text(text: str) -> str:
        header, *lines = text.splitlines()
        names = sorted({line.split(",")[0] for line in lines})
        new = [change(line) if names.index(line.split(",")[0]) % 2 else [line] for line in lines]
        return "\n".join([header, *(line for some in new for line in some)]) + "\n"

    return text_in("labels.csv", of_text)


def labelled(label: str) -> Callable[[str], list[str]]:
    return lambda line: [f"{line.rsplit(',', 1)[0]},{label}"]


def twice(line: str) -> list[str]:
    first, label = line.rsplit(",", 1)
    return [line, f"{first},{1 - int(label)}"]


def glands(change: Callable[[Path], object]) -> Callable[[dict[str, Any], Path], None]:
    def mutate(made: dict[str, Any], folder: Path) -> None:
        for path in sorted((folder / "files" / "masks" / "gland").iterdir())[::2]:
            change(path)

    return mutate


def lesions_named(pattern: str) -> Callable[[dict[str, Any], Path], None]:
    def mutate(made: dict[str, Any], folder: Path) -> None:
        lesions = folder / "files" / "masks" / "gland"
        made["sites"]["a"]["labels"] = {"kind": "mask", "folder": str(lesions), "pattern": pattern}

    return mutate


def only_gland_slices(made: dict[str, Any], folder: Path) -> None:
    """A line is missing for a slice that is used, as the gland's mask says."""
    made["images"]["slices"] = "gland"
    half_of_lines(lambda line: [] if ",1," in line or ",2," in line else [line])(made, folder)


TABLES = {
    "nothing": lambda made, folder: None,
    "another label column": said("sites", "a", "source", "label", value="sick"),
    "another patient column": said("sites", "a", "source", "patient", value="name"),
    "a feature that no column has": said("images", "numbers", value=["age", "height"]),
    "a column renamed": text_in("t.csv", lambda text: text.replace("age", "Age", 1)),
    "an empty table": text_in("t.csv", lambda text: ""),
    "only its header": text_in("t.csv", lambda text: text.split("\n")[0] + "\n"),
    "numbers with a comma": text_in("t.csv", lambda text: text.replace("4", "4,5")),
    "words for numbers": text_in("t.csv", lambda text: text.replace(",4", ",old")),
    "one unreadable line": text_in("t.csv", lambda text: text.replace("41", "old")),
    "one class": text_in("t.csv", lambda text: text.replace(",1\n", ",0\n")),
    "two patients": text_in("t.csv", lambda text: "\n".join(text.split("\n")[:3]) + "\n"),
    "semicolons": text_in("t.csv", lambda text: text.replace(",", ";")),
    "a pinned name that matches nobody": said("sites", "a", "test", value=["nobody"]),
    "a pinned name": said("sites", "a", "test", value=["p3"]),
    "all excluded": said("sites", "a", "exclude", value=[f"p{n}" for n in range(24)]),
    "no rejection allowed": said("sites", "a", "max_rejected", value=0.0),
    "1 for no and 2 for yes": text_in("t.csv", lambda text: text.replace(",1\n", ",2\n").replace(",0\n", ",1\n")),
}
FILES = {
    "nothing": lambda made, folder: None,
    "another label column": said("sites", "a", "labels", "label", value="sick"),
    "another slice column": said("sites", "a", "labels", "slice", value="z"),
    "a column renamed": text_in("labels.csv", lambda text: text.replace("patient", "Patient", 1)),
    "an empty table": text_in("labels.csv", lambda text: ""),
    "half of the labels": text_in("labels.csv", lambda text: "\n".join(text.split("\n")[: text.count("\n") // 2])),
    "other names": text_in("labels.csv", lambda text: text.replace("\nP", "\nX").replace("\np", "\nx")),
    "a pinned name that matches nobody": said("sites", "a", "test", value=["nobody"]),
    "nothing selected": said("sites", "a", "source", "select", value={"ImageType": "T2"}),
    "all but one excluded": all_but_one_excluded,
    "a range": said("sites", "a", "max_rejected", value=0.0),
    "ja and nein at half": half_of_lines(labelled("nein")),
    "a contradiction at half": half_of_lines(twice),
    "a slice without a line at half": half_of_lines(lambda line: [] if ",2," in line else [line]),
    "no label at half": half_of_lines(labelled("")),
    "label 2 at half": half_of_lines(labelled("2")),
    "a slice that is no number at half": half_of_lines(lambda line: [line.replace(",1,", ",one,")]),
    "no gland mask at half": glands(Path.unlink),
    "another name of half of the gland masks": glands(lambda path: path.rename(path.with_name(f"X{path.name}"))),
    "masks of lesions of another name": lesions_named("X{patient}.nii.gz"),
    "masks of lesions": lesions_named("{patient}.nii.gz"),
    "only slices of the gland": only_gland_slices,
}


def outcome(folder: Path, made: dict[str, Any], *options: str) -> int:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(made))
    return main([str(folder / "tiny.yaml"), "--set", f"runs={folder}", *options])


@pytest.mark.parametrize("most", [0.0, 0.07, 0.25, 0.29, 0.5, 1.0])
def test_the_check_refuses_the_share_of_rejected_studies_that_ingest_refuses_and_no_smaller(most, monkeypatch):
    monkeypatch.setattr(foreseen, "settings_of", lambda hospital: SimpleNamespace(max_rejected=most))
    for rejected in range(101):
        told = foreseen._find_rejection_problems(None, {"gap": rejected}, 100 - rejected)
        assert any("max_rejected" in text for text in told) == (rejected / 100 > most)
        assert bool(told) == (rejected / 100 > most or rejected == 100)


@pytest.mark.repeats(12)
@pytest.mark.parametrize(("kind", "name"), [*(("table", n) for n in TABLES), *(("files", n) for n in FILES)])
def test_what_the_check_passes_ingest_passes(kind, name, tmp_path, capsys):
    made = (of_table if kind == "table" else of_files)(tmp_path)
    (TABLES if kind == "table" else FILES)[name](made, tmp_path)
    checked = outcome(tmp_path / "check", made, "--check", "--headers")
    told = capsys.readouterr().err
    ingested = outcome(tmp_path / "run", made, "--until", "ingest")
    assert ingested == Exit.OK or checked != Exit.OK, capsys.readouterr().err
    assert checked != Exit.FAILED and (checked == Exit.OK or "a: " in told or "b: " in told or checked == Exit.CONFIG)
    if name == "nothing":
        assert checked == ingested == Exit.OK, told


@pytest.mark.parametrize("name", ["another label column", "a column renamed", "an empty table"])
def test_tables_are_read_without_headers_too(name, tmp_path, capsys):
    made = of_files(tmp_path)
    FILES[name](made, tmp_path)
    assert outcome(tmp_path / "check", made, "--check") == Exit.DATA
    assert "labels.file" in capsys.readouterr().err


@pytest.mark.parametrize("tries", [12, pytest.param(360, marks=pytest.mark.slow)])
def test_so_it_is_with_tables_and_settings_that_chance_mutates(tries, tmp_path, capsys):
    chance, passed = random.Random(1), 0
    for number in range(tries):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = of_table(folder)
        for _ in range(chance.randint(0, 2)):
            text = list((folder / "t.csv").read_text())
            at = chance.randrange(len(text))
            text[at : at + chance.randint(0, 40)] = chance.choice([",", "\n", "x", '"', ";", "9", ""])
            (folder / "t.csv").write_text("".join(text))
        made["split"] = chance.choice([made["split"], {"train": 0.9, "validation": 0.05, "test": 0.05}])
        made["sites"]["a"]["max_rejected"] = chance.choice([0.0, 0.1, 0.5])
        checked = outcome(folder / "check", made, "--check", "--headers")
        ingested = outcome(folder / "run", made, "--until", "ingest")
        assert ingested == Exit.OK or checked != Exit.OK, (number, capsys.readouterr().err)
        passed += checked == Exit.OK
    assert 0 < passed < tries
