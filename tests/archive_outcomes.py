"""What a call of an archive came to, in a word or two; and that it is among what an archive may say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from hostile_web import SERIES, STUDY
from pipelines.pacs.archive import Archive, Denied, Entry, Query, Unreachable, is_uid

ASKED = Entry(STUDY, SERIES, instances=2)


def outcome(archive: Archive, act: str, one: Path, folder: Path) -> str:
    """The number of entries or files, and the reasons, each once; `incomplete` only where there is no other."""
    try:
        if act == "find":
            found = list(archive.find(Query(modality="MR", since=date(2026, 1, 1))))
            good = [entry for entry in found if isinstance(entry, Entry)]
            assert all(is_uid(entry.study) and is_uid(entry.series) for entry in good)
            count, odd = f"{len(good)} ", [each for each in found if not isinstance(each, Entry)]
        elif act == "fetch":
            files, odd = archive.fetch(ASKED, folder)
            assert sorted(folder.rglob("*")) == list(files)
            assert all(is_uid(path.stem) and path.read_bytes()[128:132] == b"DICM" for path in files)
            count = f"{len(files)} "
        else:
            count, odd = "", archive.store([one])
    except (Unreachable, Denied) as error:
        count, odd, said = type(error).__name__, [], str(error)
        assert not folder.exists() or not list(folder.iterdir())
    else:
        said = str(odd)
    assert "SECRET" not in said.upper()
    reasons = {each.reason for each in odd}
    return count + " ".join(sorted(reasons - {"incomplete"} or reasons)) if odd else count.strip()
