"""Caches outside a model, of a fixed number of cells, as the states of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from openvino import CompiledModel
from openvino import Type as ElementType

from ovpasses.errors import StateError
from ovpasses.ggml_names import CACHE_NAME, PAST_NAME
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.states import StateInfo, StateStore, Values

# What a cache is named that has a cell per token.
_GROWING = ("cache_k", "cache_v", "key", "value")


class CellStates(StateStore):
    """One sequence's caches; cell i of those that grow holds position i, and cells past the last token do not count.

    A flat cache ``[1, 1, cells, heads*size]`` is taken for ``[1, cells, heads, size]``, of which it has the bytes.

    Args:
        compiled: the compiled model.
        arrays: gives the caches as they are now by input name, of this sequence alone, to read and to write.
        cells: tokens that those that grow hold; None when the model does not say.
        info: of the model; tells each layer's heads.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        arrays: Callable[[], Mapping[str, np.ndarray]],
        cells: int | None,
        info: GraphInfo,
    ) -> None:
        self.compiled = compiled
        self._arrays = arrays
        self._cells = cells
        self._heads = {layer.index: layer.n_heads_kv for layer in info.layers}
        self.infos = {}
        self._unknown = ""
        for name, array in arrays().items():
            found = StateInfo(name, ElementType(array.dtype).get_type_name())
            if _grows(name):
                shape = self._laid_out(found, array).shape
                found.axes = tuple(d for d in range(1, len(shape)) if shape[d] == cells)
                found.axes = found.axes[:1] if CACHE_NAME.search(name) else found.axes  # ggml's comes before the heads
                if not found.axes:
                    self._unknown = f"cache {found.label} {list(array.shape)} has no dim of {cells} cells"
            self.infos[name] = found

    def check_exact(self) -> None:
        super().check_exact()
        if self._unknown:
            raise StateError(self._unknown)

    def _view(self, name: str, position: int) -> np.ndarray:
        return self._rows(name, self._laid_out(self.infos[name], self._arrays()[name]), slice(position))

    def write(self, values: Iterable[tuple[str, np.ndarray]]) -> None:
        gathered = dict(values)  # all of them, since here nothing can be taken back
        self.changes += 1
        for name, array in self._now().items():
            info, value = self.infos[name], gathered.pop(name)
            count = value.shape[self.axis(info, value.shape, 0)] if info.grows else 0
            self._rows(name, array, slice(count))[...] = value
            if info.grows:
                self._rows(name, array, slice(count, None))[...] = 0

    def cut(self, n: int, position: int, recurrent: Mapping[str, np.ndarray]) -> None:
        """Of what grows nothing is to be done: masks hide the cells after ``n``, and the next tokens overwrite them."""
        self.changes += 1
        for name, array in self._arrays().items():
            if not self.infos[name].grows:
                array[...] = recurrent[name]

    def clear(self) -> None:
        self.changes += 1
        for array in self._arrays().values():
            array[...] = 0

    def _now(self) -> Values:
        return {name: self._laid_out(self.infos[name], array) for name, array in self._arrays().items()}

    def _laid_out(self, info: StateInfo, array: np.ndarray) -> np.ndarray:
        """The same memory as ``[1, cells, heads, size]`` where it is flat."""
        heads = self._heads.get(info.layer) if info.layer is not None else None
        if not heads or not CACHE_NAME.search(info.name) or not _grows(info.name) or array.ndim != 4:
            return array
        cells = array.shape[1] * array.shape[2]
        flat = 1 in array.shape[1:3] and cells == self._cells and array.shape[3] % heads == 0
        return array.reshape(1, cells, heads, -1) if flat else array

    def _rows(self, name: str, array: np.ndarray, rows: slice) -> np.ndarray:
        """Some rows of a cache that grows; all of one that does not."""
        info = self.infos[name]
        if not info.grows:
            return array
        return array[(slice(None),) * self.axis(info, array.shape, 0) + (rows,)]


def _grows(name: str) -> bool:
    found = CACHE_NAME.search(name) or PAST_NAME.match(name)
    return found is not None and found["kind"] in _GROWING
