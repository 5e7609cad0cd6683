"""A real archive for tests: Orthanc with DICOMweb over HTTPS with a password, and DICOM with or without TLS.

Debian's Orthanc 1.10.1 crashes at the first HTTPS connection (its libcivetweb does), so its HTTP stays on loopback and
TLS ends in front of it, as hospitals do it with nginx.

    with running_orthanc(tmp_path) as one:
        one.load(files)
        with open_archive(one.web) as archive: ...
        with open_archive(one.node) as archive: ...
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certificates import name, pem
from pipelines.pacs.secret import Secret
from pipelines.pacs.settings import DicomNode, DicomWeb, Limits, Listen, Tls

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
USER, PASSWORD, TITLE = "consilium", "correct horse battery staple", "ORTHANC"
PATIENT = Limits(timeout_s=20, answer_s=120, retries=2)


@dataclass
class Orthanc:
    """A running Orthanc. web, node: settings that reach it. moved: the same node, by C-MOVE to a port of ours."""

    folder: Path
    https: int
    http: int
    dicom: int
    listening: int
    tls: bool
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def password(self) -> Path:
        return self.folder / "password"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def web(self) -> DicomWeb:
        return DicomWeb(
            url=f"https://127.0.0.1:{self.https}/dicom-web",
            user=USER,
            password=Secret(file=str(self.password)),
            ca=str(self.ca),
            limits=PATIENT,
        )

    @property
    def node(self) -> DicomNode:
        ours = {"certificate": str(self.folder / "ours.pem"), "key": str(self.folder / "ours.key")}
        tls = Tls(ca=str(self.ca), **ours) if self.tls else None
        return DicomNode(host="127.0.0.1", port=self.dicom, called=TITLE, tls=tls, limits=PATIENT)

    @property
    def moved(self) -> DicomNode:
        return replace(self.node, retrieve="move", listen=Listen(port=self.listening))

    def load(self, files: Sequence[Path]) -> None:
        """Store files by Orthanc's own interface, which none of ours is."""
        for file in files:
            self.ask("POST", "/instances", file.read_bytes())

    def ask(self, method: str, path: str, data: bytes | None = None) -> Any:
        """What Orthanc's own interface answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data, method=method)
        request.add_header("Authorization", f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}")
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own
            return json.loads(answer.read() or b"null")

    def begin(self) -> None:
        """Start, or start again with what is stored, and wait until it answers."""
        log = (self.folder / "log.txt").open("ab")
        program = shutil.which("Orthanc", path=os.environ["PATH"] + ":/usr/sbin")
        command = [str(program), str(self.folder / "orthanc.json")]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(300):
            try:
                self.ask("GET", "/system")
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError(
            f"Orthanc ended with {self.process.poll()}\n" + (self.folder / "log.txt").read_text()[-3000:]
        )

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the process, by default in peace."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


@contextmanager
def running_orthanc(folder: Path, *, tls: bool = True, **more: object) -> Iterator[Orthanc]:
    """An empty Orthanc on this machine, with files in `folder`. tls: of its DICOM port; HTTP always has it.

    more: keys of Orthanc's configuration. Skips the test where Orthanc or its plugin is not installed.
    """
    program = shutil.which("Orthanc", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None or not PLUGIN.exists():
        pytest.skip("no Orthanc with DICOMweb here: apt-get install orthanc orthanc-dicomweb")
    folder = folder / "orthanc"
    folder.mkdir(parents=True)
    one = Orthanc(folder, *free_ports(4), tls)
    sign(folder)
    one.password.write_text(f"{PASSWORD}\n")
    one.password.chmod(0o600)
    (folder / "orthanc.json").write_text(json.dumps(configuration(one) | more))
    try:
        one.begin()
        with tls_in_front(one.https, one.http, folder / "theirs.pem", folder / "theirs.key"):
            yield one
    finally:
        one.end(signal.SIGKILL)  # in peace it takes two seconds


def configuration(one: Orthanc) -> dict[str, object]:
    ours = {"AET": "CONSILIUM", "Host": "127.0.0.1", "Port": one.listening, "UseDicomTls": one.tls}
    folder = one.folder
    return {
        "Name": "test",
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "Plugins": [str(PLUGIN)],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        "HttpPort": one.http,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": {USER: PASSWORD},
        "SslEnabled": False,
        "DicomAet": TITLE,
        "DicomPort": one.dicom,
        "DicomCheckCalledAet": True,
        "DicomAlwaysAllowFind": True,
        "DicomAlwaysAllowGet": True,
        "DicomAlwaysAllowMove": True,
        "DicomModalities": {"consilium": ours},
        "DicomTlsEnabled": one.tls,
        "DicomTlsCertificate": str(folder / "theirs.pem"),
        "DicomTlsPrivateKey": str(folder / "theirs.key"),
        "DicomTlsTrustedCertificates": str(folder / "ca.pem"),
        "DicomTlsRemoteCertificateRequired": True,
        "OverwriteInstances": False,
        "StableAge": 1,
        "ConcurrentJobs": 1,
        "HttpThreadsCount": 8,
    }


@contextmanager
def tls_in_front(port: int, plain: int, certificate: Path, key: Path) -> Iterator[None]:
    """Listens on `port` of this machine with TLS, and hands everything on to `plain`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", plain)
        except OSError:  # it is stopped
            writer.close()
            return
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(asyncio.start_server(accepted, "127.0.0.1", port, ssl=context))
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def sign(folder: Path, *, days: float = 2) -> None:
    """An authority (ca.pem), and certificates for 127.0.0.1 of the archive (theirs) and of us (ours)."""
    root, authority = ec.generate_private_key(ec.SECP256R1()), name("authority")
    own = signed(authority, authority, root, root, days, authority=True)
    (folder / "ca.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    for who in ("theirs", "ours"):
        key = ec.generate_private_key(ec.SECP256R1())
        made = signed(name(who), authority, key, root, days).public_bytes(serialization.Encoding.PEM)
        for file, content in ((f"{who}.pem", made), (f"{who}.key", pem(key))):
            (folder / file).write_bytes(content)
            (folder / file).chmod(0o600)


def signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: float,
    *,
    authority: bool = False,
) -> x509.Certificate:
    """A certificate for 127.0.0.1 and localhost."""
    now = datetime.now(UTC)
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    made = made if authority else made.add_extension(hosts, critical=False)
    return made.sign(signer, hashes.SHA256())
