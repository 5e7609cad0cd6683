"""Cohorts that do not fit into memory: rows read from the disk are those that memory would hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data import taking
from pipelines.data.taking import Spool, copy_rows_to_disk
from pipelines.hospital.page.curves import take_evenly
from pipelines.run import main
from pipelines.runs.exits import Exit


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_on_the_disk_are_those_of_memory(tmp_path_factory, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=3)))
    n = data.draw(st.integers(1, 12))
    dtype = data.draw(st.sampled_from([torch.float32, torch.uint8, torch.int64]))
    values = torch.arange(n * math.prod(shape)).reshape(n, *shape).to(dtype)
    index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=torch.int64)
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "LARGE", data.draw(st.integers(1, 64)))
        rows = copy_rows_to_disk(values, index, folder)
    assert rows.dtype == dtype and torch.equal(rows, values[index])
    assert [*folder.iterdir()] == [], "the file has no name, so nothing is left of it"


def test_rows_are_on_the_disk_from_the_limit_on(tmp_path, monkeypatch):
    written = []

    class Recorded(Spool):
        def append(self, rows):
            written.append(len(rows))
            super().append(rows)

    monkeypatch.setattr(taking, "LARGE", 2**10)
    monkeypatch.setattr(taking, "Spool", Recorded)
    values = torch.arange(2**10, dtype=torch.float32)[:, None]
    assert torch.equal(copy_rows_to_disk(values, torch.arange(2**8 - 1), tmp_path), values[: 2**8 - 1])
    assert torch.equal(copy_rows_to_disk(values, torch.arange(2**9), None), values[: 2**9]) and written == []
    assert torch.equal(copy_rows_to_disk(values, torch.arange(2**8), tmp_path), values[: 2**8])
    assert sum(written) == 2**8 and max(written) * 4 <= taking.LARGE // 16, "a part at a time"


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 9), side=st.integers(1, 5), most=st.integers(1, 90), data=st.data())
def test_a_figure_looks_at_no_more_pixels_than_it_says(n, side, most, data):
    images = torch.arange(n * side * side).reshape(n, 1, side, side)
    rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    taken = take_evenly(images, rows, most)
    everything = images[rows].flatten()
    assert 1 <= len(taken) <= most and len(set(taken.tolist())) == len(taken)
    assert set(taken.tolist()) <= set(everything.tolist())
    if len(everything) <= most:
        assert torch.equal(taken, everything)
    if side * side <= most:
        whole = {int(pixel) // (side * side) for pixel in taken}
        assert len(taken) == len(whole) * side * side and len(whole) == min(len(rows), most // (side * side))


def test_a_run_whose_rows_lie_on_the_disk_learns_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site = "{kind: phantom, scanner: A, patients: 12, slices: 4, format: nifti, seed: "
    text = f"""
privacy: none
pooling: allowed
sites:
  a: {{source: {site}1}}, policy: {{pooling: true}}}}
  b: {{source: {site}2}}, policy: {{pooling: true}}}}
images: {{kind: slices, size: 16, spacing_mm: 4.0, centre: image}}
model: {{name: cnn, widths: [8, 16]}}
train:
  schedule: {{rounds: 2}}
  work: {{batch: 8, lr: 0.05, augment: flip}}
  methods: {{fedavg: {{name: fedavg}}, central: {{name: central}}}}
evaluate: {{copies: 5}}
"""
    files = {}
    for name, large in (("memory", taking.LARGE), ("disk", 1)):
        monkeypatch.setattr(taking, "LARGE", large)
        (tmp_path / f"{name}.yaml").write_text(f"name: run\nruns: {name}\n{text}")
        assert main([f"{name}.yaml"]) == Exit.OK
        models = sorted((tmp_path / name).rglob("ready/*.safetensors"))
        files[name] = {path.relative_to(tmp_path / name): path.read_bytes() for path in models}
        assert len(models) == 4
    assert files["memory"] == files["disk"]
