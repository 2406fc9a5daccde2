"""Published figures of rewiring, tuning, connection state and set-up come out within tolerance.

Every figure carries the id and the section under which the source chapter prints it. Published
values and tolerances are literals; nothing here computes what it expects.
"""

from __future__ import annotations

from fractions import Fraction

from figures import assert_figure
from instances.surroundings import ConnectionSpec, Organisation
from optimizer.collectives import ring_all_reduce_s
from optimizer.surroundings.connections import direct_links, max_hosts, setup_s, state_bytes
from optimizer.surroundings.payback import uses_to_repay

KIB, MIB = 2**10, 2**20
MS, US = Fraction(1, 10**3), Fraction(1, 10**6)


def connections(organisation: Organisation) -> ConnectionSpec:
    """Return eight endpoints a host and a NIC with 256 KiB, all else as the source has it."""
    return ConnectionSpec(organisation=organisation, endpoints_per_host=8, cache_bytes=256 * KIB)


def ring_s(links: int) -> Fraction:
    """AllReduce of 8 MiB on a ring of 8 with so many links of 50 GB/s, transfers alone."""
    return ring_all_reduce_s(8, 8 * MIB, Fraction(0), Fraction(links * 50 * 10**9))


def test_a_ring_on_one_and_on_three_links() -> None:
    """ocs (6.5.4): 2 · 7/8 · 8 MiB = 14 MiB = 14,680,064 B; at 50 GB/s 293.60128 us, a third."""
    assert ring_s(1) == Fraction(14_680_064, 50 * 10**9)
    assert ring_s(3) == ring_s(1) / 3
    assert_figure("ocs, one link", ring_s(1) / US, "293.6", "0.05")
    assert_figure("ocs, three links", ring_s(3) / US, "97.9", "0.05")


def test_uses_that_repay_an_optical_switch() -> None:
    """ "ocs_pay" (6.5.4): 195.734 us saved a use.

    1000 / 195.734 = 5.11, 100,000 / 195.734 = 510.9.
    """
    assert uses_to_repay(1 * MS, ring_s(1), ring_s(3)) == 6
    assert uses_to_repay(100 * MS, ring_s(1), ring_s(3)) == 511


def test_calls_that_repay_a_tuning() -> None:
    """6.4.3: 36.92 + 11.03 ms apart, 45.24 ms together: 2.71 ms saved; 1000 / 2.71 = 369.004."""
    apart, together = Fraction("47.95") * MS, Fraction("45.24") * MS
    assert apart - together == Fraction("2.71") * MS
    assert uses_to_repay(Fraction(1), apart, together) == 370


def test_hosts_whose_pairwise_state_fits() -> None:
    """ "ub_hosts" (6.5.5): 32 KiB a remote host and 256 B.

    262,144 - 256 = 7.99 · 32,768, and one.
    """
    assert max_hosts(connections("pairwise")) == 8
    # (262,144 - 416) / 56 = 4673.7, and one: "over four thousand"
    assert max_hosts(connections("channels")) == 4674


def test_state_of_192_hosts() -> None:
    """ "ub_192" (6.5.5): 191 · 32,768 + 256 = 6,258,944 B; 416 + 191 · 56 = 11,112 B."""
    pairwise = state_bytes(connections("pairwise"), 192)
    channels = state_bytes(connections("channels"), 192)
    assert (pairwise, channels) == (6_258_944, 11_112)
    assert_figure("ub_192, pairwise", Fraction(pairwise, MIB), "6", "0.5")
    assert_figure("ub_192, channels", Fraction(channels, KIB), "11", "0.5")
    # "24 times the cache": 6,258,944 / 262,144 = 23.9
    assert_figure("ub_192, caches", Fraction(pairwise, 256 * KIB), "24", "0.5")


def test_a_directory_of_two_and_of_1024_hosts() -> None:
    """ "dir" (6.5.5): 8 MiB of tags, and 2^20 bits = 128 KiB a remote host.

    That is 8.125 and 135.875 MiB.
    """
    for hosts, published in ((2, "8"), (1024, "136")):
        state = state_bytes(connections("directory"), hosts)
        assert_figure("dir", Fraction(state, MIB), published, "0.5")
    assert max_hosts(connections("directory")) == 0  # far too much even at two hosts


def test_set_up_of_1024_by_1024_endpoints() -> None:
    """setup (6.5.5): 2^20 connections of 4 · 5 + 500 = 520 us: 545.26 s, and 17.04 s on 32 cores.

    Channels: 1024 calls of 5 us and 1024 of 505 us on 32 cores: 32 · 510 us = 16.32 ms.
    """
    pairwise, channels = connections("pairwise"), connections("channels")
    assert_figure("setup, serial", setup_s(pairwise, 1024, 1024, 1), "545", "0.6")
    assert_figure("setup, 32 cores", setup_s(pairwise, 1024, 1024, 32), "17", "0.6")
    assert_figure("setup, channels", setup_s(channels, 1024, 1024, 32) / MS, "16", "0.6")
    assert setup_s(channels, 1024, 1024, 32) == Fraction(1632, 10**5)


def test_direct_links_among_all_cards_of_a_supernode() -> None:
    """cm_pairs (6.5.5): 384 · 383 / 2."""
    assert direct_links(384) == 73_536
