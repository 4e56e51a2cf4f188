"""GGUF files, through OpenVINO's own frontend, which ``Core.read_model`` does not find."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from openvino import Model
from openvino.frontend import FrontEndManager

from ovpasses.errors import ModelReadError, one_line
from ovpasses.importers._gguf_repairs import repair_single_head_rope
from ovpasses.importers.graph_info import ATTENTION, GraphInfo, LayerInfo, info_from_graph, merged

log = logging.getLogger(__name__)

# rt_info key in which the frontend leaves the window of sliding layers, in tokens.
WINDOW_KEY = "gguf_swa_window_size"

MAGIC = b"GGUF"

# Which layers slide when the file has a window and no pattern: the format leaves it to the reader, by architecture.
SLIDING_PERIOD = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}


class _Metadata(gguf.GGUFReader):  # type: ignore[misc]
    """The package's reader without an object per vocabulary entry (3.5 s to 0.1 s on 49,152 tokens).

    Arrays of scalars become one part; the strings of an array are stepped over, only their count is kept.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if gguf.GGUFValueType(raw_type) != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        start, length = orig_offs + 12, int(count[0])
        kind = gguf.GGUFValueType(item_type[0])
        types = [gguf.GGUFValueType.ARRAY, kind]
        if kind == gguf.GGUFValueType.STRING:
            end = self._after_strings(start, length)
            return end - orig_offs, [item_type, count], [], types
        if kind not in self.gguf_scalar_to_np:
            return super()._get_field_parts(orig_offs, raw_type)
        values = self._get(start, self.gguf_scalar_to_np[kind], length)
        return 12 + int(values.nbytes), [item_type, count, values], [2], types

    def _after_strings(self, start: int, count: int) -> int:
        data, offset, end = memoryview(self.data), start, len(self.data)
        for _ in range(count):
            offset += 8 + int.from_bytes(data[offset : offset + 8], "little")
            if offset > end:
                raise ValueError("a string runs past the end of the file")
        return offset


def read_gguf(path: Path) -> tuple[Model, GraphInfo]:
    """Import a GGUF file.

    Args:
        path: the file.

    Returns:
        The frontend's stateless graph (``MakeKVStateful`` makes it run) and what file and graph say of it.

    Raises:
        ModelReadError: no GGUF, damaged, or of an architecture that the frontend does not know.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelReadError(f"{path}: no GGUF file (it does not start with {MAGIC.decode()}); check the download")
    metadata = _read_metadata(path)
    architecture = str(metadata.get("general.architecture", ""))
    try:
        frontend = FrontEndManager().load_by_framework("gguf")
    except Exception as error:
        raise ModelReadError(
            f"{path}: this OpenVINO has no GGUF frontend ({one_line(error)}); install openvino>=2026.4"
        ) from error
    try:
        model = frontend.convert(frontend.load(str(path)))
    except Exception as error:
        raise ModelReadError(
            f"{path}: OpenVINO's GGUF frontend cannot import architecture {architecture!r}: {one_line(error)}"
        ) from error
    repair_single_head_rope(model)
    info = merged(
        info_from_graph(model, window=_window(model, metadata, architecture)),
        info_from_metadata(metadata),
        "the GGUF metadata",
    )
    for line in info.contradictions:
        log.warning("%s: %s", path, line)
    return model, info


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        reader = _Metadata(path)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ModelReadError(f"{path}: damaged or truncated GGUF ({one_line(error)}); copy the file again") from error
    last = max((t.data_offset + t.n_bytes for t in reader.tensors), default=0)
    if last > path.stat().st_size:
        raise ModelReadError(f"{path}: truncated GGUF: {path.stat().st_size} bytes, its tensors need {last}")
    values: dict[str, Any] = {}
    for name, entry in reader.fields.items():
        if entry.types and entry.types[0] == gguf.GGUFValueType.ARRAY and not entry.data:
            values[f"{name}.count"] = int(entry.parts[4][0])
        else:
            with suppress(UnicodeDecodeError):  # a text that is none says nothing
                values[name] = entry.contents()
    return values


def info_from_metadata(metadata: dict[str, Any]) -> GraphInfo:
    """Read a :class:`GraphInfo` off GGUF metadata alone.

    Args:
        metadata: GGUF keys to values; for an array of strings ``<key>.count`` holds its length.
    """
    architecture = str(metadata.get("general.architecture", ""))

    def get(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    count = int(get("block_count") or 0)
    heads = _per_layer(get("attention.head_count_kv") or get("attention.head_count"), count)
    queries = _per_layer(get("attention.head_count"), count)
    recurrent = _per_layer(get("attention.recurrent_layers") or 0, count)
    pattern = _sliding_layers(architecture, get("attention.sliding_window_pattern"), count)
    layers = []
    for index in range(count):
        default = (get("embedding_length") or 0) // queries[index] if queries[index] else None
        suffix = "_swa" if pattern[index] and get("attention.key_length_swa") else ""
        layers.append(
            LayerInfo(
                index,
                "recurrent" if recurrent[index] else ATTENTION,
                n_heads_kv=heads[index],
                key_size=get(f"attention.key_length{suffix}") or default,
                value_size=get(f"attention.value_length{suffix}") or default,
                window=get("attention.sliding_window") if pattern[index] else None,
            )
        )
    return GraphInfo(
        architecture=architecture,
        layers=tuple(layers),
        position_planes=1,
        n_vocab=get("vocab_size") or metadata.get("tokenizer.ggml.tokens.count"),
        context_length=get("context_length"),
    )


def _sliding_layers(architecture: str, pattern: Any, count: int) -> list[Any]:
    """For each layer whether it slides: the file's own flags, its period, or llama.cpp's period for such files.

    Of ``period`` layers the last has full attention (``set_swa_pattern`` in llama.cpp's src/llama-model.cpp).
    """
    if isinstance(pattern, list):
        return _per_layer(pattern, count)
    period = SLIDING_PERIOD.get(architecture) if pattern is None else int(pattern)
    if period is None:
        return [None] * count
    return [period == 0 or index % period < period - 1 for index in range(count)]


def _per_layer(value: Any, count: int) -> list[Any]:
    """One value per layer: an array as it is, a number for all."""
    if isinstance(value, list):
        return (value + [value[-1]] * count)[:count] if value else [None] * count
    return [value] * count


def _window(model: Model, metadata: dict[str, Any], architecture: str) -> int | None:
    if model.has_rt_info([WINDOW_KEY]):
        value = model.get_rt_info([WINDOW_KEY])
        return int(getattr(value, "value", value))
    value = metadata.get(f"{architecture}.attention.sliding_window")
    return int(value) if value else None
