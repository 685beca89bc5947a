"""The documentation that ``make docs`` has built, as a browser shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs aiodist[docs]")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.site,
    pytest.mark.timeout(300),
    pytest.mark.skipif(DRIVER is None, reason="needs Chromium and its driver"),
]

SITE = Path(__file__).parents[2] / "build" / "docs"
PAGES = sorted(str(page.relative_to(SITE)) for page in SITE.glob("**/*.html"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve the site by a process of its own, which may keep a browser's connections open."""
    program = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        [*program, "--directory", str(SITE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        (port,) = re.findall(r"port (\d+)", server.stdout.readline())
        yield f"http://127.0.0.1:{port}/"
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "disable-component-update",
        "disable-dev-shm-usage",
        "disable-sync",
        "no-first-run",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def test_pages_load_without_errors_and_their_links_lead_somewhere(
    browser: Any, address: str
) -> None:
    assert len(PAGES) > 40
    anchors: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    problems: list[str] = []
    for page in PAGES:
        url = address + page
        browser.get(url)
        links[url] = set(_of_all(browser, "a[href]", "href"))
        anchors[url] = set(_of_all(browser, "[id]", "id"))
        broken = browser.execute_script(
            "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        problems += [f"{page} shows no picture {source}" for source in broken]
        problems += [
            f"{page}: {entry['message']}"
            for entry in browser.get_log("browser")
            if entry["level"] == "SEVERE"
        ]
    for page, targets in links.items():
        for target in targets:
            place, anchor = urldefrag(urljoin(page, target))
            if not place.startswith(address):
                continue
            if place in anchors:
                if anchor and anchor not in anchors[place]:
                    problems.append(f"{page} links to {target}, where that anchor is missing")
            elif not (SITE / place.removeprefix(address)).is_file():
                problems.append(f"{page} links to {target}, which is missing")
    assert problems == []


def test_the_search_finds_a_function(browser: Any, address: str) -> None:
    browser.get(f"{address}search.html?q=all_reduce_coalesced")
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait(browser, 30)
    found = wait.until(lambda driver: _of_all(driver, "#search-results li a", "href"))
    assert any("reference/async.html#aiodist.all_reduce_coalesced" in link for link in found)


def _of_all(browser: Any, selector: str, attribute: str) -> list[str]:
    """Return an attribute of all elements, by one call of the browser."""
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e[arguments[1]])"
    values: list[str] = browser.execute_script(script, selector, attribute)
    return values
