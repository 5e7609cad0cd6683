"""A finished model as a MONAI bundle, which MONAI's own runner executes without anything of ours.

    python -m monai.bundle run --bundle_root BUNDLE --meta_file BUNDLE/configs/metadata.json \
        --config_file BUNDLE/configs/inference.json --dataset_dir EXAMPLES --output_dir OUT

EXAMPLES holds prepared examples, one `.npy` file (C, *spatial) each, as `python -m pipelines.export --examples` writes
them. A classifier's probabilities become OUT/predictions.csv (file, then a column for each class), a segmentation's
become a NIfTI file for each example. The layout is that of the MONAI Bundle Specification; the network is TorchScript,
so that nothing needs to be unpickled and no class of ours to be there.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.models import OnFeatures
from pipelines.data.images import Features, Pictures
from pipelines.exports.network import (
    Unexportable,
    build_exported,
    check_alike,
    class_names,
    describe_preparation,
    label_of,
    trial_examples,
)
from pipelines.models.file import Ready
from privacy.message import Json

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
METADATA, INFERENCE, NETWORK, CARD, LICENCE = (
    "configs/metadata.json",
    "configs/inference.json",
    "models/model.ts",
    "docs/README.md",
    "LICENSE",
)
RUNNER = ("nibabel", "pytorch-ignite")
"""Packages that MONAI's runner needs beside its own."""


def bundle_files(ready: Ready, card: str, licence: str, real: Sequence[Tensor] = ()) -> tuple[dict[str, bytes], float]:
    """The files of a bundle by their path in it, and by how much its probabilities differ from the model's at most.

    Args:
        ready: the model.
        card: the model card, in Markdown.
        licence: the name or text of the licence under which the model is handed on; empty: none was given.
        real: batches of prepared examples, on which the network is compared with the model besides random ones.

    Raises:
        Unexportable: the model does not take prepared images, or its network cannot be written.
    """
    _check_takes_images(ready)
    data, far = network_bytes(ready, real)
    words = licence or "No licence was given: whoever made this bundle must say what others may do with it."
    files = {
        METADATA: _encode_json(build_metadata(ready, licence)),
        INFERENCE: _encode_json(build_inference(ready)),
        NETWORK: data,
        CARD: card.encode(),
        LICENCE: f"{words}\n".encode(),
    }
    return files, far


def _check_takes_images(ready: Ready) -> None:
    """Check that the network takes images. Raises: ValueError: it does not, and why."""
    label, why = label_of(ready), ""
    if isinstance(ready.task.model, OnFeatures):
        why = "is on fixed features, which are computed without torch before its network sees anything"
    elif isinstance(ready.images, Features) or len(ready.task.inputs) < 3:
        why = "takes no images, and MONAI's runner reads images"
    elif ready.origin.translated is not None:
        why = "learnt from translated images, and the translation looks at whole studies, not at an example"
    if why:
        raise Unexportable(f"{label} {why}; use --onnx for the network alone, which says what must be done before it")


