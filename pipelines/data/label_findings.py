"""Labels that are several findings: the columns of a table that name them, and the one number that an example has.

A cell is 0, 1 or empty: no, yes, unknown. All problems of a study's cells are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from federation.findings import NO, UNKNOWN, YES, decode_findings, encode_findings
from pipelines.data.study import Unusable

STATE_NAMES: Mapping[str, int] = {"no": NO, "yes": YES, "unknown": UNKNOWN}
CELLS: Mapping[str, int] = {"0": NO, "1": YES, "": UNKNOWN}
MOST_BANDS = 4
"""Patients are balanced and counted by how many findings an example has: none, 1, 2, or 3 and more."""
MOST_NAMED = 6  # findings in a message


@dataclass(frozen=True)
class FindingNames:
    """What the labels of a table mean: several findings, the first the lowest digit."""

    names: tuple[str, ...]

    @property
    def band_names(self) -> tuple[str, ...]:
        """The bands by which examples are counted, in words, the one without findings first."""
        return name_finding_bands(len(self.names))

    def list_columns(self, columns: Mapping[str, str]) -> tuple[str, ...]:
        """The column of each finding: that of `columns`, or the one of its name."""
        return tuple(columns.get(name, name) for name in self.names)

    def find_code(
        self, lines: Sequence[Sequence[str]], what: str, values: Mapping[str, str], *, needed: bool = True
    ) -> int:
        """The number of an example (`federation.findings.encode_findings`) by the lines about it.

        A finding that one line does not know may stand in another; if two contradict each other, none counts.

        Args:
            lines: of each the cells in the order of the findings. what: the lines, for messages. values: text -> `no`,
                `yes` or `unknown`, beside 0, 1 and empty, or in their place. needed: whether any must be known.

        Raises:
            Unusable: `no_label`: nothing is known, and must be; `bad_label`: a text that stands for nothing, or lines
                that contradict each other; all of them in one message.
        """
        meaning = {**CELLS, **{text: STATE_NAMES[name] for text, name in values.items()}}
        states, problems = [], []
        for name, cells in zip(self.names, zip(*lines, strict=True), strict=True):
            texts = sorted({_shorten(text, meaning) for text in cells})
            if wrong := [text for text in texts if text not in meaning]:
                problems.append(f"{name} is {' and '.join(map(repr, wrong))}")
            known = {meaning[text] for text in texts if text in meaning} - {UNKNOWN}
            if len(known) > 1:
                problems.append(f"{name} is both yes and no")
            states.append(min(known, default=UNKNOWN))
        if problems:
            more = f" and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
            allowed = ", ".join(repr(text) for text in meaning if text)
            text = f"{what}: {'; '.join(problems[:MOST_NAMED])}{more}"
            raise Unusable("bad_label", f"{text}. A finding must be {allowed} or empty. Correct the table.")
        if needed and all(state == UNKNOWN for state in states):
            raise Unusable("no_label", f"{what}: no finding is known. Fill one in, or take the study away.")
        return int(encode_findings(torch.tensor(states)))


def _shorten(text: str, meaning: Mapping[str, int]) -> str:
    """A cell without the decimal point that programs write after whole numbers, unless the settings know it so."""
    return text if text in meaning else text.removesuffix(".0")


def name_finding_bands(findings: int) -> tuple[str, ...]:
    """The bands by which examples with this many possible findings are counted."""
    last = "3 findings or more" if findings >= MOST_BANDS else "3 findings"
    return ("no finding", "1 finding", "2 findings", last)[: findings + 1]


def find_finding_bands(codes: Tensor, findings: int) -> Tensor:
    """The band of each example (n,) int64: how many findings it has, `MOST_BANDS` - 1 at most; an unknown one counts as
    none. codes: (n,).
    """
    return (decode_findings(codes, findings) == YES).sum(dim=-1).clamp(max=MOST_BANDS - 1)


def join_codes(codes: Iterable[int], findings: int) -> int:
    """The number of a volume by those of its slices: yes where one says yes, no where all say no, otherwise unknown."""
    states = decode_findings(torch.tensor([*codes]), findings)
    has_yes, all_no = (states == YES).any(dim=0), (states == NO).all(dim=0)
    joined = torch.full((findings,), UNKNOWN)
    joined[all_no] = NO
    joined[has_yes] = YES
    return int(encode_findings(joined))


def has_known(codes: Iterable[int], findings: int) -> bool:
    """Whether any finding of any of these examples is known."""
    return bool((decode_findings(torch.tensor([*codes]), findings) != UNKNOWN).any())
