"""What is removed at the end of a night: images and results of ended tasks, and old tables and logs."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from pipelines.nights.lookup import all_tasks, last_changes
from pipelines.nights.loop import IMAGES, RESULTS
from pipelines.nights.settings import Keep
from pipelines.nights.worklist import OPEN

NIGHTS = "nights"


def remove_old_files(db: sqlite3.Connection, folder: Path, keep: Keep, now: datetime) -> int:
    """Remove what is old enough; returns how many folders and files went.

    Images go `keep.images` days after their task ended, results `keep.results` days after they were handed over, and
    tables and logs of nights after `keep.nights` days. What an open task needs stays, and so does the worklist. Folders
    that belong to no task are left over from a worklist that was moved away, and go too.
    """
    changed = last_changes(db)
    open_ = {str(task.id) for task in all_tasks(db) if task.state in OPEN}

    def make_age_check(days: int) -> Callable[[Path], bool]:
        return lambda path: path.name not in open_ and _is_older(changed.get(path.name), now, days)

    gone = sum(_remove_path(path) for path in _list_folder(folder / IMAGES) if make_age_check(keep.images)(path))
    gone += sum(_remove_path(path) for path in _list_folder(folder / RESULTS) if make_age_check(keep.results)(path))
    for path in _list_folder(folder / NIGHTS):
        try:
            start = datetime.fromisoformat(path.name.replace("_", ":"))
        except ValueError:
            continue
        gone += _remove_path(path) if _is_older(start, now, keep.nights) else 0
    return gone


def _is_older(when: datetime | None, now: datetime, days: int) -> bool:
    return when is None or now - when >= timedelta(days=days)


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove_path(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return 1
