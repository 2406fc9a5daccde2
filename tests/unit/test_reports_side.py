"""Pages of smaller decisions hold their accounts, each beside that of the plain answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instances.io import example_text
from optimizer.reports.side_tables import side_tables
from optimizer.reports.tables import Table
from optimizer.side.result import SideEvaluationDocument, SideResultDocument


def tables(name: str) -> list[Table]:
    result = SideResultDocument.model_validate(json.loads(example_text(name, ".best.json")))
    evaluation: SideEvaluationDocument | None = result.evaluation
    assert evaluation is not None
    return side_tables(evaluation)


def texts(table: Table) -> list[list[Any]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_exchanges_stand_beside_those_of_the_first_fit() -> None:
    (table,) = tables("placement-6-4-4")
    assert [column.name for column in table.columns][-3:] == ["a step", "first fit", "first fit by"]
    (row,) = texts(table)
    assert row[:4] == ["attention + ffn", "AllReduce, hierarchical", "128", "1 x 8"]
    # 128 · (6 · (0.822 us + 2560 B / 450 GB/s) + 2 · (3.76 us + 1280 B / 50 GB/s)) = 1.605 ms
    # 128 · 14 · (3.76 us + 1280 B / 50 GB/s) = 6.784 ms
    assert row[-3:] == ["1.605 ms", "6.784 ms", "ring"]


def test_slices_say_where_they_stand() -> None:
    (table,) = tables("slices-4x4")
    assert [row[0] for row in texts(table)] == ["square/0", "square/1", "row"]
    assert all(row[1] == "4" and row[3].startswith("(") for row in texts(table))


def test_links_of_a_host_stand_beside_those_of_the_card_order() -> None:
    (table,) = tables("numa-ring-order")
    # one message of 8 MiB each way where a ring in card order has four
    assert [row[:2] for row in texts(table)] == [["0 to 1", "8.39 MB"], ["1 to 0", "8.39 MB"]]
    assert {row[3] for row in texts(table)} == {"33.55 MB"}


def test_a_mix_says_what_is_rented_and_what_it_serves() -> None:
    kinds, buckets = tables("mix-two-gpus")
    assert [column.name for column in kinds.columns][-1] == "price an hour"
    # 3 · 1.01 and 1 · 3.67
    assert [row[:3] + row[4:] for row in texts(kinds)] == [
        *(["A10G", "3", "any", "3.03"], ["A100-80GB", "1", "any", "3.67"]),
    ]
    assert [column.name for column in buckets.columns][2:] == ["A10G", "A100-80GB"]
    assert [row[1] for row in texts(buckets)] == ["6", "3", "15", "6"]
    assert sorted(row[2:] for row in texts(buckets)) == [["1", "—"], *[["—", "1"]] * 3]


@pytest.mark.parametrize("name", ["qwen3-235b-experts-skewed", "r1-bf16-64xa800-stages"])
def test_other_decisions_have_no_tables_of_these(name: str) -> None:
    assert {table.name for table in tables(name)} <= {"groups"}
