"""One recording from config to finished run: find or make the directory, load, prove, evaluate, finish."""

from __future__ import annotations

import errno
import logging
import platform
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from recorder.config import IDENTITY_VERSION, RecordConfig, identity_hash
from recorder.errors import Interrupted, LayerscopeError
from recorder.looking import find_runs, open_run
from recorder.progress import Progress, Watch
from recorder.rundir import Run, mapping, new_run_id, now, parts, this_process
from recorder.schema import DOCS, FORMAT, REQUESTS, STEPS
from recorder.signals import select
from recorder.writer import RunWriter, check_writable

EXTRA = "recording needs more packages: pip install 'layerscope[record]'"
KNOWN_COLUMNS = ["task", "doc_id", "choice", "repeat", "args_hash", "logprob", "greedy", "continuation"]
LOGGERS = ("lm_eval", "transformers", "datasets", "huggingface_hub", "accelerate", "py.warnings")


def record(config: RecordConfig, watch: Watch | None = None) -> Run:
    """Record one run and return it, finished.

    Continues the unfinished run of the same identity under `config.out`. Raises LayerscopeError for what a person can
    mend, Interrupted after Ctrl-C; in both cases the run stays resumable.
    """
    signals = select(config.signals)
    root = Path(config.out).resolve()
    check_writable(root)
    path = find_or_make(config, root)
    new = not path.exists()
    writer = RunWriter(path, (DOCS, REQUESTS, STEPS, *(module.TABLE for module in signals.values())))
    progress = Progress(path, watch)
    try:
        about = _begin(config, writer)
        if about is None:
            return open_run(path)
        progress.start()
        with _logged(path):
            _record(config, signals, writer, about, progress)
        progress.stop("complete")
    except KeyboardInterrupt:
        progress.stop("interrupted", "stopped by the person who started it")
        raise Interrupted(f"interrupted; what was committed is kept. The same command resumes {path.name}") from None
    except OSError as error:
        message = f"{error.strerror or error} while writing {path}"
        progress.stop("failed", message)
        remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"
        raise LayerscopeError(f"{message}; {remedy}, then the same command resumes the run") from error
    except LayerscopeError as error:
        progress.stop("failed", str(error))
        if new and not parts(path):
            shutil.rmtree(path)  # bad input found before anything was recorded leaves no empty run behind
        raise
    except BaseException as error:
        progress.stop("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        writer.close()
    return open_run(path)


def find_or_make(config: RecordConfig, root: Path) -> Path:
    """Directory of the run to continue, or of a new one.

    Raises LayerscopeError where the named run has another configuration, naming the fields.
    """
    identity = config.identity()
    digest = identity_hash(identity)
    if config.run:
        path = root / config.run
        run = open_run(path)
        if run.problem:
            raise LayerscopeError(f"--run {config.run}: {run.problem} under {root}")
        before = mapping(mapping(run.about.get("identity")).get("fields"))
        _refuse_difference(config.run, before | _versions_of(run, config), identity | _versions(config))
        return path
    if not config.fresh:
        for path in find_runs(root):
            run = open_run(path)
            if (
                not run.problem
                and mapping(run.about.get("identity")).get("hash") == digest
                and _versions_of(run, config) == _versions(config)
                and _may_continue(run, config)
            ):
                return path
    return root / new_run_id()


def _versions(config: RecordConfig) -> dict[str, Any]:
    """Whose numbers the signals of a recording are: a run holds those of one version alone."""
    return {f"the version of {name}": module.VERSION for name, module in select(config.signals).items()}


def _versions_of(run: Run, config: RecordConfig) -> dict[str, Any]:
    """The same of a run that is there; those from before versions were written are of the first."""
    written = mapping(run.about.get("signal_versions"))
    return {f"the version of {name}": written.get(name, 1) for name in select(config.signals)}


def _may_continue(run: Run, config: RecordConfig) -> bool:
    """Unfinished under no larger limit, or finished under a smaller one."""
    before = _limit(mapping(run.about.get("config")).get("limit"))
    return _limit(config.limit) > before if run.finished else _limit(config.limit) >= before


def _limit(limit: Any) -> float:
    return limit if isinstance(limit, int) else float("inf")


def _refuse_difference(name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    differing = sorted(field for field in {*old, *new} if old.get(field) != new.get(field))
    if differing:
        parts = [f"{field} was {old.get(field)!r} and is now {new.get(field)!r}" for field in differing]
        raise LayerscopeError(
            f"run {name} has another configuration: {'; '.join(parts)}. Give --fresh to start a new run"
        )


def _begin(config: RecordConfig, writer: RunWriter) -> dict[str, Any] | None:
    """run.json of a new attempt, on disk before anything else of the run; None where the run is finished already."""
    about = writer.read_about()
    if about is not None and writer.run().finished:
        if _limit(config.limit) <= _limit(about["config"].get("limit")):
            return None
        writer.reopen()
    about = about or _about(config)
    about["config"] = config.model_dump(mode="json")
    about.setdefault("attempts", []).append({"started": now(), "writer": this_process(), "device": config.device})
    writer.write_about(about)
    return about


def _record(
    config: RecordConfig, signals: dict[str, Any], writer: RunWriter, about: dict[str, Any], progress: Progress
) -> None:
    progress.state("loading", f"loading {config.model}")
    try:
        from recorder import evaluation  # heavy: torch, transformers, lm_eval
    except ImportError as error:
        raise LayerscopeError(f"{EXTRA} ({error})") from error
    evaluation.run(config, signals, writer, about, progress)


def _about(config: RecordConfig) -> dict[str, Any]:
    identity = config.identity()
    return {
        "format": FORMAT,
        "created": now(),
        "identity": {"version": IDENTITY_VERSION, "hash": identity_hash(identity), "fields": identity},
        "signal_versions": {name: module.VERSION for name, module in select(config.signals).items()},
        "environment": environment(),
    }


def environment() -> dict[str, Any]:
    """Versions that may change a number."""
    names = ("layerscope", "torch", "transformers", "lm-eval", "tokenizers", "numpy", "numba", "pyarrow", "peft")
    found: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """The libraries' log lines go to the run's own file."""
    directory = path / "logs"
    directory.mkdir(exist_ok=True)
    handler = logging.FileHandler(directory / "record.log", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.captureWarnings(True)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
        logging.captureWarnings(False)
        handler.close()


def known_tables(path: Path) -> Iterator[Any]:
    """The committed `requests` of a run."""
    for name in open_run(path).files(REQUESTS.name):
        yield pq.ParquetFile(name).read(columns=KNOWN_COLUMNS)
