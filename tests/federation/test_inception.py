"""The FID's network: its sizes are the published ones, and files that are not its weights are refused with reasons."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save
from torch import nn

from federation.features.encoder import file_digest
from federation.features.inception import (
    NUMBERS,
    SIDE,
    Inception,
    Network,
    inception_features,
    load_network,
    read_weights_file,
)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = Network().state_dict()
    return {name: 0.05 * torch.rand_like(part) if part.is_floating_point() else part for name, part in found.items()}


def test_it_has_as_many_parameters_and_layers_as_the_published_network():
    """Keras says 21,802,784 without the classifier, of which 34,432 are statistics; it learns no scales (17,216)."""
    network = Network()
    assert sum(p.numel() for p in network.parameters()) == 21_802_784 - 34_432 + 17_216
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == 94
    assert {m.eps for m in network.modules() if isinstance(m, nn.BatchNorm2d)} == {0.001}


def test_each_stage_has_the_published_size():
    network, seen = Network().eval(), {}
    for name, part in network.named_children():
        part.register_forward_hook(lambda _, __, y, name=name: seen.update({name: tuple(y.shape[1:])}))
    with torch.no_grad():
        assert network(torch.zeros(1, 3, SIDE, SIDE)).shape == (1, NUMBERS)
    published = {
        "Conv2d_1a_3x3": (32, 149, 149), "Conv2d_2a_3x3": (32, 147, 147), "Conv2d_2b_3x3": (64, 147, 147),
        "Conv2d_3b_1x1": (80, 73, 73), "Conv2d_4a_3x3": (192, 71, 71), "Mixed_5b": (256, 35, 35),
        "Mixed_5c": (288, 35, 35), "Mixed_5d": (288, 35, 35), "Mixed_6a": (768, 17, 17), "Mixed_6b": (768, 17, 17),
        "Mixed_6c": (768, 17, 17), "Mixed_6d": (768, 17, 17), "Mixed_6e": (768, 17, 17), "Mixed_7a": (1280, 8, 8),
        "Mixed_7b": (2048, 8, 8), "Mixed_7c": (2048, 8, 8),
    }  # fmt: skip
    assert seen == published


def test_features_of_a_file_are_those_of_the_network_and_of_each_image_alone(weights):
    network = Network().eval()
    network.load_state_dict(weights)
    head = {"fc.weight": torch.zeros(1000, NUMBERS), "fc.bias": torch.zeros(1000)}
    loaded = load_network(save({**weights, **head}))
    x = torch.rand(2, 1, 32, 32) * 2 - 1
    found = inception_features(loaded, x)
    assert torch.equal(found, inception_features(network, x.expand(-1, 3, -1, -1)))
    assert torch.allclose(found[1:], inception_features(loaded, x[1:])) and not torch.allclose(found[0], found[1])


def test_a_file_of_another_network_is_refused_with_what_is_wrong(weights, tmp_path):
    less = {name: part for name, part in weights.items() if name != "Mixed_5b.branch1x1.conv.weight"}
    with pytest.raises(ValueError, match=r"Mixed_5b\.branch1x1\.conv\.weight is missing"):
        load_network(save(less))
    with pytest.raises(ValueError, match=r"x has no place"):
        load_network(save({**weights, "x": torch.zeros(1)}))
    with pytest.raises(ValueError, match="not finite"):
        load_network(save({**weights, "Mixed_6a.branch3x3.bn.bias": torch.full((384,), torch.nan)}))
    with pytest.raises(ValueError, match="no safetensors file"):
        load_network(b"pickle")
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"something")
    assert read_weights_file(Inception(file=str(path), sha256=file_digest(b"something"))) == b"something"
    with pytest.raises(ValueError, match="the settings say"):
        read_weights_file(Inception(file=str(path), sha256="0" * 64))
    with pytest.raises(ValueError, match="cannot be read"):
        read_weights_file(Inception(file=str(tmp_path / "none")))
