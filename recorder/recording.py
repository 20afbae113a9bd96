"""The one meeting point: captured tensors x aligned rows -> signals -> commits.

A position is decoded once for all requests that share its input prefix. Decoding waits until many positions fill one
product; writing happens on another thread, one commit at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pyarrow as pa
import torch

from recorder.alignment import Alignment, Asked, Key, Served, Want
from recorder.distributions import Distributions, Targets
from recorder.errors import LayerscopeError
from recorder.lens import Lens, States
from recorder.reference import Reference
from recorder.rows import Computed, Recorded, build_tables
from recorder.schema import REQUESTS
from recorder.tokens import TokenTexts
from recorder.writer import RunWriter

COMMIT_STEPS = 20_000
"""Steps that make a commit due before its time, so that memory stays bounded."""


@dataclass(frozen=True)
class Known:
    """A request that is on disk already: what the harness was told, told again on resume."""

    args_hash: str
    logprob: float | None
    greedy: bool | None
    text: str


@dataclass(frozen=True)
class _Waiting:
    """Captured positions that no product has decoded yet."""

    residual: torch.Tensor
    final: torch.Tensor
    output: Distributions
    wants: list[list[Want]]


def score_tolerance(dtype: torch.dtype, total: float, steps: int) -> float:
    """Accepted |sum of step log-probabilities - harness's log-likelihood|: the harness sums in the logits' dtype."""
    epsilon = torch.finfo(dtype).eps if dtype.is_floating_point else 1e-7
    return max(1e-4, 8 * epsilon * (abs(total) + steps))


class Recorder:
    """Takes what forward passes leave behind and commits finished requests."""

    def __init__(
        self,
        writer: RunWriter,
        lens: Lens,
        signals: dict[str, ModuleType],
        texts: TokenTexts,
        *,
        top_k: int,
        every_position: bool,
        commit_seconds: float,
        logit_dtype: torch.dtype,
        on_answer: Callable[[Key], None],
        reference: Reference | None = None,
    ) -> None:
        self.lens = lens
        self.every_position = every_position
        self.known: dict[Key, Known] = {}
        self._writer, self._signals, self._texts = writer, signals, texts
        self._top_k, self._dtype, self._reference = top_k, logit_dtype, reference
        self._commit_seconds, self._on_answer = commit_seconds, on_answer
        self._alignment: Alignment | None = None
        self._items: list[Recorded] = []
        self._waiting: list[_Waiting] = []
        self._waiting_positions = 0
        self._ready: list[Recorded] = []
        self._ready_steps = 0
        self._last_commit = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "writer")
        self._writing: Future[object] | None = None

    # -- what is asked ---------------------------------------------------------------------------------------------

    def ask(self, requests: Sequence[Asked]) -> None:
        """Begin a call of the harness that scores `requests`; they are numbered from 0."""
        self._alignment = Alignment(requests, self.every_position)
        first = (1 - request.n_prompt if self.every_position else 0 for request in requests)
        self._items = [
            Recorded(request, start, request.n_targets - start) for request, start in zip(requests, first, strict=True)
        ]

    def ask_generation(self, request: Asked) -> int:
        """Begin one generation; returns its number. Its steps are measured as they come."""
        first = 1 - request.n_prompt if self.every_position else 0
        self._items.append(Recorded(request, first, 0))
        return len(self._items) - 1

    def serve(self, rows: Sequence[Sequence[int]]) -> list[Served | None]:
        """What each row of a batch answers; None for rows that belong to no request."""
        if self._alignment is None:
            return [None] * len(rows)
        return [self._alignment.match(row) for row in rows]

    def done_asking(self) -> None:
        """End a call of the harness. Raises LayerscopeError where a request was never seen in a forward pass."""
        left = [*(self._alignment.unmatched if self._alignment else [])]
        left += [item.asked for item in self._items if not item.answered]
        self._decode_waiting()
        self.commit()
        self._alignment, self._items = None, []
        if left:
            raise LayerscopeError(
                f"{len(left)} requests were answered without a forward pass that could be recorded, first "
                f"{tuple(left[0].key)}; nothing about them was written. Please report the task and model"
            )

    # -- what forward passes leave ---------------------------------------------------------------------------------

    def measure(
        self,
        logits: torch.Tensor,
        groups: list[list[Want]],
        own: list[set[int]],
        fresh: list[int],
        residual: torch.Tensor | None,
    ) -> None:
        """Positions of one or more forward passes.

        `logits` (n, V) fp32; `groups[i]`: every want at position i; `own[i]`: the requests whose own row this is;
        `fresh`: positions to decode, with their `residual` (len(fresh), L+1, d).
        """
        targets = Targets.of([[want.target for want in group] for group in groups])
        output = self.lens.output(logits, targets, self._top_k)
        self._note_outputs(output, targets, groups, own)
        if self._signals and fresh:
            assert residual is not None
            chosen = np.asarray(fresh)
            self._waiting.append(
                _Waiting(
                    residual,
                    torch.softmax(logits if len(fresh) == len(groups) else logits[torch.from_numpy(chosen)], -1),
                    _subset(output, chosen, targets),
                    [groups[i] for i in fresh],
                )
            )
            self._waiting_positions += len(fresh)
            if self._waiting_positions >= self.lens.capacity:
                self._decode_waiting()

    def _note_outputs(
        self, output: Distributions, targets: Targets, groups: list[list[Want]], own: list[set[int]]
    ) -> None:
        logprob, rank, entropy = output.target_logprob[:, 0], output.target_rank[:, 0], output.entropy[:, 0]
        t = 0
        for i, group in enumerate(groups):
            for want in group:
                if want.request in own[i]:
                    item = self._items[want.request]
                    at = want.step - item.first_step
                    item.logprob[at], item.rank[at], item.entropy[at] = logprob[t], rank[t], entropy[i]
                    item.measured += 1
                t += 1

    def _decode_waiting(self) -> None:
        """One product over everything that waits, in pieces the lens can hold."""
        waiting, self._waiting, self._waiting_positions = self._waiting, [], 0
        batch: list[_Waiting] = []
        size = 0
        for piece in _cut(waiting, self.lens.capacity):
            if size + len(piece.wants) > self.lens.capacity:
                self._decode(batch)
                batch, size = [], 0
            batch.append(piece)
            size += len(piece.wants)
        if batch:
            self._decode(batch)

    def _decode(self, batch: list[_Waiting]) -> None:
        wants = [group for piece in batch for group in piece.wants]
        targets = Targets.of([[want.target for want in group] for group in wants])
        output = _joined([piece.output for piece in batch])
        residual = torch.cat([piece.residual for piece in batch]) if len(batch) > 1 else batch[0].residual
        final = torch.cat([piece.final for piece in batch]) if len(batch) > 1 else batch[0].final
        with torch.no_grad():
            states = States(self.lens, residual, final, output, targets, self._reference)
            computed = Computed({name: module.compute(states, self._top_k) for name, module in self._signals.items()})
        for row, want in enumerate(want for group in wants for want in group):
            item = self._items[want.request]
            at = want.step - item.first_step
            if at < item.steps:
                item.computed[at], item.row[at] = computed, row
                item.decoded += 1
                self._check_ready(item)

    # -- answers and commits ---------------------------------------------------------------------------------------

    def answer(self, number: int, logprob: float | None, greedy: bool | None) -> None:
        """The harness's own answer for a request. Raises LayerscopeError where it is not what was recorded."""
        item = self._items[number]
        item.answered, item.harness_logprob, item.greedy = True, logprob, greedy
        if logprob is not None:
            total = float(item.scored.astype(np.float64).sum())
            limit = score_tolerance(self._dtype, logprob, len(item.scored))
            if abs(total - logprob) > limit:
                raise LayerscopeError(
                    f"request {tuple(item.asked.key)}: the recorded steps sum to {total:.6f} but the harness scored "
                    f"{logprob:.6f} (more than {limit:.2g} apart); recording stops rather than write wrong numbers. "
                    "lm-eval's logits cache mis-scores requests that cut one text at different places: try "
                    "--model-args logits_cache=False"
                )
        self._on_answer(item.asked.key)
        self._check_ready(item)

    def generated(self, number: int, text: str, tokens: list[int], stop_reason: str) -> None:
        """A generation has ended: `tokens` are its prompt and what was emitted, `text` what the harness received."""
        item = self._items[number]
        item.asked.tokens, item.asked.continuation = tokens, text
        item.stop_reason = stop_reason
        item.resize(item.asked.n_targets - item.first_step)
        item.measured = item.steps
        item.decoded = sum(computed is not None for computed in item.computed)
        self.answer(number, None, None)

    def room(self, number: int, steps: int) -> None:
        """Make room for the steps of a generation that are about to be measured."""
        item = self._items[number]
        if item.steps < steps - item.first_step:
            item.resize(steps - item.first_step)

    def _check_ready(self, item: Recorded) -> None:
        if not item.answered or item.measured < item.steps or (self._signals and item.decoded < item.steps):
            return
        if item.asked.key in self.known:  # a window of a document that was only half committed: it is on disk
            return
        self._ready.append(item)
        self._ready_steps += item.steps

    def commit_if_due(self) -> None:
        """Commit when it is time; called between batches."""
        late = time.monotonic() - self._last_commit >= self._commit_seconds
        if late or self._ready_steps >= COMMIT_STEPS:
            self._decode_waiting()
            self.commit()

    def commit(self) -> None:
        """Hand every finished request to the writing thread. Raises what the commit before met."""
        self._wait_for_writer()
        self._last_commit = time.monotonic()
        if self._ready:
            ready, self._ready, self._ready_steps = self._ready, [], 0
            self._writing = self._thread.submit(self._write, ready)

    def _write(self, done: list[Recorded]) -> None:
        self._writer.commit(build_tables(done, self._signals, self._texts))
        for item in done:
            item.computed = []

    def _wait_for_writer(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self, *, keep: bool) -> None:
        """Stop writing; with `keep`, commit what is finished first."""
        try:
            if keep:
                self._decode_waiting()
                self.commit()
            self._wait_for_writer()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self.lens.close()

    # -- what is on disk already -----------------------------------------------------------------------------------

    def load_known(self, tables: Iterable[pa.Table]) -> None:
        """Remember the requests of earlier attempts: their answers are replayed, not computed."""
        for table in tables:
            for row in table.to_pylist():
                key = Key(row["task"], row["doc_id"], row["choice"], row["repeat"])
                self.known[key] = Known(row["args_hash"], row["logprob"], row["greedy"], row["continuation"])

    def recall(self, key: Key, args_hash: str) -> Known | None:
        """A request's answer from disk. Raises LayerscopeError where the harness now asks something else."""
        known = self.known.get(key)
        if known is not None and known.args_hash != args_hash:
            raise LayerscopeError(
                f"{REQUESTS.name} {tuple(key)} was recorded with another text: the task's data or prompt has changed "
                "since this run began. Start a new run with --fresh"
            )
        return known


