"""Write a plan into the text of a configuration: what was planned takes the place of what stood there, and all the
rest, with its comments, stays as a person wrote it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import yaml

from evaluation.wording import format_count
from pipelines.planning.fingerprint import BEYOND_MEDIAN, Common, Reply, share_of_noise, weight_of
from pipelines.planning.settings import Line, Plain, Plan
from pipelines.requests.fingerprint import Measured
from pipelines.settings.own_plans import GRID

Node: TypeAlias = yaml.Node
WIDTH = 46
"""Column at which comments begin, where settings leave room."""
HEAD = "# Planned by "
LONGEST = 116
"""Of a line with its comment."""
TOPOLOGY, OWN_WORK = ("patch", "kernels", "strides", "filters"), ("batch", "foreground", "torchio")
"""What a hospital's own plan says of the network and of the work; views follow from the patch, and the share about
foreground from the batch."""
AXES = {3: "slices, rows, columns", 2: "rows, columns"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is planned. file: the name of the configuration. text: what stands in it. command: that made the plan."""

    file: str
    text: str
    command: str


def write_plan(
    source: Source,
    plan: Plan,
    common: Common,
    replies: Mapping[str, Reply],
    refusals: Mapping[str, str],
    own_plans: Mapping[str, Plan] = MappingProxyType({}),
) -> str:
    """The text of the planned configuration. replies: hospitals' figures. refusals: codes of hospitals that refused.
    own_plans: of hospitals that have one of their own, which is written into their settings.

    Raises:
        ValueError: the text cannot hold a plan: an anchor that is used elsewhere stands in what is replaced.
    """
    text = replace_group(_drop_head(source.text), ("images",), format_group("images", plan.images))
    text = replace_group(text, ("model",), format_group("model", plan.model))
    text = replace_group(text, ("train", "schedule"), format_group("schedule", plan.schedule))
    text = replace_group(text, ("train", "work"), format_group("work", plan.work))
    for site, own_plan in own_plans.items():
        text = _write_own_plan(text, site, own_plan)
    try:
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{source.file}: with the plan in it, it is no YAML ({error}); name no anchor (&) in images, "
            "model or train that is used elsewhere"
        ) from error
    head = "".join(map(_wrap_comment, _describe(source, common, replies, refusals, [*own_plans])))
    return f"{head}\n{text}"


def _write_own_plan(text: str, site: str, plan: Plan) -> str:
    """The text with a hospital's own plan in its settings: grid, network, batch, the share about foreground and
    views; the rest is the run's.
    """
    grid = [line for line in plan.images if line.key in GRID[str(plan.images[0].value)]]
    network = [line for line in plan.model if line.key in TOPOLOGY]
    text = replace_group(text, ("sites", site, "images"), format_group("images", grid))
    text = replace_group(text, ("sites", site, "model"), format_group("model", network))
    for line in (line for line in plan.work if line.key in OWN_WORK):
        text = replace_group(text, ("sites", site, "work", line.key), "".join(f"{row}\n" for row in _format_line(line)))
    return text


def _drop_head(text: str) -> str:
    """The text of a configuration that was planned before, without the figures of that plan."""
    return text.partition("\n\n")[2] if text.startswith(HEAD) else text


