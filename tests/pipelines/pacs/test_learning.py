"""A cohort from an archive is the cohort from a folder with the same files, bit for bit; the copy is a cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydicom
import pytest
import torch
import yaml
from asking import asked

import pipelines.data.archive_cache as cache
from orthanc import Orthanc, running_orthanc
from pipelines.data.archive_sources import Asked, DicomNodeSource, DicomWebSource
from pipelines.data.cohort import Reading, read_cohort
from pipelines.data.images import Slices
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels
from pipelines.hospital.files import files_of, survey_files
from pipelines.hospital.hospital import Hospital
from pipelines.loader.validation import to_plain
from pipelines.pacs.archive import Entry
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.writing import to_facts
from pipelines.run import main
from pipelines.settings.sites import SiteSettings
from privacy.message import Call
from privacy.release.gate import Refused
from privacy.settings_error import SettingsError

TINY = Path(__file__).parents[2] / "golden" / "tiny" / "tiny.yaml"
ADC = {"ImageType": "ADC"}
WAYS = {"web": DicomWebSource, "node": DicomNodeSource}


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom") / "hospital"
    write(PhantomSource(scanner="P", patients=5, slices=4), folder)
    return folder


@pytest.fixture(scope="module")
def orthanc(phantom: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    with running_orthanc(tmp_path_factory.mktemp("pacs")) as one:
        one.load([path for path in (phantom / "images").rglob("*") if path.is_file()])
        yield one


def source(one: Orthanc, way: str = "web", **changed: Any) -> DicomWebSource | DicomNodeSource:
    reached = {name: value for name, value in vars(getattr(one, way)).items() if name != "kind"}
    return WAYS[way](**{**reached, "query": Asked(modality="MR"), "select": ADC, **changed})


def hospital(folder: Path, phantom: Path, own: Any) -> Hospital:
    labels, gland = MaskLabels(folder=str(phantom / "masks/lesion")), GlandMask(folder=str(phantom / "masks/gland"))
    settings = SiteSettings(source=own, labels=labels, gland=gland)
    return Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")


def survey(own: Hospital) -> Mapping[str, Any]:
    return to_facts(survey_files(own, asked(Call("r", 0, "survey", {}))).reply)


def cohort(own: Hospital) -> Reading:
    files = files_of(own)
    how: dict[str, Any] = {"fractions": {"train": 0.5, "validation": 0.25, "test": 0.25}, "seed": 0}
    return read_cohort(files.source, files.labels, Slices(size=16), gland=files.gland, key=bytes(range(32)), **how)


def same(one: Reading, other: Reading) -> None:
    for name in ("images", "labels", "patient", "position", "lesion", "gland", "split"):
        assert torch.equal(getattr(one.cohort, name), getattr(other.cohort, name)), name
    assert one.cohort.patients == other.cohort.patients
    assert one.facts == other.facts


@pytest.mark.parametrize("way", WAYS)
def test_a_cohort_from_an_archive_is_that_from_a_folder(orthanc, phantom, tmp_path, way):
    folder = hospital(tmp_path / "f", phantom, DicomSource(folder=str(phantom / "images"), select=ADC))
    own = hospital(tmp_path / "a", phantom, source(orthanc, way))
    assert survey(own)["files"] == survey(folder)["files"]
    same(cohort(own), cohort(folder))


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The series that are fetched."""
    found: list[str] = []
    real: Callable[..., Any] = cache.open_archive

    class Watched:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def fetch(self, entry: Entry, folder: Path) -> Any:
            found.append(entry.series)
            return self.inner.fetch(entry, folder)

    from contextlib import contextmanager

    @contextmanager
    def watched(settings: Any) -> Iterator[Any]:
        with real(settings) as archive:
            yield Watched(archive)

    monkeypatch.setattr(cache, "open_archive", watched)
    return found


def test_only_what_is_new_or_changed_is_fetched(phantom, tmp_path, fetched):
    files = sorted(path for path in (phantom / "images").rglob("*") if path.is_file())
    series = [str(pydicom.dcmread(path, stop_before_pixels=True).SeriesInstanceUID) for path in files]
    first, last = series[0], series[-1]
    with running_orthanc(tmp_path / "pacs") as one:
        one.load([path for path, of in zip(files, series, strict=True) if of != last][1:])  # the first lacks an image
        own = hospital(tmp_path / "a", phantom, source(one))
        before = survey(own)
        assert sorted(fetched) == sorted(set(series) - {last})
        fetched.clear()
        assert survey(own)["digest"] == before["digest"]
        assert fetched == []
        one.load([files[0]])  # the series grew
        one.load([path for path, of in zip(files, series, strict=True) if of == last])
        whole = survey(own)
        assert sorted(fetched) == sorted({first, last})
        assert whole["digest"] != before["digest"]
        shutil.rmtree(own.vault / "archive")
        assert survey(own)["digest"] == whole["digest"], "a series that is copied again is the same"
        gone = one.ask("POST", "/tools/lookup", last.encode())[0]["ID"]
        one.ask("DELETE", f"/series/{gone}")
        assert survey(own)["files"] == whole["files"] - series.count(last)
        one.end()
        with pytest.raises(Refused, match="no_archive"):
            survey(own)
        assert cohort(own).cohort.images.shape[0] > 0, "what is copied can be read without the archive"


