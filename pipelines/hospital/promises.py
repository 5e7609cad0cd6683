"""What a hospital's answers promised: every file that an answer wrote beside its reply, with its sha256.

`promises.json` in the hospital's folder lists them by answer. A file in a folder belongs to the answer that wrote it.
One directly in the hospital's folder, such as `linkage.json`, belongs to all of them: it must be as the last wrote it.
Replies, memories and models of rounds are not listed: they have seals of their own (`federation/conversation.py`); nor
are states of a translator's training, which nobody needs after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import digest_of
from pipelines.reviews.marks import PAGE, digest_page
from pipelines.runs.store import DiskFolder
from privacy.message import Call, Json, as_mapping

PROMISES = "promises.json"
SEALED = ("conversations", "models", "fitting")
COMMON = ""
"""Stands for the sha256 of a file that belongs to all answers; `FILES` has it."""
ANSWERS, FILES = "answers", "files"
GONE = "its list of files is gone or corrupt"


def keep_promises(hospital: Hospital, call: Call, written: Sequence[Path]) -> None:
    """Write down what an answer wrote, in place of what it wrote before.

    Raises:
        OSError: the disk.
    """
    paths = [path.relative_to(hospital.root) for path in written if path.is_relative_to(hospital.root)]
    kept_paths = [
        path for path in dict.fromkeys(paths) if path.parts[0] not in SEALED and (hospital.root / path).is_file()
    ]
    sums = {path.as_posix(): str(_digest_file(hospital, path.as_posix())) for path in kept_paths}
    common = {name: code for name, code in sums.items() if "/" not in name}
    content = _read_list(hospital) or {ANSWERS: {}, FILES: {}}
    answers, files = as_mapping(content[ANSWERS]), as_mapping(content[FILES])
    now: dict[str, Json] = {
        ANSWERS: {
            **answers,
            _answer_key(call): {name: COMMON if name in common else code for name, code in sums.items()},
        },
        FILES: {**files, **common},
    }
    if now != content:
        DiskFolder(hospital.root).write(PROMISES, json.dumps(now, indent=0, sort_keys=True).encode())


def find_broken_files(hospital: Hospital, call: Call) -> list[str] | None:
    """Files of an answer that are gone or not as they were written; None if nobody knows which files it wrote."""
    list_of_files = _read_list(hospital)
    mine = None if list_of_files is None else as_mapping(list_of_files[ANSWERS]).get(_answer_key(call))
    if list_of_files is None or not isinstance(mine, dict):
        return None
    common = as_mapping(list_of_files[FILES])
    expected_digests = {name: common.get(name) if code == COMMON else code for name, code in mine.items()}
    return [name for name, code in expected_digests.items() if _digest_file(hospital, name) != code]


def find_answer_complaint(hospital: Hospital, answers: Iterable[tuple[str, int, str]]) -> str | None:
    """What is wrong with the files of answers, each a run, a round and a request: a fixed sentence, or None."""
    for run, round_, request in answers:
        broken_files = find_broken_files(hospital, Call(run, round_, request, {}))
        if broken_files is None:
            return GONE
        if broken_files:
            return f"a file of its answer to {request} is gone or corrupt"
    return None


def _digest_file(hospital: Hospital, name: str) -> str | None:
    """SHA-256 of a file, of the page without what a person marked there; None if it is gone."""
    path = hospital.root / name
    return digest_page(path) if name == PAGE else digest_of(path)


def _answer_key(call: Call) -> str:
    return f"{call.run} {call.round} {call.request}"


def _read_list(hospital: Hospital) -> dict[str, Json] | None:
    """The list; None if it is missing or cut off."""
    folder = DiskFolder(hospital.root)
    try:
        content = json.loads(folder.read(PROMISES)) if folder.has(PROMISES) else None
    except ValueError:
        return None
    return content if isinstance(content, dict) and {ANSWERS, FILES} <= content.keys() else None
