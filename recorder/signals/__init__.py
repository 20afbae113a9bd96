"""What is computed from a forward pass: one file a signal, and this folder is the registry.

A signal module declares

    NAME, VERSION, MEANING       name (the flag), version, one line for a form
    TABLE                        schema.Table of its rows; LAYER_KEY tables hold one row a step and layer
    STEP_COLUMNS                 columns of `steps` that it fills besides
    CONSTANTS, TOKEN_TEXTS       columns of one value; columns of readable tokens, and the column of their ids
    compute(states, top_k)       {column: array of shape (rows, ...)}; see recorder.lens.States

and may declare

    REFERENCE                    True where `compute` reads states.reference; see recorder.reference
    DERIVED                      schema.Derived tables worked out from its rows; see recorder.averages

Importing this package loads no torch: a module's maths uses the tensors it is handed.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from recorder.errors import LayerscopeError, near
from recorder.schema import CORE, Table


@cache
def registry() -> dict[str, ModuleType]:
    """Every signal module by NAME. A module that cannot be imported raises: a broken signal must not vanish."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.NAME: module for module in modules}


def select(names: tuple[str, ...]) -> dict[str, ModuleType]:
    """The named signals, in the given order. Raises LayerscopeError for an unknown name."""
    known = registry()
    for name in names:
        if name not in known:
            raise LayerscopeError(
                f"unknown signal {name!r}{near(name, known)} The signals are {', '.join(known)}"
                if near(name, known)
                else f"unknown signal {name!r}; the signals are {', '.join(known)}"
            )
    return {name: known[name] for name in dict.fromkeys(names)}


def all_tables() -> tuple[Table, ...]:
    """Core tables, then one a signal."""
    return (*CORE, *(module.TABLE for module in registry().values()))
