"""Tokens as a person reads them: the piece verbatim, readable text, and which pieces continue a character."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

REPLACEMENT = "\ufffd"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def clean(text: str) -> str:
    """Text that Arrow and UTF-8 can hold: a lone surrogate becomes its escape."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def _byte_letters() -> dict[str, int]:
    """Letter -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest is moved up from 256."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}


class TokenTexts:
    """Readable texts of one tokenizer's ids, each worked out once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special_ids = frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        self._letters = _byte_letters()
        self._texts: dict[int, str] = {}
        self._pieces: dict[int, str] = {}
        self._partials: dict[int, bool] = {}
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._anchor_text = self._decode(self._anchor)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def piece(self, token: int) -> str:
        """The vocabulary entry, verbatim; '' for ids beyond the vocabulary."""
        if token not in self._pieces:
            found = self._tokenizer.convert_ids_to_tokens(int(token)) if token >= 0 else None
            self._pieces[token] = clean(found) if isinstance(found, str) else ""
        return self._pieces[token]

    def text(self, token: int) -> str:
        """What the token adds to a text; the bytes, as <E2 82>, of one that is only part of a character."""
        if token not in self._texts:
            self._texts[token] = self._text(token)
        return self._texts[token]

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        if not self.piece(token):
            return f"<id {token}>"
        both = self._decode([*self._anchor, token])
        text = both[len(self._anchor_text) :] if both.startswith(self._anchor_text) else self._decode([token])
        if REPLACEMENT in text or not text:
            return clean(self._bytes_shown(token) or text or self.piece(token))
        return clean(text)

    def _bytes_shown(self, token: int) -> str:
        piece = self.piece(token)
        found = BYTE_PIECE.fullmatch(piece)
        if found:
            return f"<{found[1].upper()}>"
        if piece and all(letter in self._letters for letter in piece):
            return "<" + " ".join(f"{self._letters[letter]:02X}" for letter in piece) + ">"
        return ""

    def sequence(self, ids: Sequence[int]) -> tuple[list[str], list[bool]]:
        """(texts, continues) of consecutive tokens: a character spread over pieces is whole at its first piece, and the
        others are '' and continue it."""
        texts = [self.text(token) for token in ids]
        continues = [False] * len(ids)
        start = 0
        while start < len(ids):
            end = self._character_end(ids, start)
            if end > start + 1:
                texts[start] = self._joined(ids[start:end])
                for i in range(start + 1, end):
                    texts[i], continues[i] = "", True
            start = end
        return texts, continues

    def partial(self, token: int) -> bool:
        """The token is only part of a character."""
        if token not in self._partials:
            self._partials[token] = REPLACEMENT in self._decode([token]) and bool(self._bytes_shown(token))
        return self._partials[token]

    def _character_end(self, ids: Sequence[int], start: int) -> int:
        """End of the shortest run from `start` that decodes without a broken character; start + 1 where none does."""
        if not self.partial(ids[start]):
            return start + 1
        for end in range(start + 2, min(start + 9, len(ids) + 1)):
            if not self.partial(ids[end - 1]) and REPLACEMENT not in self._decode(ids[end - 1 : end]):
                break
            if REPLACEMENT not in self._joined(ids[start:end]):
                return end
        return start + 1

    def _joined(self, ids: Sequence[int]) -> str:
        both = self._decode([*self._anchor, *ids])
        return clean(both[len(self._anchor_text) :] if both.startswith(self._anchor_text) else self._decode(ids))


@dataclass(frozen=True)
class Words:
    """Readable texts of many token sequences laid end to end: words[codes[i]] is the text of token i."""

    words: list[str]
    codes: np.ndarray
    continues: np.ndarray

    def array(self, chosen: np.ndarray | slice = slice(None)) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(self.codes[chosen]), pa.array(self.words, pa.string()))


def sequence_words(sequences: Sequence[np.ndarray], texts: TokenTexts) -> Words:
    """Texts of each sequence in turn; only those with pieces of characters are walked token by token."""
    flat = np.concatenate(sequences) if sequences else np.zeros(0, np.int64)
    unique, codes = np.unique(flat, return_inverse=True)
    words = [texts.text(int(token)) for token in unique]
    codes = codes.reshape(-1).astype(np.int32)
    continues = np.zeros(len(flat), bool)
    broken = np.array([texts.partial(int(token)) for token in unique], bool)[codes] if len(flat) else continues
    index = {word: code for code, word in enumerate(words)}
    start = 0
    for ids in sequences:
        end = start + len(ids)
        if broken[start:end].any():
            found, continues[start:end] = texts.sequence([int(token) for token in ids])
            for i, word in enumerate(found):
                if word != words[codes[start + i]]:
                    codes[start + i] = index.setdefault(word, len(words))
                    if codes[start + i] == len(words):
                        words.append(word)
        start = end
    return Words(words, codes, continues)


def word_array(ids: np.ndarray, text: Callable[[int], str]) -> pa.DictionaryArray:
    """`text` of each id, worked out once for each distinct one; null for ids below 0."""
    unique, inverse = np.unique(ids, return_inverse=True)
    words = pa.array([text(int(token)) for token in unique], pa.string())
    codes = pa.array(inverse.reshape(-1).astype(np.int32), mask=(ids < 0).reshape(-1))
    return pa.DictionaryArray.from_arrays(codes, words)
