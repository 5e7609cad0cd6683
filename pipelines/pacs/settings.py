"""How an archive is reached: settings of each kind, with credentials in files or in the environment. No client here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, TypeAdapter

from pipelines.pacs.secret import Secret, not_plain_text
from privacy.settings_error import Problem, out_of_range, refuse, unmet

FORBID: dict[str, Any] = {"extra": "forbid"}
AE_TITLE = re.compile(r"(?! )[\x20-\x5b\x5d-\x7e]{1,16}(?<! )")  # PS3.5, 6.2: no backslash, no control characters
GIB = 2**30

SecretField: TypeAlias = Annotated[Secret, BeforeValidator(not_plain_text)]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How patient we are, and how much we take.

    timeout_s: for connecting, and for each wait for more bytes. answer_s: for one answer as a whole: all pages of a
    query, one series, one file that is stored. retries: of what is safe to repeat, after 1, 2, 4, ... seconds, with
    jitter; 0 = none. per_second: requests; null = as fast as they are answered. most: answers of a query, and files of
    a series. largest_gib: of one series.
    """

    __pydantic_config__: ClassVar[Any] = FORBID

    timeout_s: float = 60.0
    answer_s: float = 1800.0
    retries: int = 4
    per_second: float | None = None
    most: int = 100_000
    largest_gib: float = 8.0

    def __post_init__(self) -> None:
        refuse(
            out_of_range(
                self,
                timeout_s=(0.1, 3600),
                answer_s=(0.1, 86_400),
                retries=(0, 20),
                per_second=(0.001, 1000),
                most=(1, 1_000_000),
                largest_gib=(0.0001, 1024),
            )
        )


@dataclass(frozen=True, kw_only=True)
class DicomWeb:
    """An archive that speaks DICOMweb (PS3.18): QIDO-RS to ask, WADO-RS to fetch, STOW-RS to store.

    url: what stands before /studies, as in https://pacs.example.org/dicom-web. user, password: basic authentication.
    token: sent as a bearer token instead. ca: file with the certificates that sign the archive's; null = those of this
    system. certificate, key: our own, where the archive asks for one. page: answers of a query that are asked for at a
    time. plain_http: credentials and images that cross a network unencrypted can be read by others, so http:// with
    credentials is refused but for this machine itself.
    """

    __pydantic_config__: ClassVar[Any] = FORBID

    kind: Literal["dicomweb"] = "dicomweb"
    url: str
    user: str | None = None
    password: SecretField | None = None
    token: SecretField | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    page: int = 200
    limits: Limits = field(default_factory=Limits)
    plain_http: Literal["refuse", "allow"] = "refuse"

    def __post_init__(self) -> None:
        problems = list(_url_problems(self.url)) + unmet(self, page=(1 <= self.page <= 10_000, "in [1, 10000]"))
        if (self.user is None) != (self.password is None):
            missing = "user" if self.user is None else "password"
            problems.append(Problem((missing,), "missing; user and password go together"))
        if self.user is not None and (not self.user or ":" in self.user or not self.user.isprintable()):
            problems.append(Problem(("user",), "must be text without colons and control characters, and not empty"))
        if self.token is not None and self.user is not None:
            problems.append(Problem(("token",), "there are user and password too; remove one of the two"))
        problems += _key_problems(self.certificate, self.key)
        secret = self.password is not None or self.token is not None
        if not problems and secret and self.plain_http == "refuse" and not _is_protected(self.url):
            text = "http:// would send the credentials in the clear; use https://, or say plain_http: allow"
            problems.append(Problem(("url",), text))
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """DICOM's secure transport (PS3.15, B.12). ca: file with the certificates that sign the archive's; null = those of
    this system. certificate, key: our own; most archives ask for one. name: the name in the archive's certificate where
    it is not `host`.
    """

    __pydantic_config__: ClassVar[Any] = FORBID

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        refuse(_key_problems(self.certificate, self.key))


