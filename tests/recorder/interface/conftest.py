"""The command line in this process, and one finished run of two tasks that tests read or copy."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recorder.cli import main
from tests.conftest import TASKS, record_run


@dataclass(frozen=True)
class Result:
    """What a command left; `sentences` are the lines of stderr.

    A real process shows no progress bars but ours. Here tqdm may have been imported before the command could say so.
    """

    code: int
    out: str
    err: str

    @property
    def sentences(self) -> list[str]:
        return [line for line in re.split(r"[\r\n]+", self.err) if line.strip() and not re.search(r"\d%\|", line)]


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`layerscope ARGV` in this process: exit code, stdout and stderr. A traceback would be an exception here."""
    monkeypatch.setenv("TQDM_DISABLE", "1")

    def run(*argv: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["layerscope", *map(str, argv)])
        before = signal.getsignal(signal.SIGTERM)
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        finally:
            signal.signal(signal.SIGTERM, before)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def one_thread(data_cache: Path) -> Iterator[None]:
    """Recordings beside other tests on few cores: threads that wait for each other cost tenfold."""
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A finished run of a choice task and a generation task, five documents each. Read it, or copy it."""
    out = tmp_path_factory.mktemp("finished")
    return record_run(out, tasks=("ls_all_tiny",), include_path=str(TASKS), limit=5).path


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))
