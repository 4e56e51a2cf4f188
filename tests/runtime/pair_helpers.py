"""Static pairs for the tests of states, and the same sessions over dynamic models."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import openvino

import ovpasses as ovp
from tests.conftest import RECORDED
from tests.runtime.state_helpers import F32, ONE_THREAD, Prepared, prepared
from tests.runtime.test_chunked_prefill import Pair, caches_in_f32

AnySession = ovp.Session | ovp.ChunkedSession


def gguf(name: str) -> Path:
    return RECORDED / f"gguf/tiny-{name}.gguf"


def make_pair(path: Path, *, f32: bool = False, context: int = 160, chunk: int = 16) -> Any:
    """A pair whose caches are f16, as a GGUF declares them, or made f32."""
    made = []
    for preset, options in (("static-prefill", {"chunk": chunk}), ("static-decode", {})):
        imported = ovp.read_model(path)
        if f32:
            caches_in_f32(imported.model)
        ovp.Pipeline.preset(preset, context=context, **options).run(imported)
        made.append(ovp.compile_model(imported, "CPU", F32))
    return (*made, imported.info)


def make_dynamic(path: Path, *, f32: bool = False) -> Prepared:
    return prepared(path, config=F32 if f32 else ONE_THREAD | {"INFERENCE_PRECISION_HINT": "f32"})


@lru_cache
def pair(name: str, f32: bool = False) -> Pair:
    made: Pair = make_pair(gguf(name), f32=f32)
    return made


@lru_cache
def dynamic(name: str, f32: bool = False) -> Prepared:
    """The preset ``stateful``, whose sequence axis is moved."""
    return make_dynamic(gguf(name), f32=f32)


@lru_cache
def dump(name: str) -> Prepared:
    """llama.cpp's graph with its caches outside."""
    imported = ovp.read_model(RECORDED / f"after/{name}/stateless/model.xml", info=ovp.read_model(gguf(name)).info)
    ovp.LowerGatedDeltaNet().run_on_model(imported.model)
    return ovp.compile_model(imported, "CPU", F32), imported.info


@lru_cache
def dumped_pair(name: str) -> Pair:
    """llama.cpp's static dumps, rewritten; of gemma4 the windows are the GGUF's."""
    made: list[Any] = []
    info = ovp.read_model(gguf(name)).info
    for stage, preset, options in (("prefill", "static-prefill", {"chunk": 16}), ("decode", "static-decode", {})):
        imported = ovp.read_model(RECORDED / f"after/{name}/static/model_{stage}.xml", info=info)
        ovp.Pipeline.preset(preset, context=256, **options).run(imported)
        made.append(ovp.compile_model(imported, "CPU", F32))
    return (*made, imported.info)


def opened(kind: str, name: str) -> AnySession:
    """A new session: "pair", "dynamic", "dump" or "dumped pair", with f16 caches, or "f32 pair" and "f32 dynamic"."""
    if "pair" in kind:
        return ovp.ChunkedSession(*(dumped_pair(name) if kind == "dumped pair" else pair(name, kind == "f32 pair")))
    return ovp.Session(*(dump(name) if kind == "dump" else dynamic(name, kind == "f32 dynamic")))


def opened_file(kind: str, path: Path) -> AnySession:
    """A new session of another GGUF: "pair", "f32 pair", "dynamic" or "f32 dynamic"."""
    if "pair" in kind:
        return ovp.ChunkedSession(*make_pair(path, f32=kind == "f32 pair"))
    return ovp.Session(*make_dynamic(path, f32=kind == "f32 dynamic"))


def held(session: AnySession) -> dict[str, bytes]:
    """All that counts of a session's states."""
    return {n: v.tobytes() for n, v in session._keeper.states.read(session.position).items()}


def compiled_elsewhere(path: Path, preset: str, **options: Any) -> openvino.CompiledModel:
    """Without what :func:`ovpasses.compile_model` knows of the weights."""
    imported = ovp.read_model(path)
    ovp.Pipeline.preset(preset, **options).run(imported)
    return openvino.Core().compile_model(imported.model, "CPU", F32)
