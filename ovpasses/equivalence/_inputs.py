"""What both models of a comparison are given: tokens of every sequence, or random inputs by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from openvino import PartialShape

from ovpasses.equivalence.errors import CheckError

# Of a dynamic first dim of an input of several dims, which is most often the batch. States are made for a batch of 1.
BATCH, BATCH_WITH_STATES = 3, 1

Dims = list[int | None]


@dataclass(frozen=True)
class Inputs:
    """The same for both models: made of seed, step and name alone, so neither order nor further inputs matter.

    Attributes:
        seed: of everything random.
        n_vocab: token ids that both take.
        sequences: how many sequences run, a slot each.
        shapes: of the inputs of other graphs, by name; None for what a step chooses.
        batch: what a dynamic first dim gets.
    """

    seed: int
    n_vocab: int = 1
    sequences: int = 1
    shapes: Mapping[str, Dims] = field(default_factory=dict)
    batch: int = BATCH

    def tokens(self, step: int, count: int) -> dict[int, np.ndarray]:
        """Slot to token ids. Of several sequences each second one gets a token less, of three or more one rests."""
        resting = step % self.sequences if self.sequences > 2 else None
        return {
            slot: self._random(step, slot).integers(0, self.n_vocab, max(1, count - slot % 2))
            for slot in range(self.sequences)
            if slot != resting
        }

    def value(self, name: str, dtype: np.dtype[Any], step: int, count: int) -> np.ndarray:
        """Normal floats, which f16 holds exactly; integers 0 and 1; of ``beam_idx`` the order as it is."""
        dims = self.shapes[name]
        first = self.batch if len(dims) > 1 else count
        shape = [(first if d == 0 else count) if dim is None else dim for d, dim in enumerate(dims)]
        if name == "beam_idx":
            return np.arange(self.batch if dims == [None] else shape[0], dtype=dtype)
        random = self._random(step, crc32(name.encode()))
        if np.issubdtype(dtype, np.floating):
            return random.standard_normal(shape).astype(np.float16).astype(dtype)
        return random.integers(0, 2, shape).astype(dtype)

    def _random(self, *parts: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *parts])


def common_shapes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Dims]:
    """Shapes that both models take, of inputs by name; a dim that one fixes is fixed for both.

    Raises:
        CheckError: there is none, or a rank is not known.
    """
    shapes: dict[str, Dims] = {}
    for name in sorted(a.keys() | b.keys()):
        found = [_dims(name, ports[name].get_partial_shape()) for ports in (a, b) if name in ports]
        one, other = found[0], found[-1]
        if len(one) != len(other) or any(
            None not in pair and pair[0] != pair[1] for pair in zip(one, other, strict=False)
        ):
            raise CheckError(f"input {name} is {_text(one)} in a and {_text(other)} in b, wanted one shape for both")
        shapes[name] = [x if y is None else y for x, y in zip(one, other, strict=True)]
    return shapes


def _dims(name: str, shape: PartialShape) -> Dims:
    if shape.rank.is_dynamic:
        raise CheckError(f"input {name} has any number of dims; give the model a rank with reshape")
    return [int(dim.get_length()) if dim.is_static else None for dim in shape]


def _text(dims: Dims) -> str:
    return f"[{','.join('?' if dim is None else str(dim) for dim in dims)}]"
