"""The vocabulary walk against float64, with tiles so small that many are folded: compiled loop and torch fallback."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recorder import kernel
from recorder import lens as lens_module
from recorder.architectures import Decoder
from recorder.lens import Distributions, Lens, Targets
from recorder.proof import prove
from recorder.signals.logit_lens import settle_layer
from tests import families
from tests.conftest import choice_task
from tests.recorder.numbers.tables import divergence, entropy, key, log_softmax, rows

LAYERS, WIDTH, VOCABULARY = 3, 32, 200
IDS = torch.arange(12)[None]


@pytest.fixture(params=["compiled", "torch"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Small tiles, folded by numba or by torch, by two workers."""
    torch.set_num_threads(2)
    monkeypatch.setattr(lens_module, "TILE_COLUMNS", 32)
    monkeypatch.setattr(lens_module, "TILE_ROWS", 4)
    if request.param == "torch":
        monkeypatch.setenv("LAYERSCOPE_NO_NUMBA", "1")
    lens_module.kernel.cache_clear()
    assert (lens_module.kernel() is None) == (request.param == "torch")
    yield request.param
    torch.set_num_threads(1)
    lens_module.kernel.cache_clear()


@dataclass
class Case:
    """A proved model (phi: its head has a bias, by which any column can be set), and residual streams to decode."""

    model: torch.nn.Module
    decoder: Decoder
    residual: torch.Tensor

    def logits(self) -> np.ndarray:
        """(positions, L+1, V) in float64, two lines: norm, head."""
        double = copy.deepcopy(self.model).double()
        with torch.no_grad():
            return double.lm_head(double.model.final_layernorm(self.residual.double())).numpy()

    def decode(self, groups: list[list[int]], top_k: int = 5, memory: int = 1 << 20) -> Distributions:
        """Layers 0..L-1; the model's output is float32 as it would be in a recording."""
        lens = Lens(self.decoder, memory)
        with torch.no_grad():
            last = self.model.lm_head(self.model.model.final_layernorm(self.residual[:, -1]))
        final = torch.softmax(last, -1)
        own = lens.output(last, Targets.of(groups), top_k).entropy[:, 0].astype(np.float64)
        found = lens.layers(self.residual, final, own, Targets.of(groups), top_k)
        lens.close()
        return found


def case(positions: int = 5, scale: float = 1.0, seed: int = 0, vocabulary: int = VOCABULARY) -> Case:
    model = families.build("phi", vocabulary)
    _, decoder, _ = prove(model, IDS)
    torch.manual_seed(seed)
    residual = torch.randn(positions, LAYERS + 1, WIDTH)
    model.lm_head.weight.data = torch.randn(vocabulary, WIDTH) * scale
    model.lm_head.bias.data = torch.randn(vocabulary)
    return Case(model, decoder, residual)


def some_targets(positions: int, each: int = 3, vocabulary: int = VOCABULARY) -> list[list[int]]:
    generator = np.random.default_rng(1)
    return [generator.integers(0, vocabulary, each + p % 2).tolist() for p in range(positions)]


