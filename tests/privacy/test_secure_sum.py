"""Masks: exact sums, replies that are random to everybody else, keys that are refused."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.secure_sum import (
    KeyPair,
    add_words,
    find_forged_keys,
    fingerprint,
    make_key_pair,
    mask_words,
    sign_key,
    verification_key,
)

NAMES = ("a", "b", "c", "d")
PAIRS = {name: make_key_pair(random.Random(name).randbytes) for name in NAMES}


def public(pairs: Mapping[str, KeyPair]) -> dict[str, str]:
    return {name: pair.public for name, pair in pairs.items()}


def masked(words: Mapping[str, torch.Tensor], context: str = "run 1") -> dict[str, torch.Tensor]:
    keys = public({name: PAIRS[name] for name in words})
    return {
        name: mask_words(each.clone(), PAIRS[name].secret, keys, site=name, context=context)
        for name, each in words.items()
    }


@given(st.integers(2, 4), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 99))
@settings(max_examples=40)
def test_masks_cancel_bit_for_bit(count: int, numbers: list[int], seed: int) -> None:
    rng = random.Random(seed)
    words = {name: torch.tensor(rng.sample(numbers, len(numbers))) for name in NAMES[:count]}
    assert torch.equal(add_words([*masked(words).values()]), add_words([*words.values()]))


def test_a_single_reply_and_every_partial_sum_are_uniform() -> None:
    """What a coordinator sees of three hospitals that all send zeros: 2^19 words each, every byte equally often."""
    words = {name: torch.zeros(2**19, dtype=torch.int64) for name in NAMES[:3]}
    seen = masked(words)
    partial = [add_words([seen["a"], seen["b"]]), add_words([seen["a"], seen["c"]]), add_words([seen["b"], seen["c"]])]
    for each in [*seen.values(), *partial]:
        counts = np.bincount(each.numpy().view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    signs = [np.corrcoef(seen[a].numpy() > 0, seen[b].numpy() > 0)[0, 1] for a, b in ("ab", "ac", "bc")]
    assert max(abs(sign) for sign in signs) < 0.01


def test_another_context_or_another_sum_has_other_masks() -> None:
    """A difference of two replies that used one mask twice would be a difference of updates."""
    words = {name: torch.zeros(1000, dtype=torch.int64) for name in NAMES}
    first, second = masked(words, "run 1"), masked(words, "run 2")
    fewer = masked({name: words[name] for name in NAMES[:3]}, "run 1")
    for name in NAMES[:3]:
        for other in (second, fewer):
            assert not bool((first[name] == other[name]).any())
            assert not bool((add_words([first[name], other[name]]) == 0).any())


def test_both_hospitals_of_a_pair_agree_without_having_met() -> None:
    pairs = {name: make_key_pair() for name in "xy"}
    keys = public(pairs)
    words = {name: torch.tensor([1, -5]) for name in pairs}
    seen = [mask_words(words[name].clone(), pairs[name].secret, keys, site=name, context="") for name in pairs]
    assert add_words(seen).tolist() == [2, -10] and fingerprint(keys) == fingerprint(dict(reversed(keys.items())))


def test_keys_that_hide_nothing_are_refused() -> None:
    keys, words = public(PAIRS), torch.zeros(2, dtype=torch.int64)
    secret = PAIRS["a"].secret
    wrong = {
        "another key of a": {**keys, "a": keys["b"]},
        "needs two hospitals": {"a": keys["a"]},
        "different keys": {**keys, "b": keys["a"]},
    }
    for text, each in wrong.items():
        with pytest.raises(ValueError, match=text):
            mask_words(words, secret, each, site="a", context="")
    for point in ("00" * 32, "01" + "00" * 31):  # points of small order: every secret gives the same shared one
        with pytest.raises(ValueError, match=r"(?i)shared|public"):
            mask_words(words, secret, {**keys, "b": point}, site="a", context="")


IDENTITIES = {name: random.Random(f"identity {name}").randbytes(32) for name in NAMES}
SIGNERS = {name: verification_key(identity) for name, identity in IDENTITIES.items()}


def signed(run: str = "r/x") -> dict[str, str]:
    return {name: sign_key(PAIRS[name].public, IDENTITIES[name], run=run, site=name) for name in NAMES}


def test_signed_keys_are_verified_and_give_the_same_sums() -> None:
    keys, words = signed(), torch.tensor([3, -4])
    assert find_forged_keys(keys, SIGNERS, run="r/x") == []
    seen = [mask_words(words.clone(), PAIRS[name].secret, keys, site=name, context="") for name in NAMES]
    assert add_words(seen).tolist() == [12, -16]


def test_every_forged_key_is_named() -> None:
    """Of another run, another hospital, another key, cut off, unsigned, or of a signer that nobody named."""
    keys = signed()
    forged = {
        "another run": signed("r/y")["b"],
        "another hospital": keys["a"],
        "a key of the coordinator": make_key_pair().public + keys["b"][64:],
        "cut off": keys["b"][:-2],
        "unsigned": keys["b"][:64],
        "signed by the coordinator": sign_key(PAIRS["b"].public, bytes(32), run="r/x", site="b"),
    }
    for what, key in forged.items():
        assert find_forged_keys({**keys, "b": key}, SIGNERS, run="r/x") == ["b"], what
    unknown = {name: signer for name, signer in SIGNERS.items() if name != "c"}
    assert find_forged_keys(keys, unknown, run="r/x") == ["c"]
