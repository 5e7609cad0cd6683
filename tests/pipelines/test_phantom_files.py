"""A phantom hospital's files are looked at where they are read, and not where only their settings are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.hospital import files
from pipelines.hospital.hospital import Hospital
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.sites import SiteSettings


@pytest.mark.parametrize("form", ["dicom", "nifti"])
def test_settings_of_a_phantoms_files_are_told_without_a_look_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    source = PhantomSource(kind="phantom", scanner="P", patients=4, seed=1, slices=4, format=form)  # type: ignore[arg-type]
    own = Hospital("a", tmp_path, SiteSettings(source=source), lambda: "now")
    found = files.files_of(own)
    looks: list[object] = []

    def look(*asked: object) -> dict[str, str]:
        looks.append(asked)
        return {"digest": "another"}

    monkeypatch.setattr(files, "survey", look)
    assert files.files_of(own, checked=False) == found and not looks
    assert files.files_of(own) == found and looks, "where they are read they are looked at"
