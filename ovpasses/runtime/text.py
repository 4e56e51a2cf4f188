"""Text in and out, with the tokenizer that a GGUF carries (extra ``text``: openvino-genai)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ovpasses.errors import ModelReadError, one_line


class TextLayer:
    """Encode and decode with a GGUF's own tokenizer.

    Args:
        path: the GGUF file.

    Raises:
        ModelReadError: openvino-genai is not installed, or cannot make a tokenizer of this file.
    """

    def __init__(self, path: Path) -> None:
        try:
            from openvino_genai import Tokenizer
        except ImportError as error:
            raise ModelReadError(
                "text in and out needs openvino-genai; install ovpasses[text], or give token ids with --tokens"
            ) from error
        try:
            self._tokenizer = Tokenizer(str(path))
        except Exception as error:
            raise ModelReadError(
                f"{path}: openvino-genai cannot read its tokenizer ({one_line(error)}); give token ids with --tokens"
            ) from error

    @property
    def end_token(self) -> int:
        """Id of the token that ends a text."""
        return int(self._tokenizer.get_eos_token_id())

    def encode(self, text: str, *, begin: bool = True) -> np.ndarray:
        """Token ids int64 ``[T]`` of a text; none for an empty one.

        Args:
            text: the text.
            begin: whether it begins a text, so that the tokenizer may put a token of its own before it.
        """
        found = self._tokenizer.encode(text, add_special_tokens=begin).input_ids.data
        return np.array(found, dtype=np.int64).reshape(-1)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode([int(t) for t in tokens]))
