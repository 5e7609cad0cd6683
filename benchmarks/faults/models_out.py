"""Exported models against the models themselves: the largest difference of a probability, by network and by method.

    python -m benchmarks.faults.models_out

Networks have random weights, and random statistics in their norms. Each file is tried on random examples within the
usual range of their values, 1, 2, 5 and 64 at a time. Writes docs/results/data/models-out.json.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import small_clip  # noqa: E402
from benchmarks.speed import methods  # noqa: E402
from consilium.testing import testbed  # noqa: E402
from exported_models import NETWORKS, model  # noqa: E402
from pipelines.data.images import Features, Pictures  # noqa: E402
from pipelines.exports.bundle import network_bytes  # noqa: E402
from pipelines.exports.network import examples_shape, trial_examples  # noqa: E402
from pipelines.exports.onnx_file import onnx_bytes  # noqa: E402
from pipelines.models.file import Ready  # noqa: E402

MORE = 64


def tried(make: Callable[..., tuple[bytes, float]], ready: Ready) -> tuple[float, int, float]:
    """Largest difference, size in bytes, seconds."""
    begun = time.monotonic()
    data, far = make(ready, [trial_examples(ready, MORE)])
    return far, len(data), time.monotonic() - begun


def by_network() -> list[list[str]]:
    """A row for each kind of network."""
    rows = []
    for kind, build in NETWORKS.items():
        ready = build()
        onnx, script = tried(onnx_bytes, ready), tried(network_bytes, ready)
        shape = " x ".join(map(str, examples_shape(ready)))
        bundle = ready.task.model.name in ("features", "clip") or isinstance(ready.images, Features)
        sizes = [f"{onnx[1] / 1e3:.0f}", f"{onnx[2]:.1f}"]
        rows.append([kind, shape, f"{onnx[0]:.1e}", *sizes, "not a bundle" if bundle else f"{script[0]:.1e}"])
        sys.stderr.write(f"{rows[-1]}\n")
    return rows


def by_method() -> list[list[str]]:
    """A row for each group of methods whose networks differ as little."""
    found: dict[str, tuple[float, float]] = {}
    for one in methods.ALL:
        task = small_clip.task() if one.name in methods.ON_PROMPTS else testbed.make_task()
        ready = replace(model(task, Pictures(size=16)), module=one.network(task).eval())
        found[one.name] = tried(onnx_bytes, ready)[0], tried(network_bytes, ready)[0]
        sys.stderr.write(f"{one.name} {found[one.name]}\n")
    worst = sorted(found, key=lambda name: -found[name][0])
    rows = [[f"`{name}`", f"{found[name][0]:.1e}", f"{found[name][1]:.1e}"] for name in worst[:5]]
    rest = [found[name] for name in worst[5:]]
    most = [f"{max(column):.1e}" for column in zip(*rest, strict=True)]
    return [*rows, [f"the other {len(rest)} methods, at most", *most]]


def main() -> None:
    """Measure, and write the figures."""
    torch.set_num_threads(1)
    networks = ["network", "example", "ONNX: largest difference", "kB", "seconds", "TorchScript: largest difference"]
    columns = ["method", "ONNX", "TorchScript"]
    made = {"networks": make_table(networks, by_network()), "methods": make_table(columns, by_method())}
    write_tables("models-out", made)


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    main()
