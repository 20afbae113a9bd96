"""A viewer works where torch, transformers and lm_eval are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "lm_eval", "numba", "datasets")
LOOK = """
import importlib, pkgutil, sys
import dashboard
for module in pkgutil.walk_packages(dashboard.__path__, "dashboard."):
    if module.name != "dashboard.app":
        importlib.import_module(module.name)
{extra}
print(" ".join(name for name in {heavy!r} if name in sys.modules))
"""


def loaded(extra: str = "") -> list[str]:
    """Heavy packages that importing every module of the dashboard loads."""
    code = LOOK.format(heavy=HEAVY, extra=extra)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_no_heavy_package_is_loaded() -> None:
    assert loaded() == []


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_the_check_above_can_fail(name: str) -> None:
    pretend = f"import types; sys.modules[{name!r}] = types.ModuleType({name!r})"
    assert loaded(pretend) == [name]


def test_the_app_itself_loads_nothing_heavy() -> None:
    code = (
        "import sys; from streamlit.testing.v1 import AppTest; "
        "t = AppTest.from_file('dashboard/app.py', default_timeout=60).run(); assert not t.exception; "
        f"print(' '.join(n for n in {HEAVY!r} if n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []
