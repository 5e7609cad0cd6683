"""A package installed beside ours: settings, runs, policies, statements and pages know it, and only by permission."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import installed_example
import small_site
from federation.fedprox import FedProx
from federation.installed import Offer
from harmonize.reinhard import Reinhard
from pipelines import plugins
from pipelines.loader.validation import to_plain
from pipelines.remote.site_config import Place
from pipelines.run import main
from pipelines_settings import BASE
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Policy

METHOD = {"name": "trimmed_mean", "share": 0.2}
NETWORK = {"name": "plain_cnn", "width": 4}


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.chdir(tmp_path)
    yield installed_example.installed_in(place)
    installed_example.removed()


def written(policy: dict[str, Any], **changes: Any) -> str:
    """A YAML whose sites have this policy."""
    sites = {name: {**site, "policy": {**site["policy"], **policy}} for name, site in BASE["sites"].items()}
    train = {**BASE["train"], "schedule": {"rounds": 1}, "methods": {"avg": {"name": "fedavg"}, "ours": METHOD}}
    said = {**BASE, "sites": sites, "train": train, "evaluate": {"copies": 0}, **changes}
    Path("own.yaml").write_text(yaml.safe_dump(said))
    return "own.yaml"


def permitted(offer: Offer) -> dict[str, Any]:
    return {"plugins": {offer.distribution: offer.digest}}


def imported() -> bool:
    return any(name.startswith("consilium_example.") for name in sys.modules)


def test_a_run_that_a_policy_does_not_permit_is_refused_with_the_line_to_add(offer: Offer, capsys: Any) -> None:
    assert main([written({}), "--check"]) == 2
    said = capsys.readouterr()
    for site in "ab":
        assert f"sites.{site}.policy: consilium-example 0.1.0 (trimmed_mean) is not permitted" in said.out + said.err
    assert f"plugins: {{consilium-example: {offer.digest}}}" in said.out + said.err
    assert main([written({"plugins": {"consilium-example": "0" * 64}}), "--check"]) == 2
    assert "and has 000000000000..." in "".join(capsys.readouterr())


def test_runs_that_do_not_name_it_never_import_it(offer: Offer) -> None:
    train = {**BASE["train"], "methods": {"prox": {"name": "fedprox"}}}
    assert main([written({}, train=train), "--check"]) == 0
    assert not imported()


def test_a_permitted_run_goes_the_whole_way_and_says_whose_code_took_part(offer: Offer) -> None:
    digest, settings = offer.digest, {"model": NETWORK, "evaluate": {"copies": 20, "reference": "avg"}}
    name = written(permitted(offer), **settings)
    assert main([name, "--check"]) == 0
    assert main([name]) == 0
    page = Path("runs/tiny/report.html").read_text()
    for said in ("Code of other packages", "method trimmed_mean", "network plain_cnn", "consilium-example 0.1.0"):
        assert said in page
    assert digest in page
    statement = "".join(path.read_text() for path in Path("runs/tiny/report").glob("*/statement.md"))
    assert f"method trimmed_mean: consilium-example 0.1.0 (SHA-256 {digest})" in statement
    ready = Path("runs/tiny/sites/a/ready/ours.safetensors")
    from pipelines.models.file import read_ready

    assert read_ready(ready).task.model.width == 4  # type: ignore[attr-defined]
    again = json.loads(_explained(name))
    assert {step["state"] for step in again} == {"keep"}
    source = Path("site-packages/consilium_example/trimmed_mean.py")
    source.write_text(source.read_text() + "# another\n")
    installed_example.installed.forget_packages()
    from federation.installed import list_offers

    changed = list_offers("algorithms")[0]
    assert changed.digest != digest
    with pytest.raises(ValueError, match="not permitted here"):
        read_ready(ready)
    assert main([name, "--check"]) == 2  # the policy permits the other one
    states = {
        step["stage"]: step["state"] for step in json.loads(_explained(written(permitted(changed), model=NETWORK)))
    }
    assert (states["ingest"], states["train"]) == ("keep", "run")


def _explained(name: str) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([name, "--explain", "--json"]) == 0
    return out.getvalue()


OPENING = {
    "label": "x",
    "algorithm": to_plain(FedProx()),
    "model": {"name": "cnn", "widths": [8, 8], "norm": "group"},
    "inputs": [1, small_site.SIDE, small_site.SIDE],
    "classes": 2,
    "work": {},
    "seed": 0,
    "privacy": None,
}
SPACE = {
    "space": "middle",
    "translator": {"name": "middle"},
    "veto": {},
    "is_target": False,
    "scanner": None,
    "scale": small_site.SCALE,
    "seed": 0,
    "copies": 1,
    "private": False,
}


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        ("introduce", {**OPENING, "algorithm": METHOD}),
        ("introduce", {**OPENING, "model": NETWORK}),
        ("introduce", {**OPENING, "algorithm": {"name": "fenda", "local": NETWORK}}),
        ("translate", SPACE),
    ],
)
def test_a_hospital_runs_nothing_of_a_package_that_its_policy_does_not_permit(
    offer: Offer, tmp_path: Path, request_: str, facts: dict[str, Any]
) -> None:
    import torch

    own, cohort = small_site.hospital(tmp_path / "a", Policy(public=("counts",), plugins={NAME: "0" * 64}))
    tensors = {"images": torch.zeros(8, 1, 16, 16), "labels": torch.arange(8) % 2} if request_ == "translate" else {}
    with pytest.raises(Refused) as refused:
        small_site.ask(own, request_, tensors=tensors, cohort=cohort, **facts)
    assert refused.value.code == "policy_plugin" and not imported()
    (line,) = ledgers.read_lines(own.ledger)
    assert line["refused"] == "policy_plugin"
    assert f"plugins: {{{NAME}: {offer.digest}}} permits it" in (own.root / "log.txt").read_text()
    trusting, cohort = small_site.hospital(tmp_path / "b", Policy(public=("counts",), **permitted(offer)))
    small_site.ask(trusting, request_, tensors=tensors, cohort=cohort, **facts)
    assert imported()


NAME = installed_example.NAME


def test_a_refusal_tells_nothing_of_patients() -> None:
    from privacy.release.refusals import may_tell

    assert not may_tell("policy_plugin")


def test_the_command_lists_packages_and_who_permits_them(offer: Offer, capsys: Any) -> None:
    Path("policy.yaml").write_text(yaml.safe_dump(permitted(offer)))
    assert plugins.main([]) == 0
    said = capsys.readouterr().out
    assert f"{NAME}: {offer.digest}" in said and "plain_cnn" in said and "middle" in said
    assert plugins.main(["policy.yaml", written(permitted(offer)), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["group"], row["name"]) for row in rows} >= {
        ("algorithms", "trimmed_mean"),
        ("models", "plain_cnn"),
        ("translators", "middle"),
        ("readers", "bundle"),
    }
    assert all(row["permitted"] == ["policy.yaml", "a", "b"] and row["digest"] == offer.digest for row in rows)
    assert not imported(), "a list needs no code"
    assert plugins.main(["nowhere.yaml"]) == 2


def test_a_package_that_changed_since_is_permitted_by_nobody_in_the_list(offer: Offer, capsys: Any) -> None:
    stale = ("0" if offer.digest[0] != "0" else "1") + offer.digest[1:]
    Path("stale.yaml").write_text(yaml.safe_dump({"plugins": {offer.distribution: stale}}))
    Path("none.yaml").write_text(yaml.safe_dump({"plugins": {"another": offer.digest}}))
    assert plugins.main(["stale.yaml", "none.yaml", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["package"] == offer.distribution]
    assert rows and all(row["permitted"] == [] for row in rows)


def test_a_policy_names_packages_as_they_are_and_digests_whole() -> None:
    with pytest.raises(ValueError, match=r"plugins\.Some_Name.*lower case.*plugins\.good must be a digest of 64"):
        Policy(plugins={"Some_Name": "0" * 64, "good": "123"})


def test_a_hospitals_survey_says_what_it_permits(offer: Offer, tmp_path: Path) -> None:
    from pipelines.coordinator.permissions import find_refused_requests, permissions_from
    from pipelines.requests.survey import Surveyed
    from pipelines.settings.load import load_config
    from privacy.release.form import read_form

    own, _ = small_site.hospital(tmp_path / "a", Policy(**permitted(offer)))
    said = permissions_from(read_form(Surveyed, small_site.ask(own, "survey")))
    config = load_config(written(permitted(offer)))
    assert find_refused_requests(config, {"a": said}) == []
    (told,) = find_refused_requests(config, {"a": said._replace(plugins={})})
    assert told.startswith("a: consilium-example 0.1.0 (trimmed_mean) is not permitted")


def test_settings_without_packages_have_the_digests_they_had() -> None:
    from federation.origins import code_identity

    assert code_identity(FedProx(), Reinhard()) == {} and Place.__name__


def test_a_reader_of_a_package_writes_what_is_read_and_needs_the_policy(offer: Offer, tmp_path: Path) -> None:
    import numpy as np

    from pipelines.hospital.files import files_of
    from pipelines.hospital.hospital import Hospital

    for name in "ab":
        arrays = {"images": np.zeros((6, 8, 8), np.uint8), "labels": np.arange(6) % 2, "patients": np.arange(6) // 2}
        np.savez(f"{name}.npz", **arrays)
    sites = {name: {"source": {"kind": "bundle", "file": f"{name}.npz"}, "policy": permitted(offer)} for name in "ab"}
    train = {**BASE["train"], "methods": {"avg": {"name": "fedavg"}}}
    images = {"kind": "pictures", "size": 32}
    name = written({}, sites=sites, train=train, images=images, pooling="refused")
    from pipelines.settings.load import load_config

    settings = load_config(name).sites["a"]
    own = Hospital("a", tmp_path / "hospital", settings, lambda: "2026-01-01T00:00:00Z")
    small_site.ask(own, "survey")
    found = files_of(own).source
    assert found.kind == "picture" and len(list(Path(found.folder).glob("*.png"))) == 6
    assert main([name, "--check"]) == 0
    unpermitted = {site: {**one, "policy": {}} for site, one in sites.items()}
    assert main([written({}, sites=unpermitted, train=train, images=images, pooling="refused"), "--check"]) == 2
    Path("a.npz").unlink()
    with pytest.raises(Refused, match="bad_source"):
        small_site.ask(own, "survey", run="r/again")


def test_features_are_asked_for_anew_when_their_package_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hospital answers one question once, so the question must tell which code answers it."""
    from types import SimpleNamespace

    from federation.features.scattering import Scattering
    from federation.models.features import Features
    from pipelines.coordinator.stages import features
    from pipelines.coordinator.world import World
    from privacy.message import Message

    names: list[str] = []

    def ask_each(request: Any, runs: Any, questions: Any, report_site: Any) -> dict[str, Message]:
        names.extend(runs.values())
        return {"a": Message()}

    world: Any = SimpleNamespace(run=lambda name: name, ask_each=ask_each, version=lambda stage, today: today)
    world.name_question = lambda *about: World.name_question(world, *about)
    model = Features(of=Scattering(), public="prostate_adc")
    for packages in ({}, {}, {"packages": {"theirs 1.0": "a" * 64}}, {"packages": {"theirs 1.0": "b" * 64}}):
        monkeypatch.setattr(features, "code_identity", lambda *_, said=packages: said)
        features._ask_features(world, {"a": "cohort"}, model, {}, {})
    assert names[0] == names[1] and len(set(names)) == 3


