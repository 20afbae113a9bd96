"""What a reader makes of a status.json: live, lost, or what the writer last said; and a loading model's heartbeat."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from recorder.looking import open_run
from recorder.rundir import HEARTBEAT_LIMIT, boot_id, this_process
from recorder.store import open as open_store
from tests.conftest import REPO
from tests.recorder.faults.conftest import command


def beat(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def make_run(path: Path, state: str, heartbeat: Any, writer: Any) -> Path:
    """A run as a writer leaves it: run.json and status.json."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"format": 1, "config": {"model": "m", "tasks": ["t"]}}))
    (path / "status.json").write_text(
        json.dumps({"state": state, "heartbeat": heartbeat, "writer": writer, "progress": {"docs_done": 3}})
    )
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not psutil.pid_exists(process.pid)
    return process.pid


ME = this_process()
ELSEWHERE = {"host": "another-machine.example", "boot_id": "x", "pid": os.getpid(), "pid_started": 1.0}

WRITERS: dict[str, tuple[Any, float, str]] = {
    # writer, age of its heartbeat, what a reader must say of a run that said "running"
    "this process": (ME, 0, "running"),
    "this process, silent for an hour: it is there": (ME, 3600, "running"),
    "a dead pid, fresh heartbeat": ({**ME, "pid": dead_pid()}, 0, "lost"),
    "a pid given to another process": ({**ME, "pid_started": ME["pid_started"] - 500}, 0, "lost"),
    "this pid before a reboot": ({**ME, "boot_id": "00000000-0000-0000-0000-000000000000"}, 0, "lost"),
    "another host, fresh heartbeat": (ELSEWHERE, 5, "running"),
    "another host, just in time": (ELSEWHERE, HEARTBEAT_LIMIT - 10, "running"),
    "another host, old heartbeat": (ELSEWHERE, HEARTBEAT_LIMIT + 5, "lost"),
    "no writer, fresh heartbeat": (None, 1, "running"),
    "no writer, old heartbeat": ({}, 1000, "lost"),
    "no pid": ({name: ME[name] for name in ("host", "boot_id")}, 0, "lost"),
    "a pid that is no number": ({**ME, "pid": "abc"}, 0, "lost"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_running_or_lost(tmp_path: Path, name: str) -> None:
    writer, age, expected = WRITERS[name]
    run = open_run(make_run(tmp_path / "run", "running", beat(age), writer))
    assert run.state == expected
    assert run.live == (expected == "running")
    assert open_store(tmp_path).sql("SELECT state, docs_done FROM runs").values.tolist() == [[expected, 3]]


@pytest.mark.parametrize("said", ["starting", "loading", "finishing"])
def test_every_state_of_work_can_be_lost(tmp_path: Path, said: str) -> None:
    assert open_run(make_run(tmp_path / "a", said, beat(0), ME)).state == said
    assert open_run(make_run(tmp_path / "b", said, beat(0), {**ME, "boot_id": "other"})).state == "lost"


@pytest.mark.parametrize("said", ["interrupted", "failed"])
def test_a_last_word_stays(tmp_path: Path, said: str) -> None:
    run = open_run(make_run(tmp_path / "a", said, beat(10_000), {**ME, "pid": dead_pid()}))
    assert run.state == said
    assert not run.live


def test_results_make_it_complete_whatever_the_status_says(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", "running", beat(10_000), {**ME, "boot_id": "other"})
    (path / "results.json").write_text("{}")
    (path / "tables").mkdir()
    assert open_run(path).finished


def test_no_status_is_lost(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", "running", beat(0), ME)
    (path / "status.json").unlink()
    assert open_run(path).state == "lost"


@pytest.mark.parametrize("heartbeat", ["2026-12-01T00:00:00", "yesterday", 5, None])
def test_a_strange_heartbeat_is_old(tmp_path: Path, heartbeat: Any) -> None:
    """One without a time zone, too, takes no list of runs down."""
    make_run(tmp_path / "a", "running", heartbeat, ELSEWHERE)
    assert open_store(tmp_path).sql("SELECT state FROM runs")["state"].tolist() == ["lost"]


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = psutil.Process(process.pid).create_time()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    writer = {"host": socket.gethostname(), "boot_id": boot_id(), "pid": process.pid, "pid_started": started}
    assert open_run(make_run(tmp_path / "a", "running", beat(0), writer)).state == "lost"
    process.wait()


def test_the_heart_beats_while_the_model_loads(tmp_path: Path) -> None:
    """A real process from its first status to its end: never more than a second without a heartbeat."""
    out = tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-m", "recorder.cli", *command(out, tasks=["ls_tiny_choice"], limit=8)],
        cwd=REPO,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seen: dict[str, str] = {}
    while process.poll() is None:
        for path in out.glob("*/status.json"):
            status = json.loads(path.read_text())
            seen[status["heartbeat"]] = status["state"]
        time.sleep(0.02)
    assert process.returncode == 0
    assert list(seen.values())[-1] == "complete"
    times = sorted(datetime.fromisoformat(text) for text in seen)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    loading = sum(state == "loading" for state in seen.values())
    assert loading >= 3, "the model loaded too fast for this test to say anything"
    # two cores that run other tests besides: a beat is due every 0.5 s, and may come late
    assert max(gaps) < 1.5, f"{max(gaps)} s without a heartbeat"
    assert sorted(gaps)[len(gaps) // 2] <= 1.0