def assert_equal(found: Distributions, logits: np.ndarray, groups: list[list[int]], tolerance: float = 2e-5) -> None:
    """All of `found`, layers below the last, against float64 logits (positions, L+1, V)."""
    logprobs = log_softmax(logits)
    below = logprobs[:, :-1]
    near = {"atol": tolerance, "rtol": 2e-5}
    np.testing.assert_allclose(found.entropy, entropy(below), **near)
    np.testing.assert_allclose(found.kl_final, divergence(logprobs[:, -1:], below), **near)
    owner = [p for p, group in enumerate(groups) for _ in group]
    tokens = [token for group in groups for token in group]
    np.testing.assert_allclose(found.target_logprob, below[owner, :, tokens], **near)
    own = logits[owner, :, tokens][:, :-1]
    np.testing.assert_array_equal(found.target_rank, (logits[owner, :-1] > own[..., None]).sum(-1))
    order = np.argsort(-logits[:, :-1], axis=-1)[..., : found.top_ids.shape[-1]]
    np.testing.assert_array_equal(found.top_ids, order)
    np.testing.assert_allclose(found.top_probs, np.exp(np.take_along_axis(below, order, -1)), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("positions", [1, 3, 5, 11])
def test_all_statistics_over_many_tiles(walk: str, positions: int) -> None:
    given, groups = case(positions), some_targets(positions)
    tiles: list[int] = []
    plain = given.decoder.tile
    given.decoder.tile = lambda normed, columns=None, out=None: tiles.append(0) or plain(normed, columns, out)
    assert_equal(given.decode(groups), given.logits(), groups)
    assert len(tiles) > VOCABULARY // 32


@pytest.mark.parametrize("top_k", [1, 50, VOCABULARY, 10 * VOCABULARY])
def test_top_k_is_in_order_also_where_k_is_wider_than_a_tile(walk: str, top_k: int) -> None:
    given = case()
    found = given.decode(some_targets(5), top_k)
    assert found.top_ids.shape[-1] == min(top_k, VOCABULARY)
    assert_equal(found, given.logits(), some_targets(5))
    if top_k >= VOCABULARY:
        np.testing.assert_allclose(found.top_probs.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_a_head_that_is_no_plain_linear_is_decoded_whole(walk: str, memory: int) -> None:
    class Head(torch.nn.Linear):
        """Might do anything: its columns must not be taken."""

    model = families.build("phi", VOCABULARY)
    model.lm_head = Head(WIDTH, VOCABULARY)
    torch.nn.init.normal_(model.lm_head.weight)
    _, decoder, figures = prove(model, IDS)
    assert not figures["by_columns"]
    given = Case(model, decoder, torch.randn(5, LAYERS + 1, WIDTH))
    assert_equal(given.decode(some_targets(5), memory=memory), given.logits(), some_targets(5))


@pytest.mark.parametrize(("family", "after"), [("gemma2", "softcap"), ("cohere", "scale"), ("granite", "divide")])
def test_what_follows_the_head_is_applied_to_every_tile(walk: str, family: str, after: str) -> None:
    model = families.build(family, VOCABULARY)
    _, decoder, figures = prove(model, IDS)
    assert figures["by_columns"]
    assert not figures["nothing_after_head"]
    torch.manual_seed(5)
    residual, groups = torch.randn(4, LAYERS + 1, WIDTH), some_targets(4)
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        raw = double.lm_head(double.model.norm(residual.double())).numpy()
    follows = {"softcap": lambda x: 3.0 * np.tanh(x / 3.0), "scale": lambda x: x * 0.0625, "divide": lambda x: x / 8.0}
    logits = follows[after](raw)
    lens = Lens(decoder, 1 << 20)
    final = torch.softmax(torch.from_numpy(logits[:, -1]), -1).float()
    found = lens.layers(residual, final, entropy(log_softmax(logits[:, -1])), Targets.of(groups), 5)
    lens.close()
    assert_equal(found, logits, groups)


def test_the_models_own_output(walk: str) -> None:
    logits, groups = torch.randn(6, VOCABULARY) * 3, some_targets(6)
    lens = Lens(case().decoder, 1 << 20)
    found = lens.output(logits, Targets.of(groups), 5)
    lens.close()
    stacked = np.repeat(logits.double().numpy()[:, None], 2, axis=1)
    assert_equal(found, stacked, groups)
    assert (found.kl_final == 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_equal_embeddings_never_outrank_the_target(walk: str, seed: int) -> None:
    """Rows of the head that are copies of the target's, in its own tile and in others."""
    given = case(positions=7, seed=seed)
    copies = [3, 4, 35, 70, 71, 130, 199]
    given.model.lm_head.weight.data[copies] = given.model.lm_head.weight.data[3].clone()
    given.model.lm_head.bias.data[copies] = given.model.lm_head.bias.data[3].clone()
    groups = [[copies[p]] for p in range(7)]
    logits, found = given.logits()[:, :-1], given.decode(groups).target_rank
    own, others = logits[..., [3]], np.delete(logits, copies, axis=-1)
    assert (found <= (others > own - 1e-4).sum(-1)).all()
    assert (found >= (others > own + 1e-4).sum(-1)).all()


def test_equal_logits_at_the_output_never_outrank_the_target(walk: str) -> None:
    lens = Lens(case().decoder, 1 << 20)
    found = lens.output(torch.zeros(2, VOCABULARY), Targets.of([[0, 100], [VOCABULARY - 1]]), 3)
    lens.close()
    assert (found.target_rank == 0).all()
    assert all(len(set(ids)) == 3 for ids in found.top_ids[:, 0].tolist())


def test_nan_streams_are_nan_and_leave_the_others_alone(walk: str) -> None:
    given, groups = case(), some_targets(5)
    clean = given.decode(groups)
    given.residual[2, 1] = torch.nan
    found = given.decode(groups)
    assert np.isnan([found.entropy[2, 1], found.kl_final[2, 1], *found.top_probs[2, 1]]).all()
    owned = Targets.of(groups).positions == 2
    assert np.isnan(found.target_logprob[owned, 1]).all()
    for name in ("entropy", "kl_final", "top_probs", "top_ids"):
        a, b = getattr(found, name).copy(), getattr(clean, name).copy()
        a[2, 1], b[2, 1] = 0, 0
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(found.target_logprob[~owned], clean.target_logprob[~owned], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("column", [0, 40, VOCABULARY - 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_nan_or_infinite_logit_makes_its_distribution_nan(walk: str, column: int, value: float) -> None:
    given = case()
    given.model.lm_head.bias.data[column] = value
    found = given.decode(some_targets(5))
    assert np.isnan(found.entropy).all()
    assert np.isnan(found.kl_final).all()
    assert not np.isfinite(found.target_logprob).any()


@pytest.mark.parametrize("masked", [range(40), range(60, 130), range(150, 200), [5, 77, 199]], ids=str)
def test_masked_columns_leave_finite_statistics(walk: str, masked: Any) -> None:
    """-inf logits, of whole tiles too: entropy and KL are those of the columns that are left."""
    given, masked = case(), list(masked)
    groups = [[masked[0], 41 if 41 not in masked else 140] for _ in range(5)]
    given.model.lm_head.bias.data[masked] = -torch.inf
    found = given.decode(groups)
    left = [c for c in range(VOCABULARY) if c not in masked]
    logprobs = log_softmax(given.logits()[..., left])
    np.testing.assert_allclose(found.entropy, entropy(logprobs[:, :-1]), atol=2e-5)
    np.testing.assert_allclose(found.kl_final, divergence(logprobs[:, -1:], logprobs[:, :-1]), atol=2e-5)
    hidden, shown = found.target_logprob[::2], found.target_logprob[1::2]
    assert (hidden == -np.inf).all()
    np.testing.assert_allclose(shown, logprobs[:, :-1, left.index(groups[0][1])], atol=2e-5)
    assert (found.target_rank[::2] == len(left)).all()
    assert not set(found.top_ids.ravel().tolist()) & set(masked)


def test_fewer_finite_columns_than_top_k_leave_no_token(walk: str) -> None:
    given = case()
    given.model.lm_head.bias.data[2:] = -torch.inf
    found = given.decode(some_targets(5))
    assert (np.sort(found.top_ids, axis=-1)[..., :3] == -1).all()
    np.testing.assert_allclose(found.top_probs.sum(-1), 1.0, atol=1e-6)


def test_what_the_final_layer_believes_and_this_layer_excludes_diverges_without_bound(walk: str) -> None:
    given = case()
    given.model.lm_head.bias.data[7] = -torch.inf
    lens = Lens(given.decoder, 1 << 20)
    final = torch.full((5, VOCABULARY), 1 / VOCABULARY)
    found = lens.layers(given.residual, final, np.full(5, np.log(VOCABULARY)), Targets.of(some_targets(5)), 5)
    lens.close()
    assert (found.kl_final == np.inf).all()
    assert np.isfinite(found.entropy).all()


def test_probabilities_that_underflow(walk: str) -> None:
    """Logits thousands apart: entropy goes to 0, not to NaN; log-probabilities stay exact."""
    given, groups = case(scale=300.0), some_targets(5)
    logits = given.logits()
    assert np.ptp(logits) > 2000
    found = given.decode(groups)
    assert np.isfinite(found.entropy).all()
    assert (found.entropy >= 0).all()
    assert_equal(found, logits, groups, tolerance=2e-3)


def test_a_uniform_layer(walk: str) -> None:
    given, groups = case(), some_targets(5)
    given.model.lm_head.weight.data.zero_()
    given.model.lm_head.bias.data.fill_(3.0)
    found = given.decode(groups)
    np.testing.assert_allclose(found.entropy, np.log(VOCABULARY), rtol=1e-6)
    np.testing.assert_allclose(found.kl_final, 0.0, atol=1e-6)
    np.testing.assert_allclose(found.target_logprob, -np.log(VOCABULARY), rtol=1e-6)
    np.testing.assert_allclose(found.top_probs, 1 / VOCABULARY, rtol=1e-6)
    assert (found.target_rank == 0).all()


def test_a_certain_final_layer_diverges_by_the_surprise_of_its_token(walk: str) -> None:
    """KL(one-hot at t || q) = -log q(t)."""
    given, token = case(), 133
    lens = Lens(given.decoder, 1 << 20)
    final = torch.zeros(5, VOCABULARY)
    final[:, token] = 1.0
    found = lens.layers(given.residual, final, np.zeros(5), Targets.of([[token]] * 5), 5)
    lens.close()
    np.testing.assert_allclose(found.kl_final, -log_softmax(given.logits())[:, :-1, token], rtol=1e-5)
    np.testing.assert_allclose(found.kl_final, -found.target_logprob, rtol=1e-6)


def test_the_compiled_exponential() -> None:
    x = np.linspace(-87, 0, 20001).astype(np.float32)
    found = np.array([kernel._exp(value) for value in x], np.float64)
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=2e-7)


@pytest.mark.parametrize(
    ("tops", "expected"),
    [
        ([4, 4, 4, 4], 0),
        ([1, 4, 4, 4], 1),
        ([4, 1, 4, 4], 2),
        ([1, 2, 3, 4], 3),
        ([4, 4, 4, 1], 3),
        ([4, 1, 1, 4], 3),
        ([4], 0),
    ],
)
def test_settle_layer(tops: list[int], expected: int) -> None:
    assert settle_layer(np.array([tops, tops])).tolist() == [expected, expected]


@pytest.mark.parametrize("batch", [1, 4])
def test_every_distinct_prefix_is_decoded_once(
    batch: int, tmp_path: Path, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = [
        {"question": "Q: 3 + 4 = A:", "choices": ["7", "7 8", "7 8 9", "12 8"], "gold": 0},
        {"question": "Q: 3 + 4 = A:", "choices": ["7 9", "5"], "gold": 0},
    ]
    choice_task(tmp_path, "shared", docs)
    decoded: list[int] = []
    layers = Lens.layers

    def counted(self: Lens, residual: torch.Tensor, *args: Any) -> Distributions:
        decoded.append(len(residual))
        return layers(self, residual, *args)

    monkeypatch.setattr(Lens, "layers", counted)
    run = record(tasks=["shared"], include_path=str(tmp_path), batch_size=batch)
    ids = {key(row): row["input_ids"] for row in rows(run, "requests")}
    prefixes = [tuple(ids[key(step)][: step["position"] + 1]) for step in rows(run, "steps")]
    assert sum(decoded) == len(set(prefixes))
    assert len(set(prefixes)) < len(prefixes)
