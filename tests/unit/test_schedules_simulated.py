"""Schedules run on vectors of whole numbers: numpy's sums, and wrong rounds that must be caught."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.schedules.building import algorithms, build_schedule
from optimizer.schedules.schedule import Round, Schedule, Sends
from optimizer.schedules.simulate import ScheduleError, check_schedule, simulate

POWERS = (1, 2, 4, 8, 16)
HALVES = ("all_reduce", "reduce_scatter", "all_gather")
GRIDS = [(1,), (7,), (2, 2), (3, 4), (4, 3), (1, 5), (2, 1, 3), (2, 3, 4), (3, 3, 3), (1, 1, 1)]


def vectors(schedule: Schedule, seed: int = 1) -> Any:
    shape = (schedule.num_ranks, schedule.num_chunks)
    return np.random.default_rng(seed).integers(-(10**9), 10**9, size=shape)


def prove(schedule: Schedule) -> None:
    """Compare the end of a reduction or gathering with numpy, and ask the check as well."""
    inputs = vectors(schedule)
    ends = simulate(schedule, inputs).values[: schedule.num_ranks]
    owned = inputs[schedule.owners, np.arange(schedule.num_chunks)]
    if schedule.operation == "all_reduce":
        assert (ends == inputs.sum(axis=0)).all()
    elif schedule.operation == "reduce_scatter":
        own = ends[schedule.owners, np.arange(schedule.num_chunks)]
        assert (own == inputs.sum(axis=0)).all()
    else:
        assert (ends == owned).all()
    check_schedule(schedule)


@pytest.mark.parametrize("operation", HALVES)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_ring(operation: str, ranks: int) -> None:
    prove(build_schedule(operation, "ring", ranks))


@pytest.mark.parametrize("operation", HALVES)
@pytest.mark.parametrize("algorithm", ["halving_doubling", "swing"])
@pytest.mark.parametrize("ranks", [*POWERS, 32, 64])
def test_halving(operation: str, algorithm: str, ranks: int) -> None:
    prove(build_schedule(operation, algorithm, ranks))


@pytest.mark.parametrize("ranks", POWERS)
def test_tree(ranks: int) -> None:
    prove(build_schedule("all_reduce", "tree", ranks))


@pytest.mark.parametrize("operation", HALVES)
@pytest.mark.parametrize("extents", GRIDS)
@pytest.mark.parametrize("rotations", [False, True])
def test_dimension_wise(operation: str, extents: tuple[int, ...], rotations: bool) -> None:
    ranks = math.prod(extents)
    prove(build_schedule(operation, "dimension_wise", ranks, extents=extents, rotations=rotations))


@pytest.mark.parametrize("operation", HALVES)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_hierarchical_over_any_number_of_servers(operation: str, ranks: int) -> None:
    for servers in (s for s in range(1, ranks + 1) if ranks % s == 0):
        extents = (ranks // servers, servers)
        prove(build_schedule(operation, "hierarchical", ranks, extents=extents))


@pytest.mark.parametrize("weights", [(1,), (1, 1, 1), (3, 0, 2), (10, 4)])
@pytest.mark.parametrize("ranks", range(1, 18))
def test_in_switch(ranks: int, weights: tuple[int, ...]) -> None:
    prove(build_schedule("all_reduce", "in_switch", ranks, weights=weights))


@pytest.mark.parametrize("ranks", range(1, 18))
@pytest.mark.parametrize(("algorithm", "segments"), [("binomial", 0), ("chain", 1), ("chain", 5)])
def test_broadcast_and_reduce_with_every_root(algorithm: str, segments: int, ranks: int) -> None:
    options = {"num_segments": segments} if segments else {}
    for root in range(ranks):
        spread = build_schedule("broadcast", algorithm, ranks, root=root, **options)
        inputs = vectors(spread)
        assert (simulate(spread, inputs).values == inputs[root]).all()
        check_schedule(spread)
        collect = build_schedule("reduce", algorithm, ranks, root=root, **options)
        assert (simulate(collect, inputs).values[root] == inputs.sum(axis=0)).all()
        check_schedule(collect)


def test_send() -> None:
    schedule = build_schedule("send", "direct", 2)
    assert simulate(schedule, np.array([[7], [9]])).values.tolist() == [[7], [7]]
    check_schedule(schedule)


def exchanges(ranks: int, counts: object = None) -> Iterator[Schedule]:
    """Yield every way to exchange among so many ranks."""
    yield build_schedule("all_to_all", "direct", ranks, counts=counts)
    yield build_schedule("all_to_all", "pairwise", ranks, counts=counts)
    for servers in (s for s in range(1, ranks + 1) if ranks % s == 0):
        extents = (ranks // servers, servers)
        yield build_schedule("all_to_all", "two_level", ranks, extents=extents, counts=counts)


def received(schedule: Schedule, buffers: Any) -> Any:
    """Return what rank j has of what rank i had for it, [j, i], after the exchange."""
    ranks = schedule.num_ranks
    # Rank i starts with chunk i·n + j for rank j, at [i, j] of `buffers`.
    inputs = np.zeros((ranks, ranks * ranks), dtype=np.int64)
    rows = np.arange(ranks)[:, np.newaxis]
    inputs[rows, rows * ranks + np.arange(ranks)] = buffers
    ends = simulate(schedule, inputs).values
    return ends[rows, np.arange(ranks) * ranks + rows]


@pytest.mark.parametrize("ranks", range(1, 18))
def test_all_to_all_transposes_the_buffers(ranks: int) -> None:
    buffers = np.random.default_rng(ranks).integers(1, 10**9, size=(ranks, ranks))
    for schedule in exchanges(ranks):
        assert (received(schedule, buffers) == buffers.T).all()
        check_schedule(schedule)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[int]]:
    ranks = draw(st.integers(1, 8))
    row = st.lists(st.sampled_from([0, 0, 1, 5, 2**20]), min_size=ranks, max_size=ranks)
    return draw(st.lists(row, min_size=ranks, max_size=ranks))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(matrices())
def test_an_uneven_all_to_all_transposes_what_has_bytes_and_moves_no_others(
    counts: list[list[int]],
) -> None:
    ranks, bytes_ = len(counts), np.array(counts)
    buffers = np.random.default_rng(5).integers(1, 10**9, size=(ranks, ranks))
    for schedule in exchanges(ranks, counts):
        is_sent = bytes_.T > 0
        assert (received(schedule, buffers)[is_sent] == buffers.T[is_sent]).all()
        check_schedule(schedule)
        for sends in (s for part in schedule.rounds() for s in part):
            assert (bytes_.ravel()[sends.chunks].sum(axis=1) > 0).all()
    direct = list(build_schedule("all_to_all", "direct", ranks, counts=counts).rounds())
    sent = sum(len(part[0].senders) for part in direct)
    assert sent == np.count_nonzero(bytes_ - np.diag(np.diag(bytes_)))


SMALL = [
    build_schedule("all_reduce", "ring", 5),
    build_schedule("all_reduce", "tree", 8),
    build_schedule("all_reduce", "halving_doubling", 8),
    build_schedule("all_reduce", "swing", 8),
    build_schedule("all_reduce", "dimension_wise", 6, extents=(3, 2), rotations=True),
    build_schedule("all_reduce", "hierarchical", 6, extents=(2, 3)),
    build_schedule("all_reduce", "in_switch", 3, weights=(2, 1)),
    build_schedule("reduce_scatter", "swing", 8),
    build_schedule("reduce_scatter", "ring", 4),
    build_schedule("all_gather", "dimension_wise", 6, extents=(2, 3)),
    build_schedule("all_gather", "halving_doubling", 4),
    build_schedule("all_to_all", "pairwise", 4),
    build_schedule("all_to_all", "two_level", 6, extents=(3, 2)),
    build_schedule("all_to_all", "direct", 3, counts=[[1, 2, 0], [0, 4, 4], [9, 8, 7]]),
    build_schedule("broadcast", "binomial", 7, root=2),
    build_schedule("broadcast", "chain", 4, num_segments=3),
    build_schedule("reduce", "binomial", 6, root=5),
    build_schedule("send", "direct", 2),
]
IDS = [f"{s.operation}-{s.algorithm}" for s in SMALL]


def changed(schedule: Schedule, change: Callable[[list[Round]], list[Round]]) -> Schedule:
    rounds = change(list(schedule.rounds()))
    return replace(schedule, make_rounds=lambda: iter(rounds))


def without(sends: Sends, row: int) -> Round:
    """Return messages without one of them."""
    senders, receivers, chunks = (
        np.delete(array, row, axis=0) for array in (sends.senders, sends.receivers, sends.chunks)
    )
    left = replace(sends, senders=senders, receivers=receivers, make_chunks=lambda: chunks)
    return (left,) if len(senders) else ()


@pytest.mark.parametrize("schedule", SMALL, ids=IDS)
def test_every_single_message_is_needed(schedule: Schedule) -> None:
    for number, part in enumerate(schedule.rounds()):
        for place, sends in enumerate(part):
            for row in range(len(sends.senders)):
                fewer = (*part[:place], *without(sends, row), *part[place + 1 :])
                left = [fewer] if fewer else []  # a round of one message goes with it
                mutant = changed(
                    schedule,
                    lambda rounds, n=number, f=left: [*rounds[:n], *f, *rounds[n + 1 :]],
                )
                with pytest.raises(ScheduleError):
                    check_schedule(mutant)


@pytest.mark.parametrize("schedule", [s for s in SMALL if "reduce" in s.operation])
def test_a_sum_sent_twice_is_added_twice(schedule: Schedule) -> None:
    with pytest.raises(ScheduleError, match=r"round 1: node .* adds what rank .* twice"):
        check_schedule(changed(schedule, lambda rounds: [rounds[0], *rounds]))


@pytest.mark.parametrize("schedule", [s for s in SMALL if "reduce" in s.operation])
def test_a_copy_in_place_of_a_sum_loses_what_was_there(schedule: Schedule) -> None:
    def copy_first(rounds: list[Round]) -> list[Round]:
        return [tuple(replace(s, is_sum=False) for s in rounds[0]), *rounds[1:]]

    with pytest.raises(ScheduleError):
        check_schedule(changed(schedule, copy_first))


@pytest.mark.parametrize(
    "schedule", [s for s in SMALL if s.operation not in ("send",) and len(list(s.rounds())) > 1]
)
def test_rounds_in_the_wrong_order_are_caught(schedule: Schedule) -> None:
    # But the rounds of a pairwise exchange may be in any order: they depend on no other.
    mutant = changed(schedule, lambda rounds: rounds[::-1])
    if schedule.algorithm == "pairwise":
        check_schedule(mutant)
    else:
        with pytest.raises(ScheduleError):
            check_schedule(mutant)


def one_round(schedule: Schedule, *messages: tuple[int, int, int, bool]) -> Schedule:
    """Return a schedule of one round of (sender, receiver, chunk, is_sum)."""
    part = tuple(
        Sends(np.array([s]), np.array([r]), 1, is_sum, lambda c=c: np.array([[c]]))
        for s, r, c, is_sum in messages
    )
    return changed(schedule, lambda _: [part])


RING, SPREAD = build_schedule("all_reduce", "ring", 3), build_schedule("broadcast", "binomial", 3)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (one_round(SPREAD, (1, 2, 0, False)), "round 0: node 1 sends chunk 0, which it has not"),
        (one_round(SPREAD, (0, 2, 0, False), (0, 2, 0, False)), "two messages write chunk 0 of n"),
        (
            one_round(RING, (0, 2, 1, False), (1, 2, 1, True)),
            "two messages write chunk 1 of node 2",
        ),
        (one_round(RING, (0, 2, 1, True), (0, 2, 1, True)), "node 2 adds what rank 0 .* twice"),
        (one_round(RING, (0, 2, 1, True)), "rank 0 ends without chunk 0: it never got what rank 1"),
        (one_round(SPREAD, (0, 2, 0, False)), "rank 1 ends without chunk 0: it never got it"),
        (one_round(RING, (0, 3, 1, True)), "there is no receiver 3"),
        (one_round(RING, (-1, 2, 1, True)), "there is no sender -1"),
        (one_round(RING, (0, 1, 3, True)), "there is no chunk 3"),
        (one_round(RING, (1, 1, 0, True)), "node 1 sends to itself"),
        (changed(RING, lambda rounds: [(), *rounds]), "^round 0: nothing is sent"),
        (replace(RING, num_parts=2), "a message has 3 chunks, not 2"),
        (replace(RING, operation="all_to_all"), "one chunk for every pair of ranks"),
        (replace(RING, operation="shuffle"), "no operation is named 'shuffle'"),
        (
            replace(build_schedule("all_reduce", "tree", 4), operation="reduce_scatter"),
            "own equally many chunks",
        ),
        (replace(RING, sizes=np.ones(2, dtype=np.int64)), "sizes must have one number for each"),
    ],
)
def test_what_is_wrong_is_said(schedule: Schedule, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        check_schedule(schedule)


def test_messages_that_do_not_match_are_refused() -> None:
    def shorten(rounds: list[Round]) -> list[Round]:
        return [(replace(rounds[0][0], receivers=np.array([1])),)]

    with pytest.raises(ScheduleError, match="do not match"):
        check_schedule(changed(RING, shorten))


def test_a_round_reads_what_was_there_before_it() -> None:
    # Ranks 0 and 1 swap their values: both see the old one of the other.
    swap = one_round(build_schedule("all_reduce", "ring", 2), (0, 1, 0, False), (1, 0, 0, False))
    assert simulate(swap, np.array([[1, 0], [2, 0]])).values.tolist() == [[2, 0], [1, 0]]


def test_inputs_have_one_number_for_each_chunk_of_each_rank() -> None:
    with pytest.raises(ValueError, match="inputs must be 3 x 3"):
        simulate(RING, np.zeros((3, 2), dtype=np.int64))


def test_every_algorithm_has_been_tried() -> None:
    tried = {(s.operation, s.algorithm) for s in SMALL}
    named = {(o, a) for o in ("all_reduce", "all_to_all") for a in algorithms(o)}
    assert named <= tried
