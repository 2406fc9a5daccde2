"""`supernode payback` and `supernode hosts`: answers, JSON, and bad input in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from commands import Capture, call
from instances.quantity import parse_quantity

PAYBACK = ("payback", "--cost", "100ms", "--before", "293.6us", "--after", "97.9us")
HOSTS = ("hosts", "--organisation", "pairwise", "--endpoints", "8", "--cache", "256KiB")


def answer(capsys: Capture, *arguments: str) -> dict[str, Any]:
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_uses_until_a_change_has_paid(capsys: Capture) -> None:
    """100,000 / 195.7 = 510.99."""
    found = call(capsys, *PAYBACK)
    assert found == (0, "511 uses repay 100.0 ms: each saves 195.7 µs\n", "")
    document = answer(capsys, *PAYBACK)
    assert document["uses"] == 511
    times = {n: parse_quantity(document[n], "seconds") for n in ("cost_s", "before_s", "after_s")}
    assert times == {
        "cost_s": Fraction(1, 10),
        "before_s": Fraction(2936, 10**7),
        "after_s": Fraction(979, 10**7),
    }
    assert document["saved_s"] == "0.0001957s"


@pytest.mark.parametrize(
    ("cost", "before", "after", "said", "uses"),
    [
        ("2s", "3s", "1s", "1 use repays 2.000 s: each saves 2.000 s", 1),
        ("2001ms", "3s", "1s", "2 uses repay 2.001 s: each saves 2.000 s", 2),
        ("0s", "1s", "3s", "0 uses: there is nothing to repay", 0),
        ("1ms", "1s", "1s", "never: a use saves nothing, so 1.000 ms is not repaid", None),
        ("1ms", "1s", "3s", "never: a use takes 2.000 s longer, so 1.000 ms is not repaid", None),
    ],
)
def test_what_pays_at_once_or_never(
    capsys: Capture, cost: str, before: str, after: str, said: str, uses: int | None
) -> None:
    given = ("payback", "--cost", cost, "--before", before, "--after", after)
    assert call(capsys, *given) == (0, f"{said}\n", "")
    assert answer(capsys, *given)["uses"] == uses


def test_the_most_hosts_and_their_set_up(capsys: Capture) -> None:
    """7 · 32,768 + 256 = 229,632 B; 8 · 56 = 448 connections of 520 us; on 32 cores 14 each."""
    code, out, err = call(capsys, *HOSTS)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "most hosts  8 (pairwise, 262,144 B a NIC)",
        "state       229,632 B a NIC for 8 hosts: fits",
        "set-up      233.0 ms serial, 7.280 ms on 32 cores",
    ]


def test_hosts_that_are_too_many(capsys: Capture) -> None:
    """191 · 32,768 + 256 = 6,258,944 B; 8 · 1528 = 12,224 connections of 520 us."""
    document = answer(capsys, *HOSTS, "--hosts", "192")
    assert document == {
        "organisation": "pairwise",
        "endpoints_per_host": 8,
        "cache_bytes": 262_144,
        "max_hosts": 8,
        "hosts": 192,
        "state_bytes": 6_258_944,
        "fits": False,
        "setup_serial_s": "6.35648s",
        "setup_s": "0.19864s",
        "num_cores": 32,
    }
    _, out, _ = call(capsys, *HOSTS, "--hosts", "192")
    assert "6,258,944 B a NIC for 192 hosts: 5,996,800 B too many" in out


def test_calls_round_trips_and_cores_are_inputs(capsys: Capture) -> None:
    """Channels of 3 hosts: 2 calls of 1 ms, and 2 of 1 ms + 10 ms: 24 ms, on two cores 12 ms."""
    given = ("hosts", "--organisation", "channels", "--endpoints", "2", "--cache", "1kB")
    times = ("--hosts", "3", "--call", "1ms", "--round-trip", "10ms", "--cores", "2")
    document = answer(capsys, *given, *times)
    assert (document["setup_serial_s"], document["setup_s"]) == ("0.024s", "0.012s")
    assert document["state_bytes"] == 2 * 52 + 2 * 56
    # (1000 - 104) / 56 = 16 remote hosts
    assert document["max_hosts"] == 17


def test_a_directory_fits_nowhere_and_its_set_up_is_not_known(capsys: Capture) -> None:
    given = ("hosts", "--organisation", "directory", "--endpoints", "8", "--cache", "256KiB")
    code, out, _ = call(capsys, *given)
    assert code == 0
    assert out.splitlines()[0].startswith("most hosts  0 ")
    assert out.splitlines()[2] == "set-up      not known"
    document = answer(capsys, *given)
    assert (document["hosts"], document["state_bytes"]) == (2, 8_519_680)
    assert document["setup_s"] is None
    assert document["setup_serial_s"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*PAYBACK[:-1], "97.9MB"), "unknown unit 'MB' for seconds"),
        ((*PAYBACK[:-1], "-1us"), "is negative"),
        ((*PAYBACK[:-1], "soon"), "is not a quantity"),
        (PAYBACK[:5], "Missing option '--after'"),
        ((*HOSTS[:-1], "1.5B"), "is not a whole number of bytes"),
        ((*HOSTS, "--hosts", "0"), "'--hosts': 0 is not in the range"),
        ((*HOSTS, "--cores", "0"), "'--cores': 0 is not in the range"),
        ((*HOSTS, "--endpoints", "0"), "'--endpoints': 0 is not in the range"),
        ((*HOSTS, "--call", "x"), "'--call': 'x' is not a quantity"),
        (("hosts", "--organisation", "rings", *HOSTS[3:]), "'rings' is not one of"),
    ],
)
def test_bad_input_is_one_line(capsys: Capture, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_bare_number_is_in_si_units(capsys: Capture) -> None:
    assert answer(capsys, "payback", "--cost", "5", "--before", "2", "--after", "1")["uses"] == 5
    assert answer(capsys, *HOSTS[:-1], "262144")["max_hosts"] == 8


def test_help_loads_no_planner() -> None:
    code = (
        "import sys; from cli.main import run; run(['hosts', '--help']); "
        "print([m for m in sys.modules if m.startswith(('optimizer', 'pydantic', 'numpy'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("[]\n")
