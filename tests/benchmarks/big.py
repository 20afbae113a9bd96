"""Runs as large as a real evaluation's, with made-up numbers, and a catalogue of many small ones.

    python -m tests.benchmarks.big [--root DIR] [--requests 100000] [--other 50000] [--runs 2000] [--fresh]

Made once, by the real writer, under `<root>/big` (two runs of the same documents) and `<root>/catalogue`; what is there
and was made with these parameters, the declared columns and this writer is used again.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recorder import writer
from recorder.errors import LayerscopeError
from recorder.looking import open_run
from recorder.rundir import now, read_json, this_process, write_json
from recorder.schema import DOCS, FORMAT, REQUESTS, STEPS, Table
from recorder.signals import registry
from recorder.store import tables
from recorder.summary import mark_chosen, score_check, warnings
from recorder.writer import RunWriter

CACHE = Path.home() / ".cache" / "layerscope" / "bench"
VERSION = 2
"""Of the numbers made here."""
TASK, CHOICES, LAYERS, TOP_K, VOCABULARY = "bench_questions", 4, 33, 5, 30_000
BLOCK = 1000
"""Documents of one commit: bounds the memory, and seeds the numbers, so that two runs have the same documents."""
NAN_SHARE = 1e-4
MARK = ".made.json"
BIG, OTHER = "20261201t120000z-b16b16", "20261201t130000z-07e607"


@dataclass(frozen=True)
class Spec:
    """One run to make. `seed` is that of the model's numbers; documents and choices are the same for every run."""

    run_id: str
    name: str
    model: str
    documents: int
    seed: int
    task: str = TASK

    @property
    def requests(self) -> int:
        return self.documents * CHOICES


