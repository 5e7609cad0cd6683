"""What nobody can mean is refused with its place; and what one link does to itself stops nobody."""

from __future__ import annotations

import builtins
import copy
import errno
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_run import PRIVATE, SMALL
from torch.utils._python_dispatch import TorchDispatchMode

import route_settings
from pipelines.data.folder import walk_folder
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.numbers import LARGER
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines_settings import RUNS
from privacy.settings_error import format_yaml_path


def numbers(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Places of all numbers."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from numbers(one, (*path, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def put(data: Any, path: tuple[str | int, ...], value: float) -> dict[str, Any]:
    """The same settings with another number."""
    whole = copy.deepcopy(data)
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return whole


SHIPPED = {path.name: yaml.safe_load(path.read_text()) for path in RUNS}
NUMBERS = {  # each kind of setting once, whatever the hospital or method is called
    tuple(key for key in path if not isinstance(key, int)): (name, path)
    for name, data in [*SHIPPED.items(), ("small", SMALL), ("private", PRIVATE)]
    for path in numbers(data)
}


@pytest.mark.repeats(8)
@pytest.mark.parametrize("place", NUMBERS, ids=format_yaml_path)
def test_a_number_that_nobody_can_mean_is_refused_at_its_place(place):
    name, path = NUMBERS[place]
    data = {**SHIPPED, "small": SMALL, "private": PRIVATE}[name]
    larger = not set(place).isdisjoint(LARGER)
    for value in [2**70] if larger else [10**15, -(10**15), 1e300, 1e-300]:
        with pytest.raises(ConfigError) as refused:
            validate_settings(
                read_yaml(yaml.safe_dump(put(data, path, value)), environment={"CONSILIUM_DATA": "/data"}), Config
            )
        places = [problem.where for problem in refused.value.problems]
        assert any(one[: len(path)] == path or path[: len(one)] == one for one in places), f"{value}: {refused.value}"


ONCE = {"train.schedule.rounds": 10**15, "train.work.epochs": 10**9, "train.schedule.deadline_s": 1e-9}


@pytest.mark.parametrize("place", ONCE)
def test_what_was_accepted_once_is_refused(place):
    said = put(SMALL, tuple(place.split(".")), ONCE[place])
    with pytest.raises(ConfigError, match=place):
        validate_settings(read_yaml(yaml.safe_dump(said), environment={"CONSILIUM_DATA": "/data"}), Config)


def test_a_link_to_itself_is_one_broken_link_and_stops_nobody(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    found = walk_folder(tmp_path)
    assert [path.name for path in found.files] == ["a"]
    assert {item.reason for item in found.left} <= {"broken_link", "no_file"} and len(found.left) == 3


def test_a_hospital_with_a_link_to_itself_takes_part(finished_run, tmp_path, monkeypatch):
    from fault_sweep import Case, prepared

    folder = prepared(Case("links", SMALL), tmp_path / "run")
    monkeypatch.chdir(folder)
    for place in ("images", "masks/lesion", "masks/gland"):
        link = folder / "files/a" / place / "loop.nii.gz"
        link.symlink_to(link)
    assert main(["tiny.yaml", "--until", "ingest"]) == Exit.OK


def test_a_file_is_read_by_the_same_command_once_it_may_be_read(tmp_path, monkeypatch):
    """Permission that is given changes neither a file's size nor its time."""
    from fault_sweep import Case, prepared

    monkeypatch.chdir(prepared(Case("permission", SMALL), tmp_path / "run"))
    closed = os.path.realpath(next(iter(sorted(Path("files/a/images").rglob("*.nii.gz")))))
    opens, may = open, os.access

    def forbidden(path: Any, *args: Any, **more: Any) -> Any:
        if not isinstance(path, int) and os.path.realpath(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *args, **more)

    def studies() -> int:
        assert main(["tiny.yaml", "--until", "ingest"]) == Exit.OK
        newest = max(Path("runs/tiny/ingest").glob("*/sites.json"), key=lambda path: path.stat().st_mtime_ns)
        return int(json.loads(newest.read_text())["a"]["studies"])

    with monkeypatch.context() as without:
        without.setattr(builtins, "open", forbidden)
        without.setattr(io, "open", forbidden)
        without.setattr(os, "access", lambda path, *how, **more: str(path) != closed and may(path, *how, **more))
        assert studies() == studies() == 7
    assert studies() == 8


def test_a_failure_is_told_to_machines_with_stage_site_and_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refusing = copy.deepcopy(SMALL)
    refusing["sites"]["b"]["policy"] = {"requests": ["survey", "ingest", "holds", "report"], "pooling": True}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(refusing))
    assert main(["tiny.yaml", "--json"]) == Exit.SITE
    said = json.loads(capsys.readouterr().out)
    assert (said["exit"], said["name"], said["stage"], said["sites"]) == (4, "SITE", "train", {"b": "policy_request"})
    assert said["to_go_on"].endswith("--from train")


class Allocated(TorchDispatchMode):
    """Notes the largest tensor that is made in memory."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.device.type != "meta":
                self.most = max(self.most, one.numel())
        return made


MASKS = route_settings.settings()
UNET = {"kernel_size": [15] * 3, "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [256, 512, 4096]}
HUGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cnn": (SMALL, {"name": "cnn", "widths": [4096] * 12, "norm": "group"}),
    "mlp": (SMALL, {"name": "mlp", "hidden": [10**6, 10**6]}),
    "wide resnet": (SMALL, {"name": "monai", "network": "resnet18", "arguments": {"widen_factor": 64.0}}),
    "dense": (SMALL, {"name": "monai", "network": "DenseNet", "arguments": {"growth_rate": 4096, "bn_size": 64}}),
    "unet": (MASKS, {"name": "unet", "width": 4096, "levels": 2}),
    "planned": (
        MASKS,
        {
            "name": "planned",
            "patch": [16, 16],
            "kernels": [[7, 7]] * 3,
            "strides": [[1, 1], [2, 2], [2, 2]],
            "filters": [2048] * 3,
        },
    ),
    "basic": (
        MASKS,
        {"name": "monai", "network": "BasicUNet", "arguments": {"features": [4096] * 6}},
    ),
    "kernels": (MASKS, {"name": "monai", "network": "DynUNet", "arguments": UNET}),
}


@pytest.mark.parametrize("window", [None, [16, 16]])
@pytest.mark.parametrize("kind", HUGE)
def test_a_network_that_is_too_large_is_refused_before_anything_of_it_is_allocated(kind, window):
    said, model = HUGE[kind]
    if window and said is SMALL:
        pytest.skip("a window is for masks")
    whole = {**copy.deepcopy(said), "model": model}
    whole["evaluate"] = {**whole["evaluate"], "window": window}
    with Allocated() as seen, pytest.raises(ConfigError, match=r"at most 268435456 parameters, found \d+") as refused:
        validate_settings(read_yaml(yaml.safe_dump(whole), environment={}), Config)
    assert ("model",) in [problem.where for problem in refused.value.problems]
    assert seen.most < 10**6
