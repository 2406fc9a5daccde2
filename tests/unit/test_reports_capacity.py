"""Pages of capacity plans: their tables, and the picture as a chart of its own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from optimizer.reports import ReportInputs, chart, html_page, markdown_report
from optimizer.reports.capacity_tables import capacity_tables, not_used_table
from optimizer.reports.rack_scene import rack_scene
from optimizer.reports.svg import svg_text
from optimizer.reports.tables import Table
from optimizer.result import (
    CertificateDocument,
    ObjectiveDocument,
    ParallelDocument,
    SecondOpinionDocument,
)
from optimizer.side.capacity_accounts import (
    CapacityAccountDocument,
    CohortUseDocument,
    LostCandidateDocument,
    NotUsedDocument,
    OutcomeDocument,
    PlacedRackDocument,
    PoolUseDocument,
    PowerDocument,
    PowerPartDocument,
    ResourceDocument,
    RuleCountDocument,
    ServersByPowerDocument,
    SiteUseDocument,
    TierUseDocument,
)
from optimizer.side.result import SideEvaluationDocument, SidePlanDocument, SideResultDocument
from optimizer.words import number
from placed_racks import RACKS, TP2, WIDE, option

POWER = PowerDocument(
    parts=[
        PowerPartDocument(name="fixed", count=1, each_w=7000, watts=7000),
        PowerPartDocument(name="servers of hgx", count=13, each_w=10200, watts=132600),
    ],
    fixed_w=7000,
    tiers_w=0,
    total_w=139600,
    budget_w=150000,
    left_w=10400,
    servers=[ServersByPowerDocument(pool="hgx", server_w=10200, alone=14, more=1)],
)

RESOURCES = [
    ResourceDocument(name="racks air", used=6, most=6, left=0, unit="racks", is_binding=True),
    ResourceDocument(
        name="memory",
        used=52 * 10**9,
        most=80 * 10**9,
        left=28 * 10**9,
        unit="B",
        is_binding=False,
    ),
    ResourceDocument(name="power", used=9, most=None, left=None, unit="W", is_binding=False),
]

AFTER = [
    OutcomeDocument(kind="rack", events=["rack a"], sessions=[6], min_sessions=[5]),
    OutcomeDocument(
        kind="rack",
        events=["rack b", "rack c", "rack d", "rack e"],
        sessions=[5],
        min_sessions=[5],
    ),
]


def account(placement: list[PlacedRackDocument] = RACKS, **changes: Any) -> CapacityAccountDocument:
    """A fleet of 16 servers; of 150 kW all but 10.4 are used."""
    fields: dict[str, Any] = {
        "cohorts": [
            CohortUseDocument(
                name="chat",
                model="qwen3-32b",
                taken=7,
                num_sessions=9,
                min_sessions=5,
                deadline_s=0.25,
                deadline_exact="1/4",
            )
        ],
        "instances": [
            option("qwen3-32b", 2),
            option("llama-3.1-8b", 1),
            option("qwen3-32b", 16, "TP16 over 2 servers (ring)"),
        ],
        "servers": [
            PoolUseDocument(
                pool="hgx",
                servers=13,
                idle=1,
                most=20,
                servers_per_group=4,
                price_per_hour=98.32,
                price_per_hour_exact="2458/25",
            )
        ],
        "racks": [
            SiteUseDocument(rack="air", used=5, most=6, price_per_hour=0, price_per_hour_exact="0")
        ],
        "endpoints": 104,
        "tiers": [
            TierUseDocument(
                name="spine",
                above_endpoints=120,
                is_needed=False,
                power_w=10200,
                price_per_hour=7,
                price_per_hour_exact="7",
            )
        ],
        "power": POWER,
        "resources": RESOURCES,
        "after": AFTER,
        "placement": placement,
    }
    return CapacityAccountDocument(**{**fields, **changes})


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def tables() -> dict[str, Table]:
    return {table.name: table for table in capacity_tables(account())}


def test_every_part_of_an_account_has_its_table() -> None:
    found = tables()
    assert list(found) == [
        *("cohorts", "serving", "fleet", "power", "resources", "failures", "placement"),
    ]
    assert texts(found["cohorts"]) == [["chat", "qwen3-32b", "7", "9", "5", "250.0 ms"]]
    assert texts(found["serving"])[2] == [
        *("qwen3-32b", "TP16 over 2 servers (ring)", "hgx", "4", "16", "8"),
    ]
    assert texts(found["fleet"]) == [
        ["servers of hgx", "13", "20", "1", "98.32", "4"],
        ["racks air", "5", "6", "—", "—", "—"],
        ["switch tier spine", "0", "1", "—", "7", "—"],
    ]


def test_power_is_summed_and_what_is_left_said() -> None:
    found = tables()["power"]
    # 150 - 139.6 = 10.4 kW
    assert texts(found)[1:] == [
        ["servers of hgx", "13", "10,200 W", "132,600 W"],
        ["total", "—", "—", "139,600 W"],
        ["budget", "—", "—", "150,000 W"],
        ["left", "—", "—", "10,400 W"],
    ]
    assert found.note == (
        "What is left feeds 1 more of hgx (6-11). 104 endpoints; switch tier spine (10,200 W) is "
        "needed from endpoint 121 on, after 16 more."
    )
    none = PowerDocument(
        parts=[], fixed_w=0, tiers_w=0, total_w=0, budget_w=None, left_w=None, servers=[]
    )
    assert "power" not in {t.name for t in capacity_tables(account(power=none))}


def test_what_is_binding_is_marked() -> None:
    found = tables()["resources"]
    assert texts(found) == [
        ["racks air", "6 racks", "6 racks", "0 racks", "binding"],
        ["memory", "52.00 GB", "80.00 GB", "28.00 GB", "—"],
        ["power", "9 W", "any", "—", "—"],
    ]
    assert [row[0].is_strong for row in found.rows] == [True, False, False]


def test_the_worst_failure_comes_first() -> None:
    assert texts(tables()["failures"]) == [
        ["rack b, rack c, rack d and 1 more", "5 of at least 5", "5"],
        ["rack a", "6 of at least 5", "6"],
    ]


def test_places_say_what_each_server_holds() -> None:
    found = texts(tables()["placement"])
    assert found[0] == [
        *("3 x air: 24 of 42 U, 30,600 of 40,000 W", "2 x hgx", "—", f"4 x {TP2}"),
    ]
    assert found[2][3] == f"part of {WIDE}"
    assert found[3][2:] == ["0", f"3 x {TP2}, 2 cards occupied"]


def not_used() -> NotUsedDocument:
    lost = LostCandidateDocument(
        model="qwen3-32b",
        label="TP1",
        pool="hgx",
        parallel=ParallelDocument(),
        num_servers=1,
        collective=None,
        rule="memory",
        amount=22e9,
        unit="B",
        message="22.00 GB short",
    )
    rules = [RuleCountDocument(rule="memory", number=2)]
    return NotUsedDocument(possible=4, rules=rules, examples=[lost])


def test_candidates_that_lost_say_by_how_much() -> None:
    table = not_used_table(not_used())
    assert texts(table) == [["qwen3-32b", "TP1", "hgx", "memory", "22.00 GB", "22.00 GB short"]]
    assert table.note == "By rule: memory 2. 4 more could be used; the plan has none of them."


def result() -> SideResultDocument:
    objective = ObjectiveDocument(
        name="price_per_hour",
        unit="an hour",
        claimed=1281.16,
        verified=1281.16,
        verified_exact="32029/25",
        bound=1281.16,
        bound_exact="32029/25",
        gap=0,
    )
    certificate = CertificateDocument(
        instance_sha256="0" * 64,
        plan_sha256="0" * 64,
        solver="highs",
        solver_version="highspy 1",
        second_opinion=SecondOpinionDocument(method="cp-sat", agrees=True, detail="own proof"),
        seed=0,
        threads=1,
        versions={},
    )
    power = objective.model_copy(update={"name": "power", "unit": "W", "verified": 139600.0})
    return SideResultDocument(
        instance="hall",
        decision="capacity",
        termination="optimal",
        limit=None,
        reason="",
        objective=objective,
        then=[power],
        plan=SidePlanDocument(sentence="13 servers of hgx in 5 racks"),
        evaluation=SideEvaluationDocument(capacity=account(), violations=[]),
        not_used=not_used(),
        certificate=certificate,
        seconds=0.5,
    )


def inputs() -> ReportInputs:
    found = ReportInputs(sources=["hall.json"])
    found.add("hall.json", result())
    return found


def test_a_page_has_picture_tables_and_proof() -> None:
    page, text = html_page(inputs()), markdown_report(inputs()).replace("\\", "")
    assert page.count("<svg") == 1
    assert "<h3>Cards of 4 racks</h3>" in page
    assert "Equal racks are drawn once" in page
    assert 'class="f-m0 s-axis"' in page
    assert re.search(r"--m0: #[0-9a-f]{6};", page)
    for words in ("What breaks first", "After any one failure", "Candidates not used", "139.6 kW"):
        assert words in page
        assert words in text
    assert "13 servers of hgx in 5 racks" in text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1, "servers", "1 server"),
        (12345, "servers", "12,345 servers"),
        (1, "racks", "1 rack"),
        (2, "racks", "2 racks"),
        (37.5, "sessions", "37.5 sessions"),  # expected over failures
        (40, "sessions", "40 sessions"),
    ],
)
def test_what_is_counted_is_written_whole(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


def test_the_picture_is_a_chart_of_its_own() -> None:
    drawn = chart(inputs(), "racks", "svg")
    assert drawn == chart(inputs(), None, "svg")
    assert drawn.startswith(b"<?xml")
    assert chart(inputs(), "racks", "png").startswith(b"\x89PNG")
    scene = rack_scene(account(), "hall")
    assert scene is not None
    svg = svg_text(scene, "f1")
    assert svg.count("<pattern") == 2
    assert "<title>hgx: 2 cards occupied</title>" in svg
