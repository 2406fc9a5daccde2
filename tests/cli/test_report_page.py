"""The page in a browser: it renders, sorts, filters, fits a phone, and fetches nothing."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from cli.main import run
from instances.io import example_text

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = 1280, 390

#: Runs in a copy of the page: uses it as a reader would, and tells the frame around it what it saw.
PROBE = """
<script>
(() => {
  const facts = { errors: window.probeErrors };
  const block = document.querySelector('[id$="-candidates"]');
  const table = block.querySelector("table");
  const order = () => Array.from(table.tBodies[0].rows)
    .filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
  const heading = (name) => Array.from(table.tHead.rows[0].cells)
    .find((cell) => cell.textContent === name);
  const click = (name) => { heading(name).querySelector("button").click(); return order(); };
  facts.first = order();
  facts.byBytes = click("bytes a card");
  facts.ariaUp = heading("bytes a card").getAttribute("aria-sort");
  facts.byBytesDown = click("bytes a card");
  facts.ariaDown = heading("bytes a card").getAttribute("aria-sort");
  facts.byCost = click("cost per on-time session");
  facts.byCostDown = click("cost per on-time session");
  facts.byName = click("candidate");
  facts.sortedHeadings = table.tHead.querySelectorAll("[aria-sort]").length;
  const input = block.querySelector("input[type=search]");
  const count = () => block.querySelector("output").textContent;
  const type = (text) => {
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    return [order(), count()];
  };
  facts.countBefore = count();
  facts.filtered = type("RING  chosen");
  facts.nothing = type("no such row");
  facts.cleared = type("");
  facts.labelled = input.labels.length;
  const charts = Array.from(document.querySelectorAll("svg"));
  facts.charts = charts.map((svg) => svg.getAttribute("aria-label"));
  const sizes = charts.map((svg) => svg.getBoundingClientRect());
  facts.drawn = sizes.filter((box) => box.width > 300 && box.height > 100).length;
  facts.smallestText = Math.min(...Array.from(document.querySelectorAll("svg text"),
    (text) => parseFloat(text.getAttribute("font-size")) * text.getScreenCTM().a));
  facts.cut = charts.flatMap((svg) => Array.from(svg.querySelectorAll("text")).filter((text) => {
    const box = text.getBBox(), whole = svg.viewBox.baseVal;
    return box.x < 0 || box.y < 0 || box.x + box.width > whole.width
      || box.y + box.height > whole.height;
  }).map((text) => text.textContent));
  const touches = (a, b) => a.x + 1 < b.x + b.width && b.x + 1 < a.x + a.width
    && a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height;
  facts.covered = charts.flatMap((svg) => {
    const texts = Array.from(svg.querySelectorAll("text"));
    const boxes = texts.map((text) => text.getBBox());
    return boxes.flatMap((box, n) => boxes.slice(n + 1)
      .map((other, m) => touches(box, other)
        ? `${texts[n].textContent} / ${texts[n + 1 + m].textContent}` : null)
      .filter((pair) => pair !== null));
  });
  const late = Array.from(document.querySelectorAll("[data-tip]"))
    .find((mark) => mark.dataset.tip.includes("late by"));
  const at = { bubbles: true, clientX: 40, clientY: 60 };
  late.firstElementChild.dispatchEvent(new PointerEvent("pointermove", at));
  const tip = document.getElementById("tip");
  facts.tip = [tip.hidden, tip.textContent, tip.getBoundingClientRect().left >= 0
    && tip.getBoundingClientRect().right <= window.innerWidth];
  document.body.dispatchEvent(new PointerEvent("pointermove", at));
  facts.tipGone = tip.hidden;
  facts.hatch = getComputedStyle(document.querySelector(".hatch")).stroke;
  facts.width = window.innerWidth;
  facts.scrollWidth = document.documentElement.scrollWidth;
  facts.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  parent.postMessage(JSON.stringify(facts), "*");
})();
</script>
"""

#: Runs before the page: an error on the page or a refused fetch is a fact, too.
WATCH = """<script>
window.probeErrors = [];
addEventListener("error", (event) => window.probeErrors.push(event.message));
document.addEventListener("securitypolicyviolation",
  (event) => window.probeErrors.push(`refused ${event.blockedURI}`));