def test_a_statement_names_the_reader_whose_files_were_learnt_from(offer: Offer) -> None:
    import numpy as np

    for name in "ab":
        labels = np.arange(40) // 2 % 2
        images = np.full((40, 8, 8), 90, np.uint8) + 90 * labels[:, None, None].astype(np.uint8)
        np.savez(f"{name}.npz", images=images, labels=labels, patients=np.arange(40) // 2)
    sites = {name: {"source": {"kind": "bundle", "file": f"{name}.npz"}, "policy": permitted(offer)} for name in "ab"}
    train = {**BASE["train"], "schedule": {"rounds": 1}, "methods": {"avg": {"name": "fedavg"}}}
    said = {"sites": sites, "train": train, "images": {"kind": "pictures", "size": 8}, "pooling": "refused"}
    said |= {"evaluate": {"copies": 0, "reference": None}, "audit": {"membership": False, "canaries": 0}}
    assert main([written({}, model={"name": "cnn", "widths": [8, 8]}, **said)]) == 0
    (path,) = Path("runs/tiny/report").glob("*/statement.md")
    assert {step["state"] for step in json.loads(_explained("own.yaml"))} == {"keep"}, "written again, and the same"
    np.savez("a.npz", images=images, labels=labels[::-1], patients=np.arange(40) // 2)
    assert "run" in {step["state"] for step in json.loads(_explained("own.yaml"))}
    assert f"reader bundle: consilium-example 0.1.0 (SHA-256 {offer.digest})" in " ".join(path.read_text().split())