@dataclass(frozen=True, kw_only=True)
class Listen:
    """Where images arrive that the archive sends at our request (C-MOVE): the archive knows `calling`, this machine and
    this port. address: of the interface that listens; 0.0.0.0 = all. Whoever calls from another address, or by another
    title, is cut off. senders: the IP addresses from which the archive sends; empty = those of `host`, so they are
    named where it sends from others, or behind a translation of addresses. titles: its AE titles when it sends; empty =
    `called`.
    """

    __pydantic_config__: ClassVar[Any] = FORBID

    port: int
    address: str = "127.0.0.1"
    senders: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = unmet(self, port=(1 <= self.port <= 65535, "in [1, 65535]"))
        named: list[tuple[tuple[str | int, ...], str]] = [(("address",), self.address)]
        named += [(("senders", number), sender) for number, sender in enumerate(self.senders)]
        for where, address in named:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                whose = "this machine" if where == ("address",) else "the archive"
                problems.append(Problem(where, f"must be an IP address of {whose}, found {address!r}"))
        text = "must be an AE title: 1 to 16 ASCII characters, no backslash, no blank at its ends"
        problems += [
            Problem(("titles", n), text) for n, title in enumerate(self.titles) if not AE_TITLE.fullmatch(title)
        ]
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class DicomNode:
    """An archive that speaks DICOM's own protocol (PS3.7): C-FIND to ask, C-GET or C-MOVE to fetch, C-STORE to store.

    called, calling: the AE titles of the archive and of us. retrieve: get sends the images on the connection that asks
    for them; move opens one to us, so the archive must know `calling`, and `listen` says where it arrives.
    """

    __pydantic_config__: ClassVar[Any] = FORBID

    kind: Literal["dicom_node"] = "dicom_node"
    host: str
    port: int = 104
    called: str
    calling: str = "CONSILIUM"
    retrieve: Literal["get", "move"] = "get"
    listen: Listen | None = None
    tls: Tls | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        problems = unmet(self, port=(1 <= self.port <= 65535, "in [1, 65535]"))
        if not self.host or not self.host.isprintable() or "/" in self.host or " " in self.host:
            problems.append(Problem(("host",), f"must be a host's name or address, found {self.host!r}"))
        problems += [
            Problem((name,), "must be an AE title: 1 to 16 ASCII characters, no backslash, no blank at its ends")
            for name in ("called", "calling")
            if not AE_TITLE.fullmatch(getattr(self, name))
        ]
        if self.retrieve == "move" and self.listen is None:
            problems.append(Problem(("listen",), "missing; say where the archive sends images: {port: 11112}"))
        if self.retrieve == "get" and self.listen is not None:
            problems.append(Problem(("listen",), "only for retrieve: move; remove it, or say so"))
        if self.listen is not None and self.tls is not None and self.tls.certificate is None:
            problems.append(Problem(("tls", "certificate"), "missing; whoever listens needs one"))
        refuse(problems)


ArchiveSettings: TypeAlias = DicomWeb | DicomNode
ARCHIVE: TypeAdapter[ArchiveSettings] = TypeAdapter(Annotated[ArchiveSettings, Field(discriminator="kind")])


def archive_problems(settings: ArchiveSettings) -> list[Problem]:
    """The secrets and certificates that cannot be read, and why; no network is used."""
    problems = []
    if isinstance(settings, DicomWeb):
        for name, secret in (("password", settings.password), ("token", settings.token)):
            if secret is not None:
                problems += [problem.within(name) for problem in secret.problems()]
        named = (("ca", settings.ca), ("certificate", settings.certificate), ("key", settings.key))
        return problems + list(_file_problems(named))
    if settings.tls is None:
        return problems
    named = (("ca", settings.tls.ca), ("certificate", settings.tls.certificate), ("key", settings.tls.key))
    return [problem.within("tls") for problem in _file_problems(named)]


def _file_problems(named: tuple[tuple[str, str | None], ...]) -> Iterator[Problem]:
    for name, file in named:
        if file is not None and not Path(file).is_file():
            yield Problem((name,), f"there is no file {file!r}")
        elif file is not None and name == "key" and Path(file).stat().st_mode & 0o077:
            yield Problem((name,), f"others may read {file!r}; chmod 600, or 400")
        elif file is not None and name == "key" and b"ENCRYPTED" in Path(file).read_bytes():
            yield Problem((name,), f"{file!r} asks for a passphrase, and nobody is there to give it; give one without")


def _url_problems(url: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        yield Problem(("url",), "is no address; as in https://pacs.example.org/dicom-web")
        return
    if "@" in parts.netloc:
        yield Problem(("url",), "holds a user name or password; use the keys user and password")
    elif parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        yield Problem(("url",), f"must be an https:// address, as in https://pacs.example.org/dicom-web, found {url!r}")
    elif parts.query or parts.fragment:
        yield Problem(("url",), "must end before ? and #; give what stands before /studies")


def _is_protected(url: str) -> bool:
    """Whether others cannot listen: encrypted, or on this machine alone."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _key_problems(certificate: str | None, key: str | None) -> list[Problem]:
    if (certificate is None) == (key is None):
        return []
    missing = "certificate" if certificate is None else "key"
    return [Problem((missing,), "missing; certificate and key go together")]
