"""What it costs a hospital to hide a reply in a sum, beside a bare stream cipher over as many bytes.

    python -m benchmarks.speed.secure_sum

Writes the table `masks` of docs/results/shared-noise.md. The cipher is ChaCha20 of the package `cryptography`, once for
each other hospital: no pairwise masks can cost less. Processor time, the least of some turns, ways in turn. `noise`:
discrete Gaussian noise for as many numbers, beside Gaussian noise by torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from benchmarks.shared.clock import time_in_turns
from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables
from federation.fedavg import FedAvg
from federation.summing import encode_reply, hide_reply
from privacy.dp.discrete_gaussian import draw_discrete_gaussian
from privacy.message import Call, Message
from privacy.secure_sum import make_key_pair

SIZES = ((12, 25_000, 5), (50, 25_000, 5), (12, 11_000_000, 2))
"""Hospitals, numbers of a reply, turns."""
SIGMA = 2.0**34


def list_ways(hospitals: int, numbers: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    pairs = {f"h{number}": make_key_pair() for number in range(hospitals)}
    keys = {name: pair.public for name, pair in pairs.items()}
    reply = Message({"model/w": torch.randn(numbers)}, {"algorithm": {"n": 100}})
    how = {"secret": pairs["h0"].secret, "keys": keys, "site": "h0", "call": Call("speed", 1, "train", {})}

    def cipher() -> None:
        for _ in range(hospitals - 1):
            Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(bytes(8 * numbers))

    return {
        "hide": lambda: hide_reply(FedAvg(), reply, **how),  # type: ignore[arg-type]
        "encode": lambda: encode_reply(FedAvg(), reply, hospitals),
        "cipher": cipher,
        "noise": lambda: draw_discrete_gaussian(numbers, SIGMA),
        "torch": lambda: torch.randn(numbers, dtype=torch.float64),
    }


def main() -> None:
    make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = []
    for hospitals, numbers, turns in SIZES:
        least = {name: min(each) for name, each in time_in_turns(list_ways(hospitals, numbers), turns).items()}
        rows.append(
            [
                f"{hospitals}",
                f"{numbers:,}",
                f"{least['hide']:.3f} s",
                f"{least['hide'] / least['cipher']:.1f}",
                f"{least['encode'] / least['hide']:.2f}",
                f"{least['noise']:.3f} s",
                f"{least['noise'] / least['torch']:.0f}",
            ]
        )
        print(rows[-1], flush=True)
    columns = [
        *("hospitals", "numbers", "hide a reply", "times a bare cipher", "of it turning into words"),
        *("discrete noise", "times torch's Gaussian"),
    ]
    write_tables("shared-noise", {"masks": make_table(columns, rows, "python -m benchmarks.speed.secure_sum")})


if __name__ == "__main__":
    main()
