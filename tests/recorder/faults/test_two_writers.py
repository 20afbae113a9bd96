"""One writer per run: the second is told so and touches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from recorder.check import check_run
from recorder.errors import LayerscopeError
from recorder.looking import find_runs, open_run
from recorder.rundir import parts
from recorder.schema import CORE
from recorder.writer import RunWriter
from tests.recorder.faults.conftest import ForkServer, command, until

pytestmark = pytest.mark.xdist_group("forked")


@pytest.mark.parametrize("named", [False, True])
def test_a_second_writer_is_refused(server: ForkServer, tmp_path: Path, named: bool) -> None:
    out = tmp_path / "runs"
    argv = command(out, batch_size=1)
    first = server.start(argv)
    until(lambda: out.is_dir() and any(parts(path) for path in out.iterdir()))
    (path,) = find_runs(out)
    second = server.start([*argv, *(["--run", path.name] if named else [])]).end()
    ended = first.end()
    assert second.code == 2, second.stderr
    (sentence,) = second.stderr.strip().splitlines()
    assert str(path) in sentence
    assert "another process" in sentence
    assert "--fresh" in sentence
    assert ended.code == 0, ended.stderr
    assert [found.name for found in find_runs(out)] == [path.name]
    assert open_run(path).state == "complete"
    assert open_run(path).status["progress"]["requests_done"] == 192
    assert check_run(path).failed == []


def test_fresh_starts_beside_it(server: ForkServer, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    argv = command(out, batch_size=1)
    first = server.start(argv)
    until(lambda: out.is_dir() and any(parts(path) for path in out.iterdir()))
    second = server.start([*argv, "--fresh"])
    assert second.end().code == 0
    assert first.end().code == 0
    states = [open_run(path).state for path in find_runs(out)]
    assert states == ["complete", "complete"]


def test_the_lock_goes_with_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = RunWriter(path, CORE)
    with pytest.raises(LayerscopeError, match="being written by another process"):
        RunWriter(path, CORE)
    first.close()
    RunWriter(path, CORE).close()