def network_bytes(ready: Ready, real: Sequence[Tensor] = ()) -> tuple[bytes, float]:
    """TorchScript of the network, traced; checked with other numbers of examples than it was traced with."""
    network, buffer = build_exported(ready), io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's remark that TorchScript will go one day; MONAI reads nothing newer
        torch.jit.save(torch.jit.trace(network, trial_examples(ready, 2), check_trace=False), buffer)  # type: ignore[no-untyped-call]
        data = without_places(buffer.getvalue())
        again = torch.jit.load(io.BytesIO(data))  # type: ignore[no-untyped-call]

    def answer(x: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            outputs: NDArray[np.float32] = again(torch.from_numpy(x)).numpy()
        return outputs

    far = check_alike(ready, network, answer, "TorchScript", real)
    return data, far


def without_places(data: bytes) -> bytes:
    """TorchScript without the names of this machine's source files, which it has for error messages."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as read, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as written:
        for entry in read.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                written.writestr(zipfile.ZipInfo(entry.filename), read.read(entry))
    return made.getvalue()


def build_metadata(ready: Ready, licence: str = "") -> dict[str, Json]:
    """`configs/metadata.json` by MONAI's schema, with `preparation` beside its own keys."""
    preparation_facts = describe_preparation(ready)
    names, label = class_names(ready), label_of(ready)
    inputs = ready.task.inputs
    masks = ready.task.kind == "segmentation"
    several = ready.task.kind == "findings"
    what, parts = ("several findings", "findings") if several else ("classification", "classes")
    task = f"{'segmentation' if masks else what} of {ready.images.kind}"
    numbers: dict[str, Json] = {str(place): name for place, name in enumerate(names)}
    sides: list[Json] = list(inputs[1:])
    return {
        "schema": SCHEMA,
        "version": "1.0.0",
        "changelog": {"1.0.0": f"the model {label} with the digest {ready.digest}"},
        "monai_version": version("monai"),
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {name: _installed_version(name) for name in RUNNER},
        "name": f"consilium-{label}",
        "task": task,
        "description": (
            f"The model {label} of a federated run of Consilium, a network {preparation_facts['network']} with the"
            f" {parts} {', '.join(names)}. It takes prepared examples: see preparation. For research use only."
        ),
        "authors": "see docs/README.md",
        "copyright": licence or "no licence was given",
        "intended_use": str(preparation_facts["use"]),
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": "magnitude",
                    "modality": "photograph" if isinstance(ready.images, Pictures) else "MR",
                    "num_channels": inputs[0],
                    "spatial_shape": sides,
                    "dtype": "float32",
                    "value_range": _value_range(preparation_facts),
                    "is_patch_data": ready.window is not None,
                    "channel_def": {str(place): f"channel {place}" for place in range(inputs[0])},
                }
            },
            "outputs": {
                "pred": {
                    "type": "image" if masks else "probabilities",
                    "format": "segmentation" if masks else "probabilities",
                    "num_channels": len(names),
                    "spatial_shape": sides if masks else [1],
                    "dtype": "float32",
                    "value_range": [0, 1],
                    "is_patch_data": ready.window is not None,
                    "channel_def": numbers,
                }
            },
        },
        "preparation": preparation_facts,
    }


def _value_range(facts: Mapping[str, Json]) -> Json:
    """The usual range of an example's values."""
    example = facts["example"]
    return example.get("usual_range", []) if isinstance(example, dict) else []


def _installed_version(package: str) -> str:
    """The installed version; where there is none, an oldest one that works."""
    from importlib.metadata import PackageNotFoundError

    try:
        return version(package)
    except PackageNotFoundError:
        return "0.5.1"


def build_inference(ready: Ready) -> dict[str, Any]:
    """`configs/inference.json`: MONAI's components by name, from `.npy` files to probabilities."""
    window = ready.window
    inferer = {"_target_": "SimpleInferer"}
    parts = {
        "_target_": "SlidingWindowInferer",
        "roi_size": list(window or ()),
        "sw_batch_size": 1,
        "overlap": 0.5,
        "mode": "gaussian",
    }
    return {
        "imports": ["$import glob", "$import os"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/examples'",
        "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "data": "$[{'image': path} for path in sorted(glob.glob(os.path.join(@dataset_dir, '*.npy')))]",
        "network_def": f"$torch.jit.load(@bundle_root + '/{NETWORK}', map_location=@device).eval()",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "image", "reader": "NumpyReader", "channel_dim": 0},
                {"_target_": "EnsureChannelFirstd", "keys": "image"},
                {"_target_": "EnsureTyped", "keys": "image", "dtype": "$torch.float32"},
            ],
        },
        "dataset": {"_target_": "Dataset", "data": "@data", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": inferer if window is None else parts,
        "postprocessing": {"_target_": "Compose", "transforms": _list_writers(ready)},
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network_def",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
        },
        "run": ["$@evaluator.run()"],
    }


def _list_writers(ready: Ready) -> list[dict[str, Any]]:
    """What writes the probabilities: a line of a table, or a file for each example."""
    if ready.task.kind in ("classification", "findings"):
        named = {"_target_": "FromMetaTensord", "keys": "image"}  # the file's name, for the first column
        table = {"_target_": "SaveClassificationd", "keys": "pred", "meta_keys": "image_meta_dict"}
        return [named, {**table, "output_dir": "@output_dir", "filename": "predictions.csv"}]
    files = {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir", "output_postfix": "probabilities"}
    return [{**files, "output_ext": ".nii.gz", "resample": False, "separate_folder": False}]


def _encode_json(facts: Mapping[str, Any]) -> bytes:
    """JSON as the bytes of a file."""
    return f"{json.dumps(facts, indent=2)}\n".encode()
