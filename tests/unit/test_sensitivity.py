"""Sensitivity: thresholds and effects worked out by hand, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from instances.errors import InputError
from instances.instance import Instance
from instances.io import load_instance, parse_instance
from optimizer.errors import TooLargeError
from optimizer.evaluate import evaluate
from optimizer.options import SolveOptions
from optimizer.sensitivities.document import InputSensitivity, InputThreshold, SensitivityDocument
from optimizer.sensitivities.inputs import default_fields, instance_at
from optimizer.sensitivities.judging import Judge
from optimizer.sensitivities.proofs import has_linear_objectives
from optimizer.sensitivities.study import InfeasibleInstance, sensitivity
from optimizer.variants.fields import fields_at, parse_path
from optimizer.variants.solver import VariantSolver

FABRIC = "fleet.pools[0].server.fabric"
ALPHA, WIRE = f"{FABRIC}.alpha_s", f"{FABRIC}.bandwidth_bytes_per_s"
MEMORY = "fleet.pools[0].server.accelerator.memory_bytes"
COHORT = "workload.cohorts[0]"
NO_DEADLINE = {"deadline_s": None}


@cache
def study(name: str, *paths: str) -> SensitivityDocument:
    return sensitivity(load_instance(name), paths)


def only(found: SensitivityDocument) -> InputSensitivity:
    (item,) = found.inputs
    return item


def changes(end: InputThreshold | None) -> InputThreshold:
    assert end is not None
    assert end.status == "changes"
    assert end.verified
    return end


def variant(name: str, cohort: dict[str, Any] | None = None, **parts: Any) -> Instance:
    """Return an example with other fields of its cohort, and other top-level parts."""
    document = load_instance(name).model_dump(mode="json")
    document["workload"]["cohorts"][0].update(cohort or {})
    for part, fields in parts.items():
        document[part] = {**document[part], **fields} if isinstance(fields, dict) else fields
    return parse_instance(document)


def read_s(context: int) -> Fraction:
    """Seconds in which one card reads eight steps of Qwen3-32B (6-4)."""
    each = 64 * 930 * 2**20 + 151_936 * 5120 * 2
    total = sum(each + 256 * 2**10 * (context + step) for step in range(1, 9))
    return Fraction(total, 3350 * 10**9)


# A ring of n ranks takes 2(n-1) rounds of alpha + 10240 B / n / B (6-9); eight steps of 64 layers
# have 1024 of them. Adding 1 s to alpha adds 2048 s with TP2, 6144 s with TP4, 14336 s with TP8.
WIRE_B_PER_S = 450 * 10**9


def test_alpha_moves_the_first_decision_until_its_deadline() -> None:
    # 4 x TP2: 119.1108 ms + 2048 (alpha - 0.822 us) = 130 ms at alpha = 6.13899 us; nothing else
    # has three of four sessions on time there (2 x TP4: 63.79 + 32.67 ms twice)
    item = only(study("four-sessions-128k", ALPHA))
    tp2_s = read_s(131_064) / 2 + 1024 * 2 * Fraction(5120, WIRE_B_PER_S)
    up = changes(item.up)
    assert Fraction(up.value_exact) == (Fraction(130, 1000) - tp2_s) / 2048
    assert up.value == pytest.approx(6.13899e-6, rel=1e-6)
    assert (up.exact, up.width, up.is_first, up.is_attained) == (True, 0.0, True, True)
    assert up.plan is None
    assert up.reason == "nothing fits; 0 of 4 sessions end on time; at least 3 must"
    # alpha = 0: TP2 117.43 ms, TP4 twice 58.74 ms = 117.47 ms, so still TP2
    assert item.down is not None
    assert (item.down.status, item.down.value, item.down.is_first) == ("unchanged", 0.0, True)


def test_alpha_turns_the_second_decision_from_tp8_to_tp4() -> None:
    # without a deadline: S/8 + 14336 a + 1024 * 14 * 1280/B = S/4 + 6144 a + 1024 * 6 * 2560/B
    # at 8192 a = S/8 - 1024 * 2560/B, a = 3.582 us
    found = sensitivity(variant("one-session-50ms", NO_DEADLINE), [ALPHA])
    up = changes(only(found).up)
    wire = 1024 * Fraction(6 * 2560 - 14 * 1280, WIRE_B_PER_S)
    assert Fraction(up.value_exact) == (read_s(131_064) / 8 + wire) / 8192
    assert up.value == pytest.approx(3.582e-6, rel=1e-3)
    assert (up.exact, up.is_first, up.is_attained) == (True, True, True)
    assert up.plan == "8 cards = 2 instances × TP4 (ring)"


def test_alpha_turns_short_contexts_to_single_cards() -> None:
    # 32K without a deadline: TP1 takes S = 173.3 ms, TP2 S/2 + 2048 a + 1024 * 2 * 5120/B
    found = sensitivity(variant("four-sessions-32k", NO_DEADLINE), [ALPHA])
    up = changes(only(found).up)
    wire = 1024 * 2 * Fraction(5120, WIRE_B_PER_S)
    assert Fraction(up.value_exact) == (read_s(32_760) / 2 - wire) / 2048
    assert (up.is_first, up.plan) == (True, "8 cards = 8 instances × TP1")


def test_bandwidths_act_by_their_reciprocal() -> None:
    # TP2 reads 398 GB in 8 steps: half of that over B, and 1.73 ms of reductions, are 130 ms at
    # B = 3.066 TB/s
    path = "fleet.pools[0].server.accelerator.memory_bandwidth_bytes_per_s"
    down = changes(only(study("four-sessions-128k", path)).down)
    reduced_s = 2048 * (Fraction(822, 10**9) + Fraction(5120, WIRE_B_PER_S))
    half = read_s(131_064) * 3350 * 10**9 / 2
    assert Fraction(down.value_exact) == half / (Fraction(130, 1000) - reduced_s)
    assert (down.exact, down.is_first) == (True, True)


def test_alpha_saves_milliseconds_and_bandwidth_microseconds() -> None:
    # published for TP8 (section 6.4.2): halving alpha saves 0.74 ms a step, doubling B 2.5 us:
    # 128 * 14 * 0.411 us = 0.7365 ms; 128 * 14 * 1280 B * (1/450 - 1/900) s/GB = 2.549 us
    found = study("one-session-50ms", ALPHA, WIRE)
    alpha, wire = found.inputs
    assert alpha.step_halved_s == pytest.approx(-0.74e-3, abs=0.005e-3)
    assert wire.step_doubled_s == pytest.approx(-2.5e-6, abs=0.05e-6)
    assert alpha.step_halved_s == float(-128 * 14 * Fraction(411, 10**9))
    # eight cards for eight steps
    assert alpha.halved == pytest.approx(64 * -0.736512e-3, rel=1e-12)
    # at twice alpha TP8 takes 41.18 + 11.78 ms, past the deadline
    assert alpha.doubled is None
    assert alpha.step_doubled_s == pytest.approx(1.473024e-3)
    assert found.most_influential == ALPHA


def test_the_deadline_moves_down_to_the_end_of_the_sessions() -> None:
    item = only(study("four-sessions-128k", f"{COHORT}.deadline_s"))
    down = changes(item.down)
    tp2_s = read_s(131_064) / 2 + 2048 * Fraction(822, 10**9)
    assert Fraction(down.value_exact) == tp2_s + 1024 * 2 * Fraction(5120, WIRE_B_PER_S)
    assert down.value == pytest.approx(0.1191108, abs=5e-8)
    assert (down.exact, down.is_first, down.is_attained) == (True, True, True)
    assert item.up is not None
    assert (item.up.status, item.up.is_first) == ("unchanged", True)


def test_a_longer_deadline_lets_other_plans_in_exactly_when_they_end() -> None:
    # mean completion of two sessions: TP4 63.79 ms for both, TP8 41.18 and 82.35 ms (mean 61.76).
    # With 70 ms only TP4 has both on time; TP8's second ends at 82.35 ms, and from then on it wins
    two = {"num_sessions": 2, "deadline_s": "70ms"}
    parts = {"objective": {"minimise": ["mean_completion"]}}
    found = sensitivity(variant("one-session-50ms", two, **parts), [f"{COHORT}.deadline_s"])
    assert found.plan == "8 cards = 2 instances × TP4 (ring)"
    up = changes(only(found).up)
    tp8_s = read_s(131_064) / 8 + 1024 * 14 * (Fraction(822, 10**9) + Fraction(1280, WIRE_B_PER_S))
    assert Fraction(up.value_exact) == 2 * tp8_s
    assert (up.exact, up.is_first, up.is_attained) == (True, True, False)
    assert up.plan == "8 cards = 1 instance × TP8 (ring)"


def test_memory_decides_by_the_byte() -> None:
    # a card of TP2: half of 65,524,246,528 B and of 676,864 B of vectors that both cards hold, half
    # of 256 KiB for each of 131,072 tokens, and 2 GiB
    weights = (65_524_246_528 + 64 * (2 * 5120 + 2 * 128) * 2 + 5120 * 2) // 2
    down = changes(only(study("four-sessions-128k", MEMORY)).down)
    assert int(down.value_exact) == weights + 131_072 * 128 * 2**10 + 2 * 2**30 == 52_090_152_960
    assert (down.is_first, down.plan) == (True, "8 cards = 2 instances × TP4 (ring)")


def test_more_memory_admits_a_single_card() -> None:
    # TP1 is 22,031,468,544 B short of 80 GB (the result's threshold); with fewest cards as the
    # objective and no deadline it replaces TP2 there, to the byte
    parts = {
        "search": {"deployment": "mixed", "dispatch": "optimised"},
        "objective": {"minimise": ["cards"]},
    }
    found = sensitivity(variant("one-session-50ms", NO_DEADLINE, **parts), [MEMORY])
    assert found.plan == "2 of 8 cards = 1 instance × TP2 (ring)"
    up = changes(only(found).up)
    assert int(up.value_exact) == 80_000_000_000 + 22_031_468_544 - 1
    assert (up.is_first, up.plan) == (True, "1 of 8 cards = 1 instance × TP1")


def test_bytes_are_not_bisected(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Instance] = []
    judge = Judge._judge
    monkeypatch.setattr(Judge, "_judge", lambda self, x: judged.append(x) or judge(self, x))
    found = sensitivity(load_instance("four-sessions-128k"), [MEMORY])
    assert changes(only(found).down).exact
    # either way the furthest place, and one of the two next to what the plan needs: the others are
    # the same problem as those to the solvers; halving 80 GB takes 36
    assert len(judged) <= 8


def test_a_share_of_memory_counts_in_whole_bytes() -> None:
    path = "runtime.usable_memory_fraction"
    down = changes(only(study("four-sessions-128k", path)).down)
    byte = changes(only(study("four-sessions-128k", MEMORY)).down)
    assert Fraction(down.value_exact) == Fraction(byte.value_exact) / 80_000_000_000
    assert down.is_attained


def test_a_share_on_time_counts_in_whole_sessions() -> None:
    # four sessions on TP2, one restarted by the fault and late: three are on time. 75 % is as much
    # as can be asked for, and exactly allowed
    item = only(study("four-sessions-fault", "workload.min_on_time_fraction"))
    up = changes(item.up)
    assert (up.value_exact, up.is_attained, up.is_first) == ("3/4", True, True)


def test_counts_compare_deployments() -> None:
    # three sessions: TP2 119.1 ms for three, TP4 127.6 ms for two rounds, all cards billed. 8 cards
    # cost 0.3176 and 0.3402 card s: still TP2. Two: TP4 63.79 ms wins. Five: TP2's fifth is late,
    # four of five are on time for 238 ms; three rounds of TP4 have four on time in 191 ms
    item = only(study("four-sessions-128k", f"{COHORT}.num_sessions"))
    down, up = changes(item.down), changes(item.up)
    assert (down.value_exact, down.is_first) == ("3", True)
    assert (up.value_exact, up.is_first) == ("4", True)
    assert down.plan == up.plan == "8 cards = 2 instances × TP4 (ring)"


def test_a_fault_time_is_followed_exactly() -> None:
    # the session that card 0 stops ends at 40 ms + stall + 119.11 ms, late in any case; the
    # objective follows the stall, the plan stays
    found = study("four-sessions-fault", "faults[*].stall_s", "faults[0].at_s")
    stall, at = found.inputs
    # 20 ms less stall: 20 ms less on eight cards, shared by three sessions
    assert stall.halved == pytest.approx(-0.02 * 8 / 3, rel=1e-12)
    assert at.halved == pytest.approx(-0.01 * 8 / 3, rel=1e-12)
    for item in found.inputs:
        for end in (item.down, item.up):
            assert end is not None
            assert end.verified
            assert end.status == "unchanged"
            assert not end.is_first  # a session may jump from one side of a fault to the other


@pytest.mark.parametrize(
    ("name", "is_linear"),
    [
        ("four-sessions-128k", True),  # one pool, serving instances alike
        ("two-servers-one-session", True),  # one session
        ("mixed-wins", False),  # the longest of two unlike serving instances
        ("four-sessions-fault", False),  # a restart
    ],
)
def test_straight_lines_are_claimed_only_where_they_are(name: str, is_linear: bool) -> None:
    assert has_linear_objectives(load_instance(name)) is is_linear


def test_sums_are_linear_and_waits_are_not() -> None:
    sums = variant("mixed-wins", objective={"minimise": ["mean_completion"]})
    assert has_linear_objectives(sums)
    assert not has_linear_objectives(variant("mixed-wins", {"release_s": "1ms"}))
    billed = {"minimise": ["occupied_card_seconds"], "billing": "instance"}
    cohorts = variant("mixed-wins", objective=billed)
    assert has_linear_objectives(cohorts)
    # with several lanes an instance is billed until its last lane ends
    assert not has_linear_objectives(
        variant("mixed-wins", objective=billed, search={"batch": [1, 2]})
    )


def test_default_inputs_leave_out_labels_and_unused_peaks() -> None:
    instance = load_instance("two-servers-one-session")
    names = [f.name for f in default_fields(instance, instance.model_dump(mode="json"))]
    assert ALPHA in names
    assert "fleet.pools[0].fabric_between.measured[0].rows[3].time_s" in names
    assert "fleet.pools[0].server.accelerator.peak_flops_per_s.bf16" in names
    unwanted = ("model.", "engine.", "schema_version", "fp8", "ranks", "message_bytes", "spread_s")
    assert not [name for name in names if any(part in name for part in unwanted)]
    assert "fleet.pools[0].server.accelerator.power_w" not in names
    assert "fleet.pools[0].server.power_w" in names


def test_a_value_too_fine_for_a_file_is_kept_exactly() -> None:
    instance = load_instance("one-session-50ms")
    document = instance.model_dump(mode="json")
    (field,) = fields_at(document, parse_path(ALPHA, "test"), "test")
    fine = Fraction(3**130, 7**80)
    found = instance_at(document, field, fine, "test")
    assert found is not None
    assert found.fleet.pools[0].server.fabric.alpha_s == fine
    (share,) = fields_at(document, parse_path("runtime.usable_memory_fraction", "test"), "test")
    assert instance_at(document, share, Fraction(3, 2), "test") is None


def test_bad_paths_are_refused() -> None:
    instance = load_instance("four-sessions-128k")
    with pytest.raises(InputError, match="no such field"):
        sensitivity(instance, ["fleet.pools[0].server.fabric.beta_s"])
    with pytest.raises(InputError, match="not a numeric field"):
        sensitivity(instance, ["fleet.pools[0].name"])
    with pytest.raises(InputError, match="holds no single number"):
        sensitivity(instance, ["search.tp"])
    with pytest.raises(InputError, match="of deployments"):
        sensitivity(load_instance("r1-bf16-64xa800-stages"))


def test_without_a_plan_there_is_nothing_to_study() -> None:
    with pytest.raises(InfeasibleInstance, match="infeasible-deadline is infeasible: cohort"):
        sensitivity(load_instance("infeasible-deadline"))
    with pytest.raises(TooLargeError, match="no plan was proven"):
        sensitivity(load_instance("mixed-wins"), [ALPHA], SolveOptions(time_limit_s=0.0, threads=1))


def test_the_document_says_the_same_again() -> None:
    paths = (ALPHA, MEMORY, f"{COHORT}.context_tokens")
    heard: list[tuple[str, int, int]] = []
    instance = load_instance("one-session-50ms")
    found = sensitivity(instance, paths, on_input=lambda *said: heard.append(said))
    assert heard == [(path, i, 3) for i, path in enumerate(paths)]
    assert found == study("one-session-50ms", *paths)
    assert SensitivityDocument.model_validate_json(found.to_json()) == found
    assert found.instance_sha256 == instance.sha256()
    assert found.plan == "8 cards = 1 instance × TP8 (ring)"
    # the plan at the threshold of the context is on time to the tick, and a token more is not
    up = changes(found.inputs[2].up)
    solved = VariantSolver().solve(instance)
    assert solved.plan is not None
    for tokens, is_feasible in ((int(up.value), True), (int(up.value) + 1, False)):
        later = variant("one-session-50ms", {"context_tokens": tokens})
        assert evaluate(later, solved.plan).is_feasible is is_feasible
