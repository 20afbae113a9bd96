"""Train the tiny model of the sample runs from nothing: `python sample_runs/models/tiny/train.py [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # so that a test can load this file by its path
    sys.path.insert(0, str(HERE))

from corpus import Example, held_out_examples, training_examples  # noqa: E402

SEED = 20240607
VOCABULARY = 1280  # at most: the synthetic text runs out of pairs to merge at 1053
PAD, BOS, EOS = SPECIAL = ("<pad>", "<s>", "</s>")
PAD_ID, BOS_ID, EOS_ID = range(len(SPECIAL))  # the trainer numbers them first
PIECES = r" ?\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"  # what BPE may merge within; a digit stays alone

STEPS = 3600
ROWS_LONG, LENGTH_LONG = 4, 256  # every fourth step: many documents after one another, as in a few-shot prompt
ROWS_SHORT, LENGTH_SHORT = 16, 64
PEAK_RATE, WARMUP = 2e-3, 100
PROMPT_WEIGHT = 0.1  # the loss on a prompt's own tokens, which are mostly random, against 1 on the answer's
ENDINGS = ("\n", "\n\n", f"\n{EOS}", f"\n{EOS}")  # what stands between two documents
IGNORED = -100


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: common words are one token, and any other text still falls back to bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    examples = training_examples(Random(SEED), 20_000)
    tokenizer.train_from_iterator((f"{one.prompt}{one.answer}\n\n" for one in examples), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.03,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    return LlamaForCausalLM(config)


def packed_rows(
    tokenizer: PreTrainedTokenizerFast, rng: Random, rows: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of documents after one another, each row from the start of a document, with the weight of every token."""
    ids = torch.zeros(rows, length, dtype=torch.long)
    weights = torch.zeros(rows, length)
    for row in range(rows):
        tokens: list[int] = []
        importance: list[float] = []
        if rng.random() < 0.25:
            tokens, importance = [BOS_ID], [0.0]
        while len(tokens) < length:
            (example,) = training_examples(rng, 1)
            ending = rng.choice(ENDINGS)
            prompt, answer = tokenizer([example.prompt, example.answer + ending]).input_ids
            tokens += prompt + answer
            importance += [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
        ids[row] = torch.tensor(tokens[:length])
        weights[row] = torch.tensor(importance[:length])
    return ids, weights


def learning_rate(step: int) -> float:
    """A short rise to the peak, then half a cosine down to a hundredth of it."""
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return PEAK_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    rng = Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.98))
    model.train()
    started = time.monotonic()
    for step in range(STEPS):
        rows, length = (ROWS_LONG, LENGTH_LONG) if step % 4 == 3 else (ROWS_SHORT, LENGTH_SHORT)
        ids, weights = packed_rows(tokenizer, rng, rows, length)
        logits = model(ids, use_cache=False).logits[:, :-1]
        losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        if step % 200 == 199:
            print(f"step {step + 1}/{STEPS}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)
    model.eval()


@torch.no_grad()
def evaluate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, float]:
    """The share of held-out documents of each kind whose whole answer, with its line end, is what greedy decoding
    writes. One pass over prompt and answer shows that: every token of the answer must be the likeliest there."""
    return {kind: round(_share_right(model, tokenizer, found), 4) for kind, found in held_out_examples().items()}


def _share_right(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    prompts = [tokenizer(example.prompt).input_ids for example in examples]
    answers = [tokenizer(f"{example.answer}\n").input_ids for example in examples]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids = torch.full((len(examples), longest), PAD_ID)
    targets = torch.full((len(examples), longest), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        targets[row, len(prompt) : end] = torch.tensor(answer)
    guesses = model(ids, use_cache=False).logits[:, :-1].argmax(-1)
    targets = targets[:, 1:]
    return ((guesses == targets) | (targets == IGNORED)).all(1).float().mean().item()


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, accuracy: dict[str, float], out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # transformers 5 writes a name that 4 does not know
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (out / "accuracy.json").write_text(json.dumps(accuracy, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="the folder for the model (default: beside this script)")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # the order of additions, and with it the last digits, must not depend on the machine
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    train(model, tokenizer)
    accuracy = evaluate(model, tokenizer)
    print(json.dumps(accuracy, indent=2))
    save(model, tokenizer, accuracy, out)


if __name__ == "__main__":
    main()
