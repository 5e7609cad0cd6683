"""Checks before a hospital joins: its kit, data, machine and policy, each with a finding."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource
from pipelines.data.survey import survey
from pipelines.hospital.files import ARCHIVE_ERRORS, files_of, in_archive, survey_files
from pipelines.hospital.hospital import Context
from pipelines.remote.client import hospital_of
from pipelines.remote.site_config import Place
from pipelines.remote.startup_kit import address_in, foreign_entries, is_strict
from pipelines.requests import REQUESTS
from pipelines.requests.survey import SURVEY, Survey
from privacy.message import Call, Message, whole_of
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged
from privacy.release.form import value_or_none
from privacy.release.gate import Refused
from privacy.release.policy import COORDINATOR, OUTSIDE, SITES, TRACKING, Policy
from privacy.secure_sum import verification_key

NEEDED_GB, SOON = 5.0, timedelta(days=30)
CONNECT_S = 10.0


class Finding(NamedTuple):
    """what was checked, whether the hospital can join with it, and what was found, with a remedy."""

    what: str
    good: bool
    text: str


def check_place(place: Place) -> list[Finding]:
    """Run all checks; they open and close one connection, and send nothing else."""
    return [
        *_check_certificates(place),
        _check_coordinator(place),
        _check_rules(place),
        *_check_policy(place),
        _check_data(place),
        _check_disk(place),
        _check_device(place),
        *_check_clock(place),
    ]


def list_releases(policy: Policy) -> Iterator[tuple[str, str]]:
    """Each request with the content of its answer under this policy, or `not answered`."""
    for request in REQUESTS.values():
        yield request.name, request.says if policy.allows(request.name) else "not answered"


def _describe_sums(policy: Policy) -> list[str]:
    """What the policy asks of secure sums, in one sentence; nothing if it asks for none."""
    sums = policy.secure_sum
    if sums is None:
        return []
    keys = "signed keys" if sums.signers else "keys that the coordinator hands on"
    return [f"parameters leave only in sums over {sums.hospitals} hospitals or more, hidden by {keys}"]


def list_promises(policy: Policy) -> list[str]:
    """The other rules of the policy, in sentences."""
    budget, caps = policy.budget, policy.caps
    recipient_words = {
        COORDINATOR: "the coordinator",
        SITES: "every hospital",
        OUTSIDE: "external sites",
        TRACKING: "tracking servers",
    }
    return [
        f"answers go to: {', '.join(recipient_words[recipient] for recipient in policy.recipients)}",
        f"methods: {'any' if policy.algorithms is None else ', '.join(policy.algorithms)}",
        f"packages whose code may run: {', '.join(policy.plugins) or 'none but this one'}",
        f"one answer is at most {policy.max_bytes / 1e6:,.0f} MB",
        *_describe_sums(policy),
        *(["requires privacy: nothing that patients shaped leaves without a finite epsilon"] if policy.require else []),
        "budget of a patient: none; what is released without noise promises nothing"
        if budget is None
        else f"budget of a patient: epsilon {budget.epsilon:g}, delta {budget.delta:g}, over the life of the ledger; "
        f"of it at most {caps['release'].epsilon:g} by one reply, and {caps['run'].epsilon:g} by runs of one name",
    ]


def _check_certificates(place: Place) -> Iterator[Finding]:
    startup = Path(place.kit) / "startup"
    try:
        certificate = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
        root = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        certificate.verify_directly_issued_by(root)
    except (OSError, ValueError, TypeError, InvalidSignature) as error:
        text = f"{startup}: {type(error).__name__}: {error}; ask the coordinator for a new kit"
        yield Finding("certificate", False, text)
        return
    name = ", ".join(
        str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    )
    now, end = datetime.now(UTC), min(certificate.not_valid_after_utc, root.not_valid_after_utc)
    if name != place.name:
        text = f"is for {name!r}, and name: says {place.name!r}; use the hospital's own kit"
        yield Finding("certificate", False, text)
    elif now < certificate.not_valid_before_utc:
        text = f"begins {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; is the clock right?"
        yield Finding("certificate", False, text)
    elif now > end:
        yield Finding("certificate", False, f"ended {end:%Y-%m-%d}; ask the coordinator for a new kit")
    else:
        soon = "; ask for a new kit soon" if end - now < SOON else ""
        yield Finding("certificate", True, f"of {name}, until {end:%Y-%m-%d}{soon}")
    mode = (startup / "client.key").stat().st_mode if (startup / "client.key").exists() else 0o777
    if mode & 0o077:
        text = f"{startup / 'client.key'}: others may read it, or it is not there; chmod 600"
        yield Finding("private key", False, text)


def _check_coordinator(place: Place) -> Finding:
    """Open a connection as FLARE will: with the kit's certificate, trusting the kit's root only."""
    try:
        startup = Path(place.kit) / "startup"
        host, port = address_in(Path(place.kit))
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, port), timeout=CONNECT_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as secured,
        ):
            secured.settimeout(2.0)
            with suppress(TimeoutError):  # a server that refuses our certificate closes the connection only now
                secured.recv(1)
            return Finding("coordinator", True, f"{host}:{port} answers, {secured.version()}, mutual certificates")
    except (OSError, ValueError, KeyError) as error:
        text = f"no connection to the kit's address: {type(error).__name__}: {error}; one outbound TCP port is needed"
        return Finding("coordinator", False, text)


def _check_rules(place: Place) -> Finding:
    try:
        odd = foreign_entries(Path(place.kit))
    except ValueError as error:
        return Finding("kit", False, str(error))
    if odd:
        return Finding("kit", False, f"holds what no kit needs: {', '.join(odd)}; ask why, and remove it")
    if is_strict(Path(place.kit)):
        return Finding("kit", True, "strict: no code from elsewhere, no logs leave")
    return Finding("kit", True, "will be made strict when the hospital joins: no code from elsewhere, no logs leave")


def _check_policy(place: Place) -> Iterator[Finding]:
    """Whether the policy answers a run's first question, the survey: these checks themselves pass no policy."""
    hospital = hospital_of(place)
    if not hospital.policy.allows(SURVEY.name):
        what = "policy.requests lacks it"
        yield Finding("policy", False, f"would refuse every run's first question, survey (policy_request): {what}")
    if hospital.policy.secure_sum is not None:
        text = f"other hospitals verify this one's keys by {verification_key(hospital.key())}"
        yield Finding("secure sums", True, f"{text} (policy.secure_sum.signers.{hospital.name})")