def _describe(
    source: Source,
    common: Common,
    replies: Mapping[str, Reply],
    refusals: Mapping[str, str],
    own_sites: Sequence[str] = (),
) -> Iterator[str]:
    """The head: where the plan comes from, the figures of each hospital, and how sure they are."""
    rules = "by the rules of nnU-Net (Isensee et al., Nature Methods 18, 2021)"
    yield f"Planned by {source.command} from what hospitals say of their studies, {rules}."
    yield "Read it once; every line may be changed."
    yield ""
    axes = AXES[len(common.spacing)]
    is_volume = len(common.spacing) == 3
    unit = "mm" if is_volume else "pixels"
    for site in sorted(replies):
        reply = replies[site]
        yield f"{site}: {_describe_figures(reply, axes, unit)}"
        if isinstance(reply, Measured):
            yield from (f"  {line}" for line in _describe_exact(reply, is_volume=is_volume))
        else:
            yield from (f"  {line}" for line in _describe_noise(reply))
        if site in common.unsure_sites:
            yield "  So its figures say too little, and the plan is made without them."
    yield from (f"{site}: refused ({code}), and the plan is made without it" for site, code in sorted(refusals.items()))
    yield ""
    count = f"{common.studies:.0f} studies of {format_count(len(common.sites), 'hospital', 'hospitals')}"
    shapes = f"spacing {_join(common.spacing)}, shape {_join(common.voxels)} ({axes}; medians of medians)"
    yield f"Together, {count}: {shapes}."
    if own_sites:
        yield f"By its own figures {', '.join(own_sites)} each has a plan of its own, in its settings under sites."
    if not all(isinstance(replies[site], Measured) for site in common.sites):
        yield f"Where no larger percentile is known, the grid covers {BEYOND_MEDIAN:g} times the median."


def _describe_figures(reply: Reply, axes: str, unit: str) -> str:
    """Number, spacing and extent of one hospital's studies."""
    what = "studies" if isinstance(reply, Measured) else "patients, about"
    spacing = f"spacing {_join(reply.spacing['p50'])} mm, " if unit == "mm" else ""
    return f"{weight_of(reply):.0f} {what}; {spacing}extent {_join(reply.extent['p50'])} {unit} ({axes}; medians)"


def _describe_exact(reply: Measured, *, is_volume: bool) -> Iterator[str]:
    """What a hospital says without noise."""
    if (reply.spacing["p10"], reply.spacing["p90"]) != (reply.spacing["p50"], reply.spacing["p50"]):
        yield f"spacing from {_join(reply.spacing['p10'])} to {_join(reply.spacing['p90'])} (10 and 90 %)"
    if reply.intensity:
        known = reply.intensity
        span = f"{known['p0.5']:g} to {known['p99.5']:g} (0.5 and 99.5 %)"
        yield f"inside masks {span}, mean {known['mean']:g}, sd {known['sd']:g}"
    for name, volume in reply.volumes.items():
        size = f"{volume['p50'] / 1000:.3g} mL" if is_volume else f"{volume['p50']:.0f} pixels"
        yield f"{name}: {size} (median)"
    if reply.rejected_by_reason:
        reasons = ", ".join(f"{count} {reason}" for reason, count in reply.rejected_by_reason.items())
        yield f"set aside: {reasons}; why, study by study: linkage.json at the hospital"


def _describe_noise(reply: Reply) -> Iterator[str]:
    """How sure a hospital's figures are."""
    share = share_of_noise(reply)
    yield "With noise that its privacy budget paid for: what is called a median is at 95 % a value of which"
    if share >= 0.5:
        yield "any share of its patients may lie below."
    else:
        yield f"{50 - 100 * share:.0f} to {50 + 100 * share:.0f} % of its patients lie below."


def _join(values: Sequence[float]) -> str:
    """Numbers of axes as text."""
    return " x ".join(f"{value:.4g}" for value in values)


def format_group(key: str, lines: Sequence[Line]) -> str:
    """A group of settings as YAML, a setting a line, each with its reason."""
    return "".join(f"{row}\n" for row in (f"{key}:", *(row for line in lines for row in _format_line(line, "  "))))


def _format_line(line: Line, indent: str = "") -> Iterator[str]:
    """A setting with its reason; a list of settings a line each."""
    if isinstance(line.value, list) and line.value and isinstance(line.value[0], Line):
        yield _add_comment(f"{indent}{line.key}:", line.reason)
        yield from (_add_comment(f"{indent}  - {format_flow(each.value)}", each.reason) for each in line.value)
    else:
        yield _add_comment(f"{indent}{line.key}: {format_flow(line.value)}", line.reason)


