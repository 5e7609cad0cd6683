"""A hospital that lost only the list of an answer's files, or has none yet, pays for nothing anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation.conversation import answer_once
from pipelines.hospital.hospital import COHORT, Hospital, keyed_digest
from pipelines.hospital.intake import forget_damaged
from pipelines.hospital.kept import REJECTED, SPLIT, digest_of
from pipelines.hospital.promises import PROMISES, find_broken_files, keep_promises
from privacy.message import Call, Message

FILES = (COHORT, REJECTED, SPLIT)


@pytest.mark.parametrize("request_", ["augment", "extract"])
@pytest.mark.parametrize("damaged", ["", "list", *FILES])
def test_an_augmentation_is_made_again_only_if_a_file_of_its_own_is_gone(
    tmp_path: Path, request_: str, damaged: str
) -> None:
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00Z")
    call, folder = Call("run/x", 0, request_, {}), hospital.cohort_folder("c" * 12)
    key = hospital.key()  # before there are cohorts, with which a lost key is refused
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("{}")
    code = keyed_digest(key, str(digest_of(folder / COHORT)))
    reply = Message({}, {"cohort": "c" * 12, "sha256": code})
    answer_once(hospital.conversation(call.run), call, "a", lambda before: (reply, Message()))
    keep_promises(hospital, call, [folder / name for name in FILES])
    if damaged:
        (tmp_path / PROMISES if damaged == "list" else folder / damaged).unlink()
    forget_damaged(hospital, call)
    stays = damaged == "" or (damaged == "list" and request_ == "augment")
    assert hospital.conversation(call.run).has(f"{request_}-0") is stays
    if stays:
        assert find_broken_files(hospital, call) == []
