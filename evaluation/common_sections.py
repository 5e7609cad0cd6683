"""Sections that several kinds of page end with."""

from __future__ import annotations

from collections.abc import Iterable

from evaluation.page import Block, Code, Fold, Paragraph, Section
from evaluation.records import Command

SIMULATION = "One machine ran all hospitals."


def settings_fold(settings: str, title: str, label: str) -> Fold:
    """The settings, folded."""
    return Fold(title, [Code(settings, label, "settings")], is_part=False)


def build_commands_section(commands: Iterable[Command]) -> Section:
    """What a reader may do next."""
    return Section("How to go on", command_blocks(commands), "on", "How to go on")


def command_blocks(commands: Iterable[Command]) -> list[Block]:
    """Commands with what they are for."""
    return [block for command in commands for block in (Paragraph(command.what), Code(command.line, command.what))]
