"""Signatures of finished models: which signer answers for the unchanged file, with which settings, until when.

Ed25519 (RFC 8032) by the package `cryptography`, over a statement that names the file's SHA-256, its size and its
settings. The signature is detached: MODEL.sig, a JSON text next to MODEL. A hospital checks it before it parses a byte
of the model: whichever way the file came, only its signer can have written it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from privacy.durable import write_once
from privacy.message import Json
from privacy.pickled import reduce_error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ENDING = ".sig"
PREFIX = b"consilium: signature of a model, format 1\n"
"""Before what is signed, so that no other text that this key ever signs can pass as a model's statement."""
LARGEST = 2**16
"""Bytes of a signature's file, and of a key's."""
MISSING = "cryptography is not installed; pip install consilium[sign]"


class Unsigned(ValueError):
    """A model is not what a trusted signer signed. code: the code by which a hospital refuses it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    __reduce__ = reduce_error


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is signed. sha256, size: of the file, in bytes. settings: what it predicts, and from which examples. signed,
    expires: dates (UTC), the last one included.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    what: Literal["model"] = "model"
    format: Literal[1] = 1
    title: str
    sha256: str
    size: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    signed: str
    expires: str

    def text(self) -> bytes:
        """The bytes that are signed: equal statements give equal bytes."""
        return PREFIX + json.dumps(vars(self), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True, kw_only=True)
class Signature:
    """statement: what is signed. key: the signer's public key, signature: both in hexadecimal digits."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    statement: Statement
    key: str
    signature: str


def statement_of(data: bytes, *, title: str, settings: Mapping[str, Json], today: date, days: int) -> Statement:
    """The statement on a model's file. days: for how long it holds."""
    digest, until = hashlib.sha256(data).hexdigest(), today + timedelta(days=days)
    return Statement(
        title=title,
        sha256=digest,
        size=len(data),
        settings=settings,
        signed=today.isoformat(),
        expires=until.isoformat(),
    )


def sign_statement(statement: Statement, key: Path) -> Signature:
    """Sign a statement.

    Raises:
        ValueError: the file is no key, or others may read it; or `cryptography` is not installed.
        OSError: it cannot be read.
    """
    private = _read_key(key)
    return Signature(statement=statement, key=_public_key(private), signature=private.sign(statement.text()).hex())


def check_signature(data: bytes, signature: Signature, trusted: Mapping[str, str], *, today: date) -> str:
    """The name under which the signer is trusted.

    Args:
        data: the model's file.
        signature: of the file; nothing in it is trusted yet.
        trusted: name -> public key.

    Raises:
        Unsigned: `policy_model`: no trusted key signed it; `tampered_model`: the signature is not of this statement,
            or the statement not of this file; `expired_model`: it holds no more, or not yet.
    """
    signer = next((name for name, key in trusted.items() if key.lower() == signature.key), None)
    if signer is None:
        keys = f"{len(trusted)} keys" if trusted else "no key"
        raise Unsigned(
            "policy_model", f"signed by {signature.key}, and trusted_models of the policy names {keys}, not it"
        )
    _verify_signature(signature)
    statement, digest = signature.statement, hashlib.sha256(data).hexdigest()
    if (digest, len(data)) != (statement.sha256, statement.size):
        text = f"the file has {len(data)} bytes and digest {digest}; {signer} signed {statement.size} of "
        raise Unsigned("tampered_model", f"{text}{statement.sha256}")
    try:
        begins, ends = date.fromisoformat(statement.signed), date.fromisoformat(statement.expires)
    except ValueError as error:
        raise Unsigned("tampered_model", f"its dates are none: {error}") from error
    if not begins - timedelta(days=1) <= today <= ends:  # a day for clocks of other time zones
        raise Unsigned("expired_model", f"it holds from {begins} to {ends}, and today is {today}; ask for a new one")
    return signer


def make_key(path: Path) -> str:
    """Write a new private key that only its owner can read, and return its public key.

    Raises:
        ValueError: `cryptography` is not installed.
        OSError: the file exists, or cannot be written.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ModuleNotFoundError as error:
        raise ValueError(MISSING) from error
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_once(path, text)
    return _public_key(private)


def _read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a file. Raises: as `sign_statement`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ModuleNotFoundError as error:
        raise ValueError(MISSING) from error
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: others may read the key; run chmod 600 on it first")
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        key = load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("it is of another kind")
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is no private key of Ed25519 ({error}); --new KEY makes one") from error
    return key


def _public_key(private: Ed25519PrivateKey) -> str:
    """The public key in hexadecimal digits."""
    return private.public_key().public_bytes_raw().hex()


def _verify_signature(signature: Signature) -> None:
    """Raises: Unsigned: `tampered_model`; or `policy_model`, where nothing can be verified here."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError as error:
        raise Unsigned("policy_model", MISSING) from error
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key)).verify(
            bytes.fromhex(signature.signature), signature.statement.text()
        )
    except (InvalidSignature, ValueError) as error:
        raise Unsigned("tampered_model", "the signature is not that of this statement by this key") from error
