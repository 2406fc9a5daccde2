"""Connection state and set-up, pay-back and control paths, worked out by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from instances import InputError, Instance, parse_instance
from instances.io import example_text
from instances.surroundings import ConnectionSpec
from optimizer.conflicts.changes import with_connections
from optimizer.conflicts.document import ConflictDocument, RelaxationDocument
from optimizer.conflicts.explain import explain_infeasible
from optimizer.explain import thresholds
from optimizer.options import SolveOptions
from optimizer.pricing import build_tables
from optimizer.solve import solve
from optimizer.surroundings.connections import (
    direct_links,
    host_setup_s,
    max_hosts,
    setup_s,
    state_bytes,
)
from optimizer.surroundings.control import REMOTE_READS, Initiator, batch_time, initiation_s
from optimizer.surroundings.payback import uses_to_repay
from optimizer.variants.solver import VariantSolver

Json = dict[str, Any]
US, NS = Fraction(1, 10**6), Fraction(1, 10**9)


def spec(organisation: str, cache_bytes: int | None = None, **fields: Any) -> ConnectionSpec:
    known = {"organisation": organisation, "cache_bytes": cache_bytes, "endpoints_per_host": 8}
    return ConnectionSpec.model_validate(known | fields)


def test_pairwise_state_grows_with_the_square_of_the_endpoints() -> None:
    """512 · 8² = 32,768 B for each remote host, and 32 · 8 = 256 B of its own."""
    assert [state_bytes(spec("pairwise"), h) for h in (1, 2, 3)] == [256, 33_024, 65_792]
    # 512 · 16² + 32 · 16
    assert state_bytes(spec("pairwise", endpoints_per_host=16), 2) == 131_072 + 512
    # 100 · 8² + 10 · 8
    assert state_bytes(spec("pairwise", context_bytes=100, segment_bytes=10), 2) == 6_480


def test_a_channel_for_each_remote_host() -> None:
    """(20 + 32) · 8 = 416 B, and 56 B for each remote host."""
    assert [state_bytes(spec("channels"), h) for h in (1, 2, 3)] == [416, 472, 528]
    sizes = {"endpoint_bytes": 1, "segment_bytes": 2, "channel_bytes": 3}
    assert state_bytes(spec("channels", **sizes), 11) == 3 * 8 + 3 * 10


def test_a_directory_has_a_bit_of_each_line_for_each_remote_host() -> None:
    """2^20 lines: 8 MiB of tags and 128 KiB for each remote host; bits are rounded up to bytes."""
    assert [state_bytes(spec("directory"), h) for h in (1, 2)] == [2**23, 2**23 + 2**17]
    # 9 lines of 3 B of tags; 9, 18 and 72 bits are 2, 3 and 9 B
    nine = spec("directory", num_lines=9, tag_bytes=3)
    assert [state_bytes(nine, h) for h in (2, 3, 9)] == [29, 30, 36]


def test_state_is_that_of_at_least_one_host() -> None:
    with pytest.raises(ValueError, match="at least 1 host, not 0"):
        state_bytes(spec("pairwise"), 0)


@pytest.mark.parametrize(
    ("organisation", "fields", "hosts", "state"),
    [
        ("pairwise", {}, 2, 33_024),
        ("pairwise", {}, 1, 256),
        ("channels", {}, 3, 528),
        # 5 lines of 8 B: 40 B; 5 bits for each remote host: 10 and 15 bits are 2 B, 20 are 3 B
        ("directory", {"num_lines": 5}, 3, 42),
        ("directory", {"num_lines": 5}, 4, 42),
        ("directory", {"num_lines": 5}, 5, 43),
    ],
)
def test_the_most_hosts_to_the_byte(
    organisation: str, fields: Json, hosts: int, state: int
) -> None:
    """A byte less holds fewer, unless a host more takes no byte more."""
    assert state_bytes(spec(organisation, **fields), hosts) == state
    enough = max_hosts(spec(organisation, state, **fields))
    assert enough is not None
    assert enough >= hosts
    assert state_bytes(spec(organisation, **fields), enough) == state
    fewer = max_hosts(spec(organisation, state - 1, **fields))
    assert fewer is not None
    assert fewer < hosts


def test_the_most_hosts_are_the_last_that_fit() -> None:
    """The closed form against counting up, for random sizes."""
    rng = Random(5)
    for _ in range(300):
        organisation = rng.choice(("pairwise", "channels", "directory"))
        sizes = {"context_bytes": rng.randint(1, 9), "channel_bytes": rng.randint(1, 9)}
        sizes |= {"num_lines": rng.randint(1, 40), "endpoints_per_host": rng.randint(1, 3)}
        limited = spec(organisation, rng.randint(0, 500), **sizes)
        assert limited.cache_bytes is not None
        hosts = 0
        while state_bytes(limited, hosts + 1) <= limited.cache_bytes:
            hosts += 1
        assert max_hosts(limited) == hosts


def test_without_a_limit_there_are_no_most_hosts() -> None:
    assert max_hosts(spec("pairwise")) is None
    assert max_hosts(spec("directory", 2**23 - 1)) == 0


def test_a_pairwise_connection_takes_four_calls_and_a_round_trip() -> None:
    """4 · 5 + 500 = 520 us; 6 connections on 1, 4 and 6 cores: 6, 2 and 1 after another."""
    pairs = spec("pairwise")
    assert [setup_s(pairs, 2, 3, cores) / US for cores in (1, 4, 6, 7)] == [3120, 1040, 520, 520]
    assert setup_s(spec("pairwise", num_cores=4), 2, 3) == 1040 * US
    slow = spec("pairwise", call_s="1ms", round_trip_s="2ms")
    assert setup_s(slow, 1, 1) == Fraction(6, 1000)


def test_channels_take_a_call_for_each_endpoint_and_a_round_trip_for_each_host() -> None:
    """2 · 5 + 3 · 505 = 1525 us one after another; on two cores 5 + 2 · 505."""
    assert [setup_s(spec("channels"), 2, 3, c) / US for c in (1, 2, 32)] == [1525, 1015, 510]


def test_a_host_is_connected_with_all_others() -> None:
    """Three hosts: 8 · 16 = 128 connections on 32 cores, 4 · 520; 8 endpoints and 2 channels."""
    assert host_setup_s(spec("pairwise"), 3) == 2080 * US
    assert host_setup_s(spec("pairwise"), 3, 1) == 128 * 520 * US
    assert host_setup_s(spec("channels"), 3, 1) == (8 * 5 + 2 * 505) * US
    assert host_setup_s(spec("channels"), 1, 1) == 40 * US
    assert host_setup_s(spec("pairwise"), 1) == 0


def test_how_long_a_directory_takes_is_not_known() -> None:
    with pytest.raises(ValueError, match="directory takes to set up is not known"):
        setup_s(spec("directory"), 1, 1)
    with pytest.raises(ValueError, match="goes with organisation 'pairwise' or 'channels'"):
        spec("directory", max_setup_s="1s")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"organisation": "rings"}, "organisation"),
        ({"endpoints_per_host": 0}, "endpoints_per_host"),
        ({"cache_bytes": "-1B"}, "cache_bytes"),
        ({"context_bytes": 0}, "context_bytes"),
        ({"channel_bytes": 0}, "channel_bytes"),
        ({"num_lines": 0}, "num_lines"),
        ({"max_setup_s": 0}, "max_setup_s"),
        ({"num_cores": 0}, "num_cores"),
        ({"hosts": 2}, "hosts"),
        ({"organisation": "directory", "max_setup_s": "1s"}, "connections"),
    ],
)
def test_what_breaks_a_rule_is_an_error_of_one_line(fields: Json, place: str) -> None:
    connections = {"organisation": "pairwise", "endpoints_per_host": 1, "cache_bytes": 1} | fields
    with pytest.raises(InputError) as caught:
        two_servers(connections)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_cache_must_be_given_or_null() -> None:
    with pytest.raises(InputError, match="cache_bytes: this field is required"):
        two_servers({"organisation": "pairwise", "endpoints_per_host": 1})


def test_direct_links_join_every_two() -> None:
    assert [direct_links(n) for n in (0, 1, 2, 3, 8)] == [0, 0, 1, 3, 28]


@pytest.mark.parametrize(
    ("cost", "before", "after", "uses"),
    [
        (10, 5, 3, 5),  # 5 · 2 = 10 is enough
        (10 + NS, 5, 3, 6),
        (10 - NS, 5, 3, 5),
        (1, 5, 3, 1),
        (0, 5, 3, 0),
        (0, 3, 5, 0),
        (1, 3, 3, None),
        (1, 3, 5, None),
        (1, Fraction(1, 3), 0, 3),
    ],
)
def test_a_change_pays_when_what_it_saves_reaches_its_cost(
    cost: Fraction, before: Fraction, after: Fraction, uses: int | None
) -> None:
    assert uses_to_repay(Fraction(cost), Fraction(before), Fraction(after)) == uses


@pytest.mark.parametrize("times", [(-1, 2, 1), (1, -2, 1), (1, 2, -1)])
def test_no_time_is_negative(times: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 0 s"):
        uses_to_repay(*map(Fraction, times))


def test_the_control_path_crosses_pcie_by_who_starts() -> None:
    """At 300 ns a crossing: 900, 600 and 0 ns, and 10 requests at 2 million a second 5 us."""
    rate = Fraction(2 * 10**6)
    proxy, gpu, nic = (
        Initiator(name, 300 * NS, rate) for name in ("cpu_proxy", "gpu", "nic_processor")
    )
    assert [i.num_crossings for i in (proxy, gpu, nic)] == [3, 2, 0]
    assert [i.busy for i in (proxy, gpu, nic)] == ["CPU cores", "SMs", "none"]
    assert [i.control_s / NS for i in (proxy, gpu, nic)] == [900, 600, 0]
    assert [initiation_s(i, 10) / NS for i in (proxy, gpu, nic)] == [5900, 5600, 5000]


def test_a_batch_goes_at_the_slower_of_two_rates() -> None:
    """500 ns to start a request; at 50 GB/s, 25,000 B take 500 ns as well."""
    gpu, speed = Initiator("gpu", 300 * NS, Fraction(2 * 10**6)), Fraction(50 * 10**9)
    found = [batch_time(gpu, 4, size, speed) for size in (24_999, 25_000, 25_001)]
    assert [batch.bound_by for batch in found] == ["initiation", "both", "fabric"]
    # 600 + 4 · 500 ns, and 600 + 4 · 500.02 ns
    assert [batch.time_s / NS for batch in found] == [2600, 2600, 2600 + Fraction(8, 100)]


@pytest.mark.parametrize(
    ("name", "crossing", "rate", "said"),
    [
        ("dpu", 0, 1, "no initiator is named 'dpu'; use cpu_proxy, gpu, nic_processor"),
        ("gpu", -1, 1, "crossing_s is at least 0 s"),
        ("gpu", 0, 0, "requests_per_s is more than 0"),
    ],
)
def test_what_starts_no_request_is_refused(name: Any, crossing: int, rate: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Initiator(name, Fraction(crossing), Fraction(rate))


def test_a_fabric_carries_something() -> None:
    with pytest.raises(ValueError, match="bandwidth_bytes_per_s is more than 0"):
        batch_time(Initiator("gpu", NS, Fraction(1)), 1, 1, Fraction(0))


def test_published_reads_say_what_pcie_takes() -> None:
    """1.65 us of five crossings: 330 ns each, 'hundreds of nanoseconds'."""
    behind, on_chip = REMOTE_READS
    assert behind.crossings_s / behind.num_crossings == 330 * NS
    assert behind.time_s - behind.crossings_s == 550 * NS > on_chip.time_s == 420 * NS
    assert all(read.source for read in REMOTE_READS)


def two_servers(connections: Json | None, **pool: Any) -> Instance:
    """Return two servers of 8 H100 and a session that eight cards hold, with TP16 alone."""
    document = json.loads(example_text("two-servers-one-session"))
    document["fleet"]["pools"][0] |= {"connections": connections, **pool}
    document["search"] |= {"tp": [16], "deployment": "mixed", "dispatch": "optimised"}
    document["workload"]["cohorts"][0]["deadline_s"] = None
    return parse_instance(document)


def limits(cache: int | None, setup_us: int | None = None, **fields: Any) -> Json:
    most = None if setup_us is None else f"{setup_us}us"
    known = {"organisation": "pairwise", "endpoints_per_host": 8, "cache_bytes": cache}
    return known | {"max_setup_s": most} | fields


def test_a_connection_limit_is_told_with_what_would_lift_it() -> None:
    """33,024 B for two hosts; 64 connections on 32 cores take 2 · 520 us."""
    tables = build_tables(two_servers(limits(32_000)))
    (found,) = thresholds(tables, tables.rejections)
    assert (found.input, found.change, found.value, found.unit) == ("cache_bytes", 1024, 33024, "B")
    label = "TP16 over 2 servers"
    assert found.message == f"{label} fits once each NIC holds 1,024 B more, 33,024 B"
    assert found.rejection.message == (
        f"{label} needs 33,024 B of NIC state, 1,024 B more than the 32,000 B that a NIC holds"
    )
    tables = build_tables(two_servers(limits(None, 1000)))
    (found,) = thresholds(tables, tables.rejections)
    assert (found.input, found.change, found.value) == ("max_setup_s", 40 * US, 1040 * US)
    assert found.message.endswith("once max_setup_s moves by 40.00 µs, to 1.040 ms")
    assert found.rejection.message == (
        f"{label} needs 1.040 ms to set up its connections, 40.00 µs more than 1.000 ms"
    )


def test_a_result_document_tells_the_threshold() -> None:
    result = solve(two_servers(limits(33_023)), SolveOptions(threads=1))
    assert result.termination == "infeasible"
    assert "TP16" in result.reason
    (threshold,) = result.thresholds
    assert (threshold.input, threshold.value, threshold.num_servers) == ("cache_bytes", 33024, 2)


def of(document: ConflictDocument, path: str) -> RelaxationDocument:
    (found,) = [item for item in document.relaxations if item.path == path]
    assert found.exact
    return found


def constraint_names(document: ConflictDocument) -> set[str]:
    assert document.termination == "infeasible"
    return {constraint.name for constraint in document.constraints}


def test_a_nic_cache_conflicts_and_the_least_that_helps_is_exact() -> None:
    """Only TP16 is searched for, and it needs both servers: 33,024 B."""
    document = explain_infeasible(two_servers(limits(1000, 10**6)))
    assert "NIC cache of pool" in " ".join(constraint_names(document))
    assert "set-up" not in " ".join(constraint_names(document))
    more = of(document, "fleet.pools[0].connections.cache_bytes")
    assert (more.value_exact, more.change, more.unit) == ("33024", 32_024, "B")
    assert more.message.startswith("32.02 kB more in every NIC of pool")


def test_a_set_up_time_conflicts_and_the_least_that_helps_is_exact() -> None:
    """1040 us; without round trips it would be 2 · 4 · 5 = 40 us."""
    document = explain_infeasible(two_servers(limits(10**6, 333)))
    assert "connection set-up of pool" in " ".join(constraint_names(document))
    assert "NIC cache" not in " ".join(constraint_names(document))
    more = of(document, "fleet.pools[0].connections.max_setup_s")
    assert Fraction(more.value_exact) == 1040 * US
    quick = two_servers(limits(10**6, 333, round_trip_s=0))
    assert solve(quick, SolveOptions(threads=1)).termination == "optimal"


def test_where_both_limits_are_too_tight_neither_helps_alone() -> None:
    """Each is a conflict of its own, so a smallest one names one of them."""
    document = explain_infeasible(two_servers(limits(1000, 333)))
    kinds = sorted(name.split(" of ")[0] for name in constraint_names(document))
    assert kinds in (["NIC cache", "search.tp"], ["connection set-up", "search.tp"])
    paths = [item.path for item in document.relaxations]
    assert not [path for path in paths if "connections" in path]
    told = " ".join(document.without_help)
    assert "NIC cache of pool" in told
    assert "connection set-up of pool" in told


def test_a_changed_limit_is_priced_again() -> None:
    solver = VariantSolver()
    first = two_servers(limits(33_024))
    for cache in (33_024, 33_023, None, 33_023, 33_024):
        variant = with_connections(first, 0, cache_bytes=cache)
        tables = solver.tables(variant)
        assert tables == build_tables(variant)
        assert bool(tables.candidates) == (cache != 33_023)


def test_an_old_file_has_no_connections_and_new_ones_are_written_back() -> None:
    old = json.loads(example_text("two-servers-one-session"))
    assert parse_instance(old).fleet.pools[0].connections is None
    given = two_servers(limits(33_024, 520))
    again = parse_instance(json.loads(given.canonical_json()))
    assert again.sha256() == given.sha256()
    assert again.fleet.pools[0].connections == given.fleet.pools[0].connections
