"""A full disk ends every command with code 7, whoever met it first: our own writes, or a library's in another language.

The limit is the operating system's: no file may grow beyond n bytes. It is tried at the sizes of the files that the
same run writes without a limit, so each kind of file is the first that does not fit once.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
import torch
import yaml
from limited import in_copy, in_files_of
from small_run import PRIVATE, SMALL

from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.runs import replies
from pipelines.runs.exits import Exit, exit_code, report_uncaught_error
from pipelines.runs.replies import store_replies
from pipelines.runs.store import remove_unfinished
from privacy.message import Call, Message, to_file
from privacy.release.gate import Refused
from privacy.system_errors import classify_failure, of_machine

SETTINGS: dict[str, dict[str, Any]] = {"plain": SMALL, "private": PRIVATE, "harmonized": harmonized_run.settings()}


def sizes(folder: Path, most: int) -> list[int]:
    """Sizes of the files of a run, spread over all of them."""
    found = sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()} - {0})
    return found[-2 :: -max(1, len(found) // most)]


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_full_disk_is_named_as_one_whoever_meets_it(kind, finished_run, tmp_path, monkeypatch, thorough):
    made = finished_run(SETTINGS[kind]) / "runs"
    for size in sizes(made, 1000 if thorough else 1 if kind == "harmonized" else 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "tiny.yaml").write_text(yaml.safe_dump(SETTINGS[kind]))
        code, said = in_files_of(size - 1, ["tiny.yaml"])
        met = code != Exit.OK or any(path.stat().st_size >= size for path in folder.rglob("*") if path.is_file())
        assert code == Exit.DISK or not met, f"with files of {size - 1} bytes at most: {said}"


def test_an_error_of_the_system_in_a_librarys_words_is_one_of_the_system(tmp_path):
    with pytest.raises(OSError, match="No such file") as met:
        to_file(Message({"a": torch.zeros(3)}), tmp_path / "none" / "a")
    assert met.value.errno == errno.ENOENT
    assert classify_failure(RuntimeError("its own words")) == "failed"
    for code, error in ((Exit.DISK, OSError(28, "full")), (Exit.MEMORY, MemoryError())):
        outer = RuntimeError("its own words")
        outer.__cause__ = error
        assert (classify_failure(outer), exit_code(outer)) == (code.name.lower(), code)
    with pytest.raises(RuntimeError) as full:
        torch.empty(2**60)
    assert exit_code(full.value) is Exit.MEMORY


@pytest.mark.parametrize(
    "words",
    [
        "unable to mmap 50864 bytes from file <cohort.safetensors>: Cannot allocate memory (12)",
        "std::bad_alloc",
        "can't start new thread",
        "could not create a primitive",
    ],
)
def test_too_little_memory_is_told_from_a_full_disk_and_from_a_bug_in_every_librarys_words(words):
    short = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    for error in (RuntimeError(words), short):
        assert (classify_failure(error), exit_code(error), of_machine(error)) == ("memory", Exit.MEMORY, True)
    assert report_uncaught_error(short) == Exit.MEMORY
    assert classify_failure(ValueError(f"a header says {words}")) == "failed", (
        "a file's own words are not the machine's"
    )
    assert classify_failure(RuntimeError("could not create a primitive descriptor for a convolution")) == "failed"


def test_what_a_library_had_begun_to_write_when_the_process_was_killed_is_removed_at_the_next_start(tmp_path):
    def dies() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        to_file(Message({"a": torch.zeros(1000)}), tmp_path / "a")
        return 0

    assert in_copy(dies).code == -signal.SIGXFSZ
    assert len(list(tmp_path.iterdir())) == 1
    remove_unfinished(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failure_has_a_line_in_a_log_wherever_it_comes_from(tmp_path, caplog):
    """Also where the reply cannot wait for the others, and where the log itself cannot be written."""
    (tmp_path / "file").write_text("in the way")
    lines: list[str] = []
    reply = Message({"a": torch.zeros(replies.SMALL)})
    with pytest.raises(Refused, match="disk"):
        store_replies(lambda call, message: reply, tmp_path / "file", lines.append)(
            Call("r", 1, "train", {}), Message()
        )
    assert "r round 1 train" in lines[0]
    hospital = Hospital("a", tmp_path / "file", None, str)
    with pytest.raises(Refused, match="disk"):
        make_worker(hospital)(Call("tiny/r", 0, "holds", {}), Message({}, {"runs": {"tiny/a": "begun"}}))
    assert "tiny/r round 0 holds" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a disk that is always full is Linux's")
@pytest.mark.repeats(3)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("line", [["run", "none.yaml"], ["clean", "--json", "."], ["plugins"]], ids=" ".join)
def test_words_that_cannot_be_written_end_with_a_code_of_ours(tmp_path, stream, line):
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        done = subprocess.run(
            [sys.executable, "-m", "pipelines", *line], cwd=tmp_path, text=True, check=False, **streams
        )
    assert done.returncode in {each.value for each in Exit}
    assert "Traceback" not in f"{done.stdout}{done.stderr}"
