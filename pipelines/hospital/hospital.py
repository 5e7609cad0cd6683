"""A hospital's name, settings and folder, and the layout of that folder.

In its folder: `cohorts/` (its de-identified images), `conversations/` (committed replies and memories, by run),
`models/` (models of single rounds, by run), `scores/` (its patients' scores), `fitting/` and `translators/`
(translators in training, and finished ones), `qualities/` and `maps/` (its page's figures on harmonization),
`promises.json` (what answers wrote), `ledger.jsonl`, `log.txt`, `pseudonym.key`, `report.html` with `report.json` (what
it is made of) and `review.json` (what a person marked on that page). The coordinator reads none of it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pipelines.data.cohort import Cohort, from_message, to_message
from pipelines.data.images import Target
from pipelines.data.stored import target_masks
from pipelines.data.taking import copy_rows_to_disk
from pipelines.loader.names import is_name
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.listing import list_paths
from pipelines.runs.store import UNFINISHED, DiskFolder, short_digest
from pipelines.runs.written import note_written_file
from pipelines.settings.sites import SiteSettings
from privacy.dp.access import Rows, Split
from privacy.dp.events import NON_PRIVATE, NOTHING, Declared, Event
from privacy.dp.stored_rows import select_rows
from privacy.durable import flush_folder
from privacy.message import Call, Json, Message, from_file, to_file
from privacy.release.gate import Refused
from privacy.release.policy import Policy

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
COHORT, KEY = "cohort.safetensors", "pseudonym.key"


def do_nothing() -> None:
    """The default `pause`: no stop was requested."""


Q = TypeVar("Q")
R = TypeVar("R")


class Done(NamedTuple, Generic[R]):
    """A handler's result: the reply, its privacy event (as JSON), and the memory to commit with it."""

    reply: R
    event: Json
    memory: Message = Message()


class Context(NamedTuple, Generic[Q]):
    """What a handler gets. question: parsed, of the request's form. message: as it came, for digests of what was asked.
    memory: what this hospital committed with its last reply of the run.
    """

    call: Call
    question: Q
    message: Message
    memory: Message = Message()


@dataclass(frozen=True)
class Hospital:
    """settings: None for the pooled site of a simulation, which has no files of its own. now: ISO time for the
    ledger. device: torch device. pause: called regularly in long work; raises `Stopped` if a person stopped the run.
    public: a folder for files made without patient data. simulation: one machine simulates all hospitals.
    """

    name: str
    root: Path
    settings: SiteSettings | None
    now: Callable[[], str]
    pooled: Policy = Policy()
    device: str = "cpu"
    pause: Callable[[], None] = do_nothing
    public: Path | None = None
    simulation: bool = True

    @property
    def policy(self) -> Policy:
        """Its release policy; `pooled` for the pooled site of a simulation."""
        return self.pooled if self.settings is None else self.settings.policy

    @property
    def for_all(self) -> Path:
        """The folder of networks that public pictures alone shaped."""
        return self.public or self.root / "public"

    @property
    def ledger(self) -> Path:
        """Path of the ledger of everything that left this hospital."""
        return self.vault / "ledger.jsonl"

    @property
    def vault(self) -> Path:
        """The folder of its ledger and pseudonym key: its `home` for all runs, if it has one."""
        folder = None if self.settings is None else self.settings.home
        return self.root if folder is None else Path(folder)

    @property
    def counts(self) -> Event:
        """The event of telling how many patients, studies and files there are."""
        if self.policy.declares("counts"):
            return Declared("counts")
        # Under a budget only numbers leave that were released before, with noise
        # (`pipelines/hospital/released_counts.py`).
        return NON_PRIVATE if self.policy.budget is None else NOTHING

    def conversation(self, run: str) -> DiskFolder:
        """Committed replies of a run. Raises: Refused: the run's name cannot be a path."""
        return DiskFolder(self.root.joinpath("conversations", *_path_parts(run)))

    def models(self, run: str) -> DiskFolder:
        """Models of single rounds of a run."""
        return DiskFolder(self.root.joinpath("models", *_path_parts(run)))

    def cohort_folder(self, name: str) -> Path:
        """The folder of a cohort. Raises: Refused: not a valid cohort name."""
        if not is_name(name):
            raise Refused("malformed_cohort")
        return self.root / "cohorts" / name

    def scratch(self) -> Path:
        """The folder for examples while a cohort is made or read."""
        folder = self.root / "cohorts"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def key(self) -> bytes:
        """The secret key of this hospital's pseudonyms, made on first use; it links pseudonyms to patients.

        A phantom's key is derived from the hospital's name, so that a simulation repeats on any machine.
        """
        if self.settings is not None and isinstance(self.settings.source, PhantomSource):
            return hashlib.sha256(f"phantom {self.name}".encode()).digest()
        folder = DiskFolder(self.vault)
        if not folder.has(KEY):
            if list_paths(self.root, "cohorts/*/*") or (self.root / "linkage.json").exists():
                # A new key would give every known patient a new pseudonym.
                raise Refused("lost_key") from FileNotFoundError(f"{self.vault / KEY}: restore it from its backup")
            self.vault.mkdir(parents=True, exist_ok=True)
            folder.write(KEY, secrets.token_bytes(32))
            (self.vault / KEY).chmod(0o600)
        key = folder.read(KEY)
        if len(key) != 32 or len(set(key)) < 16:  # random bytes repeat less often
            raise Refused("damaged_key")
        if (self.vault / KEY).stat().st_mode & 0o077:
            raise Refused("open_key") from PermissionError(f"{self.vault / KEY}: others may read it; chmod 600, or 400")
        return key

    def bootstrap_seed(self) -> int:
        """The seed of patient bootstraps: the same for every model, so that models are compared on the same draws.

        It is secret: with it each patient's scores could be computed from the copies.
        """
        return int.from_bytes(hashlib.sha256(b"bootstrap" + self.key()).digest()[:7], "big")


