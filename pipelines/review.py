"""python -m pipelines.review FOLDER: a person marks the cases on a hospital's own page, in a browser.

    python -m pipelines.review runs/NAME/sites/SITE --name "A. Berg"
    python -m pipelines.review runs/NAME/sites/SITE --csv marks.csv    writes the marks as a table, and ends

It prints an address of this machine; Ctrl-C ends it. Marks are written into the hospital's folder, and stay there.
"""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.loader.command_line import command_parser
from pipelines.runs.exits import Exit, end_process

if TYPE_CHECKING:
    from pipelines.reviews.server import Review

PROG = "python -m pipelines.review"
PAGE = "report.html"
PORT = 8737
LOCK = ".review.lock"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Serve the page until Ctrl-C, or write the table, and return the exit code (see docs/reference/exit-codes.md)."""
    line = parser(prog)
    options = line.parse_args(arguments)
    folder, name = Path(options.folder), options.name or _login_name()
    folder = folder.parent if folder.name == PAGE and folder.is_file() else folder
    problems = [*_find_folder_problems(folder), *_find_name_problems(name)]
    if not 0 <= options.port <= 65_535:
        problems.append(f"--port: {options.port}, allowed is 0 (any that is free) to 65535")
    if problems:
        line.error("; ".join(problems))
    from pipelines.reviews.marks import ReviewError, read_cases, read_marks, write_csv
    from pipelines.reviews.server import open_review
    from pipelines.runs.stopping import LockedError, RunLock

    os.umask(0o077)
    try:
        if options.csv is not None:
            shown = read_cases((folder / PAGE).read_text(encoding="utf-8"))
            Path(options.csv).write_text(write_csv(read_marks(folder), shown), encoding="utf-8", newline="")
            return int(Exit.OK)
        with RunLock(folder, tidy=True, name=LOCK):
            return _serve(open_review(folder, name), options.port, line)
    except LockedError as error:
        return _complain(f"another reviewer marks these cases: {error}", Exit.LOCKED)
    except ReviewError as error:
        return _complain(f"{folder / PAGE}: {error}", Exit.CONFIG)
    except UnicodeDecodeError:
        return _complain(f"{folder / PAGE} is no page of a run: it is not UTF-8", Exit.CONFIG)
    except OSError as error:
        return _complain(f"{error.filename or folder}: {error.strerror}", Exit.DISK)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("folder", help=f"the hospital's folder, runs/NAME/sites/SITE, or the {PAGE} in it")
    made.add_argument("--name", help="who marks, as it is to be written (default: the name of the login)")
    made.add_argument("--port", type=int, default=PORT, help=f"of 127.0.0.1 (default: {PORT}; 0 = any that is free)")
    made.add_argument("--csv", metavar="FILE", help="write the marks of the page's cases as a table, and end")
    return made


def _serve(review: Review, port: int, line: argparse.ArgumentParser) -> int:
    """Show the page until a signal ends it."""
    from pipelines.reviews.server import ADDRESS, ReviewServer

    try:
        server = ReviewServer(review, port)
    except OSError as error:
        line.error(f"port {port} of {ADDRESS} cannot be used ({error.strerror}); take another one with --port")
    with server:
        earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"{len(review.shown.cases)} cases, as {review.reviewer}: {server.url}\nCtrl-C ends", flush=True)  # noqa: T201
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return int(Exit.OK)
        finally:
            signal.signal(signal.SIGTERM, earlier)
    return int(Exit.OK)


def _find_folder_problems(folder: Path) -> list[str]:
    """Why a folder has no page to review."""
    if (folder / PAGE).is_file() and not (folder / "sites").is_dir():
        return []
    sites = sorted(path.parent for path in folder.glob(f"sites/*/{PAGE}"))
    if sites:
        return [f"{folder} is a run; give one hospital's folder: {', '.join(map(str, sites[:9]))}"]
    return [f"{folder} has no {PAGE}; give a hospital's folder, runs/NAME/sites/SITE, of a run that has its report"]


def _find_name_problems(name: str) -> list[str]:
    """Why a reviewer's name cannot be written."""
    from pipelines.reviews.marks import LONGEST_NAME

    if 0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip():
        return []
    return [f"--name: {name!r}, allowed are 1 to {LONGEST_NAME} printable characters"]


def _login_name() -> str:
    """The name of the login; "reviewer" where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"


def _complain(text: str, code: Exit) -> int:
    """Print why the command ends."""
    print(text, file=sys.stderr)  # noqa: T201
    return int(code)


if __name__ == "__main__":
    end_process(main)
