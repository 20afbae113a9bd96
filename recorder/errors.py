"""The one error a person is meant to read: a sentence that names the offender and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LayerscopeError(Exception):
    """Bad input or an impossible request. The command line prints it without a traceback and exits with 2."""


class Interrupted(LayerscopeError):
    """The person stopped the run; what was committed stays and the same command resumes it."""


def near(word: str, known: Iterable[str], most: int = 5) -> str:
    """'; did you mean a, b?' for the known words closest to `word`, or '' where none is close."""
    found = difflib.get_close_matches(word, list(known), n=most, cutoff=0.55)
    return f"; did you mean {', '.join(found)}?" if found else ""