def test_the_query_is_part_of_the_digest_and_how_it_is_reached_is_not(orthanc, phantom, tmp_path):
    web = source(orthanc)
    digests = [
        survey(hospital(tmp_path / "a", phantom, one))["digest"]
        for one in (
            web,
            replace(web, limits=replace(web.limits, retries=7), page=3),
            replace(web, query=Asked(modality="MR", since="1990-01-01")),
            replace(web, unit="1e-6 mm2/s"),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_cache_has_a_limit_and_other_queries_make_room(orthanc, phantom, tmp_path):
    web = source(orthanc)
    own = hospital(tmp_path / "a", phantom, web)
    survey(own)
    size = sum(path.stat().st_size for path in (own.vault / "archive").rglob("*.dcm"))
    narrow = replace(web, cache_gib=max(0.001, 1.5 * size / 2**30), query=Asked(modality="MR", since="1990-01-01"))
    survey(hospital(tmp_path / "a", phantom, narrow))
    kept = [path for path in (own.vault / "archive").iterdir() if path.is_dir()]
    assert len(kept) == (1 if 1.5 * size > 0.001 * 2**30 else 2)
    with pytest.raises(SettingsError, match="cache_gib"):
        replace(web, cache_gib=0)


def test_what_does_not_fit_is_refused(orthanc, phantom, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "GIB", 1)
    with pytest.raises(Refused, match="bad_archive"):
        survey(hospital(tmp_path / "a", phantom, source(orthanc, cache_gib=1000.0)))


def test_a_series_that_does_not_come_whole_is_left_out_and_told(orthanc, phantom, tmp_path, monkeypatch):
    own = hospital(tmp_path / "a", phantom, source(orthanc))
    lying = cache.find_matching_series

    def more(archive: Any, asked: Any) -> Any:
        entries, odd = lying(archive, asked)
        first = min(entries)
        return {**entries, first: entries[first]._replace(instances=99)}, odd

    monkeypatch.setattr(cache, "find_matching_series", more)
    own = replace(own, settings=replace(own.settings, max_rejected=0.5))
    survey(own)
    (told,) = (own.vault / "archive").glob("*/odd.json")
    assert [one[1] for one in json.loads(told.read_text())] == ["incomplete"]
    with pytest.raises(Refused, match="bad_archive"):
        survey(replace(own, settings=replace(own.settings, max_rejected=0.0)))


def test_too_many_answers_make_no_cohort(orthanc, phantom, tmp_path):
    web = source(orthanc)
    with pytest.raises(Refused, match="bad_archive"):
        survey(hospital(tmp_path / "a", phantom, replace(web, limits=replace(web.limits, most=2))))


def test_settings_are_checked():
    with pytest.raises(SettingsError, match="since"):
        Asked(since="yesterday")
    with pytest.raises(SettingsError, match="ImageTipe"):
        DicomWebSource(url="https://a", select={"ImageTipe": "ADC"})
    with pytest.raises(SettingsError, match="labels"):
        SiteSettings(source=DicomNodeSource(host="a", called="B"))


def test_a_check_asks_the_archive_and_copies_nothing(orthanc, phantom, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    web = {key: value for key, value in to_plain(source(orthanc)).items() if value is not None}
    web["password"] = {"file": str(orthanc.password)}
    masks = {"kind": "mask", "folder": str(phantom / "masks/lesion")}
    site = {"source": web, "labels": masks, "gland": {"folder": str(phantom / "masks/gland")}}
    text = yaml.safe_load(TINY.read_text())
    text["sites"] = {"a": {**text["sites"]["a"], **site}, "b": text["sites"]["b"]}
    Path("run.yaml").write_text(yaml.safe_dump(text))
    assert main(["run.yaml", "--check"]) == 0
    said = "".join(capsys.readouterr())
    assert "5 series in its archive" in said
    assert not list(tmp_path.rglob("*.dcm"))
    orthanc.password.chmod(0o644)
    try:
        assert main(["run.yaml", "--check"]) == 3
    finally:
        orthanc.password.chmod(0o600)
    assert "chmod 600" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_run_learns_from_an_archive_and_says_when_it_is_away(phantom, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with running_orthanc(tmp_path / "pacs") as one:
        one.load([path for path in (phantom / "images").rglob("*") if path.is_file()])
        web = {key: value for key, value in to_plain(source(one)).items() if value is not None}
        web |= {"password": {"file": str(one.password)}, "limits": {"retries": 0}}
        masks = {"kind": "mask", "folder": str(phantom / "masks/lesion")}
        site = {"source": web, "labels": masks, "gland": {"folder": str(phantom / "masks/gland")}}
        text = yaml.safe_load(TINY.read_text())
        text["sites"] = {"a": {**text["sites"]["a"], **site}, "b": text["sites"]["b"]}
        text["train"]["methods"] = {name: text["train"]["methods"][name] for name in ("local", "fedavg")}
        del text["train"]["method_work"]
        Path("run.yaml").write_text(yaml.safe_dump(text))
        assert main(["run.yaml"]) == 0
        assert main(["run.yaml"]) == 0
        one.end()
        capsys.readouterr()
        assert main(["run.yaml"]) == 4
    assert "no_archive" in "".join(capsys.readouterr())
