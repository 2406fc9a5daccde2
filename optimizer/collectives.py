"""Time of one AllReduce by algorithm (section 4)."""

from __future__ import annotations

from fractions import Fraction

from instances.hardware import FabricSpec, MeasuredCollective

#: Collective of a serving instance on one card.
NO_COLLECTIVE = "none"


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


def measured_all_reduce_s(table: MeasuredCollective, message_bytes: int | Fraction) -> Fraction:
    """Look a message up in a measured table: the next larger size, as section 6.5.1 does; seconds.

    Raises CollectiveUnavailable beyond the last measured size.
    """
    for row in table.rows:
        if row.message_bytes >= message_bytes:
            return row.time_s
    raise CollectiveUnavailable(
        "no_measurement",
        f"{table.name} stops at {table.rows[-1].message_bytes} B, below {message_bytes} B",
    )


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
    if collective == "measured":
        for table in fabric.measured:
            if (table.ranks, table.servers) == (num_ranks, num_servers):
                return measured_all_reduce_s(table, message_bytes)
        raise CollectiveUnavailable(
            "no_measurement",
            f"{fabric.name} has no AllReduce measured on {num_ranks} ranks "
            f"over {num_servers} server(s)",
        )
    formulas = {"ring": ring_all_reduce_s, "tree": tree_all_reduce_s}
    if collective not in formulas:
        raise ValueError(f"no collective is named {collective!r}")
    return formulas[collective](
        num_ranks, message_bytes, fabric.alpha_s, fabric.bandwidth_bytes_per_s
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
