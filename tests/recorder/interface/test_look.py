"""Looking again: what did not change is the same object and is not read; what did, in whatever way, is seen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recorder import looking
from recorder.looking import look, open_run
from recorder.rundir import this_process, write_json
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

ONE, TWO = "20261130t214500z-aaaaaa", "20261130t214500z-bbbbbb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (ONE, TWO):
        synthetic.write(tmp_path, Spec(name))
    return tmp_path


def test_what_did_not_change_is_the_same_object_and_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = look(root)
    for name in ("read_json", "_whole"):
        monkeypatch.setattr(looking, name, lambda *_: pytest.fail("read again"))
    for turn in (None, 0, 1):
        again = look(root, first, turn)
        assert [a is b for a, b in zip(first, again, strict=True)] == [True, True]


def in_place(path: Path) -> None:
    table = path / "tables" / "steps.parquet"
    os.truncate(table, table.stat().st_size // 2)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "run.json changes in place": (lambda p: (p / "run.json").write_text("{"), "run.json cannot be read"),
    "run.json goes": (lambda p: (p / "run.json").unlink(), "no run.json"),
    "a table is truncated in place": (in_place, "steps.parquet is truncated"),
    "the tables go": (lambda p: shutil.rmtree(p / "tables"), "tables holds no tables"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("turn", [None, 0, 7])
def test_what_changed_is_seen(root: Path, name: str, turn: int | None) -> None:
    change, problem = CHANGES[name]
    first = look(root)
    change(root / TWO)
    again = look(root, first, turn)
    assert problem in again[0].problem
    assert again[1] is first[1]
    assert look(root, again, turn)[0] is again[0]
    shutil.rmtree(root / TWO)
    synthetic.write(root, Spec(TWO))
    mended = look(root, again, turn)[0]
    assert mended.problem == ""
    assert mended.files("steps")


def test_runs_come_and_go(root: Path) -> None:
    first = look(root)
    synthetic.write(root, Spec("20261201t000000z-cccccc"))
    shutil.rmtree(root / TWO)
    again = look(root, first, 0)
    assert [run.run_id for run in again] == ["20261201t000000z-cccccc", ONE]
    assert again[1] is first[1]


def test_a_live_run_moves(root: Path) -> None:
    path = synthetic.write(root, Spec(TWO + "x", finished=False, state="running", living=True))
    first = look(root)
    assert first[0].live
    status = json.loads((path / "status.json").read_text())
    status["progress"]["docs_done"] = 77
    write_json(path / "status.json", status, durable=False)
    again = look(root, first, 0)
    assert again[0].status["progress"]["docs_done"] == 77
    assert again[0].about is first[0].about
    assert again[0].revision == first[0].revision
    shutil.copytree(path / "parts" / "000-000000", path / "parts" / "000-000001")
    more = look(root, again, 0)
    assert len(more[0].files("steps")) == 2
    assert more[0].revision != again[0].revision
    write_json(path / "status.json", {**status, "writer": {**this_process(), "pid_started": 1.0}}, durable=False)
    assert look(root, more, 0)[0].state == "lost"


def test_every_run_gets_its_turn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "THOROUGH", 1)
    for i in range(6):
        shutil.copytree(root / ONE, root / f"copy-{i}")
    runs = look(root)
    for run in runs:
        in_place(run.path)
    seen = []
    for turn in range(len(runs)):
        runs = look(root, runs, turn)
        seen.append(sum(run.state == "broken" for run in runs))
    assert seen == list(range(1, len(runs) + 1))


def test_links(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tables on another disk are read; other links are not followed, however they lead."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.move(root / TWO / "tables", elsewhere / "tables")
    (root / TWO / "tables").symlink_to(elsewhere / "tables")
    size = open_run(root / ONE).size()
    (root / ONE / "up").symlink_to(root)
    (root / ONE / "loop").symlink_to(root / ONE / "loop")
    (root / "loop").symlink_to(root / "loop")
    runs = look(root)
    assert [run.problem for run in runs] == ["", ""]
    assert runs[0].files("steps")
    assert runs[1].size() == size
    in_place(root / TWO)
    assert look(root, runs, 0)[0].state == "broken"


def test_files_that_move_while_they_are_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that finishes between a look at the parts and the reading of them is no broken run."""
    path = synthetic.write(root, Spec(TWO + "x", finished=False, state="running", living=True))
    done = synthetic.write(root, Spec("20270101t000000z-dddddd"))
    whole = looking._whole
    moved = []

    def finish(name: str) -> bool:
        if not moved and str(path) in name:
            moved.append(shutil.copytree(done / "tables", path / "tables"))
            (path / "results.json").write_text("{}")
            shutil.rmtree(path / "parts")
        return whole(name)

    monkeypatch.setattr(looking, "_whole", finish)
    run = open_run(path)
    assert moved
    assert (run.problem, run.state) == ("", "complete")
