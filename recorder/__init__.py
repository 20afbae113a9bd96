"""Layerscope's recorder: record the forward passes that lm-evaluation-harness scores, and query what they left.

Importing this package loads neither torch nor transformers nor lm_eval.
"""

from __future__ import annotations

from recorder.config import Prompt, RecordConfig, make_config
from recorder.errors import LayerscopeError
from recorder.looking import open_run
from recorder.rundir import Run
from recorder.store import Store, open


def record(config: RecordConfig) -> Run:
    """Record one run and return it, finished. Needs the `record` extra; raises LayerscopeError for what a person can
    mend."""
    from recorder.session import record as record_session  # heavy: torch, transformers, lm_eval

    return record_session(config)


__all__ = ["LayerscopeError", "Prompt", "RecordConfig", "Run", "Store", "make_config", "open", "open_run", "record"]
