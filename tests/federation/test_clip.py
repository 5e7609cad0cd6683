"""CLIP: the same vectors and tokens as transformers', what is learnt of it, and which files are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import small_clip
from federation.models.clip import Clip, ClipPictures, read_tensors
from federation.models.clip_towers import embed_pictures, embed_sentences, list_tensor_shapes, parse_architecture
from federation.models.clip_words import END, parse_vocabulary
from federation.parameters import read_parameters
from federation.task import Task

TEXTS = ("Nevus of an  ULCER.", "it's 12 café (blue-grey)!", "a photo of a nevus")


def ours():
    return parse_vocabulary(small_clip.VOCABULARY, small_clip.MERGED)


@pytest.fixture(scope="module")
def theirs():
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPConfig(**{k: v for k, v in small_clip.CONFIG.items() if k != "model_type"})
    network = transformers.CLIPModel(config).eval()
    network.load_state_dict(load(small_clip.file()), strict=False)
    return network


def test_the_names_and_shapes_are_those_of_transformers(theirs):
    known = {name: tuple(one.shape) for name, one in theirs.state_dict().items() if "position_ids" not in name}
    assert known == list_tensor_shapes(small_clip.clip().shape)


def test_what_a_configuration_leaves_out_is_what_transformers_means():
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        known = transformers.CLIPModel(transformers.CLIPConfig()).state_dict()
    assert {n: tuple(t.shape) for n, t in known.items()} == list_tensor_shapes(
        parse_architecture('{"model_type": "clip"}')
    )


def test_vectors_are_those_of_transformers(theirs):
    settings, w = small_clip.clip(), read_tensors(small_clip.clip(), small_clip.file())
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    sentences = [ours().sentence(text) for text in TEXTS]
    longest = max(map(len, sentences))
    stop = json.loads(small_clip.VOCABULARY)[END]
    tokens = torch.tensor([[*one, *[stop] * (longest - len(one))] for one in sentences])
    ends = torch.tensor([len(one) - 1 for one in sentences])
    with torch.no_grad():
        found = theirs(input_ids=tokens, pixel_values=x, attention_mask=torch.ones_like(tokens))
        table = w["text_model.embeddings.token_embedding.weight"]
        own = embed_sentences(w, settings.shape, table[tokens], ends)
        assert torch.allclose(own, found.text_embeds, atol=1e-5)
        assert torch.allclose(embed_pictures(w, settings.shape, x), found.image_embeds, atol=1e-5)


def test_tokens_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.json").write_text(small_clip.VOCABULARY)
    (tmp_path / "merges.txt").write_text(small_clip.MERGED)
    known = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for text in TEXTS:
        assert list(ours().sentence(text)) == known(text)["input_ids"], text


def test_only_the_context_is_learnt_and_all_classes_share_it():
    torch.manual_seed(0)
    module = small_clip.task().network()
    assert {name: tuple(one.shape) for name, one in read_parameters(module).items()} == {"head.context": (3, 8)}
    x = small_clip.table(1)["train"].x
    module(x).logits.square().sum().backward()
    assert float(module.head.context.grad.abs().sum()) > 0
    assert torch.allclose(module.head.texts().norm(dim=1), torch.ones(2))


def test_a_context_of_written_tokens_says_what_the_sentence_says():
    """The learnt sentence with the embeddings of words in place of [V] is that sentence."""
    settings, w = small_clip.clip(), dict(small_clip.frozen())
    module, tokens = small_clip.task().network(), ours().tokens("a.b")
    assert len(tokens) == settings.context
    table = w["text_model.embeddings.token_embedding.weight"]
    with torch.no_grad():
        module.head.context.copy_(table[list(tokens)])
        whole = [ours().sentence(f"a.b {one}.") for one in small_clip.CLASSES.values()]
        for said, found in zip(whole, module.head.texts(), strict=True):
            ends = torch.tensor([len(said) - 1])
            assert torch.allclose(embed_sentences(w, settings.shape, table[list(said)][None], ends)[0], found)


def test_pictures_have_unit_vectors_that_depend_on_nothing_else():
    one = ClipPictures(small_clip.clip(), read_tensors(small_clip.clip(), small_clip.file()))
    x = np.random.default_rng(0).uniform(-1, 1, (3, 3, 20, 24))
    found = one.extract(x)
    assert np.array_equal(found, np.concatenate([one.extract(x[k : k + 1]) for k in range(3)]))
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert np.array_equal(one.extract(x[:1, :1]), one.extract(np.repeat(x[:1, :1], 3, axis=1)))


def refused(data: bytes, **fields) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are looked at
        read_tensors(small_clip.clip(**fields), data)
    return str(caught.value)


def test_files_that_do_not_fit_are_refused_with_reasons():
    good = load(small_clip.file())
    assert "no safetensors file" in refused(b"\x80\x04 a pickle, perhaps")
    assert "logit_scale is missing" in refused(save({n: t for n, t in good.items() if n != "logit_scale"}))
    assert "has shape [3], needed is []" in refused(save({**good, "logit_scale": torch.ones(3)}))
    assert "logit_scale is not finite" in refused(save({**good, "logit_scale": torch.tensor(torch.inf)}))
    assert "the settings say 00" in refused(save(good), sha256="0" * 64)
    with pytest.raises(ValueError, match="model_type: clip, found 'vit'"):
        parse_architecture('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="hidden_size"):
        parse_architecture('{"model_type": "clip", "text_config": {"hidden_size": 10000000}}')
    with pytest.raises(ValueError, match="hidden_act: quick_gelu or gelu, found 'silu'"):
        parse_architecture('{"model_type": "clip", "vision_config": {"hidden_act": "silu"}}')


def test_words_and_sentences_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"(?s)classes.*templates.*std"):
        Clip(weights="x", classes={"a": "b"}, templates=("a photo",), std=(0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="a sentence has 49 tokens, the text transformer reads 40"):
        small_clip.clip(classes={"negative": "nevus", "positive": "x y " * 19}, context=4)
    with pytest.raises(ValueError, match=r"vocab\.json lacks"):
        parse_vocabulary("{}", small_clip.MERGED)
    with pytest.raises(ValueError, match="words and their tokens for each of 3 classes"):
        Task(small_clip.clip(), (8,), 3).network()
    with pytest.raises(ValueError, match="holds no text transformer"):
        Task(small_clip.clip(), (8,), 2).network()(torch.zeros(1, 8))