</script>
"""

FRAMES = f"""<!DOCTYPE html>
<pre id="facts"></pre>
<script>
const found = [];
addEventListener("message", (event) => {{
  found.push(JSON.parse(event.data));
  document.getElementById("facts").textContent = JSON.stringify(found);
}});
</script>
<iframe src="probe.html" style="width: {WIDE}px; height: 900px; border: 0"></iframe>
<iframe src="probe.html" style="width: {PHONE}px; height: 900px; border: 0"></iframe>
"""


def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no browser: none of {', '.join(BROWSERS)} is installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    files = []
    for name in ("four-sessions-128k", "four-sessions-fault"):
        result, rows = folder / f"{name}.json", folder / f"{name}.jsonl"
        result.write_text(example_text(name, ".best.json"), encoding="utf-8")
        arguments = [name, "--set", "search.tp=2,4,8", "--exact", "-o", str(rows)]
        assert run(["sweep", *arguments]) == 0
        files += [str(result), str(rows)]
    assert run(["report", *files, "-o", str(folder / "page.html")]) == 0
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def facts(page: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What a browser found, by the width of the window."""
    program, folder = browser(), tmp_path_factory.mktemp("browser")
    probed = page.replace("<title>", f"{WATCH}<title>", 1).replace("</body>", f"{PROBE}</body>", 1)
    (folder / "probe.html").write_text(probed, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES, encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    command += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update", f"--user-data-dir={folder / 'profile'}"]
    command += ["--window-size=1700,1000", "--virtual-time-budget=5000", "--dump-dom"]
    command.append((folder / "frames.html").as_uri())
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    dumped = re.search(r'<pre id="facts">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert dumped is not None, ended.stderr
    assert dumped.group(1), ended.stderr
    found = json.loads(html.unescape(dumped.group(1)))
    return {item["width"]: item for item in found}


def test_both_windows_answered_without_an_error(facts: dict[int, dict[str, Any]]) -> None:
    assert set(facts) == {WIDE, PHONE}
    assert [item["errors"] for item in facts.values()] == [[], []]


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_every_chart_is_drawn_and_readable(facts: dict[int, dict[str, Any]], width: int) -> None:
    found = facts[width]
    assert len(found["charts"]) == found["drawn"] == 5  # memory and timeline twice, curves once
    assert found["smallestText"] >= 9
    assert found["cut"] == []
    assert found["covered"] == []
    assert found["hatch"].startswith("rgb")
    assert "0.4392 from 123.5 ms, 0.3294 from 164.7 ms" in found["charts"][-1]


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_headings_sort(facts: dict[int, dict[str, Any]], width: int) -> None:
    found = facts[width]
    tp1, tp2, tp4, tp8 = "TP1", "TP2 (ring)", "TP4 (ring)", "TP8 (ring)"
    assert found["first"] == [tp2, tp4, tp8, tp1]
    assert found["byBytes"] == [tp8, tp4, tp2, tp1]  # 102.03 GB is more than 27.52 GB
    assert found["byBytesDown"] == [tp1, tp2, tp4, tp8]
    assert (found["ariaUp"], found["ariaDown"]) == ("ascending", "descending")
    assert found["byCost"] == [tp2, tp4, tp8, tp1]  # what has no cost is last either way
    assert found["byCostDown"] == [tp8, tp4, tp2, tp1]
    assert found["byName"] == [tp1, tp2, tp4, tp8]
    assert found["sortedHeadings"] == 1


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_the_filter_shows_what_it_found(facts: dict[int, dict[str, Any]], width: int) -> None:
    found = facts[width]
    assert found["countBefore"] == "4 of 4 shown"
    assert found["filtered"] == [["TP2 (ring)"], "1 of 4 shown"]
    assert found["nothing"] == [[], "0 of 4 shown"]
    assert found["cleared"] == [found["byName"], "4 of 4 shown"]
    assert found["labelled"] == 1


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_the_page_fits_and_fetches_nothing(facts: dict[int, dict[str, Any]], width: int) -> None:
    found = facts[width]
    assert found["scrollWidth"] <= found["width"]
    assert found["resources"] == []


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_a_mark_says_more_where_it_is_pointed_at(
    facts: dict[int, dict[str, Any]], width: int
) -> None:
    said = "chat/0: 0 s to 179.1 ms, deadline 130.0 ms, late by 49.11 ms, restarted 1×"
    assert facts[width]["tip"] == [False, said, True]
    assert facts[width]["tipGone"]


def test_nothing_on_the_page_could_be_fetched(page: str) -> None:
    """Without the policy, too: the only addresses are names of XML namespaces."""
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert without != page
    assert set(re.findall(r"https?://[^\s\"'<>]*", without)) == {"http://www.w3.org/2000/svg"}
