"""A browser without a window for tests of pages, and the skip of such tests where there is none."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER and importlib.util.find_spec("selenium")),
    reason="needs chromium, its driver, and selenium",
)


def open_browser() -> Iterator[Any]:
    """A driver, which logs what pages say and ask; it quits at the end."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(DRIVER)))
    yield driver
    driver.quit()


def open_page(browser: Any, address: str) -> None:
    """Open a page, and wait until all of it is there: a busy machine's driver may come back before."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(address)
    is_there = "return location.href === arguments[0] && document.readyState === 'complete'"
    WebDriverWait(browser, 60, poll_frequency=0.02).until(lambda driver: driver.execute_script(is_there, address))
