"""python -m pipelines.export MODEL --out OUT --onnx --bundle --card: a finished model for other software.

MODEL is a site's own file, runs/<name>/sites/<site>/ready/<method>.safetensors, or a routed.safetensors. --onnx writes
OUT/<method>.onnx, checked by ONNX Runtime; --bundle writes OUT/<method>, a MONAI bundle that MONAI's own runner
executes; --card writes OUT/<method>.card.md and .card.json, a model card with the figures of the run's report. Each
gives the model's own probabilities to 1e-5, or nothing is written. The files stay at the hospital, like the model,
unless --release names the hospital's folder: then its policy must hand out models, and its ledger gets a line for each
file. --examples FOLDER also writes FOLDER's studies as the network gets them, for trying the files here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipelines.batch.arguments import add_study_arguments
from pipelines.loader.command_line import announce, command_parser
from pipelines.runs.exits import end_process

PROG = "python -m pipelines.export"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Export, and return the exit code (see docs/reference/exit-codes.md): 2 if the model cannot be had so."""
    options = parser(prog).parse_args(arguments)
    announce(f"reading {options.model}")
    from pipelines.exports.command import export_model  # slow to import, and not needed for --help

    return export_model(options)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("model", help="runs/<name>/sites/<site>/ready/<method>.safetensors, or a routed.safetensors")
    made.add_argument("--out", required=True, help="the folder for the files")
    made.add_argument("--onnx", action="store_true", help="an ONNX file (needs consilium[onnx])")
    made.add_argument("--bundle", action="store_true", help="a MONAI bundle, with the card in it")
    made.add_argument("--card", action="store_true", help="a model card, as Markdown and as JSON")
    made.add_argument("--report", metavar="FILE", help="report.json of the run (default: the newest beside MODEL)")
    made.add_argument("--licence", default="", metavar="TEXT", help="under which others may use the model")
    made.add_argument(
        "--release", metavar="HOME", help="hand the files out: the hospital's folder with its ledger and policy.yaml"
    )
    made.add_argument(
        "--examples",
        metavar="FOLDER",
        help="studies that are written as the network gets them, OUT/examples/*.npy; patients' images, which stay here",
    )
    add_study_arguments(made)
    return made


if __name__ == "__main__":
    end_process(main)
