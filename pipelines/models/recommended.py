"""Which of its finished models a hospital should use: its decision, in `recommended.json` of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.decision import Decision, from_facts, to_facts
from pipelines.models.file import READY, digest_of
from privacy.formats import LaterVersion, check_format
from privacy.message import Json

RECOMMENDED = "recommended.json"
FORMAT = 2  # 1 was written before the page could withdraw a model, so it may name one that the page does not


class Recommended(NamedTuple):
    """A decision as the hospital keeps it. why: in words. digest: of the model's file; empty = no model."""

    decision: Decision
    why: str
    digest: str


def read_recommended(folder: Path) -> Recommended | None:
    """The decision in a hospital's folder; None if there is none.

    Raises:
        ValueError: it is damaged, or of an earlier version.
        OSError: the disk.
    """
    path = folder / RECOMMENDED
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        check_format(form := content["format"], FORMAT, str(path))
        if form == FORMAT:
            return Recommended(from_facts(content["decision"]), str(content["why"]), str(content["digest"]))
    except LaterVersion:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged; run the run's command again, which makes its report anew") from error
    raise ValueError(
        f"{path} has format {form!r}, and {FORMAT} is read here: it was made by an earlier version, which did not say "
        "whether its page withdrew the model; run the run's command again, which makes its report anew and trains "
        "nothing"
    )


def is_newer(folder: Path) -> bool:
    """Whether a newer program wrote the decision in a hospital's folder. Raises: OSError: the disk."""
    try:
        read_recommended(folder)
    except LaterVersion:
        return True
    except ValueError:  # damaged, or of an earlier version: it is made anew
        return False
    return False


def recommended_file(folder: Path) -> Path:
    """The file of the model that the page of the hospital with this folder recommends.

    Raises:
        ValueError: none is recommended, or the model is not the one that was.
        OSError: the disk.
    """
    site_folder = folder.parent if folder.name == READY else folder
    if not site_folder.is_dir():
        raise ValueError(
            f"--recommended takes a hospital's folder in place of a model, found {str(folder)!r}; give "
            "runs/<name>/sites/<site>"
        )
    recommendation = read_recommended(site_folder)
    if recommendation is None:
        raise ValueError(
            f"{site_folder} has no {RECOMMENDED}: no run has finished its report for this hospital; finish one, or give"
            " a file of its ready/ folder without --recommended"
        )
    if not recommendation.decision.method:
        raise ValueError(
            f"no model is recommended to {recommendation.decision.site}, as its page says: {recommendation.why} To use"
            " one all the same, give its file in the ready/ folder without --recommended"
        )
    path = site_folder / READY / f"{recommendation.decision.method}.safetensors"
    if not path.is_file() or digest_of(path.read_bytes()) != recommendation.digest:
        raise ValueError(
            f"{path} is gone, or not the model that was recommended; make the run's report again, or give a model "
            "without --recommended"
        )
    return path


def to_bytes(decision: Decision, sentences: Sequence[str], run: str, file: str) -> bytes:
    """The content of `recommended.json`. said: the decision in words. run: of its model's training; file: the model's,
    empty = none. Raises: OSError.
    """
    digest = digest_of(Path(file).read_bytes()) if decision.method else ""
    content: dict[str, Json] = {
        "format": FORMAT,
        "decision": to_facts(decision),
        "why": " ".join(sentences),
        "run": run,
        "digest": digest,
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode()
