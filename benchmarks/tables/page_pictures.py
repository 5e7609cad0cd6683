"""The pictures of the README, from the pages of a finished run: docs/pictures/report.png and docs/pictures/site.png.

    python -m pipelines.run prostate_adc.yaml
    python -m benchmarks.tables.page_pictures runs/prostate_adc north

Needs Chromium.
Each picture holds the version that made it and the headings that it shows: a test tells one that is stale.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from PIL import Image, PngImagePlugin

from benchmarks.shared.options import make_parser

PICTURES = Path(__file__).parents[2] / "docs/pictures"
WIDTH = 1280


def taken(browser: str, page: Path, height: int) -> Image.Image:
    """A page as a browser of this size shows it."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{height}"]
        subprocess.run([*command, f"--screenshot={shot}", page.resolve().as_uri()], check=True, capture_output=True)  # noqa: S603
        return Image.open(shot).convert("RGB").quantize(256)


def kept(picture: Image.Image, headings: list[str], path: Path) -> None:
    """Write a picture with the headings that it shows, and the version."""
    told = PngImagePlugin.PngInfo()
    told.add_text("Headings", "\n".join(headings))
    told.add_text("Version", version("consilium"))
    picture.save(path, pnginfo=told, optimize=True)


def headings(page: Path) -> list[str]:
    """Of a page's sections, in order."""
    return re.findall(r'<h2 id="[\w-]+">([^<]+)</h2>', page.read_text())


def main(run: Path, site: str) -> None:
    """Take both pictures."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium was found; install it, for instance: apt-get install chromium")
    page = run / "report.html"
    kept(taken(browser, page, 1400), headings(page)[:4], PICTURES / "report.png")
    own = run / "sites" / site / "report.html"
    with tempfile.TemporaryDirectory() as folder:
        sheets = Path(folder) / "sheets.html"  # cases stand far down: the sections above are left out
        sheets.write_text(
            re.sub(r"<nav.*?(?=<section[^>]* aria-labelledby=\"cases\")", "<main>", own.read_text(), flags=re.DOTALL)
        )
        kept(taken(browser, sheets, 1080), headings(sheets)[:1], PICTURES / "site.png")
    for name in ("report.png", "site.png"):
        print(PICTURES / name)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("site")
    main(*vars(parser.parse_args()).values())
