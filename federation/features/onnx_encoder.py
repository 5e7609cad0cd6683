"""A frozen network as features: an ONNX file that the user brings and declares public, by the tensors that it names.

So any network can be taken that some framework has written as ONNX. A file is a graph of operators and their weights.
It is refused if it has operators of other makers, which would be code of their own, functions of its own, which could
hide them, or loops, which could go on for chosen patients alone; if it draws random numbers; or if it keeps weights in
files beside it, since a path could name a file of the hospital. Each image passes alone, on one thread, so a row
depends on its own image and not on the batch. An image for which the graph fails, or gives another number of features,
has zeros: an error would reveal that such a patient is there. Features of a tensor (1, channels, h, w) or
(1, tokens, d) are its mean and standard deviation over places or tokens, those of a tensor (1, d) are its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from federation.features.encoder import Encoder, file_digest
from federation.features.pictures import (
    cut_features,
    find_picture_complaints,
    find_preparation_problems,
    normalize_picture,
    prepare_picture,
)
from federation.features.slices import features_by_slice
from privacy.settings_error import refuse, unmet, wrong_lengths

Floats = NDArray[np.float64]
DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
"""Of operators that ONNX itself defines."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
ENDLESS = frozenset({"Loop", "Scan"})
MOST = 100_000  # features of an image
SHOWN = 8  # names or problems of a file in a message


@dataclass(frozen=True, kw_only=True)
class OnnxEncoder:
    """file: an ONNX file with one input, pictures (1, C, H, W) float32 of 1 or 3 channels. outputs: names of tensors of
    its graph, inner ones too; none = the graph's outputs. sha256: of the file; empty = any. size: sides to which images
    are resized. window: the values that become 0 and 1, by default those of pictures; mean, std: of the channels in its
    training, by default ImageNet's; a network of one channel takes the first of each.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["onnx"] = "onnx"
    file: str
    outputs: tuple[str, ...] = ()
    sha256: str = ""
    size: int = 224
    window: tuple[float, float] = (-1.0, 1.0)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2, mean=3, std=3))
        different = len(set(self.outputs)) == len(self.outputs)
        refuse(find_preparation_problems(self) + unmet(self, outputs=(different, "different names")))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        return find_picture_complaints(self.name, inputs)


FileEncoder: TypeAlias = Encoder | OnnxEncoder
"""Encoders whose file the user brings."""


@dataclass(frozen=True)
class OnnxExtractor:
    """The settings with the network. session: of ONNX Runtime. channels: of its pictures. width: how many features a
    plane has.
    """

    settings: OnnxEncoder
    session: Any
    channels: int
    width: int
    name: ClassVar[str] = "onnx"

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W), or volumes (n, C, D, H, W) by slices; always finite."""
        return np.stack([features_by_slice(self._plane_features, image) for image in images])

    def _plane_features(self, image: Floats) -> Floats:
        """Features (width,) of one image (C, H, W); zeros if the graph fails for it."""
        try:
            features = _run_graph(self.settings, self.session, self.channels, image)
        except Exception:  # whatever it is, it would tell of a patient
            features = np.zeros(0)
        return features if len(features) == self.width else np.zeros(self.width)


def _run_graph(settings: OnnxEncoder, session: Any, channels: int, image: Floats) -> Floats:
    """Features of one image (C, H, W). Raises: ValueError: an output is none; or an error of ONNX Runtime."""
    x = prepare_picture(image, settings.window, settings.size)
    if channels == 1:
        x = (x.mean(dim=1, keepdim=True) - settings.mean[0]) / settings.std[0]
    else:
        x = normalize_picture(x, settings.mean, settings.std)
    (entry,) = session.get_inputs()
    return np.concatenate([_pool_output(output) for output in session.run(None, {entry.name: x.numpy()})])


def load_onnx_encoder(settings: OnnxEncoder, data: bytes) -> OnnxExtractor:
    """The encoder with the graph of its file. data: the bytes of the file.

    Raises:
        ValueError: the digest is another one, data are no ONNX file, the graph is refused (see the module), it has no
            output of a name, does not take pictures of this size or gives no numbers, or packages are missing.
    """
    if settings.sha256 not in ("", digest := file_digest(data)):
        raise ValueError(f"the file's SHA-256 is {digest}, the settings say {settings.sha256}: it is another file")
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ValueError(f"an ONNX file needs {error.name}: pip install 'consilium[onnx]'") from error
    try:
        model = onnx.load_from_string(data)
    except Exception as error:  # protobuf has errors of many types
        raise ValueError(f"it is no ONNX file, or a damaged one ({type(error).__name__}: {error})") from error
    problems = [*_find_operator_problems(model), *_find_input_problems(model, settings.size)]
    problems += _find_output_problems(model, settings.outputs)
    if problems:
        more = f", and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ValueError(f"{'; '.join(problems[:SHOWN])}{more}")
    if settings.outputs:
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in settings.outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # the error says it
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        channels = _count_channels(model)
        width = len(_run_graph(settings, session, channels, np.zeros((3, settings.size, settings.size))))
    except ValueError:
        raise
    except Exception as error:  # of ONNX Runtime, whose errors have types of its own
        raise ValueError(f"the network cannot be run on a picture of size {settings.size}: {error}") from error
    if not 0 < width <= MOST:
        raise ValueError(f"a picture has {width} features, allowed are 1 to {MOST:,}: name other outputs")
    return OnnxExtractor(settings, session, channels, width)


