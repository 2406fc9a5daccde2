"""Exchanges of a serving instance one by one: times add up, and alternatives are named."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from instances.instance import Instance
from instances.io import load_instance
from optimizer.communication import exchange_times
from optimizer.parallel import ParallelConfig
from optimizer.plan import Footprint
from optimizer.steps import decode_step

US = Fraction(1, 10**6)


def changed(name: str, **search: Any) -> Instance:
    document = load_instance(name).model_dump(mode="json")
    document["search"] |= search
    return Instance.model_validate(document)


def test_exchanges_and_what_is_left_make_up_the_step() -> None:
    instance = load_instance("one-session-50ms")
    pool = instance.fleet.pools[0]
    footprint = Footprint(pool.name, ParallelConfig(tp=8), 1, "ring")
    rows = list(exchange_times(instance, footprint))
    assert [(row.name, row.times) for row in rows] == [("attention", 64), ("ffn", 64)]
    together = sum(row.times * row.seconds for row in rows)
    # 128 · (14 · 0.822 us + 14 · 1280 B / 450 GB/s)
    assert together == 128 * (14 * Fraction(822, 1000) * US + Fraction(14 * 1280, 450 * 10**9))
    local = decode_step(instance, pool, footprint).at(131_065) - together
    assert Fraction(366, 100_000) < local < Fraction(368, 100_000)  # 3.67 ms (6.4.2)


def test_others_are_the_searched_collectives_that_exist_fastest_first() -> None:
    instance = changed("one-session-50ms", collectives=["ring", "tree", "halving_doubling"])
    footprint = Footprint("hgx", ParallelConfig(tp=8), 1, "tree")
    row = next(exchange_times(instance, footprint))
    assert row.algorithm == "tree"
    assert [name for name, _ in row.others] == ["halving_doubling", "ring"]
    footprint = Footprint("hgx", ParallelConfig(tp=8), 1, "ring|tree|halving_doubling")
    row = next(exchange_times(instance, footprint))
    assert row.algorithm == "halving_doubling"
    assert [name for name, _ in row.others] == ["tree", "ring"]


def test_what_is_measured_is_named_by_its_implementation() -> None:
    instance = load_instance("two-servers-one-session")
    footprint = Footprint("hgx", ParallelConfig(tp=16), 2, "measured")
    row = next(exchange_times(instance, footprint))
    assert (row.algorithm, row.servers) == ("measured NCCL", 2)
    assert row.seconds == Fraction(3274, 100) * US
    assert [name for name, _ in row.others] == ["hierarchical", "ring"]
    # The ring's alternatives include what was measured.
    footprint = Footprint("hgx", ParallelConfig(tp=16), 2, "ring")
    row = next(exchange_times(instance, footprint))
    assert [name for name, _ in row.others] == ["hierarchical", "measured NCCL"]
