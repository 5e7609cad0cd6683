"""What the hospitals told of attacks on their own models, as rows of the coordinator's page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.attacks import InversionRow, MembershipRow
from pipelines.hospital.attacks import from_plain
from pipelines.hospital.inversion import ATTACKS, MEAN, figure

KEPT = "computed, and kept on the hospital's own page: it has no noise"
DRAWN = "tried; figures and pictures are kept on the hospital's own page, report.html in its folder: they have no noise"


def membership(said: Mapping[str, Any]) -> MembershipRow:
    """An attack that a hospital told of, or that it made and kept to itself."""
    if said["found"] is None:
        nan, note = float("nan"), f"not made: {said['refused']}" if said.get("refused") else KEPT
        return MembershipRow(said["site"], said["method"], nan, nan, nan, nan, 0, 0, note)
    found = from_plain(said["found"])
    numbers = (found.auc, found.low, found.high, found.control_auc, found.members, found.others)
    return MembershipRow(said["site"], said["method"], *numbers, found.reason or "")


def inversion(said: Mapping[str, Any]) -> Iterator[InversionRow]:
    """A row for each way to draw single training images, beside the floor: their mean image."""
    site, method, found, nan = said["site"], said["method"], said["found"], math.nan
    if found is None or "attacks" not in found:
        note = f"not made: {said['refused']}" if said.get("refused") else DRAWN if found is None else found["reason"]
        yield InversionRow(site, method, "", nan, nan, nan, nan, 0, 0, str(note))
        return
    means, images = found["attacks"], int(found["images"])
    low = figure(means[MEAN]["psnr"]), figure(means[MEAN]["ssim"])
    for attack in (name for name in ATTACKS if name in means and name != MEAN):
        one = means[attack]
        psnr, ssim = figure(one["psnr"]), figure(one["ssim"])
        yield InversionRow(site, method, attack, psnr, ssim, *low, int(one["better"]), images)