class Vocabulary:
    """Readable tokens in order of frequency, drawn by Zipf's law."""

    HEAD = (".", ",", "\n", " the", " of", " and", " a", " to", " in", "Question", ":", "Answer", "?", " is", " was")
    SYLLABLES = tuple(a + b + c for c in ("", "n", "r", "s", "l") for b in "aeiou" for a in "btkmdlprsvnfgh")

    def __init__(self, size: int) -> None:
        words = list(self.HEAD)
        base = len(self.SYLLABLES)
        for i in range(size - len(words)):
            word = self.SYLLABLES[i % base] + self.SYLLABLES[(i // base * 7 + i) % base]
            word += self.SYLLABLES[i // base % base] if i >= base else ""
            words.append((" " if i % 10 < 7 else "") + (word.capitalize() if i % 13 == 0 else word))
        self.texts = pa.array(words)
        self.pieces = pa.array([word.replace(" ", "Ġ").replace("\n", "Ċ") for word in words])
        weights = 1 / (np.arange(size) + 2.7)
        self._share = np.cumsum(weights / weights.sum())

    def draw(self, rng: np.random.Generator, shape: Any) -> np.ndarray:
        """Token ids (int32)."""
        return np.searchsorted(self._share, rng.random(shape)).clip(max=len(self.texts) - 1).astype(np.int32)

    def id(self, text: str) -> int:
        return self.HEAD.index(text)


def spans(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """start, start + 1, ... (count of them) for each pair, end to end."""
    ends = np.cumsum(counts)
    return np.repeat(starts - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)


def begins(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def lists(values: pa.Array, counts: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), values)


def same(text: str | None, rows: int) -> pa.Array:
    """One string in every row, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text], pa.string()))


def hexes(rng: np.random.Generator, rows: int, digits: int) -> pa.Array:
    """Strings like hashes."""
    data = pa.py_buffer(rng.bytes(rows * digits // 2).hex().encode())
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * digits, digits, dtype=np.int32))
    return pa.StringArray.from_buffers(rows, offsets, data)


class Block:
    """The documents `first` .. `first + count - 1` of one run: arrays over documents, requests, steps and cells."""

    def __init__(self, spec: Spec, vocabulary: Vocabulary, first: int, count: int) -> None:
        self.spec, self.vocabulary, self.count = spec, vocabulary, count
        self.doc = np.arange(first, first + count, dtype=np.int32)
        self._shared = np.random.default_rng([7, first])
        self._own = np.random.default_rng([spec.seed, first])
        self._ask()
        self._answer()

    def _ask(self) -> None:
        """Prompts of about 60 tokens, choices of 2 to 10. Drawn whole, so that a shorter run's are equal."""
        v, rng = self.vocabulary, self._shared
        asked = rng.integers(40, 71, BLOCK)[: self.count]
        words = v.draw(rng, (BLOCK, 70))[: self.count]
        steps = rng.integers(2, 11, (BLOCK, CHOICES))[: self.count]
        answers = v.draw(rng, (BLOCK, CHOICES, 10))[: self.count]
        words = np.where(words < len(v.HEAD), words + len(v.HEAD), words)
        head, tail = ([v.id(text) for text in texts] for texts in (("Question", ":"), ("?", "\n", "Answer", ":")))
        self.n_prompt = (asked + len(head) + len(tail)).astype(np.int32)
        rows = np.full((self.count, 70 + len(head) + len(tail)), -1, np.int32)
        rows[:, : len(head)] = head
        rows[:, len(head) : -len(tail)] = words
        for i, token in enumerate(tail):
            rows[np.arange(self.count), len(head) + asked + i] = token
        self.prompt = rows[np.arange(rows.shape[1]) < self.n_prompt[:, None]]
        self.n_steps = steps.ravel().astype(np.int32)
        self.answer = answers.reshape(-1, 10)[np.arange(10) < self.n_steps[:, None]]

    def _answer(self) -> None:
        """What the model makes of the scored tokens, at its output; the gold choice is the likeliest in ~60 %."""
        rng, steps, first = self._own, len(self.answer), begins(self.n_steps)
        top = rng.random(steps) < 0.5
        logprob = -np.where(top, rng.exponential(0.6, steps), 1 + rng.exponential(2.5, steps))
        score = np.add.reduceat(logprob, first)
        self.gold = self._shared.integers(0, CHOICES, BLOCK)[: self.count]
        other = (self.gold + rng.integers(1, CHOICES, self.count)) % CHOICES
        self.best = np.where(rng.random(self.count) < 0.6, self.gold, other)
        best = np.arange(self.count) * CHOICES + self.best
        raised = np.ones(len(score))
        raised[best] = np.minimum(1, 0.95 * score.reshape(-1, CHOICES).max(1) / score[best])
        self.logprob = (logprob * raised[self.request_of_step]).clip(max=-1e-6).astype(np.float32)
        self.score = np.add.reduceat(self.logprob.astype(np.float64), first)
        chance = np.exp(self.logprob)
        top |= chance > 0.45
        self.rank = np.where(top, 0, np.exp(rng.exponential(2.2, steps)).clip(1, VOCABULARY / 2)).astype(np.int32)
        self.top_prob = np.where(top, chance, chance + (1 - 2 * chance) * rng.random(steps))
        spread = (1 - self.top_prob) * (3 + 4 * rng.random(steps))
        self.entropy = (spread - self.top_prob * np.log(self.top_prob)).astype(np.float32)
        self.final_top = np.where(top, self.answer, (self.answer + 1 + self.vocabulary.draw(rng, steps)) % VOCABULARY)
        self.settle = np.round((LAYERS - 1) * rng.beta(5, 1.6, steps)).astype(np.int16)

    @cached_property
    def request_of_step(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.n_steps)), self.n_steps)

    @cached_property
    def step(self) -> np.ndarray:
        return spans(np.zeros(len(self.n_steps), int), self.n_steps).astype(np.int32)

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """(ids of all requests' inputs end to end, how many each has)."""
        prompts = np.repeat(self.n_prompt, CHOICES)
        starts = np.stack([np.repeat(begins(self.n_prompt), CHOICES), len(self.prompt) + begins(self.n_steps)], 1)
        at = spans(starts.ravel(), np.stack([prompts, self.n_steps], 1).ravel())
        return np.concatenate([self.prompt, self.answer])[at], prompts + self.n_steps

    def keys(self, of: np.ndarray) -> dict[str, Any]:
        """Key columns of rows that belong to the requests `of`."""
        return {
            "task": same(self.spec.task, len(of)),
            "doc_id": self.doc[of // CHOICES],
            "choice": (of % CHOICES).astype(np.int32),
            "repeat": np.zeros(len(of), np.int32),
        }

    def requests(self) -> dict[str, Any]:
        rows = len(self.n_steps)
        ids, counts = self.inputs
        texts = self.vocabulary.texts
        return {
            **self.keys(np.arange(rows)),
            "kind": same("loglikelihood", rows),
            "args_hash": hexes(self._own, rows, 32),
            "input_ids": lists(pa.array(ids), counts),
            "input_tokens": lists(texts.take(pa.array(ids)), counts),
            "n_prompt": np.repeat(self.n_prompt, CHOICES),
            "truncated_left": np.zeros(rows, np.int32),
            "continuation": pc.binary_join(lists(texts.take(pa.array(self.answer)), self.n_steps), ""),
            "logprob": self.score,
            "greedy": np.logical_and.reduceat(self.rank == 0, begins(self.n_steps)),
            "is_gold": np.arange(rows) % CHOICES == np.repeat(self.gold, CHOICES),
            "is_chosen": pa.nulls(rows, pa.bool_()),
            "stop_reason": pa.nulls(rows, pa.string()),
        }

    def steps(self) -> dict[str, Any]:
        rows = len(self.answer)
        ids = pa.array(self.answer)
        return {
            **self.keys(self.request_of_step),
            "step": self.step,
            "position": np.repeat(self.n_prompt, CHOICES)[self.request_of_step] - 1 + self.step,
            "token_id": ids,
            "token": pa.DictionaryArray.from_arrays(ids, self.vocabulary.pieces),
            "text": pa.DictionaryArray.from_arrays(ids, self.vocabulary.texts),
            "continues": np.zeros(rows, bool),
            "special": np.zeros(rows, bool),
            "logprob": self.logprob,
            "entropy": self.entropy,
            "rank": self.rank,
            "settle_layer": self.settle,
        }

    @cached_property
    def distance(self) -> np.ndarray:
        """How far the residual stream has turned at each layer (steps, layers); a cosine is exp(-difference)."""
        turns = 0.01 + 0.25 * self._own.random((len(self.answer), LAYERS), np.float32) ** 3
        turns[:, 1] += 1.0
        return np.cumsum(turns, axis=1)

    def logit_lens(self) -> dict[str, Any]:
        """Entropy and KL fall over the layers, the target rises, and the top-1 settles where `steps` says so."""
        rng, rows = self._own, len(self.answer) * LAYERS
        layer = np.arange(LAYERS, dtype=np.float32)
        weight = 1 / (1 + np.exp((self.settle[:, None] - 1 - layer) / (1 + 2 * rng.random((len(self.answer), 1)))))
        weight[:, -1] = 1
        rest, noise = (1 - weight).astype(np.float32), rng.standard_normal((len(self.answer), LAYERS), np.float32)

        def between(last: np.ndarray, first: float, width: float) -> np.ndarray:
            return (last[:, None] * weight + rest * (first + width * noise)).astype(np.float32)

        top_ids = self._top_ids()
        is_target = top_ids[..., 0] == self.answer[:, None]
        ranks = np.expm1(between(np.log1p(self.rank), np.log(VOCABULARY / 4), 0.6)).clip(1, VOCABULARY - 1).round()
        ranks[:, -1] = self.rank
        entropy, kl = between(self.entropy, 9.2, 0.4).clip(0), between(np.zeros(len(self.answer)), 8.0, 1.2).clip(0)
        target = np.minimum(between(self.logprob, -11.0, 1.5), -1e-6)
        target[:, -1] = self.logprob
        bad = rng.random(entropy.shape, np.float32) < NAN_SHARE
        bad[:, -1] = False
        for array in (entropy, kl, target):
            array[bad] = np.nan
        first = between(self.top_prob, 0.03, 0.02).clip(1e-3, 1).ravel()
        return {
            **self.keys(np.repeat(self.request_of_step, LAYERS)),
            "step": np.repeat(self.step, LAYERS),
            "layer": np.tile(np.arange(LAYERS, dtype=np.int16), len(self.answer)),
            "lens": same("logit", rows),
            "top_ids": self._wide(pa.array(top_ids.ravel())),
            "top_tokens": self._wide(self.vocabulary.texts.take(pa.array(top_ids.ravel()))),
            "top_probs": self._wide(pa.array(self._top_probs(first).ravel())),
            "entropy": entropy.ravel(),
            "kl_final": kl.ravel(),
            "target_logprob": target.ravel(),
            "target_rank": pa.array(np.where(is_target, 0, ranks).astype(np.int32).ravel(), mask=bad.ravel()),
            "norm": (np.exp(layer / 9)[None] * (30 + 4 * noise)).ravel(),
            "cos_next": pa.array(self._cos_next().ravel(), mask=np.tile(layer == LAYERS - 1, len(self.answer))),
        }

    def _top_ids(self) -> np.ndarray:
        """(steps, layers, k); the last top-1 from the settle layer on, another before; layer 0 repeats its input."""
        steps, rng = len(self.answer), self._own
        others = self.vocabulary.draw(rng, (steps, LAYERS // 3 + 1)).clip(max=VOCABULARY - 2)
        first = (self.final_top[:, None] + 1 + np.repeat(others, 3, axis=1)[:, :LAYERS]) % VOCABULARY
        ids, counts = self.inputs
        before = ids[np.repeat(begins(counts) + np.repeat(self.n_prompt, CHOICES), self.n_steps) - 1 + self.step]
        first[:, 0] = np.where(before == self.final_top, first[:, 0], before)
        first = np.where(np.arange(LAYERS) >= self.settle[:, None], self.final_top[:, None], first)
        apart = 1 + self.vocabulary.draw(rng, (steps, LAYERS, TOP_K - 1)).clip(max=VOCABULARY // TOP_K - 1)
        rest = (first[..., None] + np.cumsum(apart, axis=-1)) % VOCABULARY
        return np.concatenate([first[..., None], rest], axis=-1).astype(np.int32)

    def _top_probs(self, first: np.ndarray) -> np.ndarray:
        shares = np.float32(0.5) ** np.arange(1, TOP_K) * (0.6 + 0.4 * self._own.random((len(first), 1), np.float32))
        rest = np.minimum((1 - first)[:, None] * shares, first[:, None] * np.float32(0.9) ** np.arange(1, TOP_K))
        return np.concatenate([first[:, None], rest], axis=1).astype(np.float32)

    def _cos_next(self) -> np.ndarray:
        return np.exp(-np.diff(self.distance, append=self.distance[:, -1:])).astype(np.float32)

    def _wide(self, values: pa.Array) -> pa.ListArray:
        return lists(values, np.full(len(values) // TOP_K, TOP_K))

    def similarity(self) -> dict[str, Any]:
        """The upper triangle of the cosines of all pairs of layers, one row a step."""
        one, other = np.triu_indices(LAYERS)
        apart = self.distance[:, one] - self.distance[:, other]

        def triangles(cosines: np.ndarray) -> pa.ListArray:
            return lists(pa.array(cosines.astype(np.float16).ravel()), np.full(len(cosines), len(one)))

        return {
            **self.keys(self.request_of_step),
            "step": self.step,
            "cos": triangles(np.exp(apart)),
            "cos_centred": triangles(1.2 * np.exp(3 * apart) - 0.2),
            "outlier": self._own.random(len(self.answer)) < 0.02,
        }

    def docs(self) -> dict[str, Any]:
        """Documents as JSON, graded: acc, and an acc_norm that often agrees."""
        right, rng = self.best == self.gold, self._own
        normed = right ^ (rng.random(self.count) < 0.1)
        graded = pa.array([f'{{"acc": {a:.1f}, "acc_norm": {b:.1f}}}' for a in (0, 1) for b in (0, 1)])
        texts, numbers = self.vocabulary.texts, pa.array([str(i) for i in range(CHOICES)])
        texts = pc.replace_substring(texts, "\n", "\\n")
        prompts = pc.binary_join(lists(texts.take(pa.array(self.prompt)), self.n_prompt), "")
        answers = pc.binary_join(lists(texts.take(pa.array(self.answer)), self.n_steps), "")
        choices = pc.binary_join(lists(answers, np.full(self.count, CHOICES)), '", "')
        pieces = ['{"question": "', prompts, '", "choices": ["', choices]
        return {
            "task": same(self.spec.task, self.count),
            "doc_id": self.doc,
            "filter": same("none", self.count),
            "correct": right,
            "metrics": graded.take(pa.array(2 * right + normed)),
            "prediction": numbers.take(pa.array(self.best)),
            "target": numbers.take(pa.array(self.gold)),
            "doc": pc.binary_join_element_wise(*pieces, '"], "gold": ', numbers.take(pa.array(self.gold)), "}", ""),
            **{
                name: hexes(self._shared, BLOCK, 64)[: self.count]
                for name in ("doc_hash", "prompt_hash", "target_hash")
            },
        }


def table(declared: Table, made: Mapping[str, Any]) -> pa.Table:
    """The declared columns of what was made. Raises LayerscopeError for a column that nothing here makes."""
    missing = [name for name in declared.names if name not in made]
    if missing:
        raise LayerscopeError(f"{declared.name}: {__name__}.Block makes no {', '.join(missing)}; add them there")
    return declared.build({name: made[name] for name in declared.names})


def block_tables(block: Block) -> Iterator[tuple[str, pa.Table]]:
    yield REQUESTS.name, table(REQUESTS, block.requests())
    yield STEPS.name, table(STEPS, block.steps())
    for name, module in registry().items():
        if not hasattr(block, name):
            raise LayerscopeError(f"signal {name}: {__name__}.Block has no method of that name; add it there")
        yield module.TABLE.name, table(module.TABLE, getattr(block, name)())


@cache
def sample(name: str) -> dict[str, Any]:
    """A JSON file of a committed sample run: what a real recording holds."""
    found = sorted((Path(__file__).parents[2] / "sample_runs").glob(f"*/{name}"))
    return read_json(found[-1]) or {}


def about(spec: Spec) -> dict[str, Any]:
    """run.json."""
    real, i = sample("run.json"), spec.run_id
    changed = {"model": spec.model, "tasks": [spec.task], "signals": list(registry()), "top_k": TOP_K}
    fields = {**real["identity"]["fields"], **changed}
    return {
        **real,
        "format": FORMAT,
        "created": f"{i[:4]}-{i[4:6]}-{i[6:8]}T{i[9:11]}:{i[11:13]}:{i[13:15]}.000Z",
        "identity": {**real["identity"], "hash": f"{spec.seed:032x}", "fields": fields},
        "config": {**real["config"], **changed, "name": spec.name or None, "num_fewshot": 0},
        "architecture": {**real["architecture"], "layers": LAYERS - 1, "vocabulary": VOCABULARY},
        "signals": list(registry()),
        "tasks": [spec.task],
        "task_versions": {spec.task: 1.0},
    }


def results(spec: Spec, accuracy: float) -> dict[str, Any]:
    """results.json."""
    real = sample("results.json")
    metrics = {f"{name},none": accuracy for name in ("acc", "acc_stderr", "acc_norm", "acc_norm_stderr")}
    found = {"name": spec.task, "alias": spec.task, "sample_len": spec.documents, **metrics}
    renamed = {name: {spec.task: next(iter(real[name].values()))} for name in ("configs", "versions", "n-shot")}
    return {**real, **renamed, "results": {spec.task: found}}


def status(spec: Spec) -> dict[str, Any]:
    """status.json."""
    real = sample("status.json")
    done = {"docs_done": spec.documents, "docs_total": spec.documents, "requests_done": spec.requests}
    return {**real, "state": "complete", "writer": this_process(), "progress": {**real["progress"], **done}}


def make_run(root: Path, spec: Spec, say: Any = print) -> Path:
    """A finished run, written by the real writer, block by block."""
    path = root / spec.run_id
    started = time.perf_counter()
    run = RunWriter(path, (DOCS, REQUESTS, STEPS, *(module.TABLE for module in registry().values())))
    said = about(spec)
    run.write_about(said)
    vocabulary, docs = Vocabulary(VOCABULARY), []
    for first in range(0, spec.documents, BLOCK):
        block = Block(spec, vocabulary, first, min(BLOCK, spec.documents - first))
        run.commit(dict(block_tables(block)))
        docs.append(table(DOCS, block.docs()))
        say(f"{spec.name}: {first + block.count:,} of {spec.documents:,} documents, {_cost(started)}")

    def findings(directory: Path) -> dict[str, Any]:
        say(f"{spec.name}: merged, {_cost(started)}")
        check = score_check(directory) | {"tolerance": 1e-4}
        found = {"proof": {**said["proof"], "score_check": check}, "warnings": warnings(directory, None)}
        return {**found, "finished": now()}

    graded = pa.concat_tables(docs).unify_dictionaries()
    accuracy = pc.mean(graded["correct"]).as_py()
    run.finish(graded, results(spec, accuracy), mark_chosen, findings)
    write_json(path / "status.json", status(spec))
    run.close()
    say(f"{spec.name}: finished, {open_run(path).size() / 1e9:.2f} GB, {_cost(started)}")
    return path


def _cost(started: float) -> str:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    return f"{time.perf_counter() - started:.0f} s, peak {peak:.1f} GiB"


def make_catalogue(root: Path, runs: int) -> None:
    """Small finished runs of many models and tasks: one set of tables, copied beside other JSON files."""
    models = [f"lab-{lab}/model-{size}" for lab in "abc" for size in ("70m", "160m", "410m", "1b", "3b", "7b", "13b")]
    tasks = ["hellaswag", "piqa", "boolq", *(f"arc_{i}" for i in range(5)), *(f"mmlu_subject_{i}" for i in range(20))]
    source: Path | None = None
    for i in range(runs):
        run_id = f"2026{1 + i // 200:02d}{1 + i // 10 % 20:02d}t{10 + i % 10}0000z-{i:06x}"
        task = tasks[i % len(tasks)]
        spec = Spec(run_id, f"sweep {i // 28}, {task}" if i % 3 else "", models[i % len(models)], 1, i, task)
        if source is None:
            source = make_run(root, spec, lambda _: None)
            continue
        path = root / run_id
        shutil.copytree(source, path)
        write_json(path / "run.json", about(spec), durable=False)
        write_json(path / "status.json", status(spec), durable=False)
        write_json(path / "results.json", results(spec, i * 37 % 1000 / 1000), durable=False)
        if (i + 1) % 500 == 0:
            print(f"catalogue: {i + 1:,} of {runs:,} runs", flush=True)


def build(root: Path, requests: int = 100_000, other: int = 50_000, runs: int = 2000, *, fresh: bool = False) -> Path:
    """Both roots under `root`, made where they are not there yet."""
    big = Spec(BIG, "big", "lab/model-135m", requests // CHOICES, 1)
    again = replace(big, run_id=OTHER, name="big, other checkpoint", documents=other // CHOICES, seed=2)
    with _making(root / "big", {"runs": [asdict(big), asdict(again)]}, fresh) as missing:
        if missing:
            for spec in (big, again):
                make_run(root / "big", spec, lambda text: print(text, flush=True))
    with _making(root / "catalogue", {"runs": runs}, fresh) as missing:
        if missing:
            make_catalogue(root / "catalogue", runs)
    return root


@contextmanager
def _making(target: Path, key: dict[str, Any], fresh: bool) -> Iterator[bool]:
    """Whether `target` has to be filled: it is emptied first, and marked as whole afterwards."""
    columns = repr([(name, [(c.name, c.type) for c in made.columns]) for name, made in tables().items()])
    layout = Path(writer.__file__).read_text(encoding="utf-8")
    key = {**key, "version": VERSION, "written": hashlib.sha256((columns + layout).encode()).hexdigest()}
    mark = target / MARK
    if not fresh and mark.exists() and read_json(mark) == {**key, "whole": True}:
        yield False
        return
    if target.exists() and any(target.iterdir()) and not mark.exists():
        raise LayerscopeError(f"{target} was not made by {__name__}: move it away, or give another --root")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    write_json(mark, key)
    yield True
    write_json(mark, {**key, "whole": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=CACHE)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--other", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--fresh", action="store_true", help="make everything again")
    given = parser.parse_args()
    build(given.root, given.requests, given.other, given.runs, fresh=given.fresh)


if __name__ == "__main__":
    main()
