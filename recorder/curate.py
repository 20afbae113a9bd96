"""What people do to a run afterwards: give it another label, tags, or move it to the trash. Its data never changes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from recorder.errors import LayerscopeError
from recorder.looking import open_run
from recorder.rundir import read_json, write_json

LABEL = "label.json"
"""{"name": str, "tags": [str]}, beside run.json, which belongs to the writer."""
TRASH = ".trash"
"""Directory beside a root's runs; a name with a dot is no run."""
NAME, TAG, TAGS = 120, 40, 20
"""Letters of a label, letters of a tag, tags of a run."""
NUMBERED = re.compile(r"~\d+$")
ONE = threading.Lock()
"""Two tabs of one dashboard would write one file under one temporary name, or move one run twice."""


def label_of(path: Path) -> dict[str, Any]:
    """The label given to the run at `path`; {} where there is none, or none that can be read."""
    try:
        return read_json(path / LABEL) or {}
    except (OSError, ValueError):
        return {}


def set_label(path: Path, name: str, tags: Sequence[str]) -> None:
    """Give the run another name ('' for the recorded one) and these tags. Raises LayerscopeError."""
    name = _word("label", name, NAME)
    words = list(dict.fromkeys(filter(None, (_word("tag", tag, TAG) for tag in tags))))
    if len(words) > TAGS:
        raise LayerscopeError(f"{len(words)} tags are more than the {TAGS} that a run may have.")
    if comma := next((word for word in words if "," in word), None):
        raise LayerscopeError(f"The tag {comma} holds a comma, which separates tags: make two of it.")
    with _said(path, "labelled"), ONE:
        if name or words:
            write_json(path / LABEL, {"name": name, "tags": words})
        else:
            (path / LABEL).unlink(missing_ok=True)


def _word(what: str, text: str, most: int) -> str:
    """The text without space around it; refused where it is too long, or cannot be seen."""
    text = text.strip()
    if len(text) > most:
        raise LayerscopeError(f"The {what} has {len(text)} letters; at most {most} are kept.")
    for letter in text:
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter != "\u200d":  # that joins emoji
            raise LayerscopeError(f"The {what} holds a character that cannot be seen (U+{ord(letter):04X}): retype it.")
    return text


def to_trash(path: Path) -> Path:
    """Where the run lies now: in .trash beside it, under its own name or a numbered one. Raises LayerscopeError for a
    run that is being written."""
    with _said(path, "moved to the trash"), ONE:
        path.stat()  # before the lock, which would make the directory again
        with _unwritten(path):
            trash = path.parent / TRASH
            trash.mkdir(exist_ok=True)
            names = (path.name, *(f"{path.name}~{n}" for n in range(2, 10_000)))
            target = next(trash / name for name in names if not os.path.lexists(trash / name))
            os.rename(path, target)
    return target


def restore(path: Path) -> Path:
    """Where the run that lay in the trash at `path` lies now. Raises LayerscopeError where its place is taken."""
    target = path.parent.parent / NUMBERED.sub("", path.name)
    with _said(path, "restored"), ONE:
        if os.path.lexists(target):
            raise LayerscopeError(f"{target} is there already: move one of the two by hand.")
        os.rename(path, target)
    return target


def in_trash(root: Path, run_id: str) -> Path | None:
    """Where the run that lay under `root` is in the trash; the one that came last where there are several."""
    try:
        found = [entry for entry in (root / TRASH).iterdir() if NUMBERED.sub("", entry.name) == run_id]
    except OSError:
        return None
    return max(found, key=lambda entry: (len(entry.name), entry.name), default=None)


@contextlib.contextmanager
def _unwritten(path: Path) -> Iterator[None]:
    """Hold the writer's lock: a writer that resumes meanwhile is refused. Raises where one is at work."""
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _written(path) from None
    try:
        if open_run(path).live:  # on another machine, whose lock this one may not see
            raise _written(path)
        yield
    finally:
        lock.release()


def _written(path: Path) -> LayerscopeError:
    return LayerscopeError(f"{path.name} is being written by another process: stop it first, or wait for its end.")


@contextlib.contextmanager
def _said(path: Path, what: str) -> Iterator[None]:
    """What the system refuses, as one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise LayerscopeError(f"{path} is not here any more: it was moved or deleted meanwhile.") from None
    except OSError as error:
        raise LayerscopeError(f"{path} cannot be {what}: {error.strerror or error}.") from None