def _pool_output(output: Any) -> Floats:
    """The features of one output for one picture. Raises: ValueError: it has none."""
    values = np.asarray(output) if isinstance(output, np.ndarray) else np.zeros(0, dtype=object)
    if not np.issubdtype(values.dtype, np.floating) or values.ndim not in (2, 3, 4) or len(values) != 1:
        shape = f"{values.dtype} {list(values.shape)}" if isinstance(output, np.ndarray) else type(output).__name__
        text = "needed are floating-point numbers (1, d), (1, tokens, d) or (1, channels, h, w)"
        raise ValueError(f"an output is {shape}, {text}: name others in outputs")
    x = torch.from_numpy(values.astype(np.float64))[0]
    if x.dim() == 1:
        return cut_features(x)
    places = (1, 2) if x.dim() == 3 else (0,)
    return cut_features(torch.cat([x.mean(places), x.std(places, correction=0)]))


def _walk_message(message: Any) -> Iterator[Any]:
    """A message of a file and all messages within it, wherever they stand."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                yield from _walk_message(part)


def _find_operator_problems(model: Any) -> list[str]:
    """Operators of other makers, functions, loops, random numbers, and weights in other files."""
    parts = [*_walk_message(model)]
    nodes = [part for part in parts if part.DESCRIPTOR.name == "NodeProto"]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    foreign = sorted({f"{n.domain}.{n.op_type}" for n in nodes if n.domain not in DOMAINS})
    random = sorted({n.op_type for n in nodes if n.op_type in RANDOM or _is_dropping(n, constants)})
    endless = sorted({n.op_type for n in nodes if n.op_type in ENDLESS})
    problems = []
    if foreign:
        problems.append(f"it has operators that ONNX does not define: {', '.join(foreign[:SHOWN])}")
    if model.functions:
        text = "inline them with onnx.inliner.inline_local_functions, and save it again"
        problems.append(f"it has {len(model.functions)} functions of its own; {text}")
    if endless:
        problems.append(f"it has loops ({', '.join(endless)}), and nobody knows whether they end")
    if random:
        problems.append(f"it draws random numbers ({', '.join(random)}); export it for inference")
    tensors = (part for part in parts if part.DESCRIPTOR.name == "TensorProto")
    if any(tensor.data_location == tensor.EXTERNAL or tensor.external_data for tensor in tensors):
        problems.append("it keeps weights in files beside it; save it as one file")
    return problems


def _is_dropping(node: Any, constants: dict[str, Any]) -> bool:
    """Whether a node may drop numbers at random: a Dropout whose mode is given, and not as a constant that is false."""
    if node.op_type != "Dropout" or len(node.input) < 3 or not node.input[2]:
        return False
    mode = constants.get(node.input[2])
    return mode is None or any(mode.raw_data) or any(mode.int32_data)


def _list_inputs(model: Any) -> list[Any]:
    """The inputs of the graph that are not its weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [entry for entry in model.graph.input if entry.name not in weights]


def _find_input_problems(model: Any, size: int) -> list[str]:
    """Why pictures are no input of this graph."""
    inputs = _list_inputs(model)
    if len(inputs) != 1:
        return [f"it needs one input, pictures, found {len(inputs)}: {', '.join(e.name for e in inputs[:SHOWN])}"]
    kind = inputs[0].type.tensor_type
    sides = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    allowed = ((1, None), (1, 3, None), (size, None), (size, None))
    fits = len(sides) == len(allowed) and all(side in each for side, each in zip(sides, allowed, strict=True))
    if kind.elem_type == 1 and fits:  # 1 is float32
        return []
    shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "any" for dim in kind.shape.dim]
    text = f"must be float32 (1, 1 or 3, {size}, {size}), found {shape} of type {kind.elem_type}"
    return [f"its input {inputs[0].name} {text}"]


def _count_channels(model: Any) -> int:
    """The channels of its pictures."""
    channels = _list_inputs(model)[0].type.tensor_type.shape.dim[1]
    return 1 if channels.HasField("dim_value") and channels.dim_value == 1 else 3


def _find_output_problems(model: Any, outputs: tuple[str, ...]) -> list[str]:
    """Names that are no tensors of the graph."""
    names = [name for node in model.graph.node for name in node.output if name]
    missing = [name for name in outputs if name not in names]
    if not missing:
        return []
    last = ", ".join(names[: -SHOWN - 1 : -1])
    return [f"it has no tensor {', '.join(missing)}; there are {len(names)}, the last of them {last}"]
