"""The same command again: continues what is unfinished, extends what is finished smaller, else starts anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import recorder
from recorder.check import check_run
from recorder.errors import LayerscopeError
from recorder.looking import find_runs, open_run
from recorder.rundir import Run
from recorder.signals import registry
from tests.conftest import TASKS, TINY, choice_task, record_run
from tests.recorder.faults.compare import differences

pytestmark = pytest.mark.xdist_group("in-process")


class Again:
    """A recording that continues what it finds, as the command does without --fresh."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __call__(self, **more: Any) -> Run:
        fields = {"tasks": ("ls_all_tiny",), "include_path": str(TASKS), "fresh": False, "limit": 3}
        return record_run(self.out, **(fields | more))

    def runs(self) -> list[Path]:
        return list(find_runs(self.out))


@pytest.fixture
def again(tmp_path: Path, one_thread: None) -> Again:
    return Again(tmp_path / "runs")


class Stop(Exception):
    """Ends a recording in its middle, as a bug or a killed process would."""


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The n-th next commit of a recording is its last."""
    from recorder.writer import RunWriter

    commit = RunWriter.commit

    def arm(n: int) -> None:
        left = [n]

        def counted(self: RunWriter, tables: Any) -> Path:
            if left[0] == 0:
                monkeypatch.setattr(RunWriter, "commit", commit)
                raise Stop
            left[0] -= 1
            return commit(self, tables)

        monkeypatch.setattr(RunWriter, "commit", counted)

    return arm


def names(run: Run) -> list[str]:
    return sorted(path.name for path in find_runs(run.path.parent))


def counts(run: Run) -> dict[str, int]:
    """Documents in each table."""
    query = "SELECT count(*) AS n FROM (SELECT DISTINCT task, doc_id FROM {})"
    store = recorder.open(run.path)
    return {table: int(store.sql(query.format(table))["n"][0]) for table in ("docs", "requests", "steps", "signals")}


def test_after_completion_the_same_command_starts_a_new_run(again: Again) -> None:
    first = again()
    second = again()
    assert second.path != first.path
    assert names(second) == sorted([first.run_id, second.run_id])
    assert differences(first.path, second.path) == []


def test_unfinished_is_continued(again: Again, stop_after: Callable[[int], None]) -> None:
    stop_after(1)
    with pytest.raises(Stop):
        again(commit_seconds=0.001, batch_size=1)
    (path,) = again.runs()
    assert open_run(path).state == "failed"
    assert "Stop" in open_run(path).status["message"]
    run = again()
    assert run.path == path
    assert run.state == "complete"
    assert 0 < run.status["progress"]["requests_done"] < 3 * 4 + 3
    assert run.status["progress"]["docs_done"] == 6
    assert len(run.about["attempts"]) == 2
    assert check_run(path).failed == []


def test_fresh_starts_another(again: Again, stop_after: Callable[[int], None]) -> None:
    stop_after(1)
    with pytest.raises(Stop):
        again(commit_seconds=0.001, batch_size=1)
    (old,) = again.runs()
    run = again(fresh=True)
    assert run.path != old
    assert run.state == "complete"
    assert run.status["progress"]["requests_done"] == 3 * 4 + 3
    assert open_run(old).state == "failed"


def test_a_raised_limit_extends(again: Again) -> None:
    small = again(limit=2)
    rows = _rows(small.path)
    run = again(limit=5)
    assert run.path == small.path
    assert run.state == "complete"
    assert run.status["progress"]["requests_done"] == 3 * 4 + 3, "the first documents were computed again"
    assert run.status["progress"]["docs_done"] == 10
    assert counts(run) == dict.fromkeys(("docs", "requests", "steps", "signals"), 10)
    merged = _rows(run.path)
    for table, before in rows.items():
        assert before <= merged[table], f"{table}: rows of the first documents changed"
    assert check_run(run.path).failed == []
    assert differences(again(limit=5, fresh=True).path, run.path) == []
    assert not (run.path / "parts").exists()
    assert not list(run.path.glob("results.previous*"))
    assert run.about["config"]["limit"] == 5


def test_extending_twice_then_all(again: Again) -> None:
    first = again(limit=1, tasks=("ls_tiny_choice",))
    second = again(limit=2, tasks=("ls_tiny_choice",))
    whole = again(limit=None, tasks=("ls_tiny_choice",))
    assert first.path == second.path == whole.path
    assert whole.status["progress"]["requests_done"] == 40 * 4
    assert counts(whole)["docs"] == 42
    assert check_run(whole.path).failed == []


def test_an_extension_that_was_stopped_goes_on(again: Again, stop_after: Callable[[int], None]) -> None:
    small = again(limit=2)
    stop_after(1)
    with pytest.raises(Stop):
        again(limit=6, commit_seconds=0.001, batch_size=1)
    assert not open_run(small.path).finished
    committed = counts(open_run(small.path))
    assert committed["requests"] >= 4
    run = again(limit=6)
    assert run.path == small.path
    assert counts(run)["docs"] == 12
    assert check_run(run.path).failed == []
    assert differences(again(limit=6, fresh=True).path, run.path) == []


def test_an_unfinished_run_with_a_smaller_limit(again: Again, stop_after: Callable[[int], None]) -> None:
    """Whatever directory it chooses: a finished run holds the same documents in every table."""
    stop_after(20)
    with pytest.raises(Stop):
        again(limit=20, tasks=("ls_tiny_choice",), commit_seconds=0.001, batch_size=1)
    (path,) = again.runs()
    assert counts(open_run(path))["requests"] > 3
    run = again(limit=2, tasks=("ls_tiny_choice",))
    assert run.state == "complete"
    assert counts(run) == dict.fromkeys(("docs", "requests", "steps", "signals"), 2)
    assert check_run(run.path).failed == []


def test_changed_task_data_is_refused(tmp_path: Path, again: Again, stop_after: Callable[[int], None]) -> None:
    docs = [{"question": f"Q: {n} + 1 = A:", "choices": ["1", "2", "3"], "gold": 0} for n in range(6)]
    task = choice_task(tmp_path / "t", "ls_changing", docs)
    fields: dict[str, Any] = {"tasks": (task,), "include_path": str(tmp_path / "t"), "limit": None}
    stop_after(2)
    with pytest.raises(Stop):
        again(**fields, commit_seconds=0.001, batch_size=1)
    (path,) = again.runs()
    known = {tuple(row) for row in recorder.open(path).sql("SELECT doc_id, choice FROM requests").values.tolist()}
    for doc in docs:
        doc["question"] = "Q: 9 - 9 = A:"
    (tmp_path / "t" / "ls_changing.jsonl").write_text("\n".join(map(json.dumps, docs)) + "\n")
    with pytest.raises(LayerscopeError, match="another text") as refused:
        again(**fields)
    assert any(f"'ls_changing', {doc}, {choice}, 0" in str(refused.value) for doc, choice in known), refused.value
    assert "--fresh" in str(refused.value)
    still = {tuple(row) for row in recorder.open(path).sql("SELECT doc_id, choice FROM requests").values.tolist()}
    assert still == known
    assert again(**fields, fresh=True).state == "complete"


def test_changed_weights_are_refused(tmp_path: Path, again: Again, stop_after: Callable[[int], None]) -> None:
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    stop_after(1)
    with pytest.raises(Stop):
        again(model=str(model), commit_seconds=0.001, batch_size=1)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-3] ^= 0x10
    (model / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(LayerscopeError, match="has changed since this run began") as refused:
        again(model=str(model))
    assert str(model) in str(refused.value)
    assert "--fresh" in str(refused.value)
    (path,) = again.runs()
    data[-3] ^= 0x10
    (model / "model.safetensors").write_bytes(bytes(data))
    run = again(model=str(model))  # the right weights are back
    assert run.path == path
    assert check_run(path).failed == []


def test_changed_weights_do_not_extend(tmp_path: Path, again: Again) -> None:
    """The refusal leaves the finished run readable."""
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    small = again(model=str(model), limit=1)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-3] ^= 0x10
    (model / "model.safetensors").write_bytes(bytes(data))
    with pytest.raises(LayerscopeError, match="has changed"):
        again(model=str(model), limit=2)
    assert recorder.open(small.path).sql("SELECT count(*) AS n FROM requests")["n"][0] == 4 + 1


@pytest.mark.parametrize(
    "other", [{"top_k": 3}, {"seed": 5}, {"num_fewshot": 1}, {"positions": "all"}, {"signals": ("logit_lens",)}]
)
def test_another_configuration_is_another_run(
    again: Again, stop_after: Callable[[int], None], other: dict[str, Any]
) -> None:
    stop_after(1)
    with pytest.raises(Stop):
        again(commit_seconds=0.001, batch_size=1)
    (old,) = again.runs()
    run = again(limit=1, **other)
    assert run.path != old
    with pytest.raises(LayerscopeError, match=f"{next(iter(other))} was"):
        again(run=old.name, **other)


@pytest.mark.parametrize(
    "written", [{"logit_lens": 1, "similarity": 1}, None], ids=["another", "before there were any"]
)
def test_another_version_of_a_signal_is_another_run(
    again: Again, stop_after: Callable[[int], None], written: dict[str, int] | None
) -> None:
    """One run never holds numbers of two versions, though its configuration is the same."""
    stop_after(1)
    with pytest.raises(Stop):
        again(commit_seconds=0.001, batch_size=1)
    (old,) = again.runs()
    about = json.loads((old / "run.json").read_text())
    assert about["signal_versions"] == {name: module.VERSION for name, module in registry().items()}
    about["signal_versions"] = written
    (old / "run.json").write_text(json.dumps(about))
    with pytest.raises(LayerscopeError, match="the version of similarity was 1 and is now 2"):
        again(run=old.name)
    assert again(limit=1).path != old
    lens_alone = again(signals=("logit_lens",), limit=1)
    assert lens_alone.about["signal_versions"] == {"logit_lens": registry()["logit_lens"].VERSION}


def _rows(path: Path) -> dict[str, set[str]]:
    """Every row of the tables, as text; is_chosen is known anew after each merge."""
    found = {}
    for table in ("requests", "steps", "signals", "similarity"):
        file = path / "tables" / f"{table}.parquet"
        found[table] = {repr(row) for row in duckdb.sql(f"SELECT * FROM read_parquet('{file}')").fetchall()}
    return found