def _add_comment(text: str, reason: str) -> str:
    """A line with its reason, if it has one: behind it where both fit, else above."""
    behind = f"{text.ljust(WIDTH)} # {reason}"
    if not reason or len(behind) <= LONGEST:
        return behind if reason else text
    indent = " " * (len(text) - len(text.lstrip(" ")))
    return f"{_wrap_comment(reason, indent)}{text}"


def _wrap_comment(text: str, indent: str = "") -> str:
    """Lines of comment."""
    inner = " " * (len(text) - len(text.lstrip(" ")))
    lines = textwrap.wrap(text.strip(), LONGEST - len(indent) - len(inner) - 2, break_long_words=False) or [""]
    return "".join(
        f"{indent}# {inner if number == 0 else inner + '  '}{line}".rstrip() + "\n" for number, line in enumerate(lines)
    )


def format_flow(value: Plain) -> str:
    """A value on one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_flow, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value:.10f}".rstrip("0")
    return value if isinstance(value, str) else json.dumps(value)


def replace_group(text: str, path: tuple[str, ...], group: str) -> str:
    """The text with a group in the place of what stands at this path, or beside what is there if nothing does; comments
    above it stay.

    path: keys, from the outermost in. group: whole lines; they are indented as the place needs.

    Raises:
        ValueError: a key on the way holds no group of its own.
    """
    node, column, group = yaml.compose(text), 0, textwrap.dedent(group)
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("a configuration is a group of settings")
    for depth, name in enumerate(path[:-1]):
        pair = _find_pair(node, name)
        if pair is None:
            nested = group
            for key in reversed(path[depth:-1]):
                nested = f"{key}:\n{textwrap.indent(nested, '  ')}"
            return _add_lines(text, node, nested, column)
        key_node, value = pair
        if not isinstance(value, yaml.MappingNode) or value.start_mark.index < key_node.end_mark.index:
            raise ValueError(f"{'.'.join(path[: depth + 1])} must hold a group of settings, written out")
        if value.flow_style:  # written over several lines first: comments need them
            rest = {each.value: text[inner.start_mark.index : inner.end_mark.index] for each, inner in value.value}
            lines = "".join(f"  {each}: {' '.join(inner.split())}\n" for each, inner in rest.items())
            block = textwrap.indent(f"{name}:\n{lines}", " " * column)
            return replace_group(_splice(text, key_node, value, block), path, group)
        node, column = value, value.start_mark.column
    pair = _find_pair(node, path[-1])
    if pair is None:
        return _add_lines(text, node, group, column)
    return _splice(text, *pair, textwrap.indent(group, " " * column))


def _add_lines(text: str, node: yaml.MappingNode, group: str, column: int) -> str:
    """The text with more lines in a group: before its first and the comments above it, or, in the outermost, at the
    end.
    """
    if column == 0:
        return f"{text.rstrip()}\n\n{group}"
    start = text.rindex("\n", 0, node.start_mark.index) + 1
    while (above := text[: start - 1].rpartition("\n")[2]).lstrip().startswith("#"):
        start -= len(above) + 1
    return text[:start] + textwrap.indent(group, " " * column) + text[start:]


def _find_pair(node: yaml.MappingNode, name: str) -> tuple[Node, Node] | None:
    """The key of this name in a group, and its value."""
    return next(((key, value) for key, value in node.value if key.value == name), None)


def _splice(text: str, key: Node, value: Node, group: str) -> str:
    """The text with whole lines, those of a key and its value, replaced."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    end = text.find("\n", max(key.end_mark.index, _content_end(value)))
    return text[:start] + group + ("" if end < 0 else text[end + 1 :])


def _content_end(node: Node) -> int:
    """Where the last word of a value ends; the mark of a group in lines is behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _content_end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
