"""Which harness requests a forward row belongs to: pure bookkeeping over token ids, no torch.

The harness drops the document before the model sees a batch, sorts by length, and lets choices share a row. A row is
therefore looked up by its tokens: it serves every request whose input is exactly that. Causality makes this exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Key(NamedTuple):
    """What identifies a request in every table."""

    task: str
    doc_id: int
    choice: int
    repeat: int


@dataclass
class Asked:
    """One request, and the tokens it asks for. `tokens` = prompt, then targets; the last is not fed to the model."""

    key: Key
    kind: str
    args_hash: str
    tokens: list[int]
    n_prompt: int
    truncated_left: int
    continuation: str
    is_gold: bool | None = None

    @property
    def input(self) -> tuple[int, ...]:
        """The tokens fed to the model."""
        return tuple(self.tokens[:-1])

    @property
    def n_targets(self) -> int:
        return len(self.tokens) - self.n_prompt


class Want(NamedTuple):
    """One step of one request: position `p` of its input predicts `target`."""

    request: int
    step: int
    target: int


@dataclass
class Served:
    """A matched row: its input length, the requests it answers, and their wants by position."""

    length: int
    requests: list[int]
    wants: dict[int, list[Want]] = field(default_factory=dict)
    fresh: dict[int, list[Want]] = field(default_factory=dict)
    """Positions not decoded yet, with the wants of *every* request that shares the prefix up to there."""


class Alignment:
    """The requests of one call to the harness. Each row is matched once; each prefix is claimed once."""

    def __init__(self, requests: Sequence[Asked], every_position: bool) -> None:
        self.requests = requests
        self._every = every_position
        self._by_input: dict[tuple[int, ...], list[int]] = {}
        self._prefixes: dict[bytes, list[Want]] = {}
        for index, request in enumerate(requests):
            self._by_input.setdefault(request.input, []).append(index)
            for digest, step in zip(self._digests(request), self._steps(request), strict=True):
                target = request.tokens[request.n_prompt + step]
                self._prefixes.setdefault(digest, []).append(Want(index, step, target))
        self._lengths = sorted({len(tokens) for tokens in self._by_input}, reverse=True)

    @property
    def unmatched(self) -> list[Asked]:
        """Requests that no row has served yet."""
        return [self.requests[index] for indices in self._by_input.values() for index in indices]

    def _steps(self, request: Asked) -> range:
        first = 1 - request.n_prompt if self._every else 0
        return range(first, request.n_targets)

    def _digests(self, request: Asked) -> list[bytes]:
        """A digest of the input up to each recorded position: equal digests, equal prefixes."""
        ids = np.asarray(request.tokens, dtype=np.int64)
        steps = self._steps(request)
        start = request.n_prompt + steps.start
        running = hashlib.blake2b(ids[:start].tobytes(), digest_size=16)
        found = [running.digest()]
        for position in range(start, start + len(steps) - 1):
            running.update(ids[position : position + 1].tobytes())
            found.append(running.digest())
        return found

    def match(self, row: Sequence[int]) -> Served | None:
        """The requests whose input is `row` without its right padding of zeros, longest first; None where no request
        waits for such a row."""
        for length in self._lengths:
            if length > len(row):
                continue
            if any(row[length:]):
                break
            indices = self._by_input.pop(tuple(row[:length]), None)
            if indices is not None:
                return self._serve(length, indices)
        return None

    def _serve(self, length: int, indices: list[int]) -> Served:
        served = Served(length, indices)
        for index in indices:
            request = self.requests[index]
            for digest, step in zip(self._digests(request), self._steps(request), strict=True):
                position = request.n_prompt - 1 + step
                target = request.tokens[position + 1]
                served.wants.setdefault(position, []).append(Want(index, step, target))
                sharing = self._prefixes.pop(digest, None)
                if sharing is not None:
                    served.fresh[position] = sharing
        return served