def _path_parts(run: str) -> list[str]:
    """The two parts of a run's name. Raises: Refused: `malformed_run`."""
    parts = run.split("/")
    if len(parts) != 2 or not all(is_name(part) for part in parts):
        raise Refused("malformed_run")
    return parts


def read_cohort_file(path: Path) -> Cohort:
    """Read a cohort from disk. Raises: Refused: it is gone or corrupt (`no_cohort`, `corrupt_cohort`)."""
    if not path.exists():
        raise Refused("no_cohort")
    try:
        return from_message(from_file(path))
    except (ValueError, KeyError) as error:
        raise Refused("corrupt_cohort") from error


def write_cohort_file(folder: Path, cohort: Cohort, key: bytes) -> str:
    """Write a cohort into a subfolder named by its keyed digest (see `keyed`); return the digest."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{UNFINISHED}{secrets.token_hex(8)}"
    try:
        code = keyed_digest(key, to_file(to_message(cohort), part))
        place = folder / short_digest(code)
        place.mkdir(exist_ok=True)
        part.replace(place / COHORT)
        flush_folder(place)
        flush_folder(folder)
        note_written_file(place / COHORT)
    finally:
        part.unlink(missing_ok=True)
    return code


def keyed_digest(key: bytes, sha: str) -> str:
    """HMAC-SHA256 (RFC 2104) of a digest of patients' data, 64 hexadecimal digits; only this form leaves.

    A guess of the data could be tested against the plain digest, but not against this one without the hospital's key.
    """
    return hmac.new(key, f"digest {sha}".encode(), hashlib.sha256).hexdigest()


def rows_of(
    cohort: Cohort,
    device: str = "cpu",
    target: Target | None = None,
    *,
    scratch: Path | None = None,
    splits: Sequence[Split] = SPLITS,
) -> dict[Split, Rows]:
    """The cohort's images by split, on a device, with labels, or with the target's masks. scratch: where large ones
    are read from, as in `copy_rows_to_disk`. splits: those that are read.
    """
    return {
        split: _select_rows(cohort, cohort.split == SPLITS.index(split), device, target, scratch) for split in splits
    }


def all_rows(cohort: Cohort, device: str = "cpu", target: Target | None = None, *, scratch: Path | None = None) -> Rows:
    """As `rows_of`, of all splits together."""
    return _select_rows(cohort, torch.ones(len(cohort.split), dtype=torch.bool), device, target, scratch)


def _select_rows(cohort: Cohort, chosen: Tensor, device: str, target: Target | None, scratch: Path | None) -> Rows:
    """The chosen rows of a cohort, on the device."""
    truth = cohort.labels if target is None else target_masks(cohort, target)
    index = chosen.nonzero()[:, 0]
    images = copy_rows_to_disk(cohort.images, index, scratch)
    labels = select_rows(truth, index, torch.int64)  # masks are 8 times as large in memory as in the cohort's file
    return Rows(images.to(device), labels.to(device), cohort.patient[index].to(device))
