"""What people do to a run afterwards: give it another label, tags, or move it to the trash. Its data never changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recorder.rundir import read_json

LABEL = "label.json"
"""{"name": str, "tags": [str]}, beside run.json, which belongs to the writer."""


def label_of(path: Path) -> dict[str, Any]:
    """The label given to the run at `path`; {} where there is none, or none that can be read."""
    try:
        return read_json(path / LABEL) or {}
    except (OSError, ValueError):
        return {}
