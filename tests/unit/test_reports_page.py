"""Pages and Markdown: what they say, that nothing escapes, and that nothing is fetched."""

from __future__ import annotations

import html
import json
import re
import string
from pathlib import Path
from typing import Any

import pytest

from instances.io import example_names, example_text
from optimizer.conflicts.document import (
    ChoiceDocument,
    ConflictDocument,
    ConstraintDocument,
    RelaxationDocument,
)
from optimizer.reports import ReportInputs, html_page, markdown_report, read_report_inputs
from optimizer.reports.palette import DARK, LIGHT, palette_css
from optimizer.result import AlternativesDocument, ResultDocument
from optimizer.sensitivities.document import InputSensitivity, InputThreshold, SensitivityDocument
from optimizer.sweeps.rows import SweepPoint
from optimizer.words import (
    card_ranges,
    digits,
    field_unit,
    name_text,
    number,
    percent,
    span_text,
)

EVIL = "</script><script>alert(1)</script>&\"'|`*"


def inputs_of(*names: str) -> ReportInputs:
    inputs = ReportInputs()
    for name in names:
        document = ResultDocument.model_validate_json(example_text(name, ".best.json"))
        inputs.add(f"{name}.json", document)
        inputs.sources.append(f"{name}.json")
    return inputs


def plain(page: str) -> str:
    """The text of a page: without elements, entities read."""
    without = re.sub(r"<(script|style)[^>]*>.*?</\1>", " ", page, flags=re.DOTALL)
    without = re.sub(r"<wbr>", "", without)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found.group(1))


def threshold(**changed: Any) -> InputThreshold:
    fields: dict[str, Any] = {
        "status": "changes",
        "value": 3.07e12,
        "value_exact": "3070000000000",
        "change": -0.28e12,
        "exact": True,
        "width": 0.0,
        "is_first": True,
        "verified": True,
        "plan": "8 cards = 2 instances × TP4 (ring)",
        "reason": "",
    }
    return InputThreshold(**{**fields, **changed})


def study() -> SensitivityDocument:
    inputs = [
        InputSensitivity(
            path=path,
            unit="B/s",
            value=3.35e12,
            value_exact="3350000000000",
            halved=halved,
            doubled=-0.1,
            step_halved_s=None,
            step_doubled_s=-0.007,
            down=down,
            up=threshold(status="unchanged", value=3.35e13, change=3.015e13, plan=None),
        )
        for path, halved, down in (
            ("fabric.small_bytes_per_s", 0.01, threshold(value=1e12, change=-2.35e12, exact=False)),
            ("accelerator.memory_bandwidth_bytes_per_s", 0.3, threshold()),
        )
    ]
    return SensitivityDocument(
        instance="i",
        instance_sha256="0" * 64,
        plan="8 cards = 4 instances × TP2 (ring)",
        objective="cost_per_on_time_session",
        unit="card*s",
        value=0.2382,
        value_exact="1191/5000",
        inputs=inputs,
        most_influential="accelerator.memory_bandwidth_bytes_per_s",
    )


def test_a_result_says_what_the_command_line_says() -> None:
    page = html_page(inputs_of("four-sessions-128k"))
    for text in (plain(page), markdown_report(inputs_of("four-sessions-128k")).replace("\\", "")):
        for words in (
            "8 cards = 4 instances × TP2 (ring)",
            "Optimal, proven",
            "0.2382 card·s",
            "short by 22.03 GB a card",
            "0.201 card·s more",
            "64 query heads do not divide by TP3 (1 left over)",
            "27.91 GB free",
            "TP1 fits once each card has 22.03 GB more",
            "bound 0.2382 card·s, gap 0",
            "7014044432/29443359375",
            "Candidates, each deployed alone",
        ):
            assert words in text
    assert "<svg" in page
    assert "<title>four-sessions-128k – Supernode Planner</title>" in page


def test_lateness_and_restarts_are_in_words() -> None:
    for text in (
        plain(html_page(inputs_of("four-sessions-fault"))),
        markdown_report(inputs_of("four-sessions-fault")),
    ):
        assert "late by 49.11 ms" in text
        assert "late by 53.53 ms" in text
        assert "3 of 4" in text


def test_a_result_without_a_plan_says_why() -> None:
    page = html_page(inputs_of("infeasible-deadline"))
    text = plain(page)
    assert "Proven infeasible" in text
    assert "No plan: cohort 'chat' has 30.00 ms to its deadline" in text
    assert "late by 89.11 ms" in text
    assert "<svg" not in page
    assert "No plan: cohort 'chat'" in markdown_report(inputs_of("infeasible-deadline"))


