"""The recorded dump of four sequences, compiled in every form, and what its sessions are checked with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from openvino import CompiledModel

import ovpasses as ovp
from ovpasses import ChunkValidLen, LowerGatedDeltaNet, Pipeline
from ovpasses.passes import BatchSequences
from tests.conftest import RECORDED, nmse

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
AGES = ("before", "after")
SLOTS, CHUNK, CONTEXT = 4, 4, 32
SEQUENCES = np.load(RECORDED / "logits" / "qwen35-sequences-1-3-of-4.npz")
TOKENS, LOGITS = SEQUENCES["tokens"], SEQUENCES["logits"]
RECURRENT = ("cache_r", "cache_s")
Compiled = tuple[CompiledModel, ovp.GraphInfo]


def read(age: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / age / "qwen35" / "stateless-slots-2-of-4" / "model.xml")


def batched(age: str, *, padded: bool = True) -> ovp.ImportedModel:
    """The dump for any number of sequences; ``padded``: it knows how long each is."""
    imported = read(age)
    Pipeline([BatchSequences(strict=True), *([ChunkValidLen(strict=True)] if padded else [])]).run(imported)
    LowerGatedDeltaNet(strict=True).run_on_model(imported.model)
    return imported


@cache
def dynamic(age: str, padded: bool = True) -> Compiled:
    imported = batched(age, padded=padded)
    return ovp.compile_model(imported, "CPU", F32), imported.info


@cache
def one_by_one(age: str) -> Compiled:
    """The dump as it is, which runs one sequence at a time."""
    imported = read(age)
    LowerGatedDeltaNet(strict=True).run_on_model(imported.model)
    return ovp.compile_model(imported, "CPU", F32), imported.info


@cache
def static(age: str, phase: str, sequences: int = 2, context: int = CONTEXT, rows: int = 1) -> Compiled:
    imported = read(age)
    options: dict[str, Any] = {"chunk": CHUNK, "rows": rows} if phase == "prefill" else {}
    Pipeline.preset(f"static-{phase}", sequences=sequences, context=context, **options).run(imported)
    return ovp.compile_model(imported, "CPU", F32), imported.info


def pair(age: str, *, sequences: int = 2, context: int = CONTEXT, rows: int = 1, **options: Any) -> ovp.SlotSessions:
    """Sessions over a static pair."""
    prefill, info = static(age, "prefill", sequences, context, rows)
    decode, _ = static(age, "decode", sequences, context)
    return Counted(prefill, info, decode=decode, **options)


class Counted(ovp.SlotSessions):
    """Sessions that count the inferences of their requests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.requests: list[Request] = []
        assert self._batches is not None
        for stage in {id(s): s for s in (self._batches._prefill, self._batches._decode)}.values():
            stage.request = Request(stage.request)
            self.requests.append(stage.request)

    @property
    def inferences(self) -> list[int]:
        """Of the one model, or of prefill and decode."""
        return [request.count for request in self.requests]


class Request:
    """An infer request that counts."""

    def __init__(self, request: Any) -> None:
        self.request, self.count, self.failing = request, 0, False

    def infer(self, feed: Any) -> Any:
        if self.failing:
            raise RuntimeError("no device")
        self.count += 1
        return self.request.infer(feed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)


def recorded_steps(sessions: ovp.SlotSessions, slots: tuple[int, int], decode: bool = False) -> float:
    """Five tokens of both, then one, then one; the worse of the two deviations from llama.cpp's logits."""
    rows: dict[int, list[np.ndarray]] = {slot: [] for slot in slots}
    for begin, end in ((0, 5), (5, 6), (6, 7)):
        if decode and end - begin == 1:
            found = sessions.decode({slot: int(TOKENS[i, begin]) for i, slot in enumerate(slots)})
        else:
            found = sessions.prefill({slot: TOKENS[i, begin:end] for i, slot in enumerate(slots)}, all_logits=True)
        for slot in slots:
            rows[slot].append(found[slot])
    return max(nmse(np.concatenate(rows[slot]), LOGITS[i]) for i, slot in enumerate(slots))


def cache_names(sessions: ovp.SlotSessions) -> list[str]:
    assert sessions._batches is not None
    return sorted(sessions._batches.caches.arrays())


def states(sessions: ovp.SlotSessions, slots: Iterable[int]) -> dict[tuple[str, int], bytes]:
    """What sequences have: recurrent states, and the cells of keys and values that count."""
    found = {}
    for slot in slots:
        one = sessions[slot]
        assert isinstance(one, ovp.runtime.slot_sessions.Slot)
        for name in cache_names(sessions):
            value = one.state(name)
            found[name, slot] = (value if name.startswith(RECURRENT) else value[: one.position]).tobytes()
    return found


def everything(sessions: ovp.SlotSessions, slots: Iterable[int]) -> dict[tuple[str, int], bytes]:
    """All bytes of the caches of sequences."""
    return {(name, slot): sessions[slot].state(name).tobytes() for slot in slots for name in cache_names(sessions)}  # type: ignore[union-attr]
