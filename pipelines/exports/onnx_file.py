"""A finished model as an ONNX file, made by PyTorch's exporter of captured graphs and checked by ONNX Runtime."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipelines.exports.network import (
    Unexportable,
    build_exported,
    check_alike,
    describe_preparation,
    label_of,
    trial_examples,
)
from pipelines.models.file import Ready
from privacy.message import Json
from privacy.system_errors import of_machine

INPUT, OUTPUT = "examples", "probabilities"
PREFIX = "consilium."
"""Of the names of our facts in a file's metadata; each value is JSON."""
EXTRA = "pip install consilium[onnx]"


def onnx_bytes(ready: Ready, real: Sequence[Tensor] = ()) -> tuple[bytes, float]:
    """The bytes of an ONNX file, and by how much its probabilities differ from the model's at most.

    Its input `examples` is (batch, *inputs) float32 with any batch, its output `probabilities` (batch, classes,
    *spatial) float32; the metadata say what prepares an example (`pipelines.exports.network.describe_preparation`).

    Args:
        ready: the model.
        real: batches of prepared examples, on which the file is compared with the model besides random ones.

    Raises:
        Unexportable: the network has an operation that ONNX cannot say, or the file says another thing.
        ModuleNotFoundError: an optional package is missing; the text names the extra.
    """
    check_installed("onnx", "onnxscript", "onnxruntime")
    network = build_exported(ready)
    data = _convert_network(network, ready)
    answer = _open_session(data)
    return data, check_alike(ready, network, answer, "ONNX file", real)


def check_installed(*packages: str, extra: str = EXTRA) -> None:
    """Check that optional packages are installed. Raises: ModuleNotFoundError: naming all that are missing."""
    from importlib.util import find_spec

    if missing := [name for name in packages if find_spec(name) is None]:
        raise ModuleNotFoundError(f"{', '.join(missing)} is not installed; {extra}", name=missing[0])


def _convert_network(network: nn.Module, ready: Ready) -> bytes:
    batch = torch.export.Dim("batch", min=1)
    try:
        with _silence_exporter(), torch.no_grad():  # with gradients a network gives what it does in training
            program = torch.onnx.export(
                network,
                (trial_examples(ready, 2),),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes={INPUT: {0: batch}},
            )
    except Exception as error:
        if of_machine(error):
            raise
        raise Unexportable(
            f"{label_of(ready)}: PyTorch cannot write its network ({type(network.network).__name__}) as ONNX: "
            f"{_first_line(error)}; use predict, or a MONAI bundle"
        ) from error
    if program is None:
        raise Unexportable(f"{label_of(ready)}: PyTorch gave no ONNX program; use predict, or a MONAI bundle")
    model = program.model_proto
    _add_facts(model, describe_preparation(ready))
    return bytes(model.SerializeToString())


def _add_facts(model: Any, facts: Mapping[str, Json]) -> None:
    """Write facts into the metadata of an ONNX model, and nothing of this machine."""
    model.producer_name, model.doc_string = "consilium", str(facts["use"])
    for node in model.graph.node:
        del node.metadata_props[:]  # paths of source files on this machine
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    del model.metadata_props[:]
    for name, value in facts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = f"{PREFIX}{name}", json.dumps(value)


def facts_in(data: bytes) -> dict[str, Json]:
    """What an ONNX file of ours says of its preparation. Raises: ModuleNotFoundError."""
    check_installed("onnx")
    import onnx

    properties = onnx.load_from_string(data).metadata_props
    return {
        entry.key.removeprefix(PREFIX): json.loads(entry.value) for entry in properties if entry.key.startswith(PREFIX)
    }


def _open_session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def answer(x: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = session.run([OUTPUT], {INPUT: x})[0]
        return outputs

    return answer


def _first_line(error: BaseException) -> str:
    """What went wrong, in one line of at most 200 characters."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Without the exporter's remarks on packages that no network here needs."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
