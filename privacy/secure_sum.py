"""Sums over hospitals of which nobody sees a part: pairwise masks that cancel.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning, CCS 2017, section 4, without recovery of hospitals that drop out. Every two
hospitals i < j agree on a secret by X25519 (RFC 7748), derive a key from it for one sum by HKDF-SHA256 (RFC 5869), and
expand it by ChaCha20 (RFC 8439) to as many words of 64 bits as are added up. i adds the words, j subtracts them, modulo
2^64. So a single reply is uniformly random to whoever lacks the secrets, and the sum over all is exact.

A key is used for one sum: its derivation names the run, the round, and every hospital of the sum with its public key.
Where a hospital is missing, the masks do not cancel, and the others' replies are worthless.

Protected: against a coordinator that follows the protocol and looks at everything, together with all hospitals of the
sum but two. Not protected: the sum itself. A coordinator that hands out public keys of its own would see single
replies; so a hospital signs its key for the run by Ed25519 (RFC 8032), and another one verifies it, if its policy names
the signing key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from privacy.dp.entropy import Source

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BITS = 64
PIECE = 2**20
"""Words that are masked at a time."""
Words: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint64]]"
MISSING = "cryptography is not installed; pip install consilium[sign]"
PROTOCOL = b"consilium: secure sum, format 1"
SIGNED = "consilium: public key of a secure sum, format 1"
DIGITS = 64
"""Of a public key; a signature of twice as many may follow."""


class KeyPair(NamedTuple):
    """Keys of X25519, 64 hexadecimal digits each. secret: never leaves the hospital."""

    secret: str
    public: str


def has_cryptography() -> bool:
    """Whether the package that computes masks is installed."""
    try:
        import cryptography  # noqa: F401 - an extra
    except ImportError:
        return False
    return True


def make_key_pair(source: Source = os.urandom) -> KeyPair:
    """A new pair of keys. Raises: ValueError: `cryptography` is not installed."""
    if not has_cryptography():
        raise ValueError(MISSING)
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # an extra

    secret = source(32)
    return KeyPair(secret.hex(), X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex())


def sign_key(public: str, identity: bytes, *, run: str, site: str) -> str:
    """The public key for a run with a signature behind it: 192 hexadecimal digits.

    identity: a secret of the hospital that stays the same over runs, of 32 bytes or more.
    """
    return public + _signing_key(identity).sign(_signed_text(public, run, site)).hex()


def verification_key(identity: bytes) -> str:
    """The key by which other hospitals verify this one's signatures: 64 hexadecimal digits, to be handed on."""
    return _signing_key(identity).public_key().public_bytes_raw().hex()


def find_forged_keys(keys: Mapping[str, str], signers: Mapping[str, str], *, run: str) -> list[str]:
    """The hospitals of a sum whose key for this run is not signed by the key that `signers` names for them."""
    from cryptography.exceptions import InvalidSignature  # an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    forged = []
    for site, key in sorted(keys.items()):
        public, signature = key[:DIGITS], key[DIGITS:]
        try:
            verifier = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signers[site]))
            verifier.verify(bytes.fromhex(signature), _signed_text(public, run, site))
        except (InvalidSignature, KeyError, ValueError):
            forged.append(site)
    return forged


def _signing_key(identity: bytes) -> Ed25519PrivateKey:
    """The hospital's signing key, derived from its secret, so that there is no second file to keep."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # an extra
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return Ed25519PrivateKey.from_private_bytes(HKDF(SHA256(), 32, None, SIGNED.encode()).derive(identity))


def _signed_text(public: str, run: str, site: str) -> bytes:
    """What is signed: the key, and for which run of which hospital it is."""
    return json.dumps([SIGNED, run, site, public]).encode()


def fingerprint(keys: Mapping[str, str]) -> str:
    """A digest of a sum's hospitals and their public keys, which is the same at each of them."""
    return hashlib.sha256(json.dumps(dict(sorted(keys.items()))).encode()).hexdigest()


def mask_words(words: Tensor, secret: str, keys: Mapping[str, str], *, site: str, context: str) -> Tensor:
    """The words with this hospital's masks added, modulo 2^64. They are added in place, piece by piece.

    Args:
        words: (m,) int64, on the CPU and contiguous, which are changed.
        secret: this hospital's. keys: hospital -> public key, of all in the sum, this one included; signatures behind
        them are not looked at here.
        site: this hospital. context: of one sum, such as its run and round; never used for other words.

    Raises:
        ValueError: fewer than two hospitals, another key of this hospital than its secret's, or a key that is none.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey  # an extra

    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    publics = {name: key[:DIGITS] for name, key in keys.items()}
    if publics.get(site) != private.public_key().public_bytes_raw().hex():
        raise ValueError(f"the sum names another key of {site} than this hospital's, so its masks would not cancel")
    if len(keys) < 2 or len(set(publics.values())) < len(keys):
        raise ValueError(f"a sum needs two hospitals with different keys, found {', '.join(sorted(keys))}")
    masked = words.numpy().view(np.uint64)
    salt = bytes.fromhex(fingerprint(keys))
    for other in sorted(set(keys) - {site}):
        shared = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(publics[other])))
        streams = _expand(shared, salt, json.dumps([context, *sorted((site, other))]).encode(), len(masked))
        for start, stream in zip(range(0, len(masked), PIECE), streams, strict=True):
            part = masked[start : start + PIECE]
            part += stream if site < other else -stream  # modulo 2^64, both
    return words


def add_words(parts: Sequence[Tensor]) -> Tensor:
    """The sum modulo 2^64, as int64: masks cancel if every hospital of the sum is there. parts: (m,) int64 each."""
    total = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        total += part.cpu().contiguous().numpy().view(np.uint64)
    return torch.from_numpy(total.view(np.int64))


def _expand(shared: bytes, salt: bytes, info: bytes, count: int) -> Iterator[Words]:
    """So many words that look random to whoever lacks the shared secret, at most `PIECE` at a time."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # an extra
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(SHA256(), 32, salt, PROTOCOL + info).derive(shared)
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    for start in range(0, count, PIECE):
        stream = encryptor.update(bytes(BITS // 8 * min(PIECE, count - start)))
        yield np.frombuffer(stream, "<u8").astype(np.uint64)
