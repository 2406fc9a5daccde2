"""Time of one AllReduce by algorithm (section 4)."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from fractions import Fraction
from math import ceil

from instances.collectives import COLLECTIVE_SEPARATOR
from instances.hardware import FabricSpec, MeasuredCollective

#: Collective of a serving instance on one card.
NO_COLLECTIVE = "none"

#: Collective that looks its times up in the fabric's tables.
MEASURED = "measured"

#: Collectives whose time depends on the links they take.
NEED_LINKS = ("swing", "dimension_wise", "in_switch")

#: Logarithms of sizes are multiples of one part of this.
_LOG2_UNIT = 2**40
#: Digits kept while a logarithm is worked out: 40 squarings double the error to 2^-87 at most.
_MANTISSA_UNIT = 2**128


class CollectiveUnavailable(ValueError):  # noqa: N818 - it is an answer, not a fault
    """The algorithm cannot run on this many ranks or was never measured there.

    `rule` says why: "tree_power_of_two", "no_measurement", "alignment", "span" or "collective".
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def ring_all_reduce_s(
    num_ranks: int,
    message_bytes: int | Fraction,
    alpha_s: Fraction,
    bandwidth_bytes_per_s: Fraction,
) -> Fraction:
    """Ring: 2(n-1)·alpha + 2(n-1)·M/(n·B) (6-9); seconds."""
    rounds = 2 * (num_ranks - 1)
    return rounds * (alpha_s + Fraction(message_bytes, num_ranks) / bandwidth_bytes_per_s)


def tree_all_reduce_s(
    num_ranks: int,
    message_bytes: int | Fraction,
    alpha_s: Fraction,
    bandwidth_bytes_per_s: Fraction,
) -> Fraction:
    """Unsegmented binomial tree: 2·log2(n)·(alpha + M/B) (6-10); seconds.

    Raises CollectiveUnavailable unless `num_ranks` is a power of two.
    """
    if num_ranks & (num_ranks - 1):
        raise CollectiveUnavailable(
            "tree_power_of_two", f"the binomial tree needs a power of two, not {num_ranks} ranks"
        )
    rounds = 2 * (num_ranks.bit_length() - 1)
    return rounds * (alpha_s + Fraction(message_bytes) / bandwidth_bytes_per_s)


def measured_s(table: MeasuredCollective, message_bytes: int | Fraction) -> Fraction:
    """Look a message up in a measured table by its policy; seconds.

    Raises CollectiveUnavailable beyond the last measured size.
    """
    rows = table.rows
    at = bisect_left(rows, message_bytes, key=lambda row: row.message_bytes)
    if at == len(rows):
        raise CollectiveUnavailable(
            "no_measurement",
            f"{table.name} stops at {rows[-1].message_bytes} B, below {message_bytes} B",
        )
    if at == 0 or table.policy == "next_larger_size":
        return rows[at].time_s
    below, above = rows[at - 1], rows[at]
    if table.policy == "linear":
        grown = message_bytes - below.message_bytes
        share = Fraction(grown) / (above.message_bytes - below.message_bytes)
    else:
        part = log2_up(Fraction(message_bytes) / below.message_bytes)
        whole = log2_up(Fraction(above.message_bytes, below.message_bytes))
        # few digits, so that sums of times keep short denominators
        share = Fraction(ceil(part / whole * _LOG2_UNIT), _LOG2_UNIT)
    return below.time_s + (above.time_s - below.time_s) * share


