"""How the graph around a KV cache splits the elements of a token into heads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from openvino import Dimension, PartialShape

from ovpasses._openvino import Node, Output

# Ops that hand rows on in another shape or type.
_ROW_VIEWS = ("Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose")
_READER_VIEWS = ("Convert", "Reshape", "Slice", "Transpose")


@dataclass(frozen=True)
class HeadSplit:
    """``heads`` x ``size`` elements per token."""

    heads: int
    size: int

    @property
    def combined(self) -> int:
        return self.heads * self.size

    def __str__(self) -> str:
        return f"{self.heads} x {self.size}"


def split_from_graph(rows: Output, grown: Output, combined: int) -> HeadSplit | None:
    """How the graph itself splits the ``combined`` elements of a token.

    The rows tell, before they are flattened: a Reshape there is a clear word. An op's own shape is not when it has
    one head (a dim of 1 may be anything), nor is the shape in which the rows arrive (it is what is in question);
    among those the readers decide.

    Args:
        rows: the new rows, as they are appended.
        grown: the cache after the append.
        combined: elements per token.
    """
    chain = _row_chain(rows)
    clear = [_last_two(o) for o in chain[:-1] if o.get_node().get_type_name() == "Reshape" or _has_several_heads(o)]
    for split in clear:
        if split is not None and split.combined == combined:
            return split
    read = split_from_readers(grown)
    unclear = [s for s in map(_last_two, chain) if s is not None and s.combined == combined]
    if read is not None and (read in unclear or not unclear):
        return read
    return unclear[0] if unclear else None


def declared_split(shape: PartialShape, axis: int) -> HeadSplit | None:
    """What the shape of a cache says by itself, its sequence being on ``axis`` (1 or 2)."""
    heads, size = shape[3 - axis], shape[3]
    return HeadSplit(heads.get_length(), size.get_length()) if heads.is_static and size.is_static else None


def find_growth(past: Output) -> Node | None:
    """The Concat or ScatterUpdate that adds rows to a cache, also behind the ``beam_idx`` Gather."""
    readers = [(i.get_node(), i.get_index()) for i in past.get_target_inputs()]
    for node, index in readers:
        if index == 0 and node.get_type_name() in ("Concat", "ScatterUpdate"):
            return node
    if len(readers) == 1 and readers[0][1] == 0 and readers[0][0].get_type_name() == "Gather":
        return find_growth(readers[0][0].output(0))
    return None


def growth_dim(update: Node) -> int | None:
    """The dim of a rank-4 cache that a Concat or ScatterUpdate works on; None when it is no constant."""
    if update.get_type_name() == "Concat":
        return int(update.get_attributes()["axis"]) % 4
    axis = update.input_value(3).get_node()
    return int(axis.get_data().ravel()[0]) % 4 if axis.get_type_name() == "Constant" else None


def sequence_dim(shape: PartialShape, grown_on: int | None) -> int:
    """1 for ``[1, seq, heads, size]``, 2 for ``[1, heads, seq, size]`` and ``[1, 1, seq, heads*size]``.

    The sequence is the dynamic dim; where both are static, the one that the cache is grown on. OpenVINO's GGUF frontend
    scatters flattened rows on dim 2 of ``[1, cells, heads, size]``, so the dynamic dim goes first.
    """
    if shape[1].is_dynamic == shape[2].is_dynamic:
        return 2 if grown_on == 2 else 1
    return 1 if shape[1].is_dynamic else 2


def rows_of(update: Node) -> Output:
    """The rows that a Concat or ScatterUpdate adds."""
    return update.input_value(1 if update.get_type_name() == "Concat" else 2)


def split_from_readers(grown: Output) -> HeadSplit | None:
    """The last ``[b, seq, heads, size]`` or ``[b, heads, seq, size]`` on the way from a cache to its attention."""
    shape = grown.get_partial_shape()
    cells = shape[sequence_dim(shape, growth_dim(grown.get_node()))]
    pending = deque([grown])
    found = None
    while pending and len(pending) < 64:
        output = pending.popleft()
        if output.get_node() is not grown.get_node():  # its own shape is what is in question
            found = _split_around(cells, output) or found
        for reader in output.get_target_inputs():
            if reader.get_index() == 0 and reader.get_node().get_type_name() in _READER_VIEWS:
                pending.append(reader.get_node().output(0))
    return found


def _row_chain(rows: Output) -> list[Output]:
    """The values that rows pass through, their source first."""
    chain = [rows]
    while chain[-1].get_node().get_type_name() in _ROW_VIEWS:
        chain.append(chain[-1].get_node().input_value(0))
    return chain[::-1]


def _last_two(output: Output) -> HeadSplit | None:
    shape = output.get_partial_shape()
    # Five dims are pairs that a rotation has put together, not heads.
    if shape.rank.is_dynamic or shape.rank.get_length() not in (3, 4) or _is_transpose(output.get_node()):
        return None
    dims = [shape[d] for d in range(shape.rank.get_length())]
    if dims[-1].is_dynamic or dims[-2].is_dynamic or all(d == 1 for d in dims[:-1]):
        return None
    return HeadSplit(dims[-2].get_length(), dims[-1].get_length())


def _has_several_heads(output: Output) -> bool:
    split = _last_two(output)
    return split is not None and split.heads > 1


def _split_around(cells: Dimension, output: Output) -> HeadSplit | None:
    """Heads and size of ``[b, cells, heads, size]`` or ``[b, heads, cells, size]``, when only one of both dims fits."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4 or shape[3].is_dynamic:
        return None
    others = [d for d in (shape[1], shape[2]) if d.is_static and (cells.is_dynamic or d != cells)]
    return HeadSplit(others[0].get_length(), shape[3].get_length()) if len(others) == 1 else None


def _is_transpose(node: Node) -> bool:
    return bool(node.get_type_name() == "Transpose")