def _subset(d: Distributions, positions: np.ndarray, targets: Targets) -> Distributions:
    if len(positions) == len(targets.offsets) - 1:
        return d
    chosen = np.isin(targets.positions, positions)
    return Distributions(
        d.top_ids[positions], d.top_probs[positions], d.entropy[positions], d.kl_final[positions],
        d.target_logprob[chosen], d.target_rank[chosen],
    )  # fmt: skip


def _joined(parts: list[Distributions]) -> Distributions:
    if len(parts) == 1:
        return parts[0]
    names = Distributions.__dataclass_fields__
    return Distributions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _cut(waiting: list[_Waiting], capacity: int) -> Iterable[_Waiting]:
    """The same positions in pieces of at most `capacity`."""
    for piece in waiting:
        if len(piece.wants) <= capacity:
            yield piece
            continue
        counts = np.concatenate([[0], np.cumsum([len(group) for group in piece.wants])])
        o = piece.output
        for a in range(0, len(piece.wants), capacity):
            b = min(a + capacity, len(piece.wants))
            p, t = slice(a, b), slice(counts[a], counts[b])
            output = Distributions(
                o.top_ids[p], o.top_probs[p], o.entropy[p], o.kl_final[p], o.target_logprob[t], o.target_rank[t]
            )
            yield _Waiting(piece.residual[p], piece.final[p], output, piece.wants[p])