def log2_up(ratio: Fraction) -> Fraction:
    """Return log2 of a ratio of 1 or more, rounded up to a multiple of 2^-40.

    Powers of two are exact. Never below the logarithm, and above it by less than 2^-40 + 2^-80.
    """
    whole = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    if ratio.numerator < ratio.denominator << whole:
        whole -= 1
    mantissa = -(-ratio.numerator * _MANTISSA_UNIT // (ratio.denominator << whole))
    digits, unit = whole, 1
    while unit < _LOG2_UNIT:
        # each squaring brings one binary digit; rounding up keeps the result above
        mantissa = -(-mantissa * mantissa // _MANTISSA_UNIT)
        digits, unit = 2 * digits, 2 * unit
        if mantissa >= 2 * _MANTISSA_UNIT:
            mantissa, digits = -(-mantissa // 2), digits + 1
    return Fraction(digits + (mantissa > _MANTISSA_UNIT), _LOG2_UNIT)


def halving_doubling_all_reduce_s(
    num_ranks: int,
    message_bytes: int | Fraction,
    alpha_s: Fraction,
    bandwidth_bytes_per_s: Fraction,
) -> Fraction:
    """Recursive halving and doubling: 2·log2(n)·alpha + 2(n-1)·M/(n·B); seconds.

    Partners are 1, 2, 4, ... ranks apart and exchange half as much each time (section 6.5.1), which
    costs nothing more where every card is one hop from every other. Raises CollectiveUnavailable
    unless `num_ranks` is a power of two.
    """
    if num_ranks & (num_ranks - 1):
        raise CollectiveUnavailable(
            "halving_doubling_power_of_two",
            f"recursive halving and doubling needs a power of two, not {num_ranks} ranks",
        )
    rounds = 2 * (num_ranks.bit_length() - 1)
    sent = 2 * (num_ranks - 1) * Fraction(message_bytes) / num_ranks
    return rounds * alpha_s + sent / bandwidth_bytes_per_s


def hierarchical_all_reduce_s(
    num_ranks: int,
    num_servers: int,
    message_bytes: int | Fraction,
    inside: FabricSpec,
    between: FabricSpec,
) -> Fraction:
    """ReduceScatter inside servers, AllReduce across them, AllGather inside, all rings; seconds.

    2(g-1)·(alpha + M/(g·B)) inside, of g ranks in each of S servers, and 2(S-1)·(alpha + M/(n·B))
    between, where every rank reduces its g-th with its counterparts over a link of its own. Raises
    CollectiveUnavailable where there is nothing to do inside or nothing between.
    """
    each = num_ranks // num_servers
    if num_servers == 1 or each < 2 or num_ranks % num_servers:
        raise CollectiveUnavailable(
            "hierarchical_span",
            f"a hierarchical AllReduce needs several ranks in each of several servers, not "
            f"{num_ranks} ranks over {num_servers} server(s)",
        )
    alpha_s, bandwidth = inside.alpha_s, inside.bandwidth_bytes_per_s
    return 2 * reduce_scatter_s(each, message_bytes, alpha_s, bandwidth) + ring_all_reduce_s(
        num_servers, Fraction(message_bytes, each), between.alpha_s, between.bandwidth_bytes_per_s
    )


def collective_names(collective: str) -> tuple[str, ...]:
    """Return the collectives that a footprint names: each message takes the fastest of them."""
    return tuple(collective.split(COLLECTIVE_SEPARATOR))


def measured_times(
    fabric: FabricSpec,
    operation: str,
    num_ranks: int,
    num_servers: int,
    message_bytes: int | Fraction,
) -> list[tuple[str, Fraction]]:
    """Return the tables of an operation that cover a message, with their seconds, fastest first.

    Several tables of the same ranks are several implementations: a message takes the fastest for
    its size. Tables of an All-to-All count a rank's whole buffer, messages only what it sends to
    others. A "reduce_scatter" stands for its reverse, the AllGather, as well.
    """
    if operation == "all_to_all":
        message_bytes = Fraction(message_bytes) * num_ranks / (num_ranks - 1)
    found = []
    for table in _tables(fabric, operation, num_ranks, num_servers):
        with suppress(CollectiveUnavailable):
            found.append((table.variant or table.name, measured_s(table, message_bytes)))
    if not found and operation == "reduce_scatter":
        return measured_times(fabric, "all_gather", num_ranks, num_servers, message_bytes)
    return sorted(found, key=lambda pair: pair[1])


def _tables(
    fabric: FabricSpec, operation: str, num_ranks: int, num_servers: int
) -> list[MeasuredCollective]:
    wanted = (operation, num_ranks, num_servers)
    return [t for t in fabric.measured if (t.operation, t.ranks, t.servers) == wanted]


def all_reduce_s(
    collective: str,
    fabric: FabricSpec,
    num_ranks: int,
    num_servers: int,
    message_bytes: int | Fraction,
) -> Fraction:
    """Return the seconds of one AllReduce over `num_ranks` cards on `num_servers` servers.

    `fabric` is the slowest one crossed. One rank needs no reduction and takes 0.
    Raises CollectiveUnavailable, and ValueError for a collective of another name.
    """
    if num_ranks == 1:
        return Fraction(0)
    if collective == MEASURED:
        found = measured_times(fabric, "all_reduce", num_ranks, num_servers, message_bytes)
        if not found:
            raise _not_measured(fabric, num_ranks, num_servers, message_bytes)
        return found[0][1]
    if collective in NEED_LINKS:
        raise CollectiveUnavailable(
            "no_topology", f"{collective} goes by links; {fabric.name} has no topology"
        )
    formulas = {
        "ring": ring_all_reduce_s,
        "tree": tree_all_reduce_s,
        "halving_doubling": halving_doubling_all_reduce_s,
    }
    if collective not in formulas:
        raise ValueError(f"no collective is named {collective!r}")
    return formulas[collective](
        num_ranks, message_bytes, fabric.alpha_s, fabric.bandwidth_bytes_per_s
    )


def _not_measured(
    fabric: FabricSpec, num_ranks: int, num_servers: int, message_bytes: int | Fraction
) -> CollectiveUnavailable:
    tables = _tables(fabric, "all_reduce", num_ranks, num_servers)
    if not tables:
        return CollectiveUnavailable(
            "no_measurement",
            f"{fabric.name} has no AllReduce measured on {num_ranks} ranks "
            f"over {num_servers} server(s)",
        )
    last = max(tables, key=lambda table: table.rows[-1].message_bytes)
    return CollectiveUnavailable(
        "no_measurement",
        f"{last.name} stops at {last.rows[-1].message_bytes} B, below {message_bytes} B",
    )


def ring_tree_crossover_bytes(
    num_ranks: int, alpha_s: Fraction, bandwidth_bytes_per_s: Fraction
) -> Fraction:
    """Message size at which ring (6-9) and tree (6-10) take equally long; larger favours the ring.

    Raises CollectiveUnavailable unless `num_ranks` is a power of two, ValueError below four ranks
    (with two ranks the ring is never slower).
    """
    tree_all_reduce_s(num_ranks, 1, alpha_s, bandwidth_bytes_per_s)
    if num_ranks < 4:
        raise ValueError("ring and tree cross only from four ranks on")
    tree_rounds, ring_rounds = 2 * (num_ranks.bit_length() - 1), 2 * (num_ranks - 1)
    saved_s = (ring_rounds - tree_rounds) * alpha_s
    extra_s_per_byte = (tree_rounds - Fraction(ring_rounds, num_ranks)) / bandwidth_bytes_per_s
    return saved_s / extra_s_per_byte


def reduce_scatter_s(
    num_ranks: int,
    message_bytes: int | Fraction,
    alpha_s: Fraction,
    bandwidth_bytes_per_s: Fraction,
) -> Fraction:
    """Half of a ring AllReduce: (n-1)·(alpha + M/(n·B)) (6-9); an AllGather takes as long."""
    return (num_ranks - 1) * (alpha_s + Fraction(message_bytes) / num_ranks / bandwidth_bytes_per_s)


def all_to_all_s(
    num_ranks: int, sent_bytes: int | Fraction, alpha_s: Fraction, bandwidth_bytes_per_s: Fraction
) -> Fraction:
    """Pairwise exchange: n-1 rounds, and all that the busiest card sends over its link; seconds."""
    return (num_ranks - 1) * alpha_s + Fraction(sent_bytes) / bandwidth_bytes_per_s


def send_s(
    sent_bytes: int | Fraction, alpha_s: Fraction, bandwidth_bytes_per_s: Fraction
) -> Fraction:
    """One message from a card to another; seconds."""
    return alpha_s + Fraction(sent_bytes) / bandwidth_bytes_per_s
