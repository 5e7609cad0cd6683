"""Encoders: which files are taken, which are refused and why, and what their features are."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save

from federation.features.encoder import KINDS, Encoder, file_digest, load_encoder
from federation.features.pictures import LARGEST

transformers = pytest.importorskip("transformers")

VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
CONVOLUTIONS = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "layer_type": "basic"}
CONFIGS = {
    "vit": {**VIT, "intermediate_size": 32},
    "deit": {**VIT, "intermediate_size": 32},
    "dinov2": {**VIT, "mlp_ratio": 2},
    "resnet": CONVOLUTIONS,
    "convnext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
}


def made(kind: str = "vit", seed: int = 0) -> tuple[Encoder, torch.nn.Module]:
    """Settings of a tiny encoder, and its network."""
    torch.manual_seed(seed)
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **CONFIGS[kind]))
    config = json.dumps({"model_type": kind, "architectures": ["Any"], **CONFIGS[kind]})
    return Encoder(file="x.safetensors", architecture=config, size=32), network.eval()


def pictures(n: int = 3, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (n, channels, 24, 40))


def test_every_kind_has_a_test():
    assert set(CONFIGS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_the_network_and_a_row_depends_on_its_own_image(kind, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)  # nothing is fetched
    settings, network = made(kind)
    one = load_encoder(settings, save({name: part.contiguous() for name, part in network.state_dict().items()}))
    x = pictures()
    found = one.extract(x)
    assert np.array_equal(found, np.concatenate([one.extract(x[k : k + 1]) for k in range(3)]))
    assert found.dtype == np.float64 and not np.allclose(found[0], found[1])
    seen = torch.from_numpy((x + 1) / 2).float()
    seen = torch.nn.functional.interpolate(seen, (32, 32), mode="bilinear", antialias=True)
    seen = (seen - torch.tensor(settings.mean)[:, None, None]) / torch.tensor(settings.std)[:, None, None]
    with torch.no_grad():
        last = network(pixel_values=seen).last_hidden_state
    first = last[:, 0] if last.dim() == 3 else last.mean(dim=(2, 3))
    assert np.allclose(found[:, : first.shape[1]], first, atol=1e-4)


def test_a_file_of_a_classifier_is_taken_without_its_head():
    settings, network = made()
    named = {f"vit.{name}": part for name, part in network.state_dict().items() if not name.startswith("pooler.")}
    whole = load_encoder(
        settings, save({**named, "classifier.weight": torch.ones(3, 16), "classifier.bias": torch.ones(3)})
    )
    assert np.array_equal(
        whole.extract(pictures()), load_encoder(settings, save(dict(network.state_dict()))).extract(pictures())
    )


def test_one_channel_is_shown_as_grey_and_a_volume_by_its_slices():
    settings, network = made()
    one = load_encoder(settings, save(dict(network.state_dict())))
    grey = pictures(1, channels=1)
    assert np.array_equal(one.extract(grey), one.extract(np.repeat(grey, 3, axis=1)))
    volume = np.stack([grey[0], grey[0]], axis=1)[None]
    assert np.allclose(one.extract(volume)[0, :32], one.extract(grey)[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_network_without_numbers_gives_finite_features(value):
    """Weights are finite, but what they make of some patient may not be; nothing may fail over it."""
    settings, network = made()
    one = load_encoder(settings, save(dict(network.state_dict())))
    with torch.no_grad():
        network.embeddings.cls_token.fill_(value)
        found = replace(one, network=network).extract(pictures())
    assert np.isfinite(found).all() and np.abs(found).max() <= LARGEST


def refused(settings: Encoder, data: bytes) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are looked at
        load_encoder(settings, data)
    return str(caught.value)


def test_files_that_do_not_fit_are_refused_with_reasons():
    settings, network = made()
    good = dict(network.state_dict())
    name = "layernorm.weight"
    assert "it is no safetensors file" in refused(settings, b"\x80\x04 a pickle, perhaps")
    assert "it is no safetensors file" in refused(settings, save(good)[:-9])
    assert f"{name} is missing" in refused(settings, save({k: v for k, v in good.items() if k != name}))
    assert "another has no place" in refused(settings, save({**good, "another": torch.ones(2)}))
    assert f"{name} has shape [3], needed is [16]" in refused(settings, save({**good, name: torch.ones(3)}))
    assert f"{name} is not finite" in refused(settings, save({**good, name: torch.full((16,), torch.nan)}))
    assert "and 4 more" in refused(settings, save({**good, **{f"a{k}": torch.ones(1) for k in range(9)}}))
    other = replace(settings, sha256="0" * 64)
    assert f"SHA-256 is {file_digest(save(good))}, the settings say {'0' * 64}" in refused(other, save(good))
    assert "does not take images of size 48" in refused(replace(settings, size=48), save(good))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "must have a model_type of vit"),
        ('{"model_type": "llama"}', "found 'llama'"),
        ('{"model_type": "vit", "auto_map": {"AutoModel": "evil.Model"}}', "code of its own"),
        ('{"model_type": "vit", "hidden_size": 1000000000}', "a number of 1e+09"),
        ('{"model_type": "vit", "hidden_size": "wide"}', "is none of a vit"),
    ],
)
def test_an_architecture_that_is_none_is_refused(config, said):
    settings, network = made()
    assert said in refused(replace(settings, architecture=config), save(dict(network.state_dict())))


def test_settings_that_cannot_work_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)size.*sha256.*window.*std"):
        Encoder(file="x", size=1, sha256="12", window=(1.0, 0.0), std=(0.0, 1.0, 1.0))
