"""How many servers a power budget feeds (section 6.5.2)."""

from __future__ import annotations

from fractions import Fraction


def max_servers(
    budget_w: Fraction | int, server_w: Fraction | int, fixed_w: Fraction | int = 0
) -> int:
    """Return the servers that fit: floor((P_b - P_0) / P_s) (6-11), 0 where nothing does.

    `budget_w` is P_b, `fixed_w` what is drawn whatever the servers (P_0), `server_w` one server's
    maximum (P_s). Raises ValueError for a server without power, or negative watts.
    """
    if server_w <= 0 or budget_w < 0 or fixed_w < 0:
        raise ValueError("a server draws more than 0 W, a budget and what is fixed at least 0 W")
    return max((Fraction(budget_w) - fixed_w) // Fraction(server_w), 0)
