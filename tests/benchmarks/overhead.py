"""What recording costs: the same task with plain HFLM and recorded, interleaved, on one loaded model.

    python -m tests.benchmarks.overhead [--models smollm2,tiny] [--batches 8,1] [--pairs 3]

Prints, for each model, task and batch size: seconds plain and recorded (medians), ratio (median of the pairs), the
floor, ratio / floor, rows a second, bytes a step, and peak memory. The floor is plain plus one matrix product of every
layer at every distinct position with the head, at the speed of the faster of two ways to run that product (whole, or in
tiles), measured around each pair. Recorded time covers everything: capture, lens, writing, merging the finished run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import pyarrow.parquet as pq
import torch
from lm_eval.models.huggingface import HFLM

from recorder import evaluation
from recorder.architectures import Architecture, Decoder
from recorder.backend import RecordingLM
from recorder.config import RecordConfig, make_config
from recorder.lens import TILE_COLUMNS, TILE_ROWS, Lens
from recorder.loading import describe_tokenizer
from recorder.progress import Progress
from recorder.proof import prove
from recorder.recording import Recorder
from recorder.schema import DOCS, REQUESTS, STEPS
from recorder.signals import select
from recorder.tasks import load_tasks, set_quiet_environment
from recorder.tokens import TokenTexts
from recorder.writer import RunWriter
from tests import smollm2

TINY = Path(__file__).parents[2] / "sample_runs" / "models" / "tiny"
THINGS = [
    "river",
    "mountain",
    "window",
    "garden",
    "engine",
    "letter",
    "market",
    "bridge",
    "winter",
    "summer",
    "doctor",
    "teacher",
    "yellow",
    "silver",
]
VERBS = ["carry", "break", "paint", "follow", "measure", "open", "repair", "remember", "borrow", "answer"]


def write_tasks(directory: Path, questions: int, writes: int) -> None:
    """A task of short 4-choice questions (answers of one to four words) and one of 24-token generations."""
    draw = random.Random(7)
    with open(directory / "questions.jsonl", "w", encoding="utf-8") as handle:
        for i in range(questions):
            things = draw.sample(THINGS, 4)
            asked = f"Question {i}: what would most people {draw.choice(VERBS)} first, if they saw a {things[0]} there?"
            choices = [" ".join(["the", *things[: 1 + (i + j) % 3]]) for j in range(4)]
            choices = [f"{choice} {things[j]}" for j, choice in enumerate(choices)]
            handle.write(json.dumps({"q": asked, "choices": choices, "gold": i % 4}) + "\n")
    with open(directory / "writes.jsonl", "w", encoding="utf-8") as handle:
        for i in range(writes):
            handle.write(
                json.dumps({"q": f"Story {i}. Once a {draw.choice(THINGS)} and a {draw.choice(THINGS)}"}) + "\n"
            )
    common = "test_split: test\ndataset_path: json\nmetadata: {version: 1.0}\n"
    (directory / "questions.yaml").write_text(
        f"task: bench_questions\n{common}dataset_kwargs: {{data_files: {{test: questions.jsonl}}}}\n"
        "output_type: multiple_choice\ndoc_to_text: '{{q}}\\nAnswer:'\ndoc_to_choice: choices\ndoc_to_target: gold\n"
    )
    (directory / "writes.yaml").write_text(
        f"task: bench_writes\n{common}dataset_kwargs: {{data_files: {{test: writes.jsonl}}}}\n"
        "output_type: generate_until\ndoc_to_text: q\ndoc_to_target: q\n"
        "generation_kwargs: {until: ['\\u0000never'], max_gen_toks: 24, do_sample: false}\n"
    )


@dataclass
class Bench:
    """One loaded model and where its runs go."""

    model: Any
    tokenizer: Any
    architecture: Architecture
    decoder: Decoder
    figures: dict[str, Any]
    directory: Path

    def plain(self, config: RecordConfig, tasks: Any) -> float:
        lm = HFLM(pretrained=self.model, tokenizer=self.tokenizer, batch_size=config.batch_size)
        return _timed(lambda: _evaluate(lm, config, tasks))

    def recorded(self, config: RecordConfig, tasks: Any, path: Path) -> float:
        lm = RecordingLM(pretrained=self.model, tokenizer=self.tokenizer, batch_size=config.batch_size)
        signals = select(config.signals)
        reference = evaluation.measured_reference(lm, self.architecture, signals)  # at load
        return _timed(lambda: self._record(config, tasks, path, lm, signals, reference))

    def _record(
        self, config: RecordConfig, tasks: Any, path: Path, lm: RecordingLM, signals: Any, reference: Any
    ) -> None:
        writer = RunWriter(path, (DOCS, REQUESTS, STEPS, *(module.TABLE for module in signals.values())))
        progress = Progress(path)
        progress.start()
        recorder = Recorder(
            writer,
            Lens(self.decoder, config.lens_memory << 20),
            signals,
            TokenTexts(self.tokenizer),
            top_k=config.top_k,
            every_position=False,
            commit_seconds=config.commit_seconds,
            logit_dtype=self.architecture.dtype,
            on_answer=progress.answered,
            reference=reference,
        )
        lm.attach(recorder, self.architecture, tasks.gold, progress.asked)
        results = _evaluate(lm, config, tasks)
        recorder.close(keep=True)
        about = {"format": 1, "tokenizer": describe_tokenizer(lm), "proof": {"lens_check": self.figures}}
        writer.write_about(about)
        evaluation._finish(writer, about, results, lm)
        progress.stop("complete")
        writer.close()

    def product_seconds(self, positions: int = 32) -> float:
        """Seconds a position for every layer times the head: the faster of one product and one in tiles."""
        a = self.architecture
        weight = self.decoder.linear.weight.detach()  # type: ignore[union-attr]
        hidden = torch.randn(((a.layers + 1) * positions, a.width))
        tile = torch.empty(TILE_ROWS, TILE_COLUMNS)

        def tiled() -> None:
            for v, r in itertools.product(range(0, len(weight), TILE_COLUMNS), range(0, len(hidden), TILE_ROWS)):
                columns, rows = weight[v : v + TILE_COLUMNS], hidden[r : r + TILE_ROWS]
                torch.mm(rows, columns.T, out=tile[: len(rows), : len(columns)])

        with torch.no_grad():
            ways: list[Callable[[], Any]] = [lambda: hidden @ weight.T, tiled]
            return min(_timed(way) for way in ways for _ in range(2)) / positions


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _evaluate(lm: Any, config: RecordConfig, tasks: Any) -> Any:
    with torch.no_grad():
        return lm_eval.simple_evaluate(
            model=lm, tasks=tasks.specs, task_manager=tasks.manager, log_samples=True, bootstrap_iters=0
        )


def load(name: str, directory: Path) -> Bench:
    source = smollm2.directory() if name == "smollm2" else TINY
    lm = RecordingLM(pretrained=str(source), device="cpu", dtype="float32", batch_size=1)
    architecture, decoder, figures = prove(lm.model, evaluation.proof_ids(lm))
    return Bench(lm.model, lm.tokenizer, architecture, decoder, figures, directory)


def measure(bench: Bench, task: str, batch: int, pairs: int, tasks_directory: Path) -> dict[str, float]:
    config = make_config(
        model="bench", tasks=(task,), include_path=str(tasks_directory), batch_size=batch, out=str(bench.directory)
    )
    tasks = load_tasks(config)
    plain, recorded, product, path = [], [], [], Path()
    bench.recorded(config, tasks, bench.directory / f"warm-{task}-{batch}")
    for i in range(pairs):
        product.append(bench.product_seconds())
        path = bench.directory / f"{task}-{batch}-{i}-{time.time_ns()}"
        first, second = (plain, recorded) if i % 2 == 0 else (recorded, plain)
        for times in (first, second):
            times.append(bench.plain(config, tasks) if times is plain else bench.recorded(config, tasks, path))
        product.append(bench.product_seconds())
    return _figures(plain, recorded, statistics.median(product), path, batch)


def _figures(plain: list[float], recorded: list[float], product: float, path: Path, batch: int) -> dict[str, float]:
    steps = pq.read_metadata(path / "tables" / "steps.parquet").num_rows
    rows = sum(pq.read_metadata(file).num_rows for file in (path / "tables").glob("*.parquet"))
    size = sum(file.stat().st_size for file in (path / "tables").glob("*.parquet"))
    distinct = _distinct_positions(path)
    base = statistics.median(plain)
    floor = (base + product * distinct) / base
    ratio = statistics.median(r / p for r, p in zip(recorded, plain, strict=True))
    return {
        "batch": batch,
        "plain_s": base,
        "recorded_s": statistics.median(recorded),
        "ratio": ratio,
        "floor": floor,
        "ratio/floor": ratio / floor,
        "product_ms": product * 1000,
        "positions": distinct,
        "rows/s": rows / statistics.median(recorded),
        "bytes/step": size / steps,
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _distinct_positions(path: Path) -> int:
    requests = pq.read_table(path / "tables" / "requests.parquet", columns=["input_ids", "n_prompt"]).to_pylist()
    return len({tuple(r["input_ids"][:p]) for r in requests for p in range(r["n_prompt"], len(r["input_ids"]))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm2,tiny")
    parser.add_argument("--tasks", default="questions,writes")
    parser.add_argument("--batches", default="8,1")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--writes", type=int, default=30)
    given = parser.parse_args()
    set_quiet_environment()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_tasks(root, given.questions, given.writes)
        print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, float32; medians of {given.pairs} pairs")
        for name in given.models.split(","):
            bench = load(name, root / "runs")
            for task, batch in itertools.product(given.tasks.split(","), map(int, given.batches.split(","))):
                found = measure(bench, f"bench_{task}", batch, given.pairs, root)
                print(
                    f"{name:8} {task:10}" + "  ".join(f"{key} {value:.4g}" for key, value in found.items()), flush=True
                )


if __name__ == "__main__":
    main()
