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
import secrets
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil

HEARTBEAT_LIMIT = 60.0
"""Seconds after which a silent run on another machine counts as lost."""

ALIVE = frozenset({"starting", "loading", "running", "finishing"})

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
