"""Exported files say what the model says: every kind of network, every method's network, to 1e-5."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import methods
import small_clip
from consilium.testing import testbed
from exported_models import NETWORKS, model
from personalize.routing import build_routed
from pipelines.data.images import Pictures, Slices
from pipelines.exports import onnx_file
from pipelines.exports.bundle import bundle_files, network_bytes
from pipelines.exports.network import (
    NEAR,
    Unexportable,
    build_exported,
    check_alike,
    describe_preparation,
    trial_examples,
)
from pipelines.exports.onnx_file import facts_in, onnx_bytes
from pipelines.models.file import Ready

SOON = ("a table", "monai")
"""Kinds whose ONNX files the default suite makes; a file takes seconds."""
slow = pytest.mark.slow


@pytest.fixture
def onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="pip install consilium[onnx]")


def own_words(ready: Ready, x: torch.Tensor) -> np.ndarray:
    """What `predict` computes of examples: a second way to the probabilities, through `Ready` alone."""
    return ready.probabilities(ready.seen(x) if ready.scale is not None else x).numpy()


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_exported_network_gives_the_models_own_probabilities(kind):
    ready = NETWORKS[kind]()
    whole = replace(ready, window=None)  # a file holds the network of one window; the runner moves it
    with torch.no_grad():
        many = build_exported(ready)(trial_examples(ready, 5))
    assert many.flatten(1).std(dim=0).max() > 1e-3, "examples that all get one answer would show no difference"
    for size in (1, 3):
        x = trial_examples(ready, size)
        with torch.no_grad():
            found = build_exported(ready)(x).numpy()
        assert np.abs(found - own_words(whole, x)).max() <= 1e-6
        assert np.allclose(found.sum(axis=1), 1, atol=1e-6) or ready.task.kind == "findings"


@pytest.mark.parametrize("kind", [kind if kind in SOON else pytest.param(kind, marks=slow) for kind in NETWORKS])
def test_an_onnx_file_gives_them_for_any_number_of_examples_and_says_how_to_prepare_them(kind, onnx):
    ready = NETWORKS[kind]()
    real = [trial_examples(ready, 4) * 0.5]
    data, far = onnx_bytes(ready, real)
    assert far <= NEAR
    assert facts_in(data) == describe_preparation(ready)
    session = onnx_file._open_session(data)
    x = trial_examples(ready, 7)
    assert np.abs(session(x.numpy()) - own_words(replace(ready, window=None), x)).max() <= NEAR
    assert b"/home" not in data and b".py" not in data, "paths of this machine"


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind not in ("a table", "clip", "fixed features")])
def test_torchscript_gives_them_too_and_names_no_file_of_this_machine(kind):
    data, far = network_bytes(NETWORKS[kind]())
    assert far <= NEAR
    assert b"debug_pkl" not in data


@pytest.mark.repeats(14)
@pytest.mark.parametrize("write", [onnx_bytes, network_bytes])
def test_whole_images_are_compared_by_a_patch_of_each(write, onnx):
    """Of a planned network a file holds one patch, and prepared examples are whole images."""
    ready = NETWORKS["planned"]()
    whole = torch.randn(2, *ready.task.inputs, generator=torch.Generator().manual_seed(0))
    assert ready.task.trained_inputs != ready.task.inputs
    assert write(ready, [whole])[1] <= NEAR


@pytest.mark.parametrize("one", methods.ALL, ids=lambda one: one.name)
def test_every_methods_network_can_be_exported(one):
    """Twins, experts, prompts: whatever network a method makes of the model, its file says the same."""
    task = small_clip.task() if one.name in methods.ON_PROMPTS else testbed.make_task()
    ready = model(task, Pictures(size=16))
    ready = replace(ready, module=one.network(task).eval())
    assert network_bytes(ready)[1] <= NEAR


@slow
@pytest.mark.parametrize("one", methods.ALL, ids=lambda one: one.name)
def test_every_methods_network_can_be_written_as_onnx(one, onnx):
    task = small_clip.task() if one.name in methods.ON_PROMPTS else testbed.make_task()
    ready = model(task, Pictures(size=16))
    assert onnx_bytes(replace(ready, module=one.network(task).eval()))[1] <= NEAR


def test_a_file_that_says_something_else_is_not_written():
    ready = NETWORKS["cnn"]()
    network = build_exported(ready)

    def other(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(x)).numpy() + 2 * NEAR

    with pytest.raises(Unexportable, match="differ from the model's own by 2e-05, allowed is 1e-05"):
        check_alike(ready, network, other, "ONNX file")
    with pytest.raises(Unexportable, match="inf"):
        check_alike(ready, network, lambda x: np.full((len(x), 4), math.nan, np.float32), "ONNX file")


def test_what_cannot_be_exported_says_why_and_what_to_do():
    cnn = NETWORKS["cnn"]()
    mixed = replace(cnn, module=build_routed([cnn.module, NETWORKS["cnn"]().module]).eval())
    for make in (onnx_bytes, network_bytes):
        with pytest.raises(Unexportable, match=r"fedavg is routed: each image gets convolution kernels.*use predict"):
            make(mixed)
    translated = replace(model(cnn.task, Slices(size=16)), origin=replace(cnn.origin, translated={"settings": {}}))
    for ready, why in (
        (NETWORKS["clip"](), "is on fixed features"),
        (NETWORKS["fixed features"](), "is on fixed features"),
        (NETWORKS["a table"](), "takes no images"),
        (translated, "learnt from translated images"),
    ):
        with pytest.raises(Unexportable, match=f"{why}.*use --onnx"):
            bundle_files(ready, "", "")


def test_without_the_extra_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnx, onnxscript, onnxruntime is not installed.*consilium\[onnx\]"):
        onnx_bytes(NETWORKS["cnn"]())
