"""What users met on their first day: each of these once gave a wrong or an ugly answer."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text, load_instance, parse_instance
from optimizer.options import SolveOptions
from optimizer.pricing import build_tables
from optimizer.solve import solve

#: The module: in its package the name stands for the function.
SOLVING = import_module("optimizer.solve")
SUPERNODE = [sys.executable, "-c", "from cli.main import main; main()"]


def changed(name: str, **fields: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(example_text(name))
    return document | fields


def test_a_range_of_layers_needs_both_ends() -> None:
    attention = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    group = {"name": "g", "attention": attention, "ffn": {"kind": "dense", "size": 64}}
    model = {"name": "m", "hidden_size": 64, "vocab_size": 100}
    for text in ("0-", "-1", "0-1:", "1-0"):
        groups = [{**group, "layers": text}]
        with pytest.raises(InputError, match="layers"):
            parse_instance(changed("mixed-wins", model={**model, "groups": groups}))
    assert parse_instance(
        changed("mixed-wins", model={**model, "groups": [{**group, "layers": "0-1"}]})
    )


def test_what_was_not_priced_in_time_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound over some of the candidates is none: it once stood there with gap 0."""
    monkeypatch.setattr(SOLVING, "LEAST_PRICING_S", 0.0)
    result = solve(load_instance("four-sessions-128k"), SolveOptions(time_limit_s=0))
    assert (result.termination, result.limit) == ("no_solution_found", "time")
    assert result.reason == "not every candidate was priced in time"
    assert (result.objective.bound, result.objective.gap) == (None, None)


def test_an_interrupt_while_candidates_are_priced_keeps_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def interrupted_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return build_tables(*arguments)

    monkeypatch.setattr(SOLVING, "build_tables", interrupted_once)
    result = solve(load_instance("four-sessions-128k"))
    assert (result.termination, result.limit) == ("feasible", "interrupted")
    assert result.plan is not None


def test_a_pipeline_that_does_not_fit_says_by_how_many_bytes() -> None:
    """The even cut of Qwen3-32B over two 16 GB cards: half of 65.5 GB of weights and more."""
    accelerator = {"base": "h100-sxm", "memory_bytes": "16GB"}
    server = {"base": "hgx-h100", "accelerator": accelerator}
    fleet = {"pools": [{"name": "p", "server": server, "num_servers": 1}]}
    instance = parse_instance(changed("mixed-wins", fleet=fleet, search={"tp": [1], "pp": [2]}))
    (short,) = build_tables(instance).rejections
    assert (short.rule, short.unit) == ("memory", "B")
    # 32.76 GB of weights (half) and 2.15 GB of workspace against 16 GB, and a session's cache.
    assert short.amount > 18_900_000_000


def test_a_reader_that_stops_reading_does_not_change_the_exit_code() -> None:
    with subprocess.Popen(
        [*SUPERNODE, "solve", "infeasible-deadline"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_device_for_the_report_is_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*SUPERNODE, "solve", "mixed-wins"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "error: output: No space left on device; it is not complete"
    ]


def test_a_path_longer_than_any_file_name_is_no_such_file() -> None:
    with pytest.raises(InputError, match="no such file beside the instance"):
        parse_instance(changed("mixed-wins", model={"huggingface": "x" * 5000}))
