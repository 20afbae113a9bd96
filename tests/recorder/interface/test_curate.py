"""Labels, tags and the trash: on real directories, with real writers beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import recorder
from recorder import curate
from recorder.catalogue import describe_run
from recorder.errors import LayerscopeError
from recorder.looking import open_run
from recorder.rundir import write_json
from recorder.signals import all_tables
from recorder.writer import RunWriter
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

ONE, TWO = "20261130t214500z-aaaaaa", "20261130t214500z-bbbbbb"
WRITES = """
import sys
from pathlib import Path
from recorder.signals import all_tables
from recorder.writer import RunWriter
writer = RunWriter(Path(sys.argv[1]), all_tables())
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return synthetic.write(tmp_path, Spec(ONE, name="recorded"))


def described(path: Path) -> tuple[str, list[str]]:
    row = describe_run(open_run(path))
    return row["name"], list(row["tags"] or [])


def test_a_label_and_tags_are_listed(run: Path) -> None:
    assert described(run) == ("recorded", [])
    curate.set_label(run, "  Zweiter Versuch 🙂 ", ["paper", " paper ", "", "4-shot"])
    assert described(run) == ("Zweiter Versuch 🙂", ["paper", "4-shot"])
    (row,) = recorder.open(run.parent).sql("SELECT name, tags FROM runs").to_dict("records")
    assert (row["name"], list(row["tags"])) == ("Zweiter Versuch 🙂", ["paper", "4-shot"])


def test_an_empty_label_is_the_recorded_name_again(run: Path) -> None:
    curate.set_label(run, "other", ["a"])
    curate.set_label(run, " ", ["a"])
    assert described(run) == ("recorded", ["a"])
    curate.set_label(run, "", [])
    assert described(run) == ("recorded", [])
    assert not (run / curate.LABEL).exists()


