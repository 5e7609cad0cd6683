"""Encoders of ONNX files: which graphs are taken, which are refused and why, and what their features are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from federation.features.encoder import file_digest
from federation.features.onnx_encoder import OnnxEncoder, load_onnx_encoder
from federation.features.pictures import LARGEST

onnx = pytest.importorskip("onnx", reason="needs consilium[onnx]")
pytest.importorskip("onnxruntime", reason="needs consilium[onnx]")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIZE = 16
SETTINGS = OnnxEncoder(file="x.onnx", size=SIZE)
ALL = ("inner", "tokens", "vector")
"""Outputs of the graph below, with one of each rank; `inner` is no output of the file itself."""


def weights_of(channels: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(channels)
    return {"w": rng.normal(0, 1, (4, channels, 3, 3)).astype(np.float32), "b": rng.normal(0, 1, 4).astype(np.float32)}


def build_graph(
    nodes: tuple = (),
    *,
    sides: tuple = ("n", 3, SIZE, SIZE),
    outputs: tuple = ("tokens", "vector"),
    kind: int = 1,
    inputs: tuple = (),
):
    """A convolution, its places as tokens, and its global mean; with more nodes after them."""
    weights = weights_of(sides[1] if isinstance(sides[1], int) else 3)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["inner"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["inner"], ["active"]),
            helper.make_node("Flatten", ["active"], ["flat"], axis=2),
            helper.make_node("Reshape", ["active", "to"], ["rows"]),
            helper.make_node("Transpose", ["rows"], ["tokens"], perm=[0, 2, 1]),
            helper.make_node("GlobalAveragePool", ["active"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["vector"]),
            *nodes,
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, list(sides)), *inputs],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [
            *(numpy_helper.from_array(value, name) for name, value in weights.items()),
            numpy_helper.from_array(np.array([1, 4, SIZE * SIZE]), "to"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pictures(n: int = 3, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (n, channels, 24, 40))


def compute_features(x: np.ndarray, settings: OnnxEncoder, channels: int = 3) -> np.ndarray:
    """The same features by torch, image by image, of `ALL`."""
    rows = []
    for image in x:
        seen = torch.from_numpy((image + 1) / 2).float()[None]
        seen = functional.interpolate(seen, (SIZE, SIZE), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values)[:channels, None, None] for values in (settings.mean, settings.std))
        seen = ((seen if channels == 3 else seen.mean(dim=1, keepdim=True)) - mean) / std
        weights = {name: torch.from_numpy(value) for name, value in weights_of(channels).items()}
        inner = functional.conv2d(seen, weights["w"], weights["b"], padding=1)
        tokens = inner.relu().flatten(2)[0]
        parts = [inner.mean((2, 3))[0], inner.std((2, 3), correction=0)[0]]
        parts += [tokens.mean(dim=1), tokens.std(dim=1, correction=0), tokens.mean(dim=1)]
        rows.append(torch.cat(parts).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_the_pooled_tensors_and_a_row_depends_on_its_own_image(channels):
    settings = replace(SETTINGS, outputs=ALL)
    extractor = load_onnx_encoder(settings, build_graph(sides=(1, channels, SIZE, SIZE)).SerializeToString())
    x = pictures()
    features = extractor.extract(x)
    assert features.dtype == np.float64 and features.shape == (3, 20)
    assert np.array_equal(features, np.concatenate([extractor.extract(x[k : k + 1]) for k in (0, 1, 2)]))
    assert np.allclose(features, compute_features(x, settings, channels), atol=1e-4)


def test_without_names_the_graphs_own_outputs_count_and_a_volume_goes_by_slices():
    extractor = load_onnx_encoder(SETTINGS, build_graph().SerializeToString())
    grey = pictures(1, channels=1)
    features = extractor.extract(grey)
    assert np.allclose(features, compute_features(np.repeat(grey, 3, axis=1), SETTINGS)[:, 8:], atol=1e-4)
    volume = np.stack([grey[0], grey[0]], axis=1)[None]
    assert np.allclose(extractor.extract(volume)[0, :12], features[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_network_without_numbers_gives_finite_features(value):
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [value])
    nodes = (helper.make_node("Constant", [], ["k"], value=constant), helper.make_node("Add", ["vector", "k"], ["odd"]))
    data = build_graph(nodes, outputs=("odd",)).SerializeToString()
    features = load_onnx_encoder(SETTINGS, data).extract(pictures())
    assert np.isfinite(features).all() and np.abs(features).max() <= LARGEST


def refused(data: bytes, settings: OnnxEncoder = SETTINGS) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are looked at
        load_onnx_encoder(settings, data)
    return str(caught.value)


def keep_outside(tensor) -> None:
    """Let a tensor lie in another file, as a hospital's own."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"


