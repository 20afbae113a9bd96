"""Importing what a viewer needs loads neither torch nor transformers nor lm_eval nor numba: a subprocess proves it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPO

HEAVY = ("torch", "transformers", "lm_eval", "numba", "datasets")
LIGHT = (
    "recorder",
    "recorder.store",
    "recorder.cli",
    "recorder.signals",
    "recorder.looking",
    "recorder.rundir",
    "recorder.config",
    "recorder.session",
    "recorder.check",
    "recorder.display",
    "recorder.writer",
    "recorder.schema",
)


def loaded_by(statement: str) -> set[str]:
    """Which heavy libraries a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    return set(done.stdout.partition("loaded:")[2].split())


@pytest.mark.parametrize("module", LIGHT)
def test_importing_is_light(module: str) -> None:
    assert loaded_by(f"import {module}") == set()


def test_the_registry_is_light() -> None:
    assert loaded_by("from recorder.signals import registry; registry()") == set()


def test_reading_is_light() -> None:
    query = "import recorder; recorder.open('sample_runs').sql('SELECT count(*) FROM signals')"
    assert loaded_by(query) == set()


def test_checking_is_light() -> None:
    statement = (
        "from recorder.check import check_run; from recorder.looking import find_runs; from pathlib import Path; "
        "assert not check_run(next(find_runs(Path('sample_runs')))).failed"
    )
    assert loaded_by(statement) == set()


def test_this_check_can_fail() -> None:
    assert "numba" in loaded_by("import recorder.kernel")
    assert loaded_by("import numba") == {"numba"}
