"""Recordings as processes that can be killed: forked from one that has done the imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO, TASKS, TINY


@dataclass(frozen=True)
class Ended:
    """A process that has ended; `code` is -9 after SIGKILL."""

    code: int | None
    seconds: float
    stdout: str
    stderr: str


class ForkServer:
    """Starts `layerscope ARGV` in forked processes; see fork_server.py."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0
        environment = {
            **os.environ,
            "HF_DATASETS_CACHE": str(directory / "datasets"),
            "HF_HUB_OFFLINE": "1",
            "TQDM_DISABLE": "1",
            "OMP_NUM_THREADS": "1",  # other tests run beside these: threads that wait for each other cost tenfold
            "NUMBA_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recorder.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
            env=environment,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the fork server ended with {self._process.wait()}"
        return json.loads(line)

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _files(self) -> dict[str, str]:
        self._count += 1
        return {name: str(self._directory / f"{self._count:03d}.{name}") for name in ("stdout", "stderr")}

    def run(self, argv: list[str], kill: dict[str, Any] | None = None) -> Ended:
        """Run to the end, or to the kill."""
        files = self._files()
        found = self._ask(do="attempt", argv=argv, kill=kill, **files)
        return Ended(found["code"], found["seconds"], *(Path(name).read_text() for name in files.values()))

    def start(self, argv: list[str]) -> Started:
        """Run in the background."""
        files = self._files()
        return Started(self._ask(do="start", argv=argv, **files)["pid"], self, files)

    def wait(self, pid: int, seconds: float) -> int | None:
        return self._ask(do="wait", pid=pid, seconds=seconds)["code"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


@dataclass(frozen=True)
class Started:
    """A process in the background: send it signals, then `end`."""

    pid: int
    server: ForkServer
    files: dict[str, str]

    def end(self, seconds: float = 60) -> Ended:
        code = self.server.wait(self.pid, seconds)
        return Ended(code, 0.0, *(Path(name).read_text() for name in self.files.values()))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    made = ForkServer(tmp_path_factory.mktemp("forked"))
    yield made
    made.close()


def command(out: Path, *more: str, **fields: Any) -> list[str]:
    """Arguments of `layerscope record` on the tiny model, commits every 0.05 s, small batches."""
    made = {
        "model": str(TINY),
        "tasks": ["ls_all_tiny"],
        "include_path": str(TASKS),
        "device": "cpu",
        "dtype": "float32",
        "batch_size": 4,
        "commit_seconds": 0.05,
        "out": str(out),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    config = out.parent / f"{out.name}.config.json"
    config.write_text(json.dumps(made | fields), encoding="utf-8")
    return ["record", "--config", str(config), "--no-progress", *more]


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until it is true; fails where it never is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.005)
