"""Ctrl-C and SIGTERM: exit code 130, a sentence that says how to go on, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import recorder
from recorder.check import check_run
from recorder.looking import find_runs, open_run
from recorder.rundir import parts
from tests.conftest import REPO
from tests.recorder.faults.conftest import ForkServer, command, until

pytestmark = pytest.mark.xdist_group("forked")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_while_computing(server: ForkServer, tmp_path: Path, name: str) -> None:
    out = tmp_path / "runs"
    process = server.start(command(out, batch_size=1))
    until(lambda: out.is_dir() and any(len(parts(path)) >= 2 for path in out.iterdir()))
    os.kill(process.pid, getattr(signal, name))
    ended = process.end()
    (path,) = find_runs(out)
    assert ended.code == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.strip().splitlines() == [
        f"interrupted; what was committed is kept. The same command resumes {path.name}"
    ]
    run = open_run(path)
    assert run.state == "interrupted"
    assert not run.finished
    committed = int(recorder.open(out).sql("SELECT count(*) AS n FROM requests")["n"][0])
    assert committed > 0
    assert check_run(path).failed == []

    assert server.run(command(out)).code == 0
    assert [found.name for found in find_runs(out)] == [path.name]
    run = open_run(path)
    assert run.state == "complete"
    assert run.status["progress"]["requests_done"] == 192 - committed
    assert check_run(path).failed == []


def test_what_was_computed_is_committed_before_it_stops(server: ForkServer, tmp_path: Path) -> None:
    """Commits every hour: all that is on disk after SIGTERM was written because of it."""
    out = tmp_path / "runs"
    process = server.start(command(out, batch_size=1, commit_seconds=3600))
    until(lambda: any(open_run(path).status.get("progress", {}).get("requests_done") for path in _runs(out)))
    os.kill(process.pid, signal.SIGTERM)
    assert process.end().code == 130
    rows = recorder.open(out).sql("SELECT (SELECT count(*) FROM requests) AS r, (SELECT count(*) FROM steps) AS s")
    assert rows["r"][0] > 0
    assert rows["s"][0] > 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_while_the_libraries_load(tmp_path: Path, name: str) -> None:
    """A real process, in the middle of importing torch."""
    out = tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-m", "recorder.cli", *command(out)], cwd=REPO, stderr=subprocess.PIPE, text=True
    )
    until(lambda: any(open_run(path).status.get("state") == "loading" for path in _runs(out)))
    time.sleep(0.3)
    process.send_signal(getattr(signal, name))
    _, text = process.communicate(timeout=60)
    # Python ends itself by SIGINT where the interrupt went through C code that runs Python: a shell shows 130 for both
    assert process.returncode in (130, -signal.SIGINT), text
    assert "Traceback" not in text
    assert "The same command resumes" in text
    (path,) = find_runs(out)
    assert open_run(path).state == "interrupted"


def _runs(out: Path) -> list[Path]:
    return list(find_runs(out)) if out.is_dir() else []
