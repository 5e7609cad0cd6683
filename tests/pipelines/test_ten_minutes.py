"""`make gpu` loses nothing: what fails or takes too long stops no other part, and each is written at once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.speed import gpu
from benchmarks.speed.gpu import NOT_RUN, PARTS, Part, count_tests, main, run_all, tables

ROOT = Path(__file__).parents[2]


def part(tmp_path: Path, name: str, code: str, seconds: int = 60) -> Part:
    """A program of one file."""
    (tmp_path / f"{name}.py").write_text(code)
    words = f"{tmp_path / name}.py {{json}}"
    return Part(name, seconds, words, words)


def test_what_fails_or_takes_too_long_keeps_nothing_else_from_running(tmp_path):
    wrote = 'import sys, pathlib\npathlib.Path(sys.argv[1]).write_text(\'{"rows": {"one": {"ms_a_step": 3}}}\')\n'
    parts = {
        "fails": part(tmp_path, "fails", f"{wrote}raise SystemExit(3)"),
        "hangs": part(tmp_path, "hangs", f"{wrote}import time\ntime.sleep(600)", 2),
        "works": part(tmp_path, "works", wrote),
    }
    after: list[set[str]] = []
    told = {"parts": {}}
    run_all(
        parts,
        told,
        lambda now: after.append(set(now["parts"])),
        device="cpu",
        small=False,
        minutes=5,
        out=tmp_path,
    )
    assert after == [{"fails"}, {"fails", "hangs"}, {"fails", "hangs", "works"}], "written after each part"
    ends = {name: one["ended"] for name, one in told["parts"].items()}
    assert ends == {"fails": "failed: exit 3", "hangs": "cut off after 2 s", "works": "done"}
    assert all(one["figures"]["rows"] == {"one": {"ms_a_step": 3}} for one in told["parts"].values())


def test_no_part_begins_when_the_minutes_are_over(tmp_path):
    told = {"parts": {}}
    parts = {"late": part(tmp_path, "late", "")}
    run_all(parts, told, lambda now: None, device="cpu", small=False, minutes=0, out=tmp_path)
    assert told["parts"] == {}


def test_all_parts_together_fit_into_nine_minutes():
    assert sum(one.seconds for one in PARTS.values()) <= 9 * 60


def test_the_page_says_what_was_not_run():
    made = tables({})
    assert all(row[1] == NOT_RUN for row in made["minutes"]["rows"]) and len(made["minutes"]["rows"]) == len(PARTS)
    assert made["steps"]["rows"] and all(row[2] == NOT_RUN for row in made["steps"]["rows"])
    figures = {"parts": {"wgan": {"ended": "done", "seconds": 3.5, "figures": {"rows": {"plain": {"ms_a_step": 2.5}}}}}}
    assert [PARTS["wgan"].title, "plain", "2.5", "", "", ""] in tables(figures)["steps"]["rows"]


def test_tests_are_counted_where_pytest_was_cut_off():
    log = "collected 9 items / 5 deselected / 4 selected\na.py::one[x y] PASSED [ 25%]\na.py::two FAILED\nb.py::three "
    assert count_tests(log) == {"passed": 1, "failed": 1, "chosen": 4}
    assert count_tests("nothing") == {}


def test_a_machine_without_a_gpu_is_told_how_to_try(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="make gpu DEVICE=cpu SMALL=1"):
        main([])


def test_make_gpu_is_this_program():
    text = (ROOT / "Makefile").read_text()
    assert re.search(
        r"^gpu: .*\n\t\$\(BIN\)/python -m benchmarks\.speed\.gpu --device \$\(DEVICE\)", text, re.MULTILINE
    )


@pytest.mark.parametrize(
    "parts", [["windows"], pytest.param([*PARTS], marks=pytest.mark.slow)], ids=["one part", "everything"]
)
def test_a_trial_on_a_cpu_runs_to_its_tables(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "BUILD", tmp_path)
    main(["--device", "cpu", "--small", "--only", *parts])
    told = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert {name: one["ended"] for name, one in told.items()} == dict.fromkeys(parts, "done")
    for name in parts:
        assert "figures" in told[name] or name in ("tests", "adc_gpu", "default"), name
    assert PARTS["windows"].title in (tmp_path / "gpu.md").read_text()
