"""A plan takes the place of what stood in a configuration; all else stays as a person wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_up_studies import noised, told
from pydantic import TypeAdapter

from federation.torchio_views import AnyView, build_torchio_function
from pipelines.data.images import Hounsfield, Pictures, Slices, Volumes
from pipelines.planning.draft import HEAD, LONGEST, Source, format_flow, format_group, replace_group, write_plan
from pipelines.planning.fingerprint import merge_fingerprints
from pipelines.planning.settings import SMALL, Effort, Line, NoPlan, list_views, plan_settings

CONFIGS = sorted((Path(__file__).parents[3] / "pipelines/configs").glob("*.yaml"))
RUNS = [path for path in CONFIGS if {"images", "train"} <= set(yaml.safe_load(path.read_text()))]
LINES = [Line("kind", "volumes", "as it was"), Line("size", 64), Line("views", [Line("", {"name": "blur"}, "why")])]
STUDIES = [((3.0, 0.5, 0.5), (20, 300, 320))] * 6


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
@pytest.mark.parametrize("place", [("images",), ("model",), ("train", "work"), ("train", "schedule"), ("train", "new")])
def test_one_group_is_replaced_and_no_other_value_changes(path, place) -> None:
    text = path.read_text()
    before, after = (
        yaml.safe_load(text),
        yaml.safe_load(replace_group(text, place, format_group(place[-1], LINES))),
    )
    expected: Any = before
    for key in place[:-1]:
        expected = expected[key]
    expected[place[-1]] = {"kind": "volumes", "size": 64, "views": [{"name": "blur"}]}
    assert after == before


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_comments_outside_of_what_is_replaced_stay(path) -> None:
    text = path.read_text()
    changed = replace_group(text, ("images",), format_group("images", LINES))
    data = yaml.compose(text)
    lines = {value.start_mark.line for key, value in data.value if key.value == "images"}
    (line,) = lines
    end = max((value.end_mark.line for key, value in data.value if key.value == "images"), default=line)
    kept = [each for number, each in enumerate(text.splitlines()) if each.startswith("#") and not line <= number <= end]
    assert [each for each in kept if each not in changed.splitlines()] == []


WORDS = st.text(alphabet="abc xyz", max_size=8).map(str.strip)
VALUES = st.sampled_from(["{a: 1, b: [2, 3]}", "\n    a: 1\n    b: 2", "\n    - 1\n    - 2", "7", '"a # b"', "null"])


@given(
    st.lists(st.tuples(st.sampled_from("pqrs"), VALUES, WORDS), max_size=4, unique_by=lambda e: e[0]), VALUES, st.data()
)
def test_whatever_stands_around_it(others, old, data) -> None:
    rows = [
        f"  {name}: {value}{f' # {words}' if words and not value.startswith(chr(10)) else ''}"
        for name, value, words in others
    ]
    place = data.draw(st.integers(0, len(rows)))
    comments = data.draw(st.lists(WORDS, min_size=1, max_size=2))
    rows[place:place] = [f"  work: {old}", *(f"  # {words}" for words in comments)]
    text = "name: x\ntrain:\n" + "\n".join(rows) + "\n# last\nseed: 0\n"
    after = replace_group(text, ("train", "work"), "  work:\n    lr: 1\n")
    expected = yaml.safe_load(text)
    expected["train"]["work"] = {"lr": 1}
    assert yaml.safe_load(after) == expected
    assert after.count("# last") == 1 and all(f"  # {words}".rstrip() in after for words in comments)


def test_a_group_on_one_line_is_written_over_several() -> None:
    text = "train: {methods: {a: {name: local}}, work: {lr: 1}}  # short\nseed: 0\n"
    after = replace_group(text, ("train", "work"), "  work:\n    lr: 2\n")
    assert yaml.safe_load(after) == {"train": {"methods": {"a": {"name": "local"}}, "work": {"lr": 2}}, "seed": 0}


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-999, 999), st.floats(1e-8, 1e8)), st.lists, max_leaves=6
    )
)
def test_what_is_written_is_read_again(value) -> None:
    read = yaml.safe_load(format_flow(value))
    flat, same = [value], [read]
    while isinstance(flat, list) and any(isinstance(each, list) for each in flat):
        flat = [inner for each in flat for inner in (each if isinstance(each, list) else [each])]
        same = [inner for each in same for inner in (each if isinstance(each, list) else [each])]
    assert len(flat) == len(same)
    for mine, theirs in zip(flat, same, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5, abs=1e-9) if isinstance(mine, float) else theirs == mine


VOLUMES = Volumes(values="standardized")


def planned(told_by: dict[str, Any], images: Any = VOLUMES, effort: Effort = SMALL) -> str:
    text = (Path(CONFIGS[0]).parent / "prostate_gland_volumes.yaml").read_text()
    common = merge_fingerprints(told_by)
    plan = plan_settings(common, images, 2, effort)
    return write_plan(Source(file="x", text=text, command="consilium plan x"), plan, common, told_by, {"far": "budget"})


def test_the_head_says_what_was_told_how_sure_it_is_and_who_refused() -> None:
    text = planned({"exact": told(STUDIES), "sure": noised(100, 10.0), "unsure": noised(20, 10.0)})
    head = " ".join(text.partition("\n\n")[0].replace("\n#", "").split())
    assert "exact: 6 studies; spacing 3 x 0.5 x 0.5 mm" in head
    assert "40 to 60 % of its patients lie below" in head, "noise of a tenth of the patients, to either side"
    assert "any share of its patients may lie below. So its figures say too little" in head
    assert "far: refused (budget)" in head and "106 studies of 2 hospitals" in head


def test_a_plan_of_a_plan_has_one_head_and_the_same_settings() -> None:
    each = {"exact": told(STUDIES)}
    once = planned(each)
    common = merge_fingerprints(each)
    plan = plan_settings(common, Volumes(values="standardized"), 2, SMALL)
    twice = write_plan(Source(file="x", text=once, command="again"), plan, common, each, {})
    assert yaml.safe_load(twice) == yaml.safe_load(once) and twice.count(HEAD) == 1
    assert twice.count("# Small and short") == 1


@pytest.mark.parametrize(
    "images", [Volumes(values="adc"), Slices(values="adc", context=3), Volumes(values="standardized")]
)
@pytest.mark.parametrize("effort", [SMALL, Effort()], ids=["small", "usual"])
def test_each_planned_line_has_its_reason_and_none_is_long(images, effort) -> None:
    text = planned({"exact": told(STUDIES)}, images, effort)
    assert max(map(len, text.partition("\n\n")[0].splitlines())) <= LONGEST + 2
    settings = yaml.safe_load(text)
    assert settings["images"]["kind"] == images.kind and settings["images"]["values"] == images.values
    assert settings["split"] == {"train": 0.5, "validation": 0.15, "test": 0.35}
    assert settings["train"]["schedule"] == {"rounds": effort.rounds}
    assert settings["train"]["work"]["steps"] == effort.steps


@given(
    st.lists(
        st.tuples(
            st.tuples(st.floats(0.3, 8.0), st.floats(0.2, 3.0), st.floats(0.2, 3.0)),
            st.tuples(st.integers(4, 300), st.integers(16, 700), st.integers(16, 700)),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([Volumes(values="standardized"), Slices(values="standardized"), Pictures(fit="crop")]),
    st.floats(0.2, 16.0),
)
def test_the_grid_is_allowed_and_holds_whole_patches_that_strides_divide(studies, images, memory) -> None:
    """`images` accepts what is planned, whatever studies are; and a patch fits into an example."""
    if isinstance(images, Pictures):
        studies = [((1.0, 1.0), voxels[1:]) for _, voxels in studies]
    plan = plan_settings(merge_fingerprints({"a": told(studies)}), images, 2, Effort(memory_gib=memory))
    settings = {line.key: line.value for line in plan.images if line.key != "kind"}
    made = type(images)(**settings)
    network = plan.fitted.network
    assert made.inputs[1:] == plan.sides
    for side, patch, divisor in zip(plan.sides, network.patch, network.divisor, strict=True):
        assert side >= patch and side % divisor == 0


@pytest.mark.parametrize("patch", [(32, 32), (8, 16, 16)], ids=["flat", "volume"])
def test_planned_noise_deviates_by_a_tenth_at_most_as_in_nnunet(patch) -> None:
    """nnU-Net calls (0, 0.1) a variance, and draws normal numbers with that standard deviation."""
    (noise,) = [line.value for line in list_views(patch, flat=len(patch) == 2) if line.value["name"] == "noise"]
    view = TypeAdapter(AnyView).validate_python({**noise, "p": 1.0})
    apply_view = build_torchio_function([view], flat=len(patch) == 2)
    deviations = [float(apply_view(torch.zeros(1, *patch)).std()) for _ in range(40)]
    assert 0.05 < max(deviations) < 0.11


def test_efforts_out_of_range_are_told_together() -> None:
    with pytest.raises(NoPlan, match=r"memory: .* found -1; rounds: .* found 0; steps: .* found 0"):
        Effort(memory_gib=-1, rounds=0, steps=0)


@pytest.mark.parametrize("images", [VOLUMES, Slices(values="standardized")], ids=["volumes", "slices"])
def test_ct_is_scaled_by_all_hospitals_values_inside_masks_and_nothing_else_is(images) -> None:
    """Clipped to the percentiles, by the common mean and sd, where most studies are CT."""
    common = replace(merge_fingerprints({"a": told(STUDIES)}), modality="CT")
    settings = {line.key: line.value for line in plan_settings(common, images, 2, SMALL).images if line.key != "kind"}
    made = type(images)(**{**settings, "ct": Hounsfield(**settings["ct"])})
    known = common.intensity
    assert made.ct is not None and (made.ct.low, made.ct.high) == (known["p0.5"], known["p99.5"])
    assert (made.ct.mean, made.ct.sd) == pytest.approx((known["mean"], known["sd"]), rel=1e-5)
    for other in (replace(common, modality="MR"), replace(common, intensity={})):
        assert "ct" not in {line.key for line in plan_settings(other, images, 2, SMALL).images}
    assert "ct" not in {line.key for line in plan_settings(common, replace(images, values="adc"), 2, SMALL).images}