def test_a_label_changes_no_row(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    revision = open_run(run).revision
    curate.set_label(run, "other", ["a"])
    assert {path: path.read_bytes() for path in before} == before
    assert open_run(run).revision == revision


@pytest.mark.parametrize(
    ("name", "tags", "said"),
    [
        ("a" * 121, [], "at most 120"),
        ("a\nb", [], "U\\+000A"),
        ("a\u202eb", [], "U\\+202E"),
        ("a\x00b", [], "U\\+0000"),
        ("a\ud800b", [], "U\\+D800"),
        ("", ["a" * 41], "at most 40"),
        ("", ["a,b"], "holds a comma"),
        ("", [f"t{i}" for i in range(21)], "more than the 20"),
    ],
)
def test_what_cannot_be_a_label_is_said(run: Path, name: str, tags: list[str], said: str) -> None:
    with pytest.raises(LayerscopeError, match=said):
        curate.set_label(run, name, tags)
    assert not (run / curate.LABEL).exists()


@pytest.mark.parametrize("text", ["{garb", "[]", '{"name": 3, "tags": "x"}', '{"name": null, "tags": null}'])
def test_a_label_that_cannot_be_read_hides_nothing(run: Path, text: str) -> None:
    (run / curate.LABEL).write_text(text)
    assert len(recorder.open(run.parent).sql("SELECT name FROM runs")) == 1


def test_a_resumed_and_finished_run_keeps_its_label(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path, Spec(ONE, finished=False, state="running"))
    curate.set_label(path, "kept", ["a"])
    writer = RunWriter(path, all_tables())
    writer.write_about({**(writer.read_about() or {}), "attempts": 2})
    write_json(path / "status.json", {"state": "complete"})
    writer.close()
    assert described(path) == ("kept", ["a"])
    finished = synthetic.write(tmp_path, Spec(TWO))
    curate.set_label(finished, "kept too", [])
    writer = RunWriter(finished, all_tables())
    writer.reopen()
    writer.close()
    assert described(finished) == ("kept too", [])


def test_labels_given_at_once_leave_one_of_them(run: Path) -> None:
    threads = [threading.Thread(target=curate.set_label, args=(run, f"label {n}", [])) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert json.loads((run / curate.LABEL).read_text())["name"] in {f"label {n}" for n in range(12)}
    assert not [path for path in run.iterdir() if path.name.endswith(".tmp")]


def test_the_trash_takes_a_run_and_gives_it_back(run: Path) -> None:
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    there = curate.to_trash(run)
    assert there == run.parent / ".trash" / ONE
    assert not run.exists()
    assert recorder.open(run.parent).runs == []
    assert curate.in_trash(run.parent, ONE) == there
    assert curate.restore(there) == run
    assert {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    assert [found.state for found in recorder.open(run.parent).runs] == ["complete"]
    assert curate.in_trash(run.parent, ONE) is None


def test_a_name_that_is_taken_in_the_trash_gets_a_number(run: Path, tmp_path: Path) -> None:
    places = [curate.to_trash(run)]
    for _ in range(10):
        synthetic.write(tmp_path, Spec(ONE))
        places.append(curate.to_trash(run))
    assert [place.name for place in places[:3]] == [ONE, f"{ONE}~2", f"{ONE}~3"]
    assert curate.in_trash(tmp_path, ONE) == places[-1] == tmp_path / ".trash" / f"{ONE}~11"
    assert curate.restore(places[-1]) == run
    with pytest.raises(LayerscopeError, match="is there already"):
        curate.restore(places[0])
    assert places[0].exists()


def test_a_broken_run_can_go(tmp_path: Path) -> None:
    path = tmp_path / ONE
    path.mkdir()
    (path / "run.json").write_text("{garb")
    assert curate.to_trash(path).exists()


def test_a_run_under_another_name_comes_back_under_it(run: Path, tmp_path: Path) -> None:
    path = run.rename(tmp_path / "my~favourite")
    assert curate.restore(curate.to_trash(path)) == path


def test_a_live_run_stays(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path, Spec(ONE, finished=False, state="running", living=True))
    with pytest.raises(LayerscopeError, match="being written"):
        curate.to_trash(path)
    assert path.exists()
    assert not (tmp_path / ".trash").exists()


def test_a_run_whose_writer_says_nothing_stays(run: Path) -> None:
    """A process that resumes takes the lock before it says anything."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "locked\n"
        assert not open_run(run).live
        with pytest.raises(LayerscopeError, match="being written"):
            curate.to_trash(run)
        assert run.exists()
        curate.set_label(run, "a label all the same", [])
    finally:
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()
    assert curate.to_trash(run).exists()


def test_a_writer_is_refused_while_a_run_moves(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held until the run is gone from where a writer looks."""
    found: list[str] = []
    rename = os.rename

    def resumed(source: Path, target: Path) -> None:
        with pytest.raises(LayerscopeError) as refused:
            RunWriter(run, all_tables())
        found.append(str(refused.value))
        rename(source, target)

    monkeypatch.setattr(os, "rename", resumed)
    curate.to_trash(run)
    assert len(found) == 1
    assert "is being written by another process" in found[0]


def test_two_tabs_move_one_run_once(run: Path) -> None:
    said: list[str] = []

    def move() -> None:
        try:
            curate.to_trash(run)
            said.append("moved")
        except LayerscopeError as error:
            said.append(str(error))

    threads = [threading.Thread(target=move) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said.count("moved") == 1
    assert all(text == "moved" or "not here any more" in text for text in said)
    assert [path.name for path in run.parent.iterdir()] == [".trash"]
    assert [path.name for path in (run.parent / ".trash").iterdir()] == [ONE]


@pytest.mark.parametrize("act", [curate.to_trash, lambda path: curate.set_label(path, "a", [])])
def test_a_run_that_is_gone_is_said(tmp_path: Path, act: object) -> None:
    with pytest.raises(LayerscopeError, match="not here any more"):
        act(tmp_path / ONE)  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_is_one_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root every directory can be written: the refusal itself is pretended."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(LayerscopeError, match="cannot be moved to the trash: Permission denied"):
        curate.to_trash(run)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(LayerscopeError, match="cannot be labelled: Permission denied"):
        curate.set_label(run, "a", [])
    assert run.exists()
    assert not (run / curate.LABEL).exists()
    assert recorder.open(run.parent).runs[0].state == "complete"


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "/", "no-such", f"{ONE}/tables"])
def test_only_what_lies_in_the_trash_is_found_there(run: Path, name: str) -> None:
    curate.to_trash(run)
    assert curate.in_trash(run.parent, name) is None
