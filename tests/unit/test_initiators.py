"""Who starts requests: the control path of every round, the rate, and what that decides (6.4.4)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from instances.fleet import Pool
from instances.instance import Instance
from instances.io import load_instance
from instances.surroundings import InitiatorSpec
from optimizer import solve
from optimizer.parallel import ParallelConfig
from optimizer.place import Place
from optimizer.plan import Footprint
from optimizer.surroundings.control import started_s
from optimizer.work import Exchange, ExchangeKind

US = Fraction(1, 10**6)


def initiator(kind: str, crossing: str = "300ns", rate: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "crossing_s": crossing, "requests_per_s": rate}


def pool(starts: Any, has_links: bool) -> Pool:
    """Two HGX H100 servers, over whose network somebody starts requests."""
    between = "infiniband-ndr-two-servers" if has_links else "infiniband-ndr"
    inside = "nvlink-4-nvswitch" if has_links else "nvlink-4"
    return Pool.model_validate(
        {
            "name": "hgx",
            "server": {"base": "hgx-h100", "fabric": inside},
            "num_servers": 2,
            "fabric_between": {"base": between, "initiator": starts},
        }
    )


def seconds(where: Pool, name: str, kind: ExchangeKind = "all_reduce") -> Fraction:
    footprint = Footprint("hgx", ParallelConfig(tp=16), 2, name)
    return Place(where, footprint).exchange_s(Exchange("x", kind, 16, 16, Fraction(10240), 1))


@pytest.mark.parametrize(
    ("kind", "crossings"), [("cpu_proxy", 3), ("gpu", 2), ("nic_processor", 0)]
)
@pytest.mark.parametrize(
    ("name", "rounds"),
    [("ring", 30), ("hierarchical", 2)],  # 2(n-1) rounds over adapters; 2(S-1) of two servers
)
@pytest.mark.parametrize("has_links", [False, True])
def test_every_round_over_the_network_waits_for_the_control_path(
    kind: str, crossings: int, name: str, rounds: int, has_links: bool
) -> None:
    plain = seconds(pool(None, has_links), name)
    more = seconds(pool(initiator(kind), has_links), name) - plain
    assert more == rounds * crossings * Fraction(3, 10) * US


def test_the_rate_binds_where_a_card_starts_many_messages() -> None:
    """15 messages at one a microsecond take 15 us; the links are ready before that, or after."""
    fast, slow = initiator("nic_processor", rate=10**6), initiator("nic_processor", rate=10**9)
    plain = seconds(pool(None, True), "ring", "all_to_all")
    assert plain < 15 * US
    # 8 of a card's 15 messages leave its server, all in one round
    assert seconds(pool(fast, True), "ring", "all_to_all") == 8 * US
    assert seconds(pool(slow, True), "ring", "all_to_all") == plain
    # without links all 15 count, one a round, and 15 rounds of 3.76 us are longer
    assert seconds(pool(fast, False), "ring", "all_to_all") > 15 * 3 * US


def test_what_starts_by_itself_and_what_is_measured_takes_nothing_more() -> None:
    assert started_s(None, 5 * US, 3, 3) == 5 * US
    spec = InitiatorSpec.model_validate(initiator("gpu"))
    assert started_s(spec, 5 * US, 3, 3) == 5 * US + 3 * 2 * Fraction(3, 10) * US
    assert seconds(pool(initiator("cpu_proxy"), False), "measured") == Fraction(3274, 100) * US


@pytest.mark.parametrize(
    ("kind", "wins"), [("cpu_proxy", "TP8"), ("gpu", "TP16"), ("nic_processor", "TP16")]
)
def test_who_starts_requests_decides_whether_a_second_server_pays(kind: str, wins: str) -> None:
    """By the model TP16 ends after 39.36 ms and TP8 after 41.18, 1.818 ms later.

    TP16 has 8 · 128 reductions of two rounds over the network: 2048 · 3 · 300 ns = 1.843 ms more
    behind a proxy, 2048 · 2 · 300 ns = 1.229 ms when the GPU starts them.
    """
    document = load_instance("two-servers-one-session").model_dump(mode="json")
    document["search"]["collectives"] = ["ring", "hierarchical"]
    document["fleet"]["pools"][0]["fabric_between"]["initiator"] = initiator(kind)
    result = solve(Instance.model_validate(document))
    assert result.termination == "optimal"
    assert result.plan is not None
    assert f"{wins} " in result.plan.sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "ghost"}, "cpu_proxy"),
        ({"crossing_s": "-1ns"}, "crossing_s"),
        ({"requests_per_s": 0}, "requests_per_s"),
    ],
)
def test_a_wrong_initiator_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        InitiatorSpec.model_validate({**initiator("gpu"), **change})
