"""What the hooks of `federation/flare_hooks.py` let in, as laws: the slow tests try them in a real federation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

from federation.flare_hooks import APPLICATION, CONFIG, SERVER, SIGNATURES, OnlyOurs, reject_foreign


class Letter:
    """What FLARE hands to the hook, as far as that looks at it."""

    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def get_header(self, key: str) -> str | None:
        assert key == MessageHeaderKey.ORIGIN
        return self.origin


names = st.text("abn._-", min_size=1, max_size=8)


@given(names, names, st.sampled_from(["", ".1a2b", ".job.more"]))
def test_only_the_server_and_the_hospitals_own_processes_are_heard(own, other, rest):
    """A name is its first part, whole: neither one that begins like it, nor one that it begins like."""
    here = f"{own}.job"
    for origin in (f"{SERVER}{rest}", f"{own.split('.')[0]}{rest}"):
        assert reject_foreign(Letter(origin), here) is None
    ours = {SERVER, own.split(".")[0]}
    likely = (f"{other}{rest}", f"{SERVER}{other}{rest}", f"{own}{other}{rest}", f"{SERVER}2", own[:-1], "", None)
    for said in likely:
        if (said or "").split(".")[0] not in ours:
            answer = reject_foreign(Letter(said), here)
            assert answer is not None and answer.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.UNAUTHENTICATED


def application(folder: Path, said: object = APPLICATION, *more: str) -> str:
    """What the hook says of an application with these files; empty = it is taken."""
    for name in (CONFIG, *more):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / CONFIG).write_text(said if isinstance(said, str) else json.dumps(said))
    error, facts = OnlyOurs().validate(str(folder))
    assert facts == {}
    return error


@pytest.mark.parametrize("more", [(), SIGNATURES, (f"config/{SIGNATURES[0]}",)])
def test_our_application_is_taken_signed_or_not(tmp_path, more):
    assert application(tmp_path, APPLICATION, *more) == ""


OTHERS = {
    "another executor": {**APPLICATION, "executors": [{"tasks": ["*"], "executor": {"path": "os.system", "args": {}}}]},
    "one component more": {**APPLICATION, "components": [*APPLICATION["components"], {"id": "x", "path": "y"}]},
    "arguments": {**APPLICATION, "components": [{**APPLICATION["components"][0], "args": {"a": 1}}]},
    "one key more": {**APPLICATION, "task_data_filters": []},
    "no JSON": "{",
    "nothing": {},
}


@pytest.mark.parametrize("said", OTHERS.values(), ids=OTHERS)
def test_an_application_that_says_anything_else_is_refused(tmp_path, said):
    assert "this hospital takes one application" in application(tmp_path, said)


@pytest.mark.parametrize("more", ["custom/ours.py", "config/config_fed_server.json", "meta.json", "config/a.py"])
def test_an_application_that_brings_anything_along_is_refused(tmp_path, more):
    assert application(tmp_path, APPLICATION, more)


def test_no_application_is_none_of_ours(tmp_path):
    assert OnlyOurs().validate(str(tmp_path))[0]
