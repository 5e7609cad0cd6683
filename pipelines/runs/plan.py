"""Plan the stages of a run: decide which must run, and why, before any of them runs.

A stage's digest is computed from (name, version, settings, digests of its inputs, digests of outside inputs). It
names the folder of the artifact, so a changed setting leads to another folder, and changing it back finds the old one.
Privacy noise or another machine can give different results under the same digest: a manifest therefore also records
the content of its inputs, and a stage runs again if its input was made again with another content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from rich.cells import cell_len

from pipelines.loader.validation import to_plain
from pipelines.runs.store import ArtifactError, check_artifact, content_digest, digest_json, read_manifest, short_digest
from privacy.settings_error import format_yaml_path, shorten_value

if TYPE_CHECKING:
    from privacy.message import Json

W = TypeVar("W")
State = Literal["keep", "run", "skip"]
NOTHING_CHANGED = "kept: nothing changed"
KEPT_OLDER = "kept: patients paid for it, and --spend makes it again"
ADDED: Mapping[str, Json] = {"precision": "float32", "channels_last": False, "structure": 0.0}
"""Fields with their defaults. Programs whose runs are kept may lack them; `pipelines.loader.first_fields` has them."""
MADE_AGAIN = "input made again"
MOST_SHOWN = 3
ABSENT = object()


def no_outside_inputs(world: object) -> Mapping[str, str]:
    """No outside inputs."""
    return {}


def always_intact(world: object, artifact: Path) -> str | None:
    """The default of `Stage.intact`: the artifact has no parts in other places, so none is missing."""
    return None


@dataclass(frozen=True)
class Stage(Generic[W]):
    """One stage of a run. W: the world that the stages share; the runner never reads it.

    needs: names of earlier stages. settings: the part of the settings on which the result depends. run: (world,
    artifact folders of `needs`, empty folder to fill) -> summary for the manifest. outside: name -> digest of an input
    that is not an artifact (a hospital's files). intact: a complaint if a part of the artifact in another
    place (on a hospital's disk) is missing or corrupt, else None.
    """

    name: str
    version: int
    needs: tuple[str, ...]
    settings: Callable[[W], object]
    run: Callable[[W, Mapping[str, Path], Path], Mapping[str, Json]]
    outside: Callable[[W], Mapping[str, str]] = no_outside_inputs
    intact: Callable[[W, Path], str | None] = always_intact


@dataclass(frozen=True)
class Step(Generic[W]):
    """The planned action for a stage, and its reason. `digest` (64 hexadecimal digits) is the digest of `identity`."""

    stage: Stage[W]
    digest: str
    state: State
    reason: str
    identity: Mapping[str, Json] = field(repr=False)

    def folder(self, root: Path) -> Path:
        """The artifact's folder."""
        return root / self.stage.name / short_digest(self.digest)


class SelectionError(ValueError):
    """`--only`, `--from` or `--until` select stages that cannot run."""


def plan_steps(
    stages: Sequence[Stage[W]],
    world: W,
    root: Path,
    *,
    only: str | None = None,
    first: str | None = None,
    until: str | None = None,
    fresh: bool = False,
    versions: Mapping[str, int] | None = None,
    command: str = "python -m pipelines.run CONFIG",
) -> tuple[Step[W], ...]:
    """The planned action for every stage, in order. Reads artifacts and their checksums, writes nothing.

    only, first (`--from`), until: the selected stages; the others are skipped, and the selected ones' inputs must
    exist. fresh: run the selected stages even if nothing changed. versions: of stages whose results are kept although
    the program has newer ones, because patients paid for them (`read_kept_versions`). command: for messages.

    Raises:
        SelectionError: an unknown name, `first` after `until`, or a needed artifact of a skipped stage is missing.
        ValueError: stages named twice or out of order.
    """
    _check_order(stages)
    selected_names = select_stage_names([stage.name for stage in stages], only, first, until)
    steps: dict[str, Step[W]] = {}
    for stage in stages:
        identity = _find_kept_identity(_step_identity(stage, world, steps, versions or {}), root / stage.name)
        step = Step(stage, digest_json(dict(identity)), "skip", "not asked for", identity)
        if stage.name in selected_names:
            step = _decide_step(step, world, root, steps, fresh)
        steps[stage.name] = step
    _check_needs(steps, world, root, command)
    return tuple(steps.values())


def explain_steps(steps: Sequence[Step[Any]]) -> str:
    """An aligned table: stage, action, short digest, reason."""
    rows = [(step.stage.name, step.state, short_digest(step.digest), step.reason) for step in steps]
    widths = [max((cell_len(row[column]) for row in rows), default=0) for column in range(3)]
    return "\n".join("  ".join([*(cell.ljust(widths[i]) for i, cell in enumerate(row[:3])), row[3]]) for row in rows)


def explanation_facts(steps: Sequence[Step[Any]]) -> list[Json]:
    """The steps as plain data: a list of {stage, state, digest, reason}."""
    return [{"stage": s.stage.name, "state": s.state, "digest": s.digest, "reason": s.reason} for s in steps]


def _check_order(stages: Sequence[Stage[Any]]) -> None:
    """Raise ValueError if stages are named twice or come before their inputs."""
    earlier_names: list[str] = []
    for stage in stages:
        missing_needs = [need for need in stage.needs if need not in earlier_names]
        if stage.name in earlier_names or missing_needs:
            what = f"needs {missing_needs}, which do not come before it" if missing_needs else "is named twice"
            raise ValueError(
                f"stage {stage.name!r} {what}; before it come {earlier_names}; correct the tuple of stages"
            )
        earlier_names.append(stage.name)


def select_stage_names(names: Sequence[str], only: str | None, first: str | None, until: str | None) -> set[str]:
    """The stages that `--only`, or `--from` and `--until`, select; all without them. Raises: SelectionError."""
    options = {"--only": only, "--from": first, "--until": until}
    wrong_options = [
        f"{option} {name}: no such stage" for option, name in options.items() if name is not None and name not in names
    ]
    if wrong_options:
        raise SelectionError(f"{'; '.join(wrong_options)}; the stages are {', '.join(names)}")
    if only is not None:
        if first is not None or until is not None:
            raise SelectionError("--only goes with neither --from nor --until; give one or the other")
        return {only}
    begin = 0 if first is None else names.index(first)
    end = len(names) if until is None else names.index(until) + 1
    if begin >= end:
        raise SelectionError(f"--from {first} comes after --until {until}; the order is {', '.join(names)}")
    return set(names[begin:end])


def _step_identity(
    stage: Stage[W], world: W, earlier_steps: Mapping[str, Step[W]], versions: Mapping[str, int]
) -> dict[str, Json]:
    """The plain data from which a stage's digest is computed."""
    return {
        "stage": stage.name,
        "version": versions.get(stage.name, stage.version),
        "settings": to_plain(stage.settings(world)),
        "inputs": {need: earlier_steps[need].digest for need in stage.needs},
        "outside": dict(stage.outside(world)),
    }


def _find_kept_identity(identity: dict[str, Json], folder: Path) -> dict[str, Json]:
    """The identity of an existing artifact that differs only by later fields with their defaults, if there is no
    artifact of the given identity; else the given identity.
    """
    if (folder / short_digest(digest_json(dict(identity)))).is_dir():
        return identity
    for manifest in read_manifests(folder):
        kept_identity: dict[str, Json] = {key: manifest.get(key) for key in identity}
        if have_same_meaning(kept_identity.pop("settings"), identity["settings"]) and all(
            identity[key] == kept_identity[key] for key in kept_identity
        ):
            return {**kept_identity, "settings": manifest["settings"]}
    return identity


def have_same_meaning(old: Json, new: Json) -> bool:
    """Whether settings differ at most by fields that were added, with their defaults (`ADDED`)."""
    if isinstance(old, dict) and isinstance(new, dict):
        added = [name for name in new if name not in old]
        same = all(name in new and have_same_meaning(old[name], new[name]) for name in old)
        return same and all(name in ADDED and ADDED[name] == new[name] for name in added)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(have_same_meaning, old, new))
    return type(old) is type(new) and old == new


def _decide_step(step: Step[W], world: W, root: Path, earlier_steps: Mapping[str, Step[W]], fresh: bool) -> Step[W]:
    """The step as `keep` or `run`, with its reason."""
    reason = "asked for: --fresh" if fresh else find_artifact_problem(step, world, root)
    if reason == "missing":
        reason = describe_changes(step.identity, read_newest_manifest(root / step.stage.name))
    if reason is None:
        running_needs = [need for need in step.stage.needs if earlier_steps[need].state == "run"]
        reason = (
            f"{MADE_AGAIN}: {', '.join(running_needs)} (kept if it comes out the same)"
            if running_needs
            else describe_changed_inputs(step, root, earlier_steps)
        )
    state: State = "keep" if reason is None else "run"
    return Step(step.stage, step.digest, state, reason or _describe_kept(step), step.identity)


def _describe_kept(step: Step[Any]) -> str:
    """Why an artifact is kept; names both versions if an older one made it."""
    made_version, current_version = step.identity["version"], step.stage.version
    return (
        NOTHING_CHANGED
        if made_version == current_version
        else f"{KEPT_OLDER} (made by version {made_version} of this stage, here {current_version})"
    )


def find_artifact_problem(step: Step[W], world: W, root: Path) -> str | None:
    """The problem with a step's artifact or with its parts in other places; None if it is intact."""
    folder = step.folder(root)
    return check_artifact(folder) or step.stage.intact(world, folder)


def describe_changed_inputs(step: Step[W], root: Path, steps: Mapping[str, Step[W]]) -> str | None:
    """A sentence on the inputs of an intact artifact whose content has changed since it was made; None if none has."""
    made_from = read_manifest(step.folder(root)).get("made_from", {})
    changed_inputs = []
    for need in step.stage.needs:
        try:
            same = made_from.get(need) == content_digest(read_manifest(steps[need].folder(root)))
        except ArtifactError:  # skipped and missing; a kept stage does not need it
            same = True
        changed_inputs += [] if same else [need]
    return f"input changed: {', '.join(changed_inputs)} (made again, with another result)" if changed_inputs else None


def _check_needs(steps: Mapping[str, Step[W]], world: W, root: Path, command: str) -> None:
    """Raise SelectionError unless the artifacts of skipped stages that running stages need are intact."""
    problems = []
    needed = {need for step in steps.values() if step.state == "run" for need in step.stage.needs}
    for name in (name for name, step in steps.items() if name in needed and step.state == "skip"):
        complaint = find_artifact_problem(steps[name], world, root)
        if complaint is not None:
            reason = (
                describe_changes(steps[name].identity, read_newest_manifest(root / name))
                if complaint == "missing"
                else complaint
            )
            problems.append(f"{name} is needed, was not asked for, and is not there ({reason})")
    if problems:
        names = [name for name in steps if any(problem.startswith(f"{name} ") for problem in problems)]
        last = [name for name, step in steps.items() if step.state == "run"][-1]
        raise SelectionError(f"{'; '.join(problems)}; make it first:\n{command} --from {names[0]} --until {last}")


def read_newest_manifest(folder: Path) -> Mapping[str, Any] | None:
    """The newest readable manifest of a stage's folder, or None."""
    return next(iter(read_manifests(folder)), None)


def read_manifests(folder: Path) -> list[Mapping[str, Any]]:
    """The readable manifests of a stage's folder, the newest first."""
    manifests: list[Mapping[str, Any]] = []
    for path in folder.glob("[!.]*"):
        try:
            manifests.append(read_manifest(path))
        except ArtifactError:
            continue
    return sorted(manifests, key=lambda manifest: -float(manifest["finished"]))


def describe_changes(identity: Mapping[str, Json], manifest: Mapping[str, Any] | None) -> str:
    """The differences: `settings changed: rounds 10 -> 12; input changed: ingest`; or `never ran`."""
    if manifest is None:
        return "never ran"
    reasons = []
    if identity["version"] != manifest["version"]:
        reasons.append(f"stage version {manifest['version']} -> {identity['version']}")
    settings = list_differences(manifest["settings"], identity["settings"])
    if settings:
        more = f", and {len(settings) - MOST_SHOWN} more" if len(settings) > MOST_SHOWN else ""
        reasons.append(f"settings changed: {', '.join(settings[:MOST_SHOWN])}{more}")
    for key, words in (("inputs", "input changed"), ("outside", "outside input changed")):
        names = _list_changed_keys(manifest[key], identity[key])
        if names:
            reasons.append(f"{words}: {', '.join(names)}")
    return "; ".join(reasons) or "missing: its folder is gone"


def _list_changed_keys(old: Any, new: Any) -> list[str]:
    """The keys with different values in two mappings, sorted."""
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def list_differences(old_settings: Json, new_settings: Json) -> list[str]:
    """Every setting that differs, as `train.rounds 10 -> 12`, `mu 0.1 removed` or `mu 0.1 added`."""
    old_values, new_values = dict(_list_leaves(old_settings, ())), dict(_list_leaves(new_settings, ()))
    sentences = []
    for path in dict.fromkeys([*old_values, *new_values]):
        old_value, new_value = old_values.get(path, ABSENT), new_values.get(path, ABSENT)
        if old_value is ABSENT:
            sentences.append(f"{format_yaml_path(path)} {shorten_value(new_value)} added".strip())
        elif new_value is ABSENT:
            sentences.append(f"{format_yaml_path(path)} {shorten_value(old_value)} removed".strip())
        elif type(old_value) is not type(new_value) or old_value != new_value:
            sentences.append(
                f"{format_yaml_path(path)} {shorten_value(old_value)} -> {shorten_value(new_value)}".strip()
            )
    return sentences


def _list_leaves(value: Json, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Json]]:
    """Scalars, and empty groups and lists, with their paths."""
    if isinstance(value, dict) and value:
        return [leaf for key in sorted(value) for leaf in _list_leaves(value[key], (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for index, inner in enumerate(value) for leaf in _list_leaves(inner, (*path, index))]
    return [(path, value)]
