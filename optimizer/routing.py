"""Expert parallelism: who is chosen, how much the busiest group gets, what is sent (6.2.6, 6.3.2).

A token chooses `experts_per_token` different experts; each choice is one assignment. The experts
are dealt to groups of cards, and a layer takes as long as its busiest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

RoutingPolicy = Literal["balanced", "expected", "concentrated", "spread"]

#: Names of the routing policies of `routing_load`.
ROUTING_POLICIES: tuple[RoutingPolicy, ...] = get_args(RoutingPolicy)


@dataclass(frozen=True, slots=True)
class RoutingLoad:
    """What one layer's tokens ask of its experts; a Fraction only where it is an expectation.

    `busiest_assignments` and `busiest_distinct` belong to the group with the most assignments
    (of several, the one with the most distinct experts); `most_distinct` is the largest number of
    distinct experts in any group, which may be another one when counts are given.
    """

    num_assignments: int
    distinct_experts: int | Fraction
    busiest_assignments: int | Fraction
    busiest_distinct: int | Fraction
    most_distinct: int | Fraction
    average_assignments: Fraction


def expected_distinct_experts(
    num_tokens: int, num_experts: int, experts_per_token: int
) -> Fraction:
    """Distinct experts of tokens that choose independently: E·(1 - (1 - k/E)^m) (6-8)."""
    _check_tokens(num_tokens, num_experts, experts_per_token)
    missed = Fraction(num_experts - experts_per_token, num_experts) ** num_tokens
    return num_experts * (1 - missed)


def routing_load(
    num_tokens: int,
    num_experts: int,
    experts_per_token: int,
    num_groups: int,
    policy: RoutingPolicy,
) -> RoutingLoad:
    """Load of a layer whose experts form `num_groups` equal groups.

    "balanced" spreads the assignments over experts and groups as evenly as whole numbers allow;
    "expected" takes (6-8) and gives every group the average; "concentrated" lets all tokens choose
    the same experts, which fill as few groups as possible; "spread" deals those over the groups.
    Expected numbers of distinct experts are rounded up to a thousandth: the exact (6-8) has as many
    digits as there are tokens, and so would every time that follows from it.
    Raises ValueError for groups that are not equal and for a policy of another name.
    """
    _check_tokens(num_tokens, num_experts, experts_per_token)
    group_size = _equal_group_size(num_experts, num_groups)
    assignments = num_tokens * experts_per_token
    average = Fraction(assignments, num_groups)
    distinct: int | Fraction
    busiest: int | Fraction
    busiest_distinct: int | Fraction
    if policy == "balanced":
        distinct = min(num_experts, assignments)
        busiest = _ceil_div(assignments, num_groups)
        busiest_distinct = min(group_size, busiest)
    elif policy == "expected":
        exact = expected_distinct_experts(num_tokens, num_experts, experts_per_token)
        distinct, busiest_distinct = _ceil_thousandth(exact), _ceil_thousandth(exact / num_groups)
        busiest = average
    elif policy == "concentrated":
        distinct = experts_per_token
        busiest_distinct = min(experts_per_token, group_size)
        busiest = num_tokens * busiest_distinct
    elif policy == "spread":
        distinct = experts_per_token
        busiest_distinct = _ceil_div(experts_per_token, num_groups)
        busiest = num_tokens * busiest_distinct
    else:
        known = ", ".join(ROUTING_POLICIES)
        raise ValueError(f"no routing policy is named {policy!r}; use one of {known}")
    return RoutingLoad(assignments, distinct, busiest, busiest_distinct, busiest_distinct, average)


def counted_load(
    assignments_per_expert: Sequence[int],
    num_groups: int,
    group_of_expert: Sequence[int] | None = None,
) -> RoutingLoad:
    """Load of a layer by the assignments that each of its experts got.

    `group_of_expert` names the group of every expert and may make groups unequal; without it the
    experts form equal groups in their order. Raises ValueError for a negative count, a map of
    another length and a group that does not exist.
    """
    num_experts = len(assignments_per_expert)
    if min(assignments_per_expert, default=0) < 0:
        raise ValueError("an expert cannot have fewer than 0 assignments")
    if group_of_expert is None:
        size = _equal_group_size(num_experts, num_groups)
        group_of_expert = [expert // size for expert in range(num_experts)]
    _check_groups(num_experts, num_groups, group_of_expert)
    assignments, distinct = [0] * num_groups, [0] * num_groups
    for count, group in zip(assignments_per_expert, group_of_expert, strict=True):
        assignments[group] += count
        distinct[group] += count > 0
    busiest, busiest_distinct = max(zip(assignments, distinct, strict=True))
    return RoutingLoad(
        num_assignments=sum(assignments),
        distinct_experts=sum(distinct),
        busiest_assignments=busiest,
        busiest_distinct=busiest_distinct,
        most_distinct=max(distinct),
        average_assignments=Fraction(sum(assignments), num_groups),
    )


def dispatch_copies(experts_per_token: int, num_groups: int) -> int:
    """Copies of one token's input when its experts lie as far apart as they can (6.2.6).

    A destination card gets one copy however many of its experts the token chose.
    """
    if min(experts_per_token, num_groups) < 1:
        raise ValueError(
            f"a token needs at least 1 expert in at least 1 group, "
            f"not {experts_per_token} in {num_groups}"
        )
    return min(experts_per_token, num_groups)


def dispatch_copies_of(experts: Sequence[int], group_of_expert: Sequence[int]) -> int:
    """Copies of the input of one token that chose `experts`: the groups that hold them (6.2.6)."""
    for expert in experts:
        if not 0 <= expert < len(group_of_expert):
            raise ValueError(f"expert {expert} is not one of the {len(group_of_expert)} experts")
    return len({group_of_expert[expert] for expert in experts})


def dispatch_bytes(
    num_tokens: int, num_copies: int, width: int, bytes_per_number: int | Fraction
) -> int:
    """Bytes of the inputs sent to the experts; the results sent back take as many.

    `width` is the hidden size, or the latent width of a model that projects before it sends. A
    vector that ends within a byte (half-byte formats) is rounded up to a whole one.
    """
    if min(num_tokens, num_copies) < 0 or width < 1 or bytes_per_number <= 0:
        raise ValueError(
            f"tokens and copies must be 0 or more and a vector more than 0 bytes, not {num_tokens} "
            f"tokens, {num_copies} copies, {width} numbers of {bytes_per_number} B"
        )
    vector = Fraction(width * bytes_per_number)
    return num_tokens * num_copies * _ceil_div(vector.numerator, vector.denominator)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _ceil_thousandth(number: Fraction) -> Fraction:
    return Fraction(_ceil_div(1000 * number.numerator, number.denominator), 1000)


def _equal_group_size(num_experts: int, num_groups: int) -> int:
    if num_groups < 1 or num_experts < 1 or num_experts % num_groups:
        raise ValueError(f"{num_experts} experts do not form {num_groups} equal groups")
    return num_experts // num_groups


def _check_tokens(num_tokens: int, num_experts: int, experts_per_token: int) -> None:
    if num_tokens < 1:
        raise ValueError(f"at least 1 token must be routed, not {num_tokens}")
    if not 1 <= experts_per_token <= num_experts:
        raise ValueError(f"a token cannot choose {experts_per_token} of {num_experts} experts")


def _check_groups(num_experts: int, num_groups: int, group_of_expert: Sequence[int]) -> None:
    if num_groups < 1:
        raise ValueError(f"there must be at least 1 group, not {num_groups}")
    if len(group_of_expert) != num_experts:
        raise ValueError(
            f"{len(group_of_expert)} experts are placed, but {num_experts} have counts"
        )
    for group in group_of_expert:
        if not 0 <= group < num_groups:
            raise ValueError(f"group {group} is not one of the {num_groups} groups")
