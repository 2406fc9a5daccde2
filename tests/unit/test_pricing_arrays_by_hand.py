"""Prices of grids against sums made by hand, both sides of limits, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from instances.instance import Instance
from instances.io import parse_instance
from optimizer.arrays.prices import PriceArrays, footprint_arrays, price_arrays
from optimizer.arrays.routing import expected_distinct
from optimizer.errors import TooLargeError
from optimizer.parallel import ParallelConfig
from optimizer.peak import usable_bytes
from optimizer.plan import Footprint
from optimizer.routing import routing_load

# One layer with hidden size 4, 2 heads (2 KV heads) of width 2, FFN 2, vocabulary 1, bf16:
#   q, k, v, o 4·(2·4·4) = 128 B, FFN 3·(2·4·2) = 48 B, norms 3·(2·4) = 24 B, embedding and head
#   8 B each, so 216 B in all; KV 2·2·2·2 = 16 B per token.
HAND = {"name": "hand", "num_layers": 1, "hidden_size": 4, "num_heads": 2, "num_kv_heads": 2}
HAND |= {"head_dim": 2, "ffn_size": 2, "vocab_size": 1}
HAND_COHORT = {"name": "a", "num_sessions": 1, "context_tokens": 9, "new_tokens": 3}

#: Times of an AllReduce on two cards of a server, for messages of up to 1000 · 4^i bytes.
ROWS = [{"message_bytes": 1000 * 4**i, "time_s": f"{20_000 + 997 * i**3}ns"} for i in range(10)]


def _instance(**changes: Any) -> Instance:
    """Return two servers of eight cards for the model above, `changes` to it or to the rest."""
    accelerator = {
        "name": "card",
        "memory_bytes": changes.pop("memory_bytes", "80GB"),
        "memory_bandwidth_bytes_per_s": "3351GB/s",
        "peak_flops_per_s": {"bf16": "977TFLOP/s"},
    }
    table = {"name": "two", "ranks": 2, "servers": 1, "rows": ROWS}
    fabric = {"alpha_s": "821ns", "bandwidth_bytes_per_s": "450GB/s", "measured": [table]}
    server = {"name": "node", "accelerator": accelerator, "num_cards": 8}
    server["fabric"] = {"name": "inside", **fabric}
    pool = {"name": "pool", "server": server, "num_servers": 2}
    return parse_instance(
        {
            "name": "by hand",
            "model": HAND | changes.pop("model", {}),
            "fleet": {"pools": [pool]},
            "workload": {"cohorts": [HAND_COHORT | changes.pop("cohort", {})]},
            "runtime": {"workspace_bytes": 100, **changes},
            "objective": {"minimise": "makespan"},
        }
    )


def _prices(instance: Instance, *footprints: Footprint, batches: Sequence[int]) -> PriceArrays:
    arrays = footprint_arrays(instance, footprints)
    return price_arrays(instance, instance.fleet.pools[0], arrays, np.array(batches))


def _is_near(found: float, exact: Fraction) -> bool:
    return abs(Fraction(float(found)) - exact) <= exact / 10**12


ONE = Footprint("pool", ParallelConfig(), 1, "none")
TWO = Footprint("pool", ParallelConfig(tp=2), 1, "ring")


def test_one_card_and_two_by_hand() -> None:
    prices = _prices(_instance(), ONE, TWO, batches=[1, 2])
    # TP2 halves all but the norms; its vocabulary of 1 is padded to 2, so embedding and head stay.
    assert prices.weight_bytes.tolist() == [[216], [64 + 24 + 24 + 16]]
    assert prices.session_bytes.tolist() == [[[12 * 16]], [[12 * 8]]]
    assert prices.buffer_bytes.tolist() == [[100, 100], [100, 100]]
    # A step reads 128 + 48 + 8 = 184 B and the KV: of 10 tokens at first, 12 at last, and the
    # other session of batch 2 counts 12. At 3351 GB/s; 977 TFLOP/s is never the longer.
    reads = {(0, 0): 184 + 160, (0, 1): 184 + 160 + 192, (1, 0): 184 + 192, (1, 1): 184 + 384}
    rings = 2 * 2 * Fraction(821, 10**9)
    for (is_last, b), size in reads.items():
        found = (prices.last_s if is_last else prices.first_s)[:, b, 0]
        local = Fraction(size, 3351 * 10**9)
        assert _is_near(found[0], local)
        # Two rings of two rounds, each with half of 8 B per session, at 450 GB/s.
        moved = Fraction(2 * 2 * 4 * (b + 1), 450 * 10**9)
        assert _is_near(found[1], local / 2 + rings + moved)


def test_both_sides_of_a_memory_limit() -> None:
    # Weights 216 B, workspace 100 B and three sessions of 192 B: 892 B hold three, 891 B two.
    for memory, held in ((892, 3), (891, 2)):
        instance = _instance(memory_bytes=memory)
        prices = _prices(instance, ONE, batches=[1])
        usable = usable_bytes(instance, instance.fleet.pools[0])
        room = usable - prices.weight_bytes - prices.buffer_bytes
        assert (room // prices.session_bytes[:, :, 0]).tolist() == [[held]]


def test_activations_count_tokens_of_all_micro_batches_twice_with_double_buffers() -> None:
    runtime = {"count_activations": True, "double_buffers": True}
    prices = _prices(_instance(**runtime), ONE, TWO, batches=[1, 5])
    # 100 B and, twice, 4 numbers of 2 B for each session of the step.
    assert prices.buffer_bytes.tolist() == [[116, 180], [116, 180]]
    # SP3 shards those 8 B or 40 B over three cards: 3 B or 14 B each, rounded up.
    three = {"num_heads": 3, "num_kv_heads": 3}
    instance = _instance(model=three, count_activations=True)
    sharded = Footprint("pool", ParallelConfig(tp=3, sp=3), 1, "ring")
    prices = _prices(instance, sharded, batches=[1, 5])
    assert prices.buffer_bytes.tolist() == [[103, 114]]


def test_a_measured_time_is_that_of_the_next_larger_size_and_none_beyond_the_last() -> None:
    # Two cards: rows of 1000 · 4^i B up to i = 9. Messages are 8 B a session: 125 sessions send
    # 1000 B, 126 send 1008 B; 32,768,000 send 1000 · 4^9 B.
    footprint = replace(TWO, collective="measured")
    sizes = [125, 126, 32_768_000, 32_768_001]
    instance = _instance()
    prices = _prices(instance, footprint, replace(footprint, collective="ring"), batches=sizes)
    assert prices.is_timed.tolist() == [[True, True, True, False], [True] * 4]
    # By the comment above a ring takes 2 · (821 ns + 4 B · batch / 450 GB/s).
    rings = [2 * (821e-9 + 4 * batch / 450e9) for batch in sizes]
    extra = prices.last_s[0, :, 0] - prices.last_s[1, :, 0]
    times = [20e-6, 20.997e-6, (20_000 + 997 * 9**3) * 1e-9]
    expected = [2 * (t - ring) for t, ring in zip(times, rings, strict=False)]
    assert extra[:2].tolist() == pytest.approx(expected[:2], rel=1e-9)
    assert extra[2] == pytest.approx(expected[2], rel=1e-6)


def test_expected_experts_by_hand_and_as_exactly_computed() -> None:
    # 8 of 128: a token hits 8, two hit 128 · (1 - (15/16)^2) = 15.5, and a million nearly all:
    # over 16 groups 0.5, 0.96875 and just less than 8, the last two rounded up.
    tokens = np.array([[1, 2, 10**6]])
    found = expected_distinct(tokens, np.array([[128]]), 8, np.array([[16]]))
    assert found.tolist() == [[0.5, 0.969, 8.0]]
    for experts, chosen in ((128, 8), (12, 12), (257, 1), (8, 7), (1000, 3)):
        counts = [*range(1, 40), 100, 999, 5000]
        groups = [ep for ep in (1, 2, 4, 8) if experts % ep == 0]
        found = expected_distinct(
            np.array([counts] * len(groups)),
            np.full((len(groups), 1), experts),
            chosen,
            np.array(groups)[:, None],
        )
        for row, ep in enumerate(groups):
            for column, count in enumerate(counts):
                exact = routing_load(count, experts, chosen, ep, "expected").most_distinct
                assert found[row, column] == float(exact), (experts, chosen, ep, count)


def test_columns_cannot_be_changed() -> None:
    arrays = footprint_arrays(_instance(), [ONE])
    with pytest.raises(ValueError, match="read-only"):
        arrays.tp[0] = 2
    with pytest.raises(ValueError, match="read-only"):
        arrays.layers[0, 0, 0] = 2


@pytest.mark.parametrize(
    ("footprints", "message"),
    [
        ([], "exactly one pool"),
        ([ONE, replace(ONE, pool="other")], "exactly one pool"),
        ([replace(ONE, collective="star")], "no collective is named 'star'"),
        ([replace(ONE, stages=(2,))], "stages of 2 layers do not cut 1 layers"),
        ([replace(ONE, parallel=ParallelConfig(pp=2))], "into 2 stages"),
        ([replace(ONE, parallel=ParallelConfig(tp=0))], "at least 1"),
        ([replace(ONE, parallel=ParallelConfig(redundant=-1))], "at least 1"),
        ([replace(ONE, num_servers=2)], "at least one card in each"),
        ([replace(ONE, num_servers=0)], "at least one card in each"),
    ],
)
def test_footprints_that_make_no_columns_are_refused(
    footprints: list[Footprint], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        footprint_arrays(_instance(), footprints)


@pytest.mark.parametrize(
    "config",
    [ParallelConfig(dcp=10**9 + 1), ParallelConfig(tp=10**5, dp=10**5)],
)
def test_degrees_whose_products_might_not_fit_are_refused(config: ParallelConfig) -> None:
    with pytest.raises(TooLargeError, match="at most 1000000000"):
        footprint_arrays(_instance(), [replace(ONE, parallel=config)])


@pytest.mark.parametrize("batches", [[], [0], [1, -1]])
def test_batches_start_at_one(batches: list[int]) -> None:
    with pytest.raises(ValueError, match="from 1 on"):
        _prices(_instance(), ONE, batches=np.array(batches, dtype=np.int64))


def test_heads_that_cannot_be_laid_out_are_refused() -> None:
    instance = _instance(model={"num_heads": 3, "num_kv_heads": 3})
    with pytest.raises(ValueError, match="3 kv heads"):
        _prices(instance, TWO, batches=[1])


def test_numbers_that_do_not_fit_int64_are_refused_and_the_largest_that_do_are_exact() -> None:
    runtime = {"count_activations": True}
    # 8 B a session; the guard is for 2^62 B with a factor 4 to spare, so up to 2^57 sessions.
    prices = _prices(_instance(**runtime), ONE, batches=[2**57])
    assert prices.buffer_bytes.tolist() == [[100 + 2**60]]
    with pytest.raises(TooLargeError, match=r"exceeds 2\^62"):
        _prices(_instance(**runtime), ONE, batches=[2**57 + 1])
    with pytest.raises(TooLargeError, match=r"exceeds 2\^62"):
        _prices(_instance(workspace_bytes=2**62), ONE, batches=[1])


def test_weights_and_caches_that_do_not_fit_int64_are_refused() -> None:
    wide = {"ffn_size": 10**8, "hidden_size": 10**7, "num_layers": 50_000}
    with pytest.raises(TooLargeError, match=r"exceeds 2\^62"):
        _prices(_instance(model=wide), ONE, batches=[1])
    deep = {"num_heads": 10**4, "num_kv_heads": 10**4, "head_dim": 10**4, "num_layers": 100}
    long = {"context_tokens": 10**9}
    with pytest.raises(TooLargeError, match=r"exceeds 2\^62"):
        _prices(_instance(model=deep, cohort=long), ONE, batches=[1])


def test_a_pair_of_stages_that_shares_work_unevenly_is_as_slow_as_its_slower_stage() -> None:
    instance = _instance(model={"num_layers": 3})
    config = ParallelConfig(pp=2)
    deep = Footprint("pool", config, 1, "ring", (2, 1), micro_batches=5)
    prices = _prices(instance, deep, replace(deep, micro_batches=1), batches=[1])
    # A layer reads 176 B and the KV of 10 tokens: 336 B, the head 8 B. Five micro-batches wait for
    # the first stage, of 672 B; one passes 1016 B and two sends of 821 ns, of 8 B and of 4 B.
    sends = 2 * Fraction(821, 10**9) + Fraction(12, 450 * 10**9)
    through = Fraction(1016, 3351 * 10**9) + sends
    assert _is_near(prices.first_s[1, 0, 0], through)
    turns = 5 * Fraction(672, 3351 * 10**9)
    assert _is_near(prices.first_s[0, 0, 0], max(through, turns))
    many = math.ceil(through / turns * 5) + 1
    slow = _prices(instance, replace(deep, micro_batches=many), batches=[1])
    assert _is_near(slow.first_s[0, 0, 0], turns / 5 * many)
