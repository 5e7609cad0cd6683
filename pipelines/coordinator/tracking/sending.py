"""Copy a finished run's figures to its tracking tools: once, whatever is stopped or run again, and never in silence.

What cannot be sent is told by name, on the console and at the top of the page; the run itself has succeeded. The same
command sends it the next time. `tracking/sent.json` in the run's folder says which figures each tool has.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.coordinator.artifacts import AGREED, PAGE
from pipelines.coordinator.tracking.figures import Figures, collect_figures, select_allowed
from pipelines.coordinator.world import World
from pipelines.runs.stopping import Stopped
from pipelines.runs.store import DiskFolder
from pipelines.settings.track import MLflow, TensorBoard

FOLDER, SENT, LAST = "tracking", "sent.json", "last.json"
MARK = "<!-- tracking -->"
"""In the coordinator's page: where a warning is put when it is copied to the top of the run's folder."""
LONGEST = 300  # characters of a tool's error


@dataclass(frozen=True)
class Tracked:
    """What became of tracking. sent: tool -> whether it was written now (else it was there). unsent: tool -> why not.
    silent: site -> the code with which it did not agree. points: numbers that were allowed.
    """

    sent: Mapping[str, bool]
    unsent: Mapping[str, str]
    silent: Mapping[str, str]
    points: int

    @property
    def warnings(self) -> Iterator[str]:
        """A sentence for each thing that a person must know."""
        for tool, why in self.unsent.items():
            yield f"Not tracked: {tool} did not take this run's figures ({why}). The same command sends them again."
        for site, code in self.silent.items():
            yield (
                f"Not tracked: figures of {site}, and all that rest on them, because its policy does not allow it "
                f"({code})."
            )

    @property
    def words(self) -> str:
        """One line on what was sent."""
        words_by_tool = [f"{tool}: {'sent' if now else 'has it already'}" for tool, now in self.sent.items()]
        return f"tracking: {self.points} numbers; {', '.join(words_by_tool) or 'nothing was sent'}"


def track_run(world: World, artifacts: Mapping[str, Path]) -> Tracked | None:
    """Copy the figures of a finished run. None: no tracking is asked for, or there is no report yet."""
    how = world.config.track
    needed = [artifacts.get(stage) for stage in ("train", "track", "report")]
    if how is None or any(folder is None or not folder.is_dir() for folder in needed):
        return None
    codes: dict[str, str | None] = json.loads((artifacts["track"] / AGREED).read_text())
    silent = {site: code for site, code in codes.items() if code is not None}
    allowed_figures = select_allowed(
        collect_figures(artifacts, codes, pages=how.pages), [site for site in codes if site not in silent]
    )
    folder = world.root / FOLDER
    sent: dict[str, bool] = {}
    unsent: dict[str, str] = {}
    for tool in ("tensorboard", "mlflow"):
        if (part := getattr(how, tool)) is not None:
            try:
                sent[tool] = _send_figures(allowed_figures, world, part, folder)
            except (KeyboardInterrupt, Stopped):
                raise
            except Exception as error:  # whatever a tool raises must not end a run that has succeeded
                unsent[tool] = describe_error(error)
    return Tracked(sent, unsent, silent, len(allowed_figures.points))


def _send_figures(figures: Figures, world: World, how: TensorBoard | MLflow, folder: Path) -> bool:
    """Give a tool the figures; returns whether it lacked some."""
    name = world.config.name
    if isinstance(how, TensorBoard):
        from pipelines.coordinator.tracking.tensorboard import write_tensorboard

        place = folder / "tensorboard" if how.folder is None else Path(how.folder)
        return write_tensorboard(figures, place / name)
    from pipelines.coordinator.tracking.mlflow import send_to_mlflow

    key, mark = f"mlflow {how.uri} {how.experiment}", _read_sent(folder)
    if how.server and mark.get(key) == figures.digest:
        return False  # it need not be up for that
    now = send_to_mlflow(figures, name, how, folder / "mlflow")
    folder.mkdir(parents=True, exist_ok=True)
    DiskFolder(folder).write(SENT, json.dumps({**mark, key: figures.digest}, indent=1).encode())
    return now


def _read_sent(folder: Path) -> dict[str, Any]:
    """Tool -> digest of the figures that it has."""
    try:
        sent = json.loads((folder / SENT).read_text())
    except (OSError, ValueError):
        return {}
    return sent if isinstance(sent, dict) else {}


def describe_error(error: Exception) -> str:
    """An error of a tool, on one line of limited length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:LONGEST]


def track_and_report(world: World, artifacts: Mapping[str, Path], console: Console) -> None:
    """Copy a finished run's figures, print what was sent, and warn of what was not, here and on the page.

    Raises:
        OSError: the run's own folder cannot be written.
    """
    tracked = track_run(world, artifacts)
    if tracked is None:
        return
    for text in (tracked.words, *(f"! {warning}" for warning in tracked.warnings)):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    warn_on_page(world.root, tracked)
    (world.root / FOLDER).mkdir(exist_ok=True)
    DiskFolder(world.root / FOLDER).write(LAST, json.dumps(asdict(tracked), indent=1).encode())


def add_warnings(page: bytes, tracked: Tracked) -> bytes:
    """The coordinator's page with a warning for each thing that was not tracked."""
    lines = "".join(f'<p class="banner"><strong>{html.escape(warning)}</strong></p>' for warning in tracked.warnings)
    return page.replace(MARK.encode(), lines.encode(), 1)


def warn_on_page(root: Path, tracked: Tracked) -> None:
    """Put the warnings onto the page at the top of the run's folder. Raises: OSError: the disk."""
    page = DiskFolder(root)
    if page.has(PAGE) and any(tracked.warnings):
        page.write(PAGE, add_warnings(page.read(PAGE), tracked))
