"""Batched generation, recorded: each row's steps end at its own end-of-text or stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from recorder.alignment import Want
from recorder.recording import Recorder


class GenerationRecorder:
    """Holds what the forward passes of one `generate` call leave until the emitted tokens are known.

    `numbers[b]` is the recorder's number of row b, `pads[b]` its left padding. Steps are handed on in bounded
    portions, those of rows that have ended are dropped.
    """

    def __init__(
        self,
        recorder: Recorder,
        numbers: Sequence[int],
        pads: Sequence[int],
        prompts: Sequence[list[int]],
        end: Callable[[list[int]], tuple[int, str] | None],
    ) -> None:
        self._recorder, self._numbers, self._pads, self._prompts, self._end = recorder, numbers, pads, prompts, end
        self._emitted: list[list[int]] = [[] for _ in numbers]
        self.ends: list[tuple[int, str] | None] = [None for _ in numbers]
        self._held: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._step = 0
        self._prefill = True
        self._rows, self._width = len(numbers), 0

    def select(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last position of every row; in the prefill with every position recorded, all that are not padding."""
        self._width = hidden.shape[1]
        if hidden.shape[0] != self._rows:
            raise ValueError(f"{hidden.shape[0]} rows in a forward pass for a batch of {self._rows}")
        last = torch.arange(self._rows) * self._width + self._width - 1
        if not (self._prefill and self._recorder.every_position):
            return last
        before = [torch.arange(b * self._width + pad, int(last[b])) for b, pad in enumerate(self._pads)]
        return torch.cat([last, *before])

    def take(self, residual: list[torch.Tensor], logits: torch.Tensor) -> None:
        states = torch.stack([h.to(residual[0].device) for h in residual], 1)
        if self._prefill and self._recorder.every_position:
            self._measure_prompt(states[self._rows :])
        self._held.append((self._step, states[: self._rows], logits[:, -1].detach()))
        self._step, self._prefill = self._step + 1, False

    def watch_inputs(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the model: the tokens it is fed are the ones emitted by the step before."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        if self._step == 0 or ids is None:
            return
        for emitted, token in zip(self._emitted, ids[:, -1].tolist(), strict=True):
            emitted.append(token)
        _, states, logits = self._held[0]
        size = len(self._held) * 4 * (states.numel() + logits.numel())
        if size > self._recorder.lens.memory // 2:
            self._hand_on()

    def finish(self, sequences: torch.Tensor, width: int) -> list[tuple[list[int], str]]:
        """(tokens of prompt and emission, stop reason) of every row, all steps measured."""
        self._emitted = [row[width:] for row in sequences.tolist()]
        self._hand_on()
        found = []
        for emitted, prompt, end in zip(self._emitted, self._prompts, self.ends, strict=True):
            count, reason = end or (len(emitted), "length")
            found.append(([*prompt, *emitted[:count]], reason))
        return found

    def _hand_on(self) -> None:
        """Measure the held steps whose tokens are known, for the rows that had not ended by then."""
        for b, emitted in enumerate(self._emitted):
            self.ends[b] = self.ends[b] or self._end(emitted)
        logits, states, groups = [], [], []
        for step, residual, out in self._held:
            live = [b for b, end in enumerate(self.ends) if end is None or step < end[0]]
            if live:
                chosen = torch.tensor(live, device=out.device)
                logits.append(out[chosen])
                states.append(residual[chosen.to(residual.device)])
                groups += [[Want(self._numbers[b], step, self._emitted[b][step])] for b in live]
        self._held.clear()
        if groups:
            self._measure(torch.cat(logits), torch.cat(states), groups)

    def _measure_prompt(self, states: torch.Tensor) -> None:
        """The prompt's own positions: the model gave no logits for them, so its last layer is decoded."""
        groups = []
        for number, prompt in zip(self._numbers, self._prompts, strict=True):
            groups += [[Want(number, i + 1 - len(prompt), token)] for i, token in enumerate(prompt[1:])]
        if not groups:
            return
        decoder = self._recorder.lens.decoder
        portion = max(1, self._recorder.lens.capacity)
        for a in range(0, len(groups), portion):
            part = states[a : a + portion]
            with decoder.stubbed():
                logits = decoder.tile(decoder.normed(part[:, -1]))
            self._measure(logits, part, groups[a : a + portion])

    def _measure(self, logits: torch.Tensor, states: torch.Tensor, groups: list[list[Want]]) -> None:
        for want in (group[0] for group in groups):
            self._recorder.room(want.request, want.step + 1)
        own = [{group[0].request} for group in groups]
        self._recorder.measure(logits.float(), groups, own, list(range(len(groups))), states)


def ending(
    tokens: Sequence[int], eos: frozenset[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> tuple[int, str] | None:
    """(number of tokens, reason) where an emission ends: at its first end-of-text, or the token that completes a stop
    string, whichever is first; None where it has not ended."""
    at_eos = next((i + 1 for i, token in enumerate(tokens) if token in eos), None)
    considered = tokens if at_eos is None else tokens[: at_eos - 1]
    text = decode(considered)
    found = [stop for stop in stops if stop and stop in text]
    if not found:
        return None if at_eos is None else (at_eos, "eos")
    low, high = 1, len(considered)
    while low < high:
        middle = (low + high) // 2
        if any(stop in decode(considered[:middle]) for stop in found):
            high = middle
        else:
            low = middle + 1
    shown = decode(considered[:low])
    reason = next(stop for stop in found if stop in shown)
    return low, f"stop: {reason}"
