"""Rounds of every collective: who sends what to whom, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from optimizer.collectives import CollectiveUnavailable
from optimizer.schedules.building import algorithms, build_schedule
from optimizer.schedules.schedule import OPERATIONS, Schedule, Sends

HALVES = ("ring", "halving_doubling", "swing", "dimension_wise", "hierarchical")
Messages = set[tuple[int, int, tuple[int, ...]]]


def messages(schedule: Schedule) -> list[Messages]:
    """Return (sender, receiver, chunks in order) of every round."""
    return [{row for sends in part for row in rows(sends)} for part in schedule.rounds()]


def rows(sends: Sends) -> Messages:
    ends = zip(sends.senders.tolist(), sends.receivers.tolist(), sends.chunks.tolist(), strict=True)
    return {(sender, receiver, tuple(sorted(chunks))) for sender, receiver, chunks in ends}


def is_sums(schedule: Schedule) -> list[bool]:
    return [part[0].is_sum for part in schedule.rounds()]


def test_every_operation_lists_its_algorithms() -> None:
    assert {operation: algorithms(operation) for operation in OPERATIONS} == {
        "all_reduce": (*HALVES, "tree", "in_switch"),
        "reduce_scatter": HALVES,
        "all_gather": HALVES,
        "all_to_all": ("direct", "pairwise", "two_level"),
        "broadcast": ("binomial", "chain"),
        "reduce": ("binomial", "chain"),
        "send": ("direct",),
    }


def test_a_ring_of_four_moves_blocks_as_figures_6_23_and_6_24_do() -> None:
    ring = build_schedule("all_reduce", "ring", 4)
    block = [[(s, r) for s, r, chunks in part if chunks == (0,)] for part in messages(ring)]
    # Block 0 starts on card 0 and is whole on card 3; from there it goes to 0, 1 and 2.
    assert block == [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 0)], [(0, 1)], [(1, 2)]]
    assert is_sums(ring) == [True] * 3 + [False] * 3
    # After the first half cards 0, 1, 2 and 3 send blocks 1, 2, 3 and 0.
    assert messages(ring)[3] == {(0, 1, (1,)), (1, 2, (2,)), (2, 3, (3,)), (3, 0, (0,))}


def test_a_ring_reduce_scatter_ends_and_an_all_gather_starts_with_chunk_r_on_rank_r() -> None:
    scatter = messages(build_schedule("reduce_scatter", "ring", 3))
    assert scatter == [
        {(0, 1, (2,)), (1, 2, (0,)), (2, 0, (1,))},
        {(0, 1, (1,)), (1, 2, (2,)), (2, 0, (0,))},
    ]
    gather = messages(build_schedule("all_gather", "ring", 3))
    assert gather == [
        {(0, 1, (0,)), (1, 2, (1,)), (2, 0, (2,))},
        {(0, 1, (2,)), (1, 2, (0,)), (2, 0, (1,))},
    ]


def test_recursive_halving_of_four_by_hand() -> None:
    # Round 0, partners 0-1 and 2-3: odd chunks go to odd ranks. Round 1, partners 0-2 and 1-3.
    assert messages(build_schedule("reduce_scatter", "halving_doubling", 4)) == [
        {(0, 1, (1, 3)), (1, 0, (0, 2)), (2, 3, (1, 3)), (3, 2, (0, 2))},
        {(0, 2, (2,)), (2, 0, (0,)), (1, 3, (3,)), (3, 1, (1,))},
    ]


def test_swing_partners_of_sixteen_swing_from_side_to_side() -> None:
    # rho = 1, -1, 3, -5 for even ranks, the opposite for odd ones.
    partners = [
        [part[0].receivers[rank].item() for rank in (0, 1, 2, 15)]
        for part in build_schedule("reduce_scatter", "swing", 16).rounds()
    ]
    assert partners == [[1, 0, 3, 14], [15, 2, 1, 0], [3, 14, 5, 12], [11, 6, 13, 4]]


def test_swing_sends_what_the_partner_and_its_later_partners_end_up_with() -> None:
    # Of eight ranks. Rank 0 meets 1, then 7, then 3. Rank 1 will meet 2, then 6, and rank 2 will
    # meet 5 in the last step: for them all 0 gives {1, 2, 6, 5} away. Then 7 and its partner 4, at
    # last 3. Last step: odd ranks meet r - 3, even ones r + 3.
    first, second, third = messages(build_schedule("reduce_scatter", "swing", 8))
    assert (0, 1, (1, 2, 5, 6)) in first
    assert (0, 7, (4, 7)) in second
    assert (0, 3, (3,)) in third


@pytest.mark.parametrize("algorithm", ["halving_doubling", "swing"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64])
def test_halving_sends_half_each_time_and_doubling_takes_it_back(
    algorithm: str, ranks: int
) -> None:
    each = [part[0].chunks_each for part in build_schedule("all_reduce", algorithm, ranks).rounds()]
    halves = [ranks >> step + 1 for step in range(int(math.log2(ranks)))]
    assert each == halves + halves[::-1]
    assert sum(each) == 2 * (ranks - 1)


def test_a_tree_of_eight_joins_neighbours_first_and_returns_the_same_way() -> None:
    up = [
        {(1, 0, (0,)), (3, 2, (0,)), (5, 4, (0,)), (7, 6, (0,))},
        {(2, 0, (0,)), (6, 4, (0,))},
        {(4, 0, (0,))},
    ]
    down = [{(b, a, c) for a, b, c in part} for part in reversed(up)]
    tree = build_schedule("all_reduce", "tree", 8)
    assert messages(tree) == up + down
    assert is_sums(tree) == [True] * 3 + [False] * 3


def test_binomial_broadcast_of_five_from_rank_three() -> None:
    # Places 0..4 are ranks 3, 4, 0, 1, 2: place 0 to 4, then 0 to 2, then 0 to 1 and 2 to 3.
    down = [{(3, 2, (0,))}, {(3, 0, (0,))}, {(3, 4, (0,)), (0, 1, (0,))}]
    assert messages(build_schedule("broadcast", "binomial", 5, root=3)) == down
    up = [{(b, a, c) for a, b, c in part} for part in reversed(down)]
    assert messages(build_schedule("reduce", "binomial", 5, root=3)) == up


def test_a_chain_passes_segments_on_in_a_pipeline() -> None:
    assert messages(build_schedule("broadcast", "chain", 3, root=1, num_segments=2)) == [
        {(1, 2, (0,))},
        {(1, 2, (1,)), (2, 0, (0,))},
        {(2, 0, (1,))},
    ]
    assert messages(build_schedule("reduce", "chain", 3, root=1)) == [
        {(0, 2, (0,))},
        {(2, 1, (0,))},
    ]


@pytest.mark.parametrize(
    ("ranks", "segments", "rounds"), [(2, 1, 1), (2, 7, 7), (5, 1, 4), (5, 3, 6), (9, 100, 107)]
)
def test_a_chain_takes_n_minus_two_and_the_segments(ranks: int, segments: int, rounds: int) -> None:
    chain = build_schedule("broadcast", "chain", ranks, num_segments=segments)
    assert len(list(chain.rounds())) == rounds


def test_two_by_three_ranks_reduce_along_x_then_along_y() -> None:
    rounds = messages(build_schedule("reduce_scatter", "dimension_wise", 6, extents=(2, 3)))
    assert len(rounds) == 1 + 2
    # Along x, rank 0 sends rank 1 all that ranks 1, 3 and 5 (x = 1) will own.
    assert {row for row in rounds[0] if row[0] in (0, 1)} == {(0, 1, (1, 3, 5)), (1, 0, (0, 2, 4))}
    # Along y, chunk 0 travels 2 -> 4 -> 0.
    assert (2, 4, (0,)) in rounds[1]
    assert (4, 0, (0,)) in rounds[2]


def test_rotations_use_every_direction_of_every_dimension_in_every_round() -> None:
    schedule = build_schedule("all_reduce", "dimension_wise", 27, extents=(3, 3, 3), rotations=True)
    assert schedule.num_chunks == 27 * 6
    rounds = list(schedule.rounds())
    assert len(rounds) == 2 * (2 + 2 + 2)
    for part in rounds:
        distances = {int((s.receivers[13] - s.senders[13]).item()) for s in part}
        assert distances == {1, -1, 3, -3, 9, -9}  # rank 13 is in the middle


@pytest.mark.parametrize("extents", [(1,), (1, 1), (6,), (2, 3), (3, 1, 2), (1, 6, 1)])
@pytest.mark.parametrize("rotations", [False, True])
def test_dimensions_add_up_their_rounds(extents: tuple[int, ...], rotations: bool) -> None:
    ranks = math.prod(extents)
    schedule = build_schedule(
        "all_reduce", "dimension_wise", ranks, extents=extents, rotations=rotations
    )
    assert len(list(schedule.rounds())) == 2 * sum(extent - 1 for extent in extents)


def test_hierarchical_reduces_inside_servers_first() -> None:
    rounds = messages(build_schedule("reduce_scatter", "hierarchical", 6, extents=(3, 2)))
    servers = [{(s // 3, r // 3) for s, r, _ in part} for part in rounds]
    assert servers == [{(0, 0), (1, 1)}, {(0, 0), (1, 1)}, {(0, 1), (1, 0)}]
    assert [len(next(iter(part))[2]) for part in rounds] == [2, 2, 1]


def test_in_switch_gives_each_adder_its_share() -> None:
    schedule = build_schedule("all_reduce", "in_switch", 2, weights=(4, 0, 2))
    assert (schedule.num_chunks, schedule.num_adders) == (3, 3)
    # Adders are nodes 2, 3 and 4; shares 2, 0 and 1 of three chunks.
    up = {(0, 2, (0, 1)), (1, 2, (0, 1)), (0, 4, (2,)), (1, 4, (2,))}
    assert messages(schedule) == [up, {(b, a, chunks) for a, b, chunks in up}]
    assert [[s.is_sum for s in part] for part in schedule.rounds()] == [[True] * 2, [False] * 2]


def test_in_switch_shares_equally_unless_told_otherwise() -> None:
    schedule = build_schedule("all_reduce", "in_switch", 3, num_adders=4)
    assert schedule.num_chunks == 4
    assert [len(part) for part in messages(schedule)] == [12, 12]


def test_direct_sends_every_pair_at_once_and_pairwise_one_distance_at_a_time() -> None:
    pairs = {(i, j, (4 * i + j,)) for i in range(4) for j in range(4) if i != j}
    assert messages(build_schedule("all_to_all", "direct", 4)) == [pairs]
    steps = [{row for row in pairs if (row[1] - row[0]) % 4 == step} for step in (1, 2, 3)]
    assert messages(build_schedule("all_to_all", "pairwise", 4)) == steps


def test_two_levels_send_one_message_to_every_other_server_then_share_it_out() -> None:
    across, inside = messages(build_schedule("all_to_all", "two_level", 4, extents=(2, 2)))
    # Rank 0 sends rank 2 what is for 2 and 3; then rank 2 tells 3 what 0 and itself have for 3.
    assert across == {
        (0, 2, (2, 3)),
        (2, 0, (8, 9)),
        (1, 3, (6, 7)),
        (3, 1, (12, 13)),
    }
    assert inside == {
        (0, 1, (1, 9)),
        (1, 0, (4, 12)),
        (2, 3, (3, 11)),
        (3, 2, (6, 14)),
    }


def test_pairs_without_bytes_send_nothing_and_rounds_without_messages_do_not_exist() -> None:
    counts = [[5, 3, 0], [0, 0, 0], [0, 7, 9]]
    pair = {(0, 1, (1,)), (2, 1, (7,))}
    assert messages(build_schedule("all_to_all", "direct", 3, counts=counts)) == [pair]
    assert messages(build_schedule("all_to_all", "pairwise", 3, counts=counts)) == [
        {(0, 1, (1,))},
        {(2, 1, (7,))},
    ]
    none = np.diag([1, 2, 3])
    assert messages(build_schedule("all_to_all", "pairwise", 3, counts=none)) == []
    across, inside = (
        messages(build_schedule("all_to_all", "two_level", 3, extents=(1, 3), counts=counts)),
        messages(build_schedule("all_to_all", "two_level", 3, extents=(3, 1), counts=counts)),
    )
    assert across == inside == [pair]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[1, 2]], "must be 2 x 2, not 1 x 2"),
        (3, "must be 2 x 2, not one number"),
        ([[1, 2], [3, -1]], "must not be negative, one is -1"),
        ([[1, 2], [3, 0.5]], "must be whole bytes, not float64"),
        ([[0, 2**52], [2**52, 0]], "too large"),
    ],
)
def test_counts_must_be_a_matrix_of_whole_bytes(counts: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_schedule("all_to_all", "direct", 2, counts=counts)


def test_counts_just_below_the_limit_are_taken() -> None:
    schedule = build_schedule("all_to_all", "direct", 2, counts=[[0, 2**52], [2**52 - 1, 0]])
    assert schedule.sizes is not None
    assert schedule.sizes.tolist() == [0, 2**52, 2**52 - 1, 0]


@pytest.mark.parametrize(
    ("build", "num_pairs"),
    [
        (lambda: build_schedule("all_reduce", "ring", 9), 1),
        (lambda: build_schedule("all_reduce", "swing", 8), 3),
        (lambda: build_schedule("all_reduce", "dimension_wise", 64, extents=(4, 4, 4)), 3),
        (
            lambda: build_schedule(
                "all_reduce", "dimension_wise", 60, extents=(5, 4, 3), rotations=True
            ),
            6,
        ),
        (lambda: build_schedule("broadcast", "chain", 4, num_segments=50), 5),  # filling, draining
    ],
)
def test_rounds_between_the_same_ranks_share_their_arrays(
    build: Callable[[], Schedule], num_pairs: int
) -> None:
    rounds = list(build().rounds())
    assert len({(id(s.senders), id(s.receivers)) for part in rounds for s in part}) == num_pairs


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nobody_can_change_who_sends_to_whom(operation: str) -> None:
    servers = {"extents": (4, 2)}
    options = {"dimension_wise": servers, "hierarchical": servers, "two_level": servers}
    for algorithm in algorithms(operation):
        ranks = 2 if operation == "send" else 8
        schedule = build_schedule(operation, algorithm, ranks, **options.get(algorithm, {}))
        for part in schedule.rounds():
            for sends in part:
                assert not sends.senders.flags.writeable
                assert not sends.receivers.flags.writeable


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12, 17])
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("halving_doubling", "recursive halving and doubling needs"),
        ("swing", "swing needs"),
        ("tree", "the binomial tree needs"),
    ],
)
def test_halves_and_trees_need_a_power_of_two(algorithm: str, words: str, ranks: int) -> None:
    with pytest.raises(
        CollectiveUnavailable, match=f"{words} a power of two, not {ranks} ranks"
    ) as caught:
        build_schedule("all_reduce", algorithm, ranks)
    assert caught.value.rule == f"{algorithm}_power_of_two"


@pytest.mark.parametrize("extents", [(), (2, 2), (4, 2), (0, 6), (-2, -3)])
def test_a_grid_must_hold_the_ranks(extents: tuple[int, ...]) -> None:
    with pytest.raises(CollectiveUnavailable, match="does not hold 6 ranks") as caught:
        build_schedule("all_reduce", "dimension_wise", 6, extents=extents)
    assert caught.value.rule == "extents"


@pytest.mark.parametrize(
    ("operation", "algorithm"), [("all_reduce", "hierarchical"), ("all_to_all", "two_level")]
)
def test_servers_must_hold_the_ranks(operation: str, algorithm: str) -> None:
    with pytest.raises(CollectiveUnavailable, match="4 x 2 does not hold 6 ranks"):
        build_schedule(operation, algorithm, 6, extents=(4, 2))
    with pytest.raises(ValueError, match="ranks per server and servers, not"):
        build_schedule(operation, algorithm, 6, extents=(3, 2, 1))


@pytest.mark.parametrize("options", [{"num_adders": 0}, {"weights": ()}, {"weights": (0, 0)}])
def test_in_switch_needs_a_switch_that_adds(options: dict[str, object]) -> None:
    with pytest.raises(CollectiveUnavailable, match="a switch that adds up") as caught:
        build_schedule("all_reduce", "in_switch", 4, **options)
    assert caught.value.rule == "adders"


@pytest.mark.parametrize(
    ("operation", "algorithm", "ranks", "options", "words"),
    [
        ("allreduce", "ring", 4, {}, "no operation is named 'allreduce'; use all_reduce"),
        ("all_gather", "tree", 4, {}, "all_gather has no algorithm 'tree'; use ring"),
        ("all_reduce", "ring", 0, {}, "one rank or more, not 0"),
        ("all_reduce", "in_switch", 4, {"weights": (2, -1)}, "must not be negative"),
        ("broadcast", "binomial", 4, {"root": 4}, "root 4 is none of the ranks 0 to 3"),
        ("reduce", "chain", 4, {"root": -1}, "root -1 is none"),
        ("reduce", "chain", 4, {"num_segments": 0}, "one segment or more, not 0"),
        ("send", "direct", 3, {}, "a Send has two ranks, not 3"),
    ],
)
def test_what_does_not_exist_is_refused(
    operation: str, algorithm: str, ranks: int, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        build_schedule(operation, algorithm, ranks, **options)


def test_an_algorithm_takes_its_own_options_only() -> None:
    with pytest.raises(TypeError, match="root"):
        build_schedule("all_reduce", "ring", 4, root=0)
    with pytest.raises(TypeError, match="extents"):
        build_schedule("all_reduce", "dimension_wise", 4)