@pytest.mark.parametrize("name", example_names())
def test_every_bundled_result_becomes_a_page_and_markdown(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(example_text(name, ".best.json"), encoding="utf-8")
    inputs = read_report_inputs([path])
    assert f"{name}</h1>" in html_page(inputs)
    assert markdown_report(inputs).startswith(f"# {name}\n")
    assert html_page(inputs) == html_page(read_report_inputs([path]))
    assert str(tmp_path) not in html_page(inputs) + markdown_report(inputs)


def test_results_side_by_side_have_an_overview() -> None:
    page = html_page(inputs_of("four-sessions-128k", "four-sessions-fault"))
    (name,) = (name for name in data_of(page)["tables"] if name.endswith("overview"))
    keys = data_of(page)["tables"][name]["keys"]
    assert [row[0] for row in keys] == ["four-sessions-128k", "four-sessions-fault"]
    assert [f"{row[3]:.4f}" for row in keys] == ["0.2382", "0.4776"]


def test_the_page_fetches_nothing() -> None:
    page = html_page(inputs_of("four-sessions-128k"))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    links = set(re.findall(r"[a-z]+://[^\s\"'<>]*", page))
    assert links == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"<(link|img|iframe|object|embed|base|form)\b|\bsrc=|@import|url\((?!#)", page
    )
    assert set(re.findall(r'href="([^"]*)"', page)) <= {"#main"}


def test_names_are_text_and_never_markup() -> None:
    inputs = inputs_of("four-sessions-fault")
    inputs.results[0] = type(inputs.results[0])(
        EVIL, inputs.results[0].document.model_copy(update={"instance": EVIL, "reason": EVIL})
    )
    inputs.sources[0] = EVIL
    row = SweepPoint(
        instance=EVIL,
        swept={"x": 1},
        termination="failed",
        objective="energy",
        unit="J",
        reason=EVIL,
    )
    inputs.add(EVIL, row)
    page = html_page(inputs)
    assert len(re.findall(r"<script", page)) == 2  # the data, and the script of the page
    assert "<script>alert" not in page
    assert data_of(page)["sources"] == [EVIL]
    assert EVIL in plain(page)
    text = markdown_report(inputs)
    assert "<script" not in re.sub(r"\\<", "", text)
    cells = next(line for line in text.splitlines() if "| failed |" in line)
    assert len(re.findall(r"(?<!\\)\|", cells)) == 6


def test_tables_are_sorted_by_numbers_and_not_by_their_texts() -> None:
    page = html_page(inputs_of("four-sessions-128k"))
    (table,) = (t for n, t in data_of(page)["tables"].items() if n.endswith("-candidates"))
    column = table["columns"].index("bytes a card")
    assert [row[0] for row in table["keys"]] == ["TP2 (ring)", "TP4 (ring)", "TP8 (ring)", "TP1"]
    assert table["keys"][3][column] == 102031468544
    assert table["keys"][3][table["columns"].index("cost per on-time session")] is None


def test_studies_are_tables() -> None:
    inputs = ReportInputs()
    inputs.add("s.json", study())
    page, text = html_page(inputs), markdown_report(inputs).replace("\\", "")
    keys = next(t for n, t in data_of(page)["tables"].items() if "input-thresholds" in n)["keys"]
    assert [row[0] for row in keys[:2]] == [
        "accelerator.memory_bandwidth_bytes_per_s",  # 8 % away
        "fabric.small_bytes_per_s",
    ]
    assert keys[2][3] == keys[3][3] == "the plan stays the best"
    for words in ("+0.3 card·s", "−280 GB/s (8.358 %)", "2 instances × TP4", "within 0 B/s beyond"):
        assert words in text
    assert "What each input moves" in plain(page)
    assert page.count("<svg") == 1


def conflict() -> ConflictDocument:
    constraint = ConstraintDocument(name="deadline of chat", description="ends within 30.00 ms")
    relaxation = RelaxationDocument(
        path="workload.cohorts[0].deadline_s",
        unit="s",
        change=0.0891,
        value=0.1191,
        value_exact="1191/10000",
        exact=True,
        width=0.0,
        message="lets TP2 fit",
        plan="8 cards = 4 instances × TP2 (ring)",
        objective_value=0.2382,
        proof="highs, bound",
    )
    return ConflictDocument(
        instance="i",
        instance_sha256="0",
        termination="infeasible",
        reason="too late",
        constraints=[constraint],
        is_smallest=True,
        relaxations=[relaxation],
        without_help=["memory_bytes: does not bind"],
        choices=[
            ChoiceDocument(
                name="search.tp",
                message="TP16 would fit",
                plan="16 cards = 1 instance × TP16 (ring)",
                objective_value=0.5,
                proof="highs, bound",
            )
        ],
    )


