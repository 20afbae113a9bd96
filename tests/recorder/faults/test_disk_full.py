"""A full disk: one sentence, exit code 2, nothing half-written that counts, and the run goes on once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.check import check_run
from recorder.looking import find_runs, open_run
from recorder.rundir import parts
from tests.recorder.faults.conftest import Ended, ForkServer, command

pytestmark = pytest.mark.xdist_group("forked")


class Disk:
    """A tmpfs of a given size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def mount(self, size: str) -> None:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.path)], capture_output=True, text=True
        )
        if made.returncode:
            pytest.skip(f"NOT TESTED: a full disk needs the right to mount a tmpfs: {made.stderr.strip()}")

    def grow(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)

    @property
    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "small")
    yield made
    if os.path.ismount(made.path):
        subprocess.run(["umount", "-l", str(made.path)], check=True)


def refused(ended: Ended, path: Path) -> None:
    assert ended.code == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Logging error" not in ended.stderr
    (sentence,) = ended.stderr.strip().splitlines()
    assert "No space left on device" in sentence
    assert str(path) in sentence
    assert "resumes the run" in sentence


def test_full_while_committing(server: ForkServer, disk: Disk) -> None:
    disk.mount("300k")
    out = disk.path / "runs"
    argv = command(out)
    ended = server.run(argv)
    (path,) = find_runs(out)
    refused(ended, path)
    committed = parts(path)
    assert not open_run(path).finished
    assert not list((path / "parts").glob(".*.tmp"))

    refused(server.run(argv), path)  # still full: the same sentence, nothing lost
    assert parts(path)[: len(committed)] == committed

    disk.grow("64m")
    again = server.run(argv)
    assert again.code == 0, again.stderr
    assert [found.name for found in find_runs(out)] == [path.name]
    assert open_run(path).state == "complete"
    assert check_run(path).failed == []


def test_full_while_merging(server: ForkServer, disk: Disk, tmp_path: Path) -> None:
    """Room for the parts, none for the merged tables."""
    disk.mount("64m")
    out = disk.path / "runs"
    argv = command(out)
    assert server.run(argv, {"root": str(out), "state": "finishing", "seconds": 0}).code == -9
    (path,) = find_runs(out)
    with open(disk.path / "filler", "wb") as filler:
        filler.write(b"\0" * (disk.free - 40_000))
    ended = server.run(argv)
    refused(ended, path)
    assert open_run(path).state == "failed"
    assert not (path / "tables").exists()
    (disk.path / "filler").unlink()
    assert server.run(argv).code == 0
    assert check_run(path).failed == []


def test_full_from_the_start(server: ForkServer, disk: Disk) -> None:
    disk.mount("64m")
    out = disk.path / "runs"
    argv = command(out)
    with open(disk.path / "filler", "wb") as filler:
        filler.write(b"\0" * disk.free)
    ended = server.run(argv)
    assert ended.code == 2, ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert "No space left on device" in ended.stderr
    (disk.path / "filler").unlink()
    assert server.run(argv).code == 0
