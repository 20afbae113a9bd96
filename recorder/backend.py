"""RecordingLM: lm-eval's HFLM with its forward passes recorded. lm-eval's own loops run; nothing of them is copied."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval import utils
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM

from recorder.alignment import Asked, Key, Served, Want
from recorder.architectures import Architecture
from recorder.capture import capture
from recorder.errors import LayerscopeError
from recorder.generation import GenerationRecorder, ending
from recorder.recording import Known, Recorder


def hash_args(kind: str, args: Any) -> str:
    """Digest of what the harness asks: a resumed run must be asked the same."""
    return hashlib.sha256(json.dumps([kind, args], sort_keys=True, default=str).encode()).hexdigest()[:16]


class _Answers(CacheHook):
    """lm-eval reports each request's answer here right after its batch."""

    def __init__(self, told: Callable[[str, Any, Any], None]) -> None:
        super().__init__(None)
        self._told = told

    def add_partial(self, attr: str, req: Any, res: Any) -> None:
        self._told(attr, req, res)


class RecordingLM(HFLM):
    """HFLM that tells a Recorder which request each forward row belongs to. `attach` before use."""

    def attach(
        self,
        recorder: Recorder,
        architecture: Architecture,
        gold: Callable[[str, dict[str, Any], int], bool | None],
        asking: Callable[[list[Key], list[Key]], None],
    ) -> None:
        """`gold(task, doc, choice)`: is the choice right; `asking(to compute, from disk)` is told of every call."""
        self._recorder, self._architecture, self._gold, self._asking = recorder, architecture, gold, asking
        self._asked: list[tuple[Key, Any]] = []
        self._probing = False
        self._window: list[Asked] | None = None
        self._window_next = 0
        self._by_args: dict[Any, deque[int]] = defaultdict(deque)
        self._contexts: list[str] = []
        self._room: int | None = None
        self._generations: dict[str, deque[tuple[Key, Any]]] = {}
        self._ended: deque[tuple[int, list[int], str]] = deque()
        self.set_cache_hook(_Answers(self._answered))

    # -- what the harness asks -------------------------------------------------------------------------------------

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._replay(
            requests,
            "loglikelihood",
            lambda known: (known.logprob, known.greedy),
            lambda unknown: super(RecordingLM, self).loglikelihood(unknown, disable_tqdm=True),
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        def run(unknown: list[Any]) -> list[str]:
            groups: dict[str, list[int]] = {}
            for i, request in enumerate(unknown):
                groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(i)
            texts: list[str] = [""] * len(unknown)
            asked = self._asked
            for indices in groups.values():
                self._generations = defaultdict(deque)
                for i in indices:
                    self._generations[unknown[i].args[0]].append(asked[i])
                self._recorder.ask([])
                found = super(RecordingLM, self).generate_until([unknown[i] for i in indices], disable_tqdm=True)
                self._recorder.done_asking()
                for i, text in zip(indices, found, strict=True):
                    texts[i] = text
            return texts

        return self._replay(requests, "generate_until", lambda known: known.text, run)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Each window is a request, its number the choice; a document's score is the sum over its windows."""
        keys = _keys(requests)
        totals: list[float | None] = []
        unknown, windows = [], []
        for request, key in zip(requests, keys, strict=True):
            mine = self._windows(request, key)
            known = [self._recorder.recall(window.key, window.args_hash) for window in mine]
            if all(known):
                totals.append(sum(float(k.logprob or 0.0) for k in known if k))
            else:
                totals.append(None)
                unknown.append(request)
                windows += mine
        self._asking([w.key for w in windows], [k for k, t in zip(keys, totals, strict=True) if t is not None])
        if unknown:
            self._window, self._window_next = windows, 0
            self._recorder.ask(windows)
            found = iter(super().loglikelihood_rolling(unknown, disable_tqdm=True))
            self._recorder.done_asking()
            self._window = None
            totals = [next(found) if total is None else total for total in totals]
        return [float(total) for total in totals if total is not None]

    def _replay(
        self, requests: list[Any], kind: str, answer: Callable[[Known], Any], run: Callable[[list[Any]], list[Any]]
    ) -> list[Any]:
        """Answers from disk for what is known, the model's for the rest, in the order asked."""
        keys = _keys(requests)
        known = [self._recorder.recall(key, hash_args(kind, r.args)) for r, key in zip(requests, keys, strict=True)]
        rest = [i for i, found in enumerate(known) if found is None]
        self._asked = [(keys[i], requests[i]) for i in rest]
        self._asking([keys[i] for i in rest], [key for key, found in zip(keys, known, strict=True) if found])
        computed = iter(run([requests[i] for i in rest]) if rest else [])
        return [next(computed) if found is None else answer(found) for found in known]

    # -- log-likelihoods -------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        if self._window is not None:
            return self._rolling_tokens(requests, override_bs, **kwargs)
        asked = [
            self._as_asked(key, request, context, continuation)
            for (key, request), (_, context, continuation) in zip(self._asked, requests, strict=True)
        ]
        self._by_args.clear()
        for number, (args, _, _) in enumerate(requests):
            self._by_args[args].append(number)
        self._recorder.ask(asked)
        found = super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs, **kwargs)
        self._recorder.done_asking()
        return found

    def _as_asked(self, key: Key, request: Any, context: list[int], continuation: list[int]) -> Asked:
        if not continuation:
            raise LayerscopeError(f"{tuple(key)}: the text to score has no tokens; mend or drop the document")
        tokens = (context + continuation)[-(self.max_length + 1) :]
        return Asked(
            key,
            "loglikelihood",
            hash_args("loglikelihood", request.args),
            tokens,
            len(tokens) - len(continuation),
            len(context) + len(continuation) - len(tokens),
            request.args[1],
            self._gold(key.task, request.doc, key.choice),
        )

    def _windows(self, request: Any, key: Key) -> list[Asked]:
        (text,) = request.args
        pairs = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        found = []
        for i, (context, continuation) in enumerate(map(utils.make_disjoint_window, pairs)):
            tokens = [*context, *continuation]
            digest = hash_args("loglikelihood_rolling", [text, i])
            shown = self.tok_decode(continuation, skip_special_tokens=False)
            where = Key(key.task, key.doc_id, i, key.repeat)
            found.append(Asked(where, "loglikelihood_rolling", digest, tokens, len(context), 0, shown))
        return found

    def _rolling_tokens(self, requests: list[Any], override_bs: int | None, **kwargs: Any) -> list[tuple[float, bool]]:
        first = self._window_next
        self._window_next += len(requests)
        found = super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs, **kwargs)
        for number, (logprob, greedy) in enumerate(found, first):
            self._recorder.answer(number, logprob, greedy)
        self._recorder.commit_if_due()
        return found

    def _model_call(self, inps: torch.Tensor, attn_mask: Any = None, labels: Any = None) -> torch.Tensor:
        if self._probing:
            return super()._model_call(inps, attn_mask, labels)
        self._recorder.commit_if_due()
        served = self._recorder.serve(inps.tolist())
        width = inps.shape[1]
        fresh = [b * width + p for b, row in enumerate(served) if row for p in sorted(row.fresh)]
        residual: list[torch.Tensor] = []
        if not fresh:
            logits = super()._model_call(inps, attn_mask, labels)
        else:
            index = torch.tensor(fresh)
            with capture(self._architecture, lambda _: index, lambda states, _: residual.extend(states)):
                logits = super()._model_call(inps, attn_mask, labels)
        self._measure(served, logits, residual)
        return logits

    def _measure(self, served: Sequence[Served | None], logits: torch.Tensor, residual: list[torch.Tensor]) -> None:
        rows: list[int] = []
        positions: list[int] = []
        groups: list[list[Want]] = []
        own: list[set[int]] = []
        fresh: list[int] = []
        for b, row in enumerate(served):
            if row is None:
                continue
            mine = set(row.requests)
            for position in sorted(row.wants):
                if position in row.fresh:
                    fresh.append(len(rows))
                rows.append(b)
                positions.append(position)
                groups.append(row.fresh.get(position, row.wants[position]))
                own.append(mine)
        if not rows:
            return
        states = torch.stack([h.to(residual[-1].device) for h in residual], 1) if residual else None
        self._recorder.measure(logits[rows, positions].float(), groups, own, fresh, states)

    def _detect_batch_size(self, requests: Any = None, pos: int = 0) -> int:
        """lm-eval's probe, with the lens's memory taken, so that recording fits beside the batch it finds."""
        taken = torch.empty(self._recorder.lens.memory, dtype=torch.uint8, device=self.device)
        self._probing = True
        try:
            return super()._detect_batch_size(requests, pos)
        finally:
            self._probing = False
            del taken

    # -- generations -----------------------------------------------------------------------------------------------

    def tok_batch_encode(self, strings: list[str], *args: Any, **kwargs: Any) -> Any:
        self._contexts, self._room = list(strings), kwargs.get("left_truncate_len")
        return super().tok_batch_encode(strings, *args, **kwargs)

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **kwargs: Any) -> torch.Tensor:
        self._recorder.commit_if_due()
        if int(kwargs.get("num_beams") or 1) > 1 or int(kwargs.get("num_return_sequences") or 1) > 1:
            raise LayerscopeError("beam search and several return sequences cannot be recorded; set num_beams to 1")
        mask = kwargs["attention_mask"]
        pads = (mask.shape[1] - mask.sum(1)).tolist()
        prompts = [row[pad:] for row, pad in zip(context.tolist(), pads, strict=True)]
        asked = [self._generations[text].popleft() for text in self._contexts]
        numbers = [
            self._recorder.ask_generation(self._as_generation(key, request, prompt))
            for (key, request), prompt in zip(asked, prompts, strict=True)
        ]
        eos = _eos_ids(self.model, self.eot_token_id)
        held = GenerationRecorder(
            self._recorder, numbers, pads, prompts, lambda ids: ending(ids, eos, stop, self.tok_decode)
        )
        watching = self._architecture.model.register_forward_pre_hook(held.watch_inputs, with_kwargs=True)
        try:
            with capture(self._architecture, held.select, held.take):
                sequences = super()._model_generate(context, max_length, stop, **kwargs)
        finally:
            watching.remove()
        ended = held.finish(sequences, context.shape[1])
        self._ended.extend((number, *end) for number, end in zip(numbers, ended, strict=True))
        return sequences

    def _as_generation(self, key: Key, request: Any, prompt: list[int]) -> Asked:
        full = self._room is not None and len(prompt) >= self._room  # only then can lm-eval have cut it
        whole = len(self.tok_encode(request.args[0])) if full else len(prompt)
        digest = hash_args("generate_until", request.args)
        return Asked(key, "generate_until", digest, list(prompt), len(prompt), max(0, whole - len(prompt)), "")

    # -- what the harness answers ----------------------------------------------------------------------------------

    def _answered(self, attr: str, request: Any, answer: Any) -> None:
        if attr == "loglikelihood":
            logprob, greedy = answer
            self._recorder.answer(self._by_args[request].popleft(), float(logprob), bool(greedy))
        elif attr == "generate_until":
            number, tokens, reason = self._ended.popleft()
            self._recorder.generated(number, answer, tokens, reason)


def _keys(requests: Sequence[Any]) -> list[Key]:
    """The key of each request; the harness asks `repeats` times with one and the same object."""
    seen: dict[int, int] = defaultdict(int)
    keys = []
    for request in requests:
        keys.append(Key(request.task_name, request.doc_id, request.idx, seen[id(request)]))
        seen[id(request)] += 1
    return keys


def _eos_ids(model: Any, fallback: int) -> frozenset[int]:
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = fallback
    return frozenset(found if isinstance(found, list | tuple) else [found])