def branch(inner) -> tuple:
    """A condition whose branches are this node."""
    graph = helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("r", 1, None)])
    yes = helper.make_tensor("y", TensorProto.BOOL, [], [True])
    return (
        helper.make_node("Constant", [], ["yes"], value=yes),
        helper.make_node("If", ["yes"], ["either"], then_branch=graph, else_branch=graph),
    )


def constant(outside: bool = False):
    node = helper.make_node("Constant", [], ["r"], value=numpy_helper.from_array(np.zeros((1, 2), np.float32)))
    if outside:
        keep_outside(node.attribute[0].t)
    return node


RANDOM = helper.make_node("RandomNormal", [], ["r"], shape=[1, 2])
FOREIGN = helper.make_node("Evil", [], ["r"], domain="com.evil")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ((RANDOM,), "draws random numbers (RandomNormal)"),
        (branch(RANDOM), "draws random numbers (RandomNormal)"),
        ((helper.make_node("RandomNormalLike", ["x"], ["r"]),), "draws random numbers (RandomNormalLike)"),
        ((helper.make_node("Dropout", ["x", "", "t"], ["r"]),), "draws random numbers (Dropout)"),
        ((FOREIGN,), "operators that ONNX does not define: com.evil.Evil"),
        (branch(FOREIGN), "operators that ONNX does not define: com.evil.Evil"),
        ((constant(outside=True),), "keeps weights in files beside it"),
        (branch(constant(outside=True)), "keeps weights in files beside it"),
    ],
)
def test_a_graph_that_could_do_more_than_compute_is_refused_also_where_a_branch_does_it(nodes, told):
    assert told in refused(build_graph(nodes).SerializeToString())


def sparse_branch() -> tuple:
    """A condition whose branch keeps sparse weights in another file."""
    values = numpy_helper.from_array(np.zeros(1, np.float32), "k")
    keep_outside(values)
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.zeros(1, np.int64)), [1, 2][-1:])
    (condition, either) = branch(helper.make_node("Identity", ["k"], ["r"]))
    for attribute in either.attribute:
        attribute.g.sparse_initializer.append(sparse)
    return condition, either


def build_function(node) -> bytes:
    """A graph that calls a function of its own, in which this node stands."""
    model = build_graph((helper.make_node("Mine", ["vector"], ["mine"], domain="com.microsoft"),))
    opset = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("com.microsoft", "Mine", ["v"], ["r"], [node], opset))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model.SerializeToString()


def test_sparse_weights_of_a_branch_and_functions_and_loops_are_refused():
    assert "keeps weights in files beside it" in refused(build_graph(sparse_branch()).SerializeToString())
    told = refused(build_function(helper.make_node("Identity", ["v"], ["r"])))
    assert "com.microsoft.Mine" in told and "1 functions of its own; inline them" in told
    assert "keeps weights in files beside it" in refused(build_function(constant(outside=True)))
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("on", 9, [])],
    )
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("y", TensorProto.BOOL, [], [True]))
    loop = helper.make_node("Loop", ["", "yes"], [], body=body)
    assert "it has loops (Loop)" in refused(build_graph((yes, loop)).SerializeToString())


def test_a_dropout_that_is_off_is_taken():
    off = helper.make_tensor("off", TensorProto.BOOL, [], [False])
    model = build_graph((helper.make_node("Dropout", ["vector", "", "off"], ["same"]),), outputs=("same",))
    model.graph.initializer.append(off)
    assert load_onnx_encoder(SETTINGS, model.SerializeToString()).extract(pictures()).shape == (3, 4)


BY_CONTENT = {
    "an error": (
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["vector", "place"], ["column"], axis=1),
        helper.make_node("Unsqueeze", ["column", "axis"], ["odd"]),
    ),
    "another width": (
        helper.make_node("Relu", ["x"], ["light"]),
        helper.make_node("ReduceSum", ["light"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["count"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["count", "axis0"], ["length"]),
        helper.make_node("Add", ["length", "least"], ["wide"]),
        helper.make_node("ConstantOfShape", ["wide"], ["row"]),
        helper.make_node("Unsqueeze", ["row", "axis0"], ["odd"]),
    ),
}


@pytest.mark.parametrize("what", BY_CONTENT)
def test_a_graph_that_fails_for_some_image_gives_zeros_there_and_no_error(what):
    """It works for the picture by which it is tried, and not for a light one."""
    model = build_graph(BY_CONTENT[what], outputs=("odd",))
    for name, value in {"axis": [1], "axis0": [0], "least": [2]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    settings = replace(SETTINGS, mean=(0.6,) * 3, std=(0.05,) * 3)  # the picture of zeros lies below 0
    extractor = load_onnx_encoder(settings, model.SerializeToString())
    dark, light = np.full((1, 3, 24, 24), -0.2), np.full((1, 3, 24, 24), 0.99)
    if what == "another width":
        assert extractor.width == 2
    features = extractor.extract(np.concatenate([dark, light]))
    assert features.shape == (2, extractor.width) and not features[1].any()


def test_a_picture_without_features_or_with_too_many_is_refused():
    empty = (helper.make_node("Slice", ["vector", "from", "from", "from"], ["none"]),)
    model = build_graph(empty, outputs=("none",))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "from"))
    assert "a picture has 0 features, allowed are 1 to 100,000" in refused(model.SerializeToString())
    large = (
        helper.make_node("Expand", ["vector", "to_many"], ["many"]),
        helper.make_node("Flatten", ["many"], ["one"]),
    )
    model = build_graph(large, outputs=("one",))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 50_000, 4]), "to_many"))
    assert "a picture has 200000 features" in refused(model.SerializeToString())


