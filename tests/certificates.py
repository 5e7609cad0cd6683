"""A certificate authority for tests, for kits that are valid, expired, foreign or not yet valid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID


def name(common: str, org: str = "hospital") -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, common), x509.NameAttribute(NameOID.ORGANIZATION_NAME, org)]
    )


def pem(key: CertificateIssuerPrivateKeyTypes) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


@dataclass
class Authority:
    """Signs certificates that are valid from `after` days from now, for `days` days."""

    key: CertificateIssuerPrivateKeyTypes
    own: x509.Certificate

    @classmethod
    def new(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(key, signed(name("authority"), name("authority"), key, key, 0, 360, authority=True))

    def kit(self, folder: Path, common: str, port: int, *, after: float = 0, days: float = 90) -> Path:
        """The parts of a hospital's kit that are checked before it joins."""
        startup, key = folder / "startup", ec.generate_private_key(ec.SECP256R1())
        startup.mkdir(parents=True)
        (folder / "local").mkdir()
        made = signed(name(common), self.own.subject, key, self.key, after, days)
        (startup / "client.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (startup / "client.key").write_bytes(pem(key))
        (startup / "client.key").chmod(0o600)
        (startup / "rootCA.pem").write_bytes(self.own.public_bytes(serialization.Encoding.PEM))
        said = {
            "servers": [{"service": {"target": f"localhost:{port}"}}],
            "client": {"fqsn": common, "connection_security": "mtls"},
        }
        (startup / "fed_client.json").write_text(json.dumps(said))
        return folder


def signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificateIssuerPrivateKeyTypes,
    by: CertificateIssuerPrivateKeyTypes,
    after: float,
    days: float,
    *,
    authority: bool = False,
) -> x509.Certificate:
    begin = datetime.now(UTC) + timedelta(days=after) - timedelta(minutes=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
    )
