"""consilium COMMAND ...: all commands under one name; also `python -m pipelines COMMAND ...`.

    consilium run prostate_adc.yaml                  is   python -m pipelines.run prostate_adc.yaml
    consilium check prostate_adc.yaml                is   python -m pipelines.run prostate_adc.yaml --check
    consilium --print-completion bash                completion for a shell: bash, zsh or tcsh

A command's module is imported when it is called, and shtab only to print a completion.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from pipelines.loader.command_line import PACKAGE, command_parser
from pipelines.runs.exits import end_process


class Command(NamedTuple):
    """A command. module: has `main` and `parser`. first: arguments that are always passed before the user's."""

    module: str
    what: str
    first: tuple[str, ...] = ()


COMMANDS: Mapping[str, Command] = {
    "run": Command("pipelines.run", "everything that a configuration says, from files to the report"),
    "check": Command("pipelines.run", "look at settings, files and methods of a run; compute nothing", ("--check",)),
    "init": Command("pipelines.init", "look at a folder of studies, and write the configuration that fits it"),
    "plan": Command("pipelines.plan", "ask hospitals what their studies are, and plan a segmentation as nnU-Net does"),
    "study": Command("pipelines.study", "one run in several cases and with several seeds, and one page on all of them"),
    "predict": Command("pipelines.predict", "a finished model on new patients"),
    "dataset": Command("pipelines.dataset", "a hospital's cohort as a raw dataset of nnU-Net, which stays there"),
    "export": Command("pipelines.export", "a finished model as ONNX file, MONAI bundle and model card"),
    "sign": Command("pipelines.sign", "sign a finished model, so that other hospitals may evaluate it"),
    "night": Command("pipelines.night", "ask an archive (PACS) for new series, apply a model, and hand results back"),
    "harmonize": Command("pipelines.harmonize", "studies with the look of other studies: fitted, judged, as new files"),
    "translate": Command("pipelines.translate", "a hospital's studies, translated, as new files"),
    "deidentify": Command("pipelines.deidentify", "every DICOM image of a folder without what identifies"),
    "ledger": Command("pipelines.ledger", "whether a hospital's ledger is intact, and what it says"),
    "plugins": Command("pipelines.plugins", "the installed packages that offer methods, networks and the like"),
    "overview": Command("pipelines.overview", "all runs of a folder on one page: scores, costs, settings that differ"),
    "review": Command("pipelines.review", "a person marks the cases on a hospital's own page, in a browser"),
    "clean": Command("pipelines.clean", "what a runs folder holds, and the removal of what is not needed"),
    "site": Command("pipelines.site", "a hospital looks itself over, says what it would release, and joins"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Call the command that is named, and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        command = COMMANDS[words[0]]
        call: Callable[[Sequence[str], str], int] = import_module(command.module).main
        return call([*command.first, *words[1:]], f"{PACKAGE} {words[0]}")
    line = parser()
    options = line.parse_args(words)
    if options.print_completion is None:
        line.error(f"name a command: {', '.join(COMMANDS)}")
    print(build_completion(options.print_completion))  # noqa: T201 - the answer
    return 0


def run_process() -> None:
    """The command `consilium`: `main` as a process of its own."""
    end_process(main)


def parser() -> argparse.ArgumentParser:
    """The command line without the commands' own arguments."""
    return _parser({})


def build_completion(shell: str) -> str:
    """A completion script of all commands. shell: bash, zsh or tcsh. Arguments complete as file names."""
    import shtab  # only here

    parsers = {name: import_module(command.module).parser(f"{PACKAGE} {name}") for name, command in COMMANDS.items()}
    for line in parsers.values():
        for action in line._actions:
            if not action.option_strings and action.choices is None:
                action.complete = shtab.FILE
    return str(shtab.complete(_parser(parsers), shell))


def _parser(parsers: Mapping[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The parser of the command `consilium` with all its subcommands."""
    made = command_parser(PACKAGE, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--print-completion", choices=("bash", "zsh", "tcsh"), help="print a completion for this shell")
    commands = made.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        parents = [parsers[name]] if name in parsers else []
        commands.add_parser(name, help=command.what, description=command.what, parents=parents, add_help=not parents)
    return made


if __name__ == "__main__":
    run_process()
