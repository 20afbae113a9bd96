"""Tokens as a person reads them, for byte-level BPE and for SentencePiece-like tokenizers with byte fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recorder.tokens import TokenTexts, clean, sequence_words, word_array

TEXTS = [
    "The capital of France is Paris.",
    " leading and  double   spaces ",
    "lines\nand\n\nmore\r\n",
    "tabs\tand\t\ttabs",
    "no-break\u00a0space",
    "family 👨\u200d👩\u200d👧 joined",
    "한국어 서울 사과",
    "سلام قمر العربية",
    "日本語の文章",
    "🎉🚀 🌍",
    "e\u0301 combined, ﬁ ligature, ß",
    "$5 and $6 [a] :word: <b> `x`",
]


def unigram(prefix_space: bool = False) -> PreTrainedTokenizerFast:
    """Metaspace and byte fallback, as in Gemma; with `prefix_space` before the first word, as in Llama 2."""
    special = ["<unk>", "<s>", "</s>"]
    words = ["▁", "▁the", "▁capital", "▁and", "▁is", "ing", *"abcdefghijklmnopqrstuvwxyzTFP.,$"]
    entries = [(piece, 0.0) for piece in special] + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    inner = Tokenizer(models.Unigram([*entries, *((word, -float(9 - len(word))) for word in words)], 0, True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prefix_space else "never")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix_space else steps)
    names = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


@pytest.fixture(scope="module", params=["byte_level", "byte_fallback"])
def any_tokenizer(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    return tokenizer if request.param == "byte_level" else unigram()


@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_of_tokens_join_to_the_text(any_tokenizer: Any, text: str) -> None:
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    assert any_tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text, "the tokenizer itself keeps this text"
    words, continues = TokenTexts(any_tokenizer).sequence(ids)
    assert "".join(words) == text
    for word, later in zip(words, continues, strict=True):
        assert (word == "") == later


@pytest.mark.parametrize("text", ["🎉", "한", "日", "ق"])
def test_a_character_over_several_pieces_stands_at_its_first(any_tokenizer: Any, text: str) -> None:
    ids = any_tokenizer.encode("x" + text + "y", add_special_tokens=False)
    pieces = ids[1:-1] if len(ids) > 3 else ids
    assert len(pieces) > 1, "the tokenizer splits it"
    words, continues = TokenTexts(any_tokenizer).sequence(pieces)
    assert words == [text] + [""] * (len(pieces) - 1)
    assert continues == [False] + [True] * (len(pieces) - 1)


def test_a_piece_of_a_character_alone_shows_its_bytes(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    first = any_tokenizer.encode("x🎉", add_special_tokens=False)[1]
    shown = texts.text(first)
    assert shown.startswith("<F0")
    assert "\ufffd" not in shown
    assert texts.partial(first)


def test_a_character_cut_off_shows_bytes_and_continues_nothing(any_tokenizer: Any) -> None:
    ids = any_tokenizer.encode("x🎉🎉", add_special_tokens=False)[1:-1]
    words, continues = TokenTexts(any_tokenizer).sequence(ids)
    assert words[0] == "🎉"
    whole = words.index("", 1)
    broken = next(i for i in range(whole, len(words)) if not continues[i])
    assert all(word.startswith("<") for word in words[broken:])
    assert not any(continues[broken:])


def test_spaces_newlines_and_tabs_are_themselves(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    for text in ("\n", "\t", "\u00a0", "\u200d"):
        ids = any_tokenizer.encode("a" + text, add_special_tokens=False)[1:]
        assert "".join(texts.sequence(ids)[0]) == text
    spaced = any_tokenizer.encode("a the", add_special_tokens=False)[1:]
    assert "".join(texts.text(token) for token in spaced) == " the"


@pytest.mark.parametrize("text", ["the capital of", " the capital", "🎉 is", "한국어"])
def test_a_first_word_keeps_the_space_that_decoding_drops(text: str) -> None:
    """Llama 2 puts a space before the first word and takes it off again; its token has it all the same."""
    given = unigram(prefix_space=True)
    ids = given.encode(text, add_special_tokens=False)
    assert not given.decode(ids).startswith(" ")
    assert "".join(TokenTexts(given).sequence(ids)[0]) == " " + text.removeprefix(" ")


def test_a_real_replacement_character_shows_its_bytes(any_tokenizer: Any) -> None:
    """It cannot be told from a broken one, and leaves its neighbours whole."""
    ids = any_tokenizer.encode("x🎉\ufffd🎉", add_special_tokens=False)
    assert "".join(TokenTexts(any_tokenizer).sequence(ids)[0]) == "x🎉<EF><BF><BD>🎉"


def test_special_tokens_have_a_text(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    for name in ("bos_token", "eos_token"):
        token = getattr(any_tokenizer, f"{name}_id")
        assert token in texts.special_ids
        assert texts.text(token) == texts.piece(token) == getattr(any_tokenizer, name)


def test_ids_beyond_the_vocabulary(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    beyond = len(any_tokenizer) + 7
    assert texts.piece(beyond) == ""
    assert texts.text(beyond) == f"<id {beyond}>"
    assert texts.text(-1) == ""
    assert texts.sequence([beyond, beyond]) == ([f"<id {beyond}>"] * 2, [False, False])


def test_every_id_has_a_readable_text(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    for token in range(len(any_tokenizer)):
        assert texts.text(token), f"{token} {texts.piece(token)!r}"
        assert "\ufffd" not in texts.text(token), f"{token} {texts.piece(token)!r}"


def test_sequences_laid_end_to_end_are_read_each_for_itself(any_tokenizer: Any) -> None:
    texts = TokenTexts(any_tokenizer)
    sequences = [np.array(any_tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]
    words = sequence_words(sequences, texts)
    found, start = words.array().to_pylist(), 0
    for text, ids in zip(TEXTS, sequences, strict=True):
        alone, continues = texts.sequence(ids.tolist())
        assert found[start : start + len(ids)] == alone
        assert words.continues[start : start + len(ids)].tolist() == continues
        assert "".join(alone) == text
        start += len(ids)


def test_a_cut_character_is_not_finished_by_the_next_sequence(any_tokenizer: Any) -> None:
    ids = any_tokenizer.encode("x🎉", add_special_tokens=False)
    words = sequence_words([np.array(ids[:2]), np.array(ids[2:])], TokenTexts(any_tokenizer))
    assert "🎉" not in words.array().to_pylist()
    assert not words.continues.any()


def test_words_of_no_tokens(any_tokenizer: Any) -> None:
    assert len(sequence_words([], TokenTexts(any_tokenizer)).array()) == 0


def test_word_arrays_are_null_below_zero() -> None:
    assert word_array(np.array([3, -1, 3, 0]), lambda token: f"t{token}").to_pylist() == ["t3", None, "t3", "t0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain 한국어 🎉", "plain 한국어 🎉"),
        ("a\ud800b", "a\\ud800b"),
        ("\udfff", "\\udfff"),
        ("", ""),
        ("nul\x00", "nul\x00"),
    ],
)
def test_clean_text_is_utf8(text: str, expected: str) -> None:
    assert clean(text) == expected
    clean(text).encode("utf-8")
