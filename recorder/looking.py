"""Looking at directories for runs: which are there, how each lies, and what is wrong with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from recorder.errors import LayerscopeError
from recorder.rundir import NOTHING, Run, Stamp, Tree, read_json
from recorder.schema import FORMAT

MARKS = ("run.json", "status.json", "results.json")
"""Files of which a run has at least one."""

LINKED = ("tables", "parts")
"""Directories of a run that may be links to another disk."""
TRIES = 3
"""Times that a problem is looked at while a writer may be moving files."""
THOROUGH = 200
"""Finished runs of which a look again stats every file; of the others, their directories."""

RUN_ID = re.compile(r"\d{8}t\d{6}z-[0-9a-f]{6}")


def open_run(path: Path) -> Run:
    """Run at `path`; what is broken or newer is said in `problem`."""
    return _see(str(path), None) or Run(path, problem="there is no run.json")


def look(root: Path, known: Iterable[Run] = (), turn: int | None = None) -> list[Run]:
    """Runs at or directly under `root`, newest name first. One of `known` that lies as it did is that same object, and
    nothing of it is read.

    Every file is looked at, unless a `turn` is given: then a finished run in whose directories no file came or went
    counts as lying as it did, but for THOROUGH runs a turn, so that a file changed in place is noticed in its turn.
    """
    before = {str(run.path): run for run in known}
    turns = max(1, len(before) // THOROUGH)
    found = []
    for i, path in enumerate(_candidates(root)):
        run = before.get(path)
        if run is None or turn is None or (i - turn) % turns == 0 or not _rests(run):
            run = _see(path, run)
        if run is not None:
            found.append(run)
    return found


def find_runs(root: Path) -> Iterator[Path]:
    """Directories of runs at or directly under `root`, newest name first."""
    return (Path(path) for path in _candidates(root) if _scan_run(path) is not None)


def _candidates(root: Path) -> list[str]:
    """Directories that may be runs: `root` itself, or what lies directly under it."""
    try:
        found = _scan(str(root))
    except OSError as error:
        raise LayerscopeError(f"{root} is not a readable directory: {error.strerror}") from error
    if _is_run(root.name, found):
        return [str(root)]
    return [os.path.join(root, name) for name in sorted(found.directories, reverse=True) if not name.startswith(".")]


def _scan_run(path: str) -> _Directory | None:
    """What lies directly in the directory of a run; None where there is none."""
    name = os.path.basename(path)
    try:
        found = _scan(path)
    except PermissionError:
        return _UNREADABLE if RUN_ID.fullmatch(name) else None
    except OSError:
        return None
    return found if _is_run(name, found) else None


def _is_run(name: str, found: _Directory) -> bool:
    """A directory that holds a run, or is called like one and held one."""
    inside = {*found.files, *found.directories}
    if not inside.isdisjoint(MARKS):
        return True
    return RUN_ID.fullmatch(name) is not None and any(not entry.startswith(".") for entry in inside)


class _Directory(NamedTuple):
    """One directory: its own stamp, its files with theirs, and the names of the directories in it."""

    stamp: Stamp
    files: dict[str, Stamp]
    directories: list[str]


_UNREADABLE = _Directory((0, 0, 0, 0), {}, [])


def _scan(path: str, *, links: bool = True) -> _Directory:
    """What lies directly in a directory; links to directories are such where `links` says so. Raises OSError."""
    found = _Directory(_stamp(os.stat(path)), {}, [])  # its own first: what comes meanwhile shows the next time
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=links):
                    found.directories.append(entry.name)
                else:
                    found.files[entry.name] = _stamp(entry.stat())
            except OSError:  # just gone, or a link to nothing
                continue
    return found


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _walk(path: str) -> Tree | None:
    """Everything under the run at `path`; None where there is no run."""
    top = _scan_run(path)
    if top is None:
        return None
    tree = Tree({"": top.files}, {"": top.stamp})
    waiting = [name for name in top.directories if name in LINKED or not os.path.islink(f"{path}/{name}")]
    while waiting:
        name = waiting.pop()
        try:
            found = _scan(f"{path}/{name}", links=name in LINKED)
        except OSError:
            found = _UNREADABLE
        tree.files[name], tree.directories[name] = found.files, found.stamp
        waiting += [f"{name}/{each}" for each in found.directories]
    return tree


def _rests(run: Run) -> bool:
    """Whether no file came to a finished run or left it, told by the times of its directories alone."""
    if run.problem or not run.finished:
        return False
    try:
        return all(_stamp(os.stat(f"{run.path}/{name}")) == was for name, was in run.tree.directories.items())
    except OSError:
        return False


def _see(path: str, known: Run | None) -> Run | None:
    """The run at `path`, or `known` where its files are as they were; None where there is no run.

    A problem counts once another look finds the same files: a writer may be moving them at this moment.
    """
    for _ in range(TRIES):
        tree = _walk(path)
        if tree is None:
            return None
        if known is not None and known.tree == tree:
            break
        known = _read(Path(path), tree, known)
        if not known.problem:
            break
    return known


def _read(path: Path, tree: Tree, known: Run | None) -> Run:
    """The run whose files are `tree`. What `known` holds is not read again where its file was not touched."""
    known = known or Run(path)
    about: dict[str, Any] | None = known.about
    if not about or known.tree.files.get("", {}).get("run.json") != tree.files[""].get("run.json"):
        try:
            about = read_json(path / "run.json")
        except (OSError, ValueError) as error:
            return Run(path, {}, f"run.json cannot be read: {error}", tree)
    if about is None:
        return Run(path, {}, "there is no run.json", tree)
    version = about.get("format")
    if not isinstance(version, int):
        return Run(path, about, "run.json names no format", tree)
    if version > FORMAT:
        said = f"written by a newer version (format {version}; this one reads up to {FORMAT})"
        return Run(path, about, said, tree)
    run = Run(path, about, "", tree)
    return replace(run, problem=_broken_file(run, NOTHING if known.problem else known.tree))


def _broken_file(run: Run, whole: Tree) -> str:
    """What is wrong with the first table that is not whole; those that lie as in `whole` are."""
    for directory in run.directories:
        files = run.tree.files.get(directory, {})
        names = sorted(name for name in files if name.endswith(".parquet"))
        if not names:
            return f"{directory} holds no tables"
        before = whole.files.get(directory, {})
        for name in names:
            if before.get(name) != files[name] and not _whole(f"{run.path}/{directory}/{name}"):
                return f"{directory}/{name} is truncated or not Parquet"
    return ""


def _whole(path: str) -> bool:
    """A Parquet file ends in the length of its footer and a magic word; a truncated one does not."""
    try:
        with open(path, "rb", buffering=0) as handle:
            before = handle.seek(-8, os.SEEK_END)
            tail = handle.read(8)
    except OSError:
        return False
    return tail[4:] == b"PAR1" and int.from_bytes(tail[:4], "little") + 4 <= before