def test_a_branch_that_only_computes_is_taken():
    data = build_graph(branch(constant()), outputs=("either",)).SerializeToString()
    assert load_onnx_encoder(SETTINGS, data).extract(pictures()).shape == (3, 2)


def test_weights_of_another_file_are_refused_and_the_file_is_not_read():
    model = build_graph()
    keep_outside(model.graph.initializer[0])
    assert "keeps weights in files beside it; save it as one file" in refused(model.SerializeToString())


def test_files_that_do_not_fit_are_refused_with_reasons():
    good = build_graph().SerializeToString()
    assert "it is no ONNX file" in refused(b"\x80\x04 a pickle, perhaps")
    assert "it is no ONNX file" in refused(good[:-9])
    other = replace(SETTINGS, sha256="0" * 64)
    assert f"SHA-256 is {file_digest(good)}, the settings say {'0' * 64}" in refused(good, other)
    assert "it has no tensor far, wide; there are 7, the last of them vector" in refused(
        good, replace(SETTINGS, outputs=("far", "vector", "wide"))
    )
    more = helper.make_tensor_value_info("age", 1, [1])
    assert "it needs one input, pictures, found 2: x, age" in refused(build_graph(inputs=(more,)).SerializeToString())
    for sides in ((1, 2, SIZE, SIZE), (1, 3, 8, SIZE), (2, 3, SIZE, SIZE), (1, 3, SIZE)):
        assert f"found {[*sides]} of type 1" in refused(build_graph(sides=sides).SerializeToString())
    assert "must be float32" in refused(build_graph(kind=TensorProto.FLOAT16).SerializeToString())
    small = build_graph(sides=(1, 3, "h", "w")).SerializeToString()  # it reshapes pictures of another size
    assert "cannot be run on a picture of size 32" in refused(small, replace(SETTINGS, size=32))


def test_outputs_that_are_no_features_are_refused():
    cast = (helper.make_node("Cast", ["vector"], ["whole"], to=TensorProto.INT64),)
    assert "an output is int64 [1, 4]" in refused(
        build_graph(cast).SerializeToString(), replace(SETTINGS, outputs=("whole",))
    )
    reduced = (helper.make_node("ReduceMean", ["vector"], ["number"], keepdims=0),)
    assert "needed are floating-point numbers (1, d)" in refused(
        build_graph(reduced).SerializeToString(), replace(SETTINGS, outputs=("number",))
    )


def test_settings_that_cannot_work_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)size.*sha256.*window.*std.*outputs"):
        OnnxEncoder(file="x", size=1, sha256="12", window=(1.0, 0.0), std=(0.0, 1.0, 1.0), outputs=("a", "a"))


@pytest.mark.slow  # PyTorch's exporter takes seconds to import
def test_a_file_that_pytorch_wrote_gives_what_pytorch_computes():
    pytest.importorskip("onnxscript", reason="needs consilium[onnx]")
    from federation.features.lite0 import MIDDLE, SCALE, Lite0, Lite0Extractor, Lite0Network

    class Stages(torch.nn.Module):
        """The stages of which `lite0` takes the mean and the deviation."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x):
            return tuple(self.network(x)[1:])

    torch.manual_seed(0)
    network = Lite0Network().eval()
    x, names = torch.zeros(1, 3, 64, 64), [f"stage{k}" for k in range(6)]
    program = torch.onnx.export(Stages().eval(), (x,), dynamo=True, output_names=names, verbose=False)
    settings = OnnxEncoder(file="x.onnx", size=64, mean=(MIDDLE / 255,) * 3, std=(SCALE / 255,) * 3)
    extractor = load_onnx_encoder(settings, program.model_proto.SerializeToString())
    expected = Lite0Extractor(Lite0(size=64), network).extract(pictures())
    assert np.allclose(extractor.extract(pictures()), expected, atol=1e-4)
