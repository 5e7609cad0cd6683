"""Rows on the disk are the rows that were put there, and nothing of them has a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.taking import Spool
from privacy.message import Malformed, Message, from_bytes, from_file, to_bytes, to_file


@given(st.lists(st.integers(0, 4), max_size=6), st.sampled_from([np.float32, np.uint8]), st.integers(0, 3))
def test_rows_come_back_as_one_tensor(counts, dtype, width):
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 200, (count, 2, width)).astype(dtype) for count in counts]
    spool = Spool((2, width), dtype, None)
    for part in parts:
        spool.append(part)
    whole = np.concatenate([np.zeros((0, 2, width), dtype), *parts])
    found = spool.tensor()
    del spool
    assert np.array_equal(found.numpy(), whole)
    assert found.numpy().dtype == dtype


def test_rows_of_another_shape_are_refused():
    spool = Spool((2,), np.float32, None)
    spool.append(np.zeros((1, 3)))  # the first rows say the shape
    with pytest.raises(ValueError, match="one shape is needed"):
        spool.append(np.zeros((1, 2)))


def test_nothing_lies_in_the_folder(tmp_path):
    spool = Spool((2,), np.float32, tmp_path)
    spool.append(np.ones((5, 2)))
    assert spool.tensor().sum() == 10
    assert list(tmp_path.iterdir()) == []


def test_a_message_in_a_file_is_the_message_in_bytes(tmp_path):
    message = Message({"x": torch.rand(3, 4), "y": torch.arange(5)}, {"a": [1, "ü"]})
    sha = to_file(message, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == to_bytes(message)
    assert to_bytes(from_file(tmp_path / "m")) == to_bytes(message)
    assert to_bytes(from_bytes((tmp_path / "m").read_bytes())) == to_bytes(message)
    assert len(sha) == 64
    for damage in (b"", b"\0" * 8, (tmp_path / "m").read_bytes()[:-1]):
        (tmp_path / "n").write_bytes(damage)
        with pytest.raises(Malformed):
            from_file(tmp_path / "n")


MEASURE = """
import resource, sys, torch, numpy as np
from pathlib import Path
from pipelines.data.intake import Examples, ReadStudy, WaitingStudy
from pipelines.data.cohort import _build_cohort, Cohort
from pipelines.data.taking import take_studies
from pipelines.hospital.hospital import write_cohort_file
def admit(k):
    x = np.random.default_rng(k).random((20, 1, 64, 64), np.float32)
    m = np.zeros((20, 64, 64), np.uint8)
    return lambda: ReadStudy(f"p{k}", f"s{k}", Examples(x.copy(), m, m, np.arange(20, dtype=np.float32)), [0] * 20, "")
class Lazy:
    def __init__(self, k): self.k = k
    def __call__(self): return admit(self.k)()
def anonymous(folder, count):
    waiting = [WaitingStudy(f"p{k}", f"s{k}", Lazy(k)) for k in range(count)]
    taken, _, parts = take_studies(waiting, (1, 64, 64), 2, folder)
    names = {w.patient: w.patient for w in waiting}
    write_cohort_file(folder, _build_cohort(taken, parts, names, {w.patient: "train" for w in waiting}, ""), b"k" * 32)
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon"))
for place, count in (("small", 10), ("large", 110)):
    (folder := Path(sys.argv[1]) / place).mkdir()
    print(anonymous(folder, count))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell anonymous memory apart")
def test_memory_does_not_grow_with_the_cohort(tmp_path):
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    small, large = map(int, found.stdout.split())
    assert large - small < 15_000  # 100 studies more hold 49 MB
