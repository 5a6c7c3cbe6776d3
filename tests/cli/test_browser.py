"""The page in a real browser, where one is installed: it can be used by everybody, sorts, prints, and fits."""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from standin.gated import TEN
from standin.runs import Launch, analysed, write_run

from bench.report import drawing
from bench.report import runs as report

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]' brings it")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]' brings it")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH"),
    pytest.mark.skipif(os.cpu_count() == 1, reason="a browser needs a second core"),
]


SPILLING = """() => [...document.querySelectorAll(".scroll")]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    launches = [
        Launch(name, [[90, ms, ms + 1, ms], [80, ms, ms, ms + turn]], [[100, 300], [100, 200]])
        for turn in range(3)
        for ms, name in enumerate(TEN, start=20)
    ]
    run = analysed(write_run(folder / "results", launches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "drawn", partial(drawing.drawn, dpi=20))  # of the PNGs, which the page does not show
        return Path(report.write([run], str(folder / "out"))[0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def opened(browser: Any, file: Path, width: int, scheme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.goto(file.as_uri())
    return page


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_nothing_serious(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    page = opened(browser, page_file, width, scheme)
    unfold(page)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []


def test_ten_scenarios_fit_and_no_table_spills(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file, 1280)
    assert page.evaluate("document.documentElement.scrollHeight") <= 6000
    unfold(page)
    assert page.evaluate(SPILLING) == []


def test_a_phone_shows_every_plot_readably(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file, 390)
    unfold(page)
    ends = page.evaluate("[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect().right)")
    assert len(ends) > 5 and max(ends) <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    texts = "[...document.querySelectorAll('figure svg text')].filter(one => one.getClientRects().length)"
    scale = "(matrix => Math.hypot(matrix.a, matrix.b))(one.getScreenCTM())"
    sizes = page.evaluate(f"{texts}.map(one => {scale} * parseFloat(getComputedStyle(one).fontSize))")
    assert len(sizes) > 100 and min(sizes) > 6


def eventually(page: Any, condition: str) -> None:
    """Wait until it holds. ``wait_for_function`` is refused by the page's policy unless it holds at once."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def test_a_heading_sorts_and_sorts_back(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file, 1280)
    table = page.locator("table").first
    names = "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].innerText)"
    fastest_first = list(TEN)
    assert page.evaluate(names) == fastest_first
    heading = table.get_by_role("button", name="step ms")
    for order in (fastest_first[::-1], fastest_first):
        heading.press("Enter")
        eventually(page, f"{names}[0] == '{order[0]}'")
        assert page.evaluate(names) == order


def test_a_link_opens_its_fold_and_print_all(browser: Any, page_file: Path) -> None:
    page = opened(browser, page_file, 1280)
    page.evaluate("location.hash = 'section-1-launch-7'")
    eventually(page, "document.getElementById('section-1-launch-7').closest('details').open")
    page.emulate_media(media="print")
    shown = "[...document.querySelectorAll('details figure')].map(one => one.getBoundingClientRect().height)"
    assert min(page.evaluate(shown)) > 50
