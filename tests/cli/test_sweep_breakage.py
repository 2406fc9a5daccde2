"""Sweeps that are killed, interrupted, run in parallel, on a cluster, or on a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from cli.main import run
from instances import load_instance
from optimizer import sweep
from optimizer.errors import BackendUnavailable

#: A shell that starts this test in the background hands down an ignored SIGINT.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from cli.main import main; main()"
)
#: 72 blocks of one row: no two share a solve.
POINTS = (
    "sweep",
    "four-sessions-128k",
    "--set",
    "workload.cohorts[0].context_tokens=1000:72000:1000",
)
KILLS = 20

Capture = pytest.CaptureFixture[str]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-B", "-c", MAIN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_growth(process: subprocess.Popen[bytes], path: Path, size: int) -> bool:
    """Wait until the file is longer than `size`; False when the process ended before."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and path.stat().st_size > size:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    raise AssertionError("the sweep wrote nothing in two minutes")


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_sweep_killed_at_random_moments_ends_as_if_it_had_not_been(
    tmp_path: Path, suffix: str
) -> None:
    random = Random(suffix)
    whole, killed = tmp_path / f"whole.{suffix}", tmp_path / f"killed.{suffix}"
    assert run([*POINTS, "-o", str(whole)]) == 0
    kills = 0
    while kills < KILLS // 2:
        size = killed.stat().st_size if killed.exists() else 0
        process = start(*POINTS, "-o", str(killed), "--resume")
        if wait_for_growth(process, killed, size):
            time.sleep(random.uniform(0, 0.2))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
        if process.returncode == 0:  # it was faster: once more from the beginning
            assert killed.read_bytes() == whole.read_bytes()
            killed.unlink()
        elif random.random() < 0.5:  # what a crash of the machine leaves of the last rows
            os.truncate(killed, killed.stat().st_size - random.randrange(1, 400))
    assert run([*POINTS, "-o", str(killed), "--resume"]) == 0
    assert killed.read_bytes() == whole.read_bytes()


def test_an_interrupt_leaves_a_valid_file_and_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    many = "workload.cohorts[0].context_tokens=1:3000:1"  # far more than are solved by then
    process = start(*POINTS[:2], "--set", many, "-o", str(path), "--jobs", "2")
    assert wait_for_growth(process, path, 0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    last = err.decode().splitlines()[-1]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert last == f"interrupted: {len(rows)} rows of 3000 points are done; --resume goes on"
    assert 0 < len(rows) < 3000
    assert "Traceback" not in err.decode()


def test_a_full_disk_keeps_the_rows_there_are(capsys: Capture, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = tmp_path / "rows.csv"
    path.symlink_to("/dev/full")
    code = run([*POINTS[:2], "--deadline", "130ms", "-o", str(path)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "no space left on device" in err
    assert err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused_before_work(
    capsys: Capture, tmp_path: Path
) -> None:
    code = run([*POINTS, "-o", str(tmp_path / "none" / "rows.jsonl")])
    assert code == 2
    assert "no such file or directory; nothing was written" in capsys.readouterr().err


def test_jobs_write_the_file_that_one_process_writes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    for path, jobs in ((one, "1"), (two, "2")):
        process = start("sweep", "alpha", "-o", str(path), "--jobs", jobs)
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert one.read_bytes() == two.read_bytes()


def test_a_dead_worker_is_an_error_that_keeps_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.sweeps.run.ProcessPoolExecutor.submit", _submit_death)
    with pytest.raises(BackendUnavailable, match="a worker process died"):
        sweep(load_instance("four-sessions-128k"), deadline="130ms", jobs=2)


def _submit_death(executor: object, function: object, *arguments: object) -> object:
    from concurrent.futures import Future
    from concurrent.futures.process import BrokenProcessPool

    future: Future[object] = Future()
    future.set_exception(BrokenProcessPool("killed"))
    return future


@pytest.mark.filterwarnings("ignore")  # the cluster's own
def test_a_dask_cluster_gives_the_same_rows() -> None:
    from distributed import LocalCluster

    instance = load_instance("four-sessions-128k")
    ask = {"deadline": "100ms:300ms:1ms", "fields": {"search.tp": "2,4,8"}}
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        found = sweep(instance, dask=cluster.scheduler_address, **ask)
    assert found == sweep(instance, **ask)


def test_a_cluster_that_is_not_there_is_one_clear_line(capsys: Capture) -> None:
    asked = ("four-sessions-128k", "--deadline", "130ms", "--dask", "tcp://127.0.0.1:9")
    assert run(["sweep", *asked]) == 2
    err = capsys.readouterr().err
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in err
    assert err.count("\n") == 1
