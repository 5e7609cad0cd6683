"""Sections that several kinds of page end with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evaluation.drawing import Picture
from evaluation.page import Block, Code, Fold, Paragraph, Pictures, Section
from evaluation.records import Command

SIMULATION = "One machine ran all hospitals."


def settings_fold(settings: str, title: str, label: str) -> Fold:
    """The settings, folded."""
    return Fold(title, [Code(settings, label, "settings")], is_part=False)


def build_commands_section(commands: Iterable[Command]) -> Section:
    """What a reader may do next."""
    blocks = [block for command in commands for block in (Paragraph(command.what), Code(command.line, command.what))]
    return Section("How to go on", blocks, "on", "How to go on")


def build_figures_section(pictures: Sequence[Picture], notes: Iterable[str] = (), *, has_first: bool = True) -> Section:
    """All figures but the first, which stands alone above. has_first: whether it does."""
    rest = pictures[1:] if has_first else pictures
    none = Paragraph(f"No {'other ' if pictures else ''}figures were drawn.", "note")
    blocks: list[Block] = [Pictures(rest) if rest else none, *(Paragraph(note, "note") for note in notes)]
    return Section("Figures", blocks, "figures", "Figures")
