"""One run on disk: names, JSON files, state, and the Parquet files a reader may open.

<root>/<run_id>/run.json       what the run is
                status.json    how far it is, and who writes it
                parts/<shard>-<seq>/<table>.parquet    one commit = one directory
                tables/<table>.parquet                 after finish: every part merged and sorted
                results.json   lm-eval's results, written last: without it the run is not finished
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from recorder.errors import LayerscopeError
from recorder.schema import FORMAT

HEARTBEAT_LIMIT = 60.0
"""Seconds after which a silent run on another machine counts as lost."""

MARKS = ("run.json", "status.json", "results.json")
"""Files of which a run has at least one."""

LINKED = ("tables", "parts")
"""Directories of a run that may be links to another disk."""
TRIES = 3
"""Times that a problem is looked at while a writer may be moving files."""
THOROUGH = 200
"""Finished runs of which a look again stats every file; of the others, their directories."""

ALIVE = frozenset({"starting", "loading", "running", "finishing"})
RUN_ID = re.compile(r"\d{8}t\d{6}z-[0-9a-f]{6}")

Stamp = tuple[int, int, int, int]
"""(inode, bytes, time of change, time of the inode's change): equal where a file was not touched."""


class Tree(NamedTuple):
    """A run's files and directories with their stamps, by directory relative to the run ('' is the run itself)."""

    files: dict[str, dict[str, Stamp]]
    directories: dict[str, Stamp]


NOTHING = Tree({}, {})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dt%H%M%Sz}-{secrets.token_hex(3)}"


def finite(value: Any) -> Any:
    """The same value with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Write by rename, so that a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            json.dump(finite(data), handle, indent=1, ensure_ascii=True, allow_nan=False, default=str)
            handle.write("\n")
            if durable:
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def mapping(value: Any) -> dict[str, Any]:
    """The value where it is an object; {} where a file holds something else."""
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file. Raises ValueError where it is not an object."""
    try:
        with open(path, "rb") as handle:
            data = json.loads(handle.read().decode("utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds a {type(data).__name__}, not an object")
    return data


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


def this_process() -> dict[str, Any]:
    """Who writes: enough to tell a living writer from a dead one whose pid was given to another process."""
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "pid_started": psutil.Process().create_time(),
    }


def process_lives(writer: dict[str, Any]) -> bool | None:
    """Whether the writing process still runs; None where this machine cannot know."""
    if writer.get("host") != socket.gethostname():
        return None
    if writer.get("boot_id") != boot_id():
        return False
    try:
        process = psutil.Process(int(writer["pid"]))
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - writer["pid_started"]) < 2.0
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


@dataclass(frozen=True, eq=False)
class Run:
    """A run to read, as it lay when it was looked at: the same object as long as it lies so. Never raises for what lies
    on disk: `problem` says what is wrong with it."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    tree: Tree = field(default=NOTHING, repr=False)

    @property
    def run_id(self) -> str:
        return self.path.name

    @cached_property
    def status(self) -> dict[str, Any]:
        return self.json("status.json")

    @cached_property
    def results(self) -> dict[str, Any]:
        return self.json("results.json")

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the run; {} where there is none, or none that can be read."""
        try:
            return (read_json(self.path / name) or {}) if self.has(name) else {}
        except (OSError, ValueError):
            return {}

    def has(self, name: str, directory: str = "") -> bool:
        """Whether that file was there."""
        return name in self.tree.files.get(directory, {})

    @property
    def finished(self) -> bool:
        return self.has("results.json")

    @property
    def state(self) -> str:
        """broken, newer, complete, lost, or what the writer last said."""
        if self.problem:
            return "newer" if "newer version" in self.problem else "broken"
        if self.finished:
            return "complete"
        said = str(self.status.get("state", "lost"))
        return "lost" if said in ALIVE and not self.live else said

    @property
    def live(self) -> bool:
        """A writer is at work: by process on this machine, by heartbeat from another."""
        if self.status.get("state") not in ALIVE:
            return False
        lives = process_lives(mapping(self.status.get("writer")))
        return self.heartbeat_age < HEARTBEAT_LIMIT if lives is None else lives

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the writer last wrote its status."""
        try:
            beat = datetime.fromisoformat(str(self.status["heartbeat"]))
        except (KeyError, ValueError):
            return math.inf
        beat = beat if beat.tzinfo else beat.replace(tzinfo=UTC)
        return (datetime.now(UTC) - beat).total_seconds()

    @cached_property
    def revision(self) -> str:
        """Changes whenever rows may have changed: the key for caches."""
        files = self.tree.files
        rows = sorted((name, sorted(files.get(name, {}).items())) for name in self.directories)
        said = [files.get("", {}).get(name) for name in ("run.json", "results.json")]
        return hashlib.blake2s(repr((said, rows)).encode(), digest_size=16).hexdigest()

    def files(self, table: str) -> list[Path]:
        """Parquet files that hold `table`, in commit order; the merged one where the run is finished."""
        if self.problem:
            return []
        name = f"{table}.parquet"
        return [self.path / directory / name for directory in self.directories if self.has(name, directory)]

    @property
    def directories(self) -> list[str]:
        """Where its rows are, relative to it: the merged tables of a finished run, else its parts in commit order."""
        return ["tables"] if self.finished else sorted(filter(_is_part, self.tree.files))

    def size(self) -> int:
        """Bytes on disk."""
        return sum(stamp[1] for files in self.tree.files.values() for stamp in files.values())


def _is_part(directory: str) -> bool:
    """Directories under a temporary name are not commits."""
    return directory.startswith("parts/") and directory.count("/") == 1 and not directory.startswith("parts/.")


def parts(path: Path) -> list[Path]:
    """Committed parts of a run, in order. Directories under a temporary name are not commits."""
    try:
        found = [entry for entry in (path / "parts").iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(found)


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
