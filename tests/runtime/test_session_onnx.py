"""ONNX decoders with their caches outside: made stateful, run by sessions, equal to the exported graph step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest

import ovpasses as ovp
from models import tiny_onnx
from ovpasses.cli import main

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
TOKENS = np.random.default_rng(3).integers(0, 17, 12)
STEPS = (5, 1, 1, 1, 1, 1, 1, 1)
PAIRS = {f"memory_{n}_{kind}": f"grown_{n}_{kind}" for n in (0, 1) for kind in ("key", "value")}


def written(folder: Path, layout: str, *, custom_names: bool = False) -> Path:
    model = tiny_onnx.decoder(layout)
    if custom_names:
        names = {f"past_key_values.{n}.{kind}": f"memory_{n}_{kind}" for n in (0, 1) for kind in ("key", "value")}
        names |= {f"present.{n}.{kind}": f"grown_{n}_{kind}" for n in (0, 1) for kind in ("key", "value")}
        _rename(model.graph, names)
        onnx.checker.check_model(model)
    onnx.save(model, folder / "decoder.onnx")
    return folder / "decoder.onnx"


def _rename(graph: Any, names: dict[str, str]) -> None:
    for value in [*graph.input, *graph.output]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]


def stateless_logits(path: Path) -> list[np.ndarray]:
    """The exported graph run by plain OpenVINO, its caches handed over by hand."""
    model = openvino.Core().read_model(path)
    request = openvino.Core().compile_model(model, "CPU", F32).create_infer_request()
    pasts = [p for p in model.inputs if p.get_partial_shape().rank.get_length() == 4]
    names = [p.get_any_name() for p in pasts]
    caches = {}
    for name, past in zip(names, pasts, strict=True):
        dims = [0 if d.is_dynamic else d.get_length() for d in past.get_partial_shape()]
        caches[name] = np.zeros([1, *dims[1:]], np.float32)
    logits, start = [], 0
    for count in STEPS:
        ids, mask = TOKENS[None, start : start + count], np.ones((1, start + count), np.int64)
        feed = {"input_ids": ids, "attention_mask": mask}
        found = request.infer({**feed, **caches})
        by_name = {name: np.array(v) for port, v in found.items() for name in port.get_names()}
        for name in names:
            out = name.replace("past_key_values", "present").replace("memory", "grown")
            caches[name] = by_name[out]
        logits.append(by_name["logits"][0])
        start += count
    return logits


def prepared(path: Path, **options: Any) -> tuple[openvino.CompiledModel, ovp.GraphInfo, ovp.ImportedModel]:
    imported = ovp.read_model(path)
    ovp.Pipeline.preset("stateful", **options).run(imported)
    return ovp.compile_model(imported, "CPU", F32), imported.info, imported


def stepwise(session: ovp.Session) -> list[np.ndarray]:
    ends = np.cumsum(STEPS)
    return [session.prefill(TOKENS[e - n : e], all_logits=True) for e, n in zip(ends, STEPS, strict=True)]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("custom_names", [False, True])
def test_steps_equal_the_exported_graph(tmp_path: Path, layout: str, custom_names: bool) -> None:
    path = written(tmp_path, layout, custom_names=custom_names)
    compiled, info, imported = prepared(path, pairs=PAIRS if custom_names else None)
    assert [port.get_any_name() for port in imported.model.outputs] == ["logits"]
    assert len(imported.model.get_variables()) == 4
    assert {str(v.info.data_shape) for v in imported.model.get_variables()} == {"[1,2,?,4]"}
    for found, wanted in zip(stepwise(ovp.Session(compiled, info)), stateless_logits(path), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_caches_of_any_name_are_paired_by_structure(tmp_path: Path) -> None:
    """Structure pairs them without a name: a Concat onto an input that feeds an output is a cache."""
    imported = ovp.read_model(written(tmp_path, "bhsd", custom_names=True))
    report = ovp.Pipeline.preset("stateful").run(imported)
    assert report["MakeKVStateful"].rewritten == 4


def test_a_pair_whose_output_is_not_there_is_named(tmp_path: Path) -> None:
    imported = ovp.read_model(written(tmp_path, "bhsd"))
    report = ovp.Pipeline([ovp.MakeKVStateful({"input_ids": "nothing"})]).run(imported)
    (skip,) = report["MakeKVStateful"].skipped
    assert (skip.node, skip.step, skip.reason) == ("input_ids", "pair", "the model has no output called nothing")


def test_sessions_and_resets_are_independent(tmp_path: Path) -> None:
    compiled, info, _ = prepared(written(tmp_path, "bhsd"))
    alone = stepwise(ovp.Session(compiled, info))
    one, other = ovp.Session(compiled, info), ovp.Session(compiled, info)
    other.prefill(TOKENS[::-1])
    first = one.prefill(TOKENS[:5], all_logits=True)
    other.reset()
    again = stepwise(other)
    np.testing.assert_array_equal(first, alone[0])
    for found, wanted in zip(again, alone, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_command_line_takes_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "bshd", custom_names=True)
    options = [part for into, out in PAIRS.items() for part in ("--pair", f"{into}={out}")]
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(path), "-o", str(tmp_path / "o.xml"), "--json", *options])
    assert ended.value.code == 0
    passes = {p["name"]: p for p in json.loads(capsys.readouterr().out)["report"]["passes"]}
    assert passes["MakeKVStateful"]["rewritten"] == passes["KVStateSeqAxis"]["rewritten"] == 4


def test_layer_numbers_are_those_of_the_names(tmp_path: Path) -> None:
    model = tiny_onnx.decoder("bhsd", layers=1)
    names = {f"past_key_values.0.{k}": f"past_key_values.3.{k}" for k in ("key", "value")}
    _rename(model.graph, names | {f"present.0.{k}": f"present.3.{k}" for k in ("key", "value")})
    onnx.save(model, tmp_path / "m.onnx")
    assert [(la.index, la.kind, la.n_heads_kv) for la in ovp.read_model(tmp_path / "m.onnx").info.layers] == [
        (3, "attention", 2)
    ]
