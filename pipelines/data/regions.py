"""Regions: structures of a label map that may overlap, each a union of classes that exclude each other.

Networks learn the classes. A region is where the most probable class is one of its own, and its probability is the sum
of theirs. nnU-Net learns a sigmoid of each region instead (Isensee et al. 2021): docs/explanation/decisions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.data.sources import BACKGROUND, IGNORE
from pipelines.loader.names import is_name
from privacy.message import Json, as_list

MOST_REGIONS = 7


def find_region_problems(regions: Mapping[str, Sequence[str]], classes: Sequence[str]) -> dict[str, str]:
    """Region -> what is wrong with it, or "" -> with all of them; empty if they are regions of these classes."""
    problems, seen = dict[str, str](), dict[frozenset[str], str]()
    for name, members in regions.items():
        if not is_name(name) or name in (BACKGROUND, IGNORE):
            problems[name] = f"{name!r} is no name of a region; say another, of a-z 0-9 _ -"
        elif not members or len(set(members)) < len(members) or not set(members) <= set(classes):
            allowed = ", ".join(classes)
            problems[name] = f"a region is one or more of the classes, each once: {allowed}; found {[*members]}"
        elif name in classes and set(members) != {name}:
            problems[name] = f"a class has this name, and the region is {[*members]}; give one of the two another name"
        elif frozenset(members) in seen:
            problems[name] = f"it has the classes of {seen[frozenset(members)]}; remove one of the two"
        seen.setdefault(frozenset(members), name)
    of_all = []
    if missing := [name for name in classes if not any(name in members for members in regions.values())]:
        of_all.append(f"no region has {', '.join(missing)}, so nobody would score it; add it to one, or make it one")
    if len(regions) > MOST_REGIONS:
        of_all.append(f"{len(regions)} regions, and {MOST_REGIONS} are scored at most; remove some")
    if of_all:
        problems[""] = "; ".join(of_all)
    return problems if regions else {}


def pack_regions(regions: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Regions as facts, in which maps have no order: of each its name, and those of its classes."""
    return [[name, *members] for name, members in regions.items()]


def unpack_regions(packed: Sequence[Sequence[str]], classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What `pack_regions` packed. Raises: ValueError: they are no regions of these classes; all problems at once."""
    regions = {each[0]: tuple(each[1:]) for each in packed if each}
    problems = [f"{name}: {text}" if name else text for name, text in find_region_problems(regions, classes).items()]
    if len(regions) < len(packed):
        problems.append("two have one name, or one has none")
    if problems:
        raise ValueError(f"regions: {'; '.join(problems)}")
    return regions


def read_regions(facts: Mapping[str, Json], classes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Region -> numbers of its classes, ascending, 1 = the first, of a cohort's recipe or the facts of a model; empty
    where these name no regions. Raises: ValueError: as `unpack_regions`.
    """
    packed = [[str(name) for name in as_list(each)] for each in as_list(facts.get("regions", []))]
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    regions = unpack_regions(packed, classes)
    return {name: tuple(sorted(numbers[each] for each in members)) for name, members in regions.items()}


def list_members(regions: Mapping[str, tuple[int, ...]], classes: int) -> tuple[tuple[int, ...], ...]:
    """The classes of each structure that is scored: of regions theirs, else each class but the background is one."""
    return tuple(regions.values()) or tuple((number,) for number in range(1, classes))