def near_optimal() -> AlternativesDocument:
    result = json.loads(example_text("mixed-wins", ".best.json"))
    options = [
        {
            "sentence": sentence,
            "value": value,
            "value_exact": "1",
            "over": over,
            "low": value - 0.01,
            "high": value + 0.01,
            "inside_spread": over > 0,
            "proof": "highs, bound",
            "plan": result["plan"],
        }
        for sentence, value, over in (("the best", 0.5, 0.0), ("the next", 0.51, 0.02))
    ]
    return AlternativesDocument.model_validate(
        {
            "instance": "i",
            "instance_sha256": "0",
            "objective": "energy",
            "unit": "J",
            "within": 0.05,
            "termination": "optimal",
            "is_complete": True,
            "reason": "",
            "alternatives": options,
        }
    )


def test_conflicts_and_alternatives_are_tables() -> None:
    inputs = inputs_of("mixed-wins")
    document = inputs.results[0].document.model_copy(update={"near_optimal": near_optimal()})
    inputs = ReportInputs()
    for item in (document, conflict(), near_optimal()):
        inputs.add("x.json", item)
    text = plain(html_page(inputs))
    assert "The fewest constraints that cannot hold together" in text
    assert "+89.10 ms" in text
    assert "search.tp TP16 would fit 16 cards = 1 instance × TP16 (ring) 0.5" in text
    assert "What does not help alone input why not memory_bytes does not bind" in text
    assert text.count("Plans within 5 % of the best") == 2  # in the result, and alone
    assert "cannot be told from the best" in text
    assert "0.5 – 0.52 J" in text
    assert "+2 %" in text


def test_markdown_tables_have_as_many_cells_in_every_row() -> None:
    text = markdown_report(inputs_of("four-sessions-128k", "qwen3-235b-8xh100"))
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) > 8
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_both_palettes_know_the_same_roles_and_text_stands_out() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(a), luminance(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for palette in (LIGHT, DARK):
        assert set(palette) == set(LIGHT)
        for text in ("ink", "soft"):
            for paper in ("paper", "track"):
                assert contrast(palette[text], palette[paper]) >= 4.5
        for bar in ("weights", "kv", "workspace", "on-time", "late", "halved", "doubled"):
            assert contrast(palette["on-bar"], palette[bar]) >= 4.5
        for line in ("c0", "c1", "c2", "c3", "c4", "limit"):
            assert contrast(palette[line], palette["paper"]) >= 3
    assert palette_css().count("--c0:") == 2


def test_the_template_has_no_place_left_unfilled() -> None:
    page = html_page(inputs_of("mixed-wins"))
    head = page[: page.index("<style>")]
    assert string.Template(head).get_identifiers() == []
    assert page.count("<h1>") == 1
    assert '<html lang="en">' in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_numbers_have_sensible_digits_and_units() -> None:
    assert [digits(x) for x in (0, 0.0001234567, 12.5, 1234.56, 1234567.0, -0.5)] == [
        "0",
        "0.0001235",
        "12.5",
        "1,235",
        "1,234,567",
        "-0.5",
    ]
    assert number(None, "s") == "—"
    assert number(0.13, "s") == "130.0 ms"
    assert number(0.2382216, "card*s") == "0.2382 card·s"
    assert number(3.35e12, "B/s") == "3,350 GB/s"
    assert number(1827.0, "J") == "1,827 J"
    assert number(1, "cards") == "1 card"
    assert percent(0.0835) == "8.35 %"
    assert span_text([0.1, 0.1]) == "100.0 ms"
    assert span_text([0.2, 0.1]) == "100.0 ms – 200.0 ms"
    assert field_unit("fleet.pools[0].server.fabric.alpha_s") == "s"
    assert (field_unit("search.tp"), field_unit("makespan")) == ("", "s")
    assert name_text("deadline_s") == "deadline"
    assert name_text("cost_per_on_time_session") == "cost per on-time session"
    assert card_ranges([("h/0", 1), ("h/0", 0), ("h/1", 3)], 1) == "h/0/0-1 and 1 more"
