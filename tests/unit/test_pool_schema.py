"""The section of decision "pool": what is read exactly, and what is refused in one line."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text, load_instance, parse_instance
from optimizer.pooling.building import pool_problem

F = Fraction

ACCESS = {"bandwidth_bytes_per_s": "10GB/s"}
WINDOW = {**ACCESS, "round_trip_s": "10us", "in_flight": 100, "transaction_bytes": 256}
SECTION: dict[str, Any] = {
    "nodes": [
        {"name": "a", "capacity_bytes": "1.9GB"},
        {"name": "b", "capacity_bytes": "4GB", "max_lent_bytes": "2.5GB"},
    ],
    "paths": [
        {"reader": "a", "lender": "b", "access": WINDOW, "link": "nic"},
        {"name": "back", "reader": "b", "lender": "a", "access": ACCESS},
    ],
    "items": [
        {"name": "kv", "bytes": "2.1GB", "readers": ["a"], "pinned_bytes": 1, "until_s": "2s"},
        {
            "name": "table",
            "bytes": "1GB",
            "readers": ["b", "a"],
            "lease": "shared",
            "reads_per_s": "1/3",
            "from_s": "1s",
        },
    ],
    "horizon_s": "5s",
    "chunk_bytes": "1GB",
}


def instance(**changes: Any) -> dict[str, Any]:
    """A pool of two nodes, with some fields of the section changed."""
    section = deepcopy({**SECTION, **changes})
    return {"schema_version": 1, "name": "small", "decision": "pool", "pool": section}


def with_item(number: int, **changes: Any) -> dict[str, Any]:
    items = deepcopy(SECTION["items"])
    items[number] |= changes
    return instance(items=items)


def with_path(number: int, **changes: Any) -> dict[str, Any]:
    paths = deepcopy(SECTION["paths"])
    paths[number] |= changes
    return instance(paths=paths)


def test_numbers_are_whole_chunks_on_the_safe_side() -> None:
    """1.9 GB hold one chunk of 1 GB, 2.5 GB may lend two; 2.1 GB take three, one byte one.

    The window brings 100 · 256 B / 10 µs = 2.56 GB/s, less than the path's 10.
    """
    problem = pool_problem(parse_instance(instance()))
    assert [(n.name, n.num_chunks, n.max_lent_chunks) for n in problem.nodes] == [
        *[("a", 1, None), ("b", 4, 2)],
    ]
    assert [(p.name, p.reader, p.lender, p.bytes_per_s) for p in problem.paths] == [
        *[("a<-b", 0, 1, 2_560_000_000), ("back", 1, 0, 10 * 10**9)],
    ]
    assert problem.links == ("nic", "back")
    assert [path.link for path in problem.paths] == [0, 1]
    kv, table = problem.items
    assert (kv.num_chunks, kv.pinned_chunks, kv.readers, kv.mode) == (3, 1, (0,), "exclusive")
    assert (kv.from_s, kv.until_s, kv.reads_per_s) == (0, 2, 0)
    assert (table.num_chunks, table.readers, table.mode) == (1, (1, 0), "shared")
    assert (table.from_s, table.until_s, table.reads_per_s) == (1, 5, F(1, 3))
    assert problem.goals == ("slowest_read", "remote_bytes")


def test_defaults() -> None:
    items = [{"name": "x", "bytes": 1, "readers": ["a"]}]
    document = instance(items=items)
    for field in ("horizon_s", "chunk_bytes"):
        del document["pool"][field]
    problem = pool_problem(parse_instance(document))
    assert (problem.chunk_bytes, problem.horizon_s) == (256_000_000, None)
    assert [node.num_chunks for node in problem.nodes] == [7, 15]
    (item,) = problem.items
    assert (item.num_chunks, item.from_s, item.until_s) == (1, 0, None)


def test_a_path_of_its_own_is_not_the_shared_link_of_the_same_name() -> None:
    document = with_path(1, name="nic")
    problem = pool_problem(parse_instance(document))
    assert [path.link for path in problem.paths] == [0, 1]


BAD: list[tuple[dict[str, Any], str, str]] = [
    (with_path(0, lender="c"), "pool", "paths[0].lender: no node is named 'c', so there is no"),
    (with_path(1, reader="c"), "pool", "paths[1].reader: no node is named 'c'"),
    (with_path(0, lender="a"), "pool", "paths[0]: reader and lender are both 'a'"),
    (with_path(0, name="back"), "pool", "paths: the name 'back' appears 2 times"),
    (with_path(1, name=None, reader="a", lender="b"), "pool", "the name 'a<-b' appears 2 times"),
    (with_path(0, access={**WINDOW, "in_flight": 0}), "in_flight", "must be at least 1"),
    (with_path(0, access={**ACCESS, "in_flight": 5}), "access", "in_flight needs transaction"),
    (with_path(0, access={"bandwidth_bytes_per_s": 0}), "bandwidth", "more than 0"),
    (with_item(0, until_s="6s"), "pool", "items[0].until_s: 6 s is after the horizon of 5 s"),
    (with_item(1, from_s="6s"), "pool", "items[1].from_s: 6 s is after the horizon of 5 s"),
    (with_item(1, from_s="5s"), "pool", "items[1].from_s is the horizon"),
    (with_item(0, from_s="2s"), "items[0]", "until_s must be later than from_s"),
    (with_item(0, pinned_bytes="2.2GB"), "items[0]", "pinned_bytes is 2200000000, more than"),
    (with_item(0, readers=["c"]), "pool", "items[0].readers[0]: no node is named 'c'"),
    (with_item(0, readers=[]), "items[0].readers", "at least 1"),
    (with_item(0, readers=["a", "a"]), "items[0]", "the node 'a' appears 2 times"),
    (with_item(1, lease="exclusive"), "items[1]", "an exclusive lease has one reader"),
    (with_item(0, name="table"), "pool", "items: the name 'table' appears 2 times"),
    (with_item(0, reads_per_s=-1), "reads_per_s", "negative"),
    (instance(nodes=SECTION["nodes"] * 2), "pool", "nodes: the name 'a' appears 2 times"),
    (instance(goals=["slowest_read", "slowest_read"]), "pool", "the goal 'slowest_read' appears"),
    (instance(goals=[]), "goals", "at least 1"),
    (instance(goals=["latency"]), "goals[0]", "must be one of"),
    (instance(horizon_s=None), "pool", "items[0] gives times, which need a horizon_s"),
    (instance(chunk_bytes=1), "pool", "items[0] takes more than 1,000,000 chunks"),
    (instance(chunk_bytes=0), "chunk_bytes", "more than 0"),
]


@pytest.mark.parametrize(("document", "field", "rule"), BAD)
def test_what_is_wrong_is_said_in_one_line(
    document: dict[str, Any], field: str, rule: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        load_instance(path)
    assert field in caught.value.field
    assert rule in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_just_keeps_the_limits_is_taken() -> None:
    """The sides of the limits above that are right."""
    parse_instance(with_item(0, until_s="5s", from_s="4.999s"))
    parse_instance(with_item(0, pinned_bytes="2.1GB"))
    parse_instance(with_item(0, lease="shared"))  # a single reader may share, too
    parse_instance(with_path(0, access={**WINDOW, "in_flight": 1}))
    parse_instance(with_path(1, name="second", reader="a", lender="b"))
    parse_instance(instance(chunk_bytes=2100))  # a million chunks
    parse_instance(instance(goals=["remote_bytes"]))


def test_the_example_needs_no_model() -> None:
    assert not {"model", "fleet", "workload"} & set(json.loads(example_text("borrow-20gb")))
    assert load_instance("borrow-20gb").pool is not None
