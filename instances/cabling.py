"""Rules that all cabling keeps: ports in whole parts, no more links than can be laid out."""

from __future__ import annotations

#: A fabric is built link by link; more than this is a mistake in the file.
MAX_CARDS = 65_536
MAX_LINK_PAIRS = 1_000_000


def even_parts(total: int, num_parts: int) -> tuple[int, ...]:
    """Split `total` into whole parts that differ by at most 1; the first ones get more."""
    size, more = divmod(total, num_parts)
    return tuple(size + (part < more) for part in range(num_parts))


def check_size(num_cards: int, num_link_pairs: int) -> None:
    """Raise ValueError for more cards or links than a fabric may have."""
    if num_cards > MAX_CARDS:
        raise ValueError(f"{num_cards} cards are more than the {MAX_CARDS} that can be laid out")
    if num_link_pairs > MAX_LINK_PAIRS:
        raise ValueError(
            f"{num_link_pairs} pairs of links are more than the {MAX_LINK_PAIRS} that can be "
            "laid out"
        )


def check_pairs(pairs: list[tuple[int, int]], num_nodes: int, what: str) -> None:
    """Raise ValueError unless pairs join what exists, each once, and leave nothing apart."""
    near: list[set[int]] = [set() for _ in range(num_nodes)]
    for a, b in pairs:
        if a == b or max(a, b) >= num_nodes:
            raise ValueError(f"[{a}, {b}] does not join two of {what} 0 to {num_nodes - 1}")
        if b in near[a]:
            raise ValueError(f"{what} {a} and {b} are listed twice")
        near[a].add(b)
        near[b].add(a)
    seen, left = {0}, [0]
    while left:
        found = near[left.pop()] - seen
        seen |= found
        left += found
    if len(seen) < num_nodes:
        raise ValueError(f"some {what} cannot be reached from number 0")