def _check_data(place: Place) -> Finding:
    try:
        hospital = hospital_of(place)
        if isinstance(place.site.source, DicomWebSource | DicomNodeSource):
            text = f"{in_archive(place.site.source)} series match in the archive; they are copied when a run begins"
            return Finding("data", True, text)
        done = survey_files(hospital, Context(Call("preflight/survey", 0, SURVEY.name, {}), Survey(), Message()))
    except (Refused, OSError, ValueError, *ARCHIVE_ERRORS) as error:
        return Finding("data", False, f"{error}{f': {error.__cause__}' if error.__cause__ else ''}")
    files, size = value_or_none(done.reply.files), value_or_none(done.reply.bytes)
    if files is None or size is None:  # with a budget the hospital tells neither
        file_survey = survey(*files_of(hospital))
        files, size = whole_of(file_survey, "files"), whole_of(file_survey, "bytes")
    return Finding("data", True, f"{files:,} files, {size / 1e6:,.1f} MB")


def _check_disk(place: Place) -> Finding:
    root = Path(place.root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / ".probe"
        probe.write_bytes(os.urandom(16))
        probe.unlink()
        free = shutil.disk_usage(root).free / 1e9
    except OSError as error:
        return Finding("disk", False, f"{root}: {error}; it must be the hospital's own folder, and writable")
    good = free >= NEEDED_GB
    return Finding("disk", good, f"{free:,.0f} GB free in {root}" + ("" if good else f"; {NEEDED_GB:g} GB are needed"))


def _check_device(place: Place) -> Finding:
    has_cuda = torch.cuda.is_available()
    if place.device == "cuda" and not has_cuda:
        return Finding("device", False, "device: cuda, and torch finds no GPU; say auto, or mend the driver")
    name = torch.cuda.get_device_name() if has_cuda and place.device != "cpu" else f"CPU, {os.cpu_count()} processors"
    return Finding("device", True, name)


def _check_clock(place: Place) -> Iterator[Finding]:
    """Findings on ledger and clock: the clock must not be before the ledger's last line."""
    ledger = hospital_of(place).ledger
    try:
        if ledger.exists() and (broken := ledgers.verify_ledger(ledger)):
            yield Finding("ledger", False, f"{ledger}: {broken[0]}; look at docs/how-to/operations.md")
            return
        last = (
            max((str(line.get("time", "")) for line in ledgers.read_lines(ledger)), default="")
            if ledger.exists()
            else ""
        )
    except (OSError, Damaged) as error:
        yield Finding("ledger", False, f"{ledger}: {error}")
        return
    now = datetime.now(UTC)
    if last and datetime.fromisoformat(last) > now + timedelta(minutes=5):
        yield Finding("clock", False, f"says {now:%Y-%m-%d %H:%M} UTC, and the ledger's last line is of {last}; set it")
    else:
        since = f", after the ledger's last line ({last})" if last else ""
        yield Finding("clock", True, f"{now:%Y-%m-%d %H:%M} UTC{since}")
