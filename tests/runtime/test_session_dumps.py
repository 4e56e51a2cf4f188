"""llama.cpp's dumps, rewritten or as they are, give llama.cpp's own CPU logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from models import tiny_graphs as tiny
from ovpasses import BeamReorder, KVHeadSplit, KVStateSeqAxis, MakeKVStateful, Pipeline
from ovpasses._openvino import ops
from ovpasses.importers.input_roles import input_roles
from ovpasses.importers.sliding_mask import separate_sliding_masks
from ovpasses.passes.base import ReportedPass
from ovpasses.runtime.inputs import MAKERS
from tests.conftest import nmse

RECORDED = Path(__file__).parents[2] / "models" / "recorded"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}

STATELESS = [f"{age}/{name}/stateless" for name in ("llama-gqa", "gemma4-mixed") for age in ("before", "after")]
STATEFUL = [
    "before/llama-gqa/stateful",
    "before/llama-gqa/stateful-prerelayout",
    "after/llama-gqa/stateful",
    "after/llama-gqa/stateful-prerelayout",
    "after/gemma4-mixed/stateful",
    "after/gemma4-mixed/stateful-prerelayout",
]


def passes() -> list[ReportedPass]:
    return [KVHeadSplit(), MakeKVStateful(), KVStateSeqAxis(), BeamReorder()]


def model_of(dump: str) -> str:
    return dump.split("/")[1]


def known(dump: str) -> ovp.GraphInfo | None:
    """A dump of a model with sliding layers holds neither window nor which layers slide: the GGUF says it."""
    name = model_of(dump)
    return ovp.read_model(RECORDED / f"gguf/tiny-{name}.gguf").info if name == "gemma4-mixed" else None


def read(dump: str) -> ovp.ImportedModel:
    return ovp.read_model(RECORDED / dump / "model.xml", info=known(dump))


def session(imported: ovp.ImportedModel, **options: int) -> ovp.Session:
    return ovp.Session(ovp.compile_model(imported, "CPU", F32), imported.info, **options)


def check(run: ovp.Session, name: str) -> np.ndarray:
    """76 tokens at once and 4 one by one, past the window of 64, against llama.cpp's logits."""
    reference = np.load(RECORDED / f"logits/{name}.npz")
    tokens, wanted = reference["tokens"], reference["logits"]
    found = np.concatenate(
        [run.prefill(tokens[:76], all_logits=True), *(run.decode(int(token)) for token in tokens[76:])]
    )
    assert found.shape == wanted.shape == (80, 320)
    assert nmse(found[:76], wanted[:76]) <= 1e-5
    assert nmse(found[76:], wanted[76:]) <= 1e-5
    assert (found.argmax(1) == wanted.argmax(1)).mean() >= 0.98
    return found


# Rewritten -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dump", [*STATELESS, *STATEFUL])
def test_rewritten_dumps(dump: str) -> None:
    imported = read(dump)
    Pipeline(passes()).run(imported)
    check(session(imported), model_of(dump))


@pytest.mark.parametrize("dump", STATELESS)
@pytest.mark.parametrize("order", ["split last", "no split"])
def test_orders_of_the_passes(dump: str, order: str) -> None:
    imported = read(dump)
    split, stateful, axis, beam = passes()
    Pipeline([stateful, split, axis, beam] if order == "split last" else [stateful, beam]).run(imported)
    check(session(imported), model_of(dump))


@pytest.mark.parametrize("dump", STATELESS)
def test_the_preset(dump: str) -> None:
    imported = read(dump)
    report = Pipeline.preset("stateful", strict=True).run(imported)
    assert report["KVHeadSplit"].rewritten == report["MakeKVStateful"].rewritten == 2 * len(imported.info.layers)
    check(session(imported), model_of(dump))


def test_the_preset_leaves_the_heads_of_a_gguf_alone() -> None:
    imported = ovp.read_model(RECORDED / "gguf/tiny-gemma4-mixed.gguf")
    report = Pipeline.preset("stateful").run(imported)
    assert report["KVHeadSplit"].rewritten == 0
    assert {skip.step for skip in report["KVHeadSplit"].skipped} == {"already"}


def test_a_saved_rewritten_dump_runs_again(tmp_path: Path) -> None:
    """Windows and the mask of their own must live on in the file."""
    from openvino import save_model

    imported = read("after/gemma4-mixed/stateless")
    Pipeline(passes()).run(imported)
    save_model(imported.model, tmp_path / "model.xml", compress_to_fp16=False)
    again = ovp.read_model(tmp_path / "model.xml", info=imported.info)
    assert again.info.windows == [64]
    assert [p.get_any_name() for p in again.model.inputs].count("attn_inp_kq_mask_swa") == 1
    check(session(again), "gemma4-mixed")


# As they are ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [512, 7])
@pytest.mark.parametrize("dump", STATELESS)
def test_dumps_as_they_are(dump: str, step: int) -> None:
    run = session(read(dump), step=step)
    first = check(run, model_of(dump))
    run.reset()
    assert run.position == 0
    np.testing.assert_array_equal(check(run, model_of(dump)), first)


def test_split_heads_outside_the_model_are_the_same_numbers() -> None:
    plain = check(session(read("before/gemma4-mixed/stateless")), "gemma4-mixed")
    imported = read("before/gemma4-mixed/stateless")
    Pipeline([KVHeadSplit()]).run(imported)
    np.testing.assert_array_equal(check(session(imported), "gemma4-mixed"), plain)


def test_sessions_keep_caches_of_their_own() -> None:
    imported = read("after/llama-gqa/stateless")
    compiled = ovp.compile_model(imported, "CPU", F32)
    one, two = (ovp.Session(compiled, imported.info) for _ in range(2))
    one.prefill([5, 6, 7])
    two.prefill([9, 9, 9, 9])
    alone = ovp.Session(compiled, imported.info)
    alone.prefill([5, 6, 7])
    np.testing.assert_array_equal(one.decode(8), alone.decode(8))


def test_the_cells_of_outside_caches_end() -> None:
    run = session(read("after/llama-gqa/stateless"), cells=8)
    run.prefill(range(7))
    run.decode(1)
    with pytest.raises(ovp.StateError, match="1 tokens at position 8 go past the 8 cells"):
        run.decode(1)
    run.reset()
    run.prefill(range(8))
    with pytest.raises(ovp.StateError, match="wanted at least 1"):
        session(read("after/llama-gqa/stateless"), cells=0)


def test_a_gguf_as_it_is_is_refused() -> None:
    """Its scatter works on the heads axis: no write index makes that right."""
    with pytest.raises(ovp.StateError, match="cache outside the model"):
        session(ovp.read_model(RECORDED / "gguf/tiny-llama-gqa.gguf"))


# Masks and windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dump", [d for d in [*STATELESS, *STATEFUL] if "gemma4" in d])
def test_a_dump_alone_masks_all_layers_alike(dump: str) -> None:
    """Why ``info`` is needed: nothing in the graph tells sliding layers, so logits are right inside the window only."""
    imported = ovp.read_model(RECORDED / dump / "model.xml")
    assert imported.info.windows == []
    assert sum(role.startswith("self_kq_mask") for role in imported.info.roles.values()) == 1
    Pipeline(passes()).run(imported)
    reference = np.load(RECORDED / "logits/gemma4-mixed.npz")
    found = session(imported).prefill(reference["tokens"], all_logits=True)
    assert nmse(found[:64], reference["logits"][:64]) <= 1e-5
    assert nmse(found[64:], reference["logits"][64:]) > 1e-3


def test_sliding_layers_get_a_mask_of_their_own() -> None:
    imported = read("after/gemma4-mixed/stateless")
    assert imported.info.windows == [64]
    full, sliding = (imported.model.input(n) for n in ("attn_inp_kq_mask", "attn_inp_kq_mask_swa"))
    assert full.get_partial_shape() == sliding.get_partial_shape()
    assert full.get_element_type() == sliding.get_element_type()
    assert (len(full.get_target_inputs()), len(sliding.get_target_inputs())) == (1, 5)
    assert separate_sliding_masks(imported.model, imported.info) == []  # once is enough


def test_views_of_a_shared_mask_are_built_once_more() -> None:
    imported = read("after/gemma4-mixed/stateful-prerelayout")
    kinds = [op.get_type_name() for op in imported.model.get_ops() if op.get_friendly_name().endswith("_swa")]
    assert sorted(kinds) == ["Convert", "Parameter", "Slice"]


def test_a_model_without_windows_keeps_its_mask() -> None:
    info = ovp.read_model(RECORDED / "gguf/tiny-llama-gqa.gguf").info
    imported = ovp.read_model(RECORDED / "after/llama-gqa/stateless/model.xml", info=info)
    assert not any(p.get_any_name().endswith("_swa") for p in imported.model.inputs)


def test_a_mask_of_sliding_layers_only_is_renamed() -> None:
    plain = ovp.read_model(RECORDED / "after/llama-gqa/stateless/model.xml").info
    info = replace(plain, layers=tuple(replace(layer, window=16) for layer in plain.layers))
    imported = ovp.read_model(RECORDED / "after/llama-gqa/stateless/model.xml", info=info)
    masks = [p.get_any_name() for p in imported.model.inputs if "mask" in p.get_any_name()]
    assert masks == ["attn_inp_kq_mask_swa"]
    assert imported.info.roles["attn_inp_kq_mask_swa"] == "self_kq_mask_swa"


def test_windows_without_a_sliding_mask_are_refused() -> None:
    imported = ovp.read_model(RECORDED / "after/gemma4-mixed/stateful/model.xml")
    with pytest.raises(ovp.StateError, match=r"window of \[64\] tokens, but self_kq_mask is the only mask"):
        ovp.Session(ovp.compile_model(imported, "CPU"), known("after/gemma4-mixed/stateful"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gemma2-dense", "gemma3-dense"])
def test_sliding_layers_that_the_frontend_masks_in_full_are_repaired(name: str) -> None:
    reference = np.load(RECORDED / f"families/{name}.npz")
    imported = ovp.read_model(RECORDED / f"families/{name}.gguf")
    Pipeline.preset("stateful").run(imported)
    found = session(imported).prefill(reference["tokens"], all_logits=True)
    assert len(found) == 48  # the window is 32
    assert nmse(found, reference["logits"]) <= 1e-6


# Roles of inputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dump", "roles"),
    [
        ("before/llama-gqa/stateless", {"leaf_8": "kv_write_idx", "leaf_10": "kv_write_idx", "leaf_39": "out_ids"}),
        ("before/llama-gqa/stateful", {"leaf_39": "out_ids"}),
        (
            "before/gemma4-mixed/stateless",
            {**dict.fromkeys(("leaf_10", "leaf_12", "leaf_94", "leaf_96"), "kv_write_idx"), "leaf_109": "out_ids"},
        ),
        ("before/qwen35/stateless", {"leaf_59": "kv_write_idx", "leaf_61": "kv_write_idx", "leaf_71": "out_ids"}),
        ("after/llama-gqa/stateless", {"attn_inp_k_idxs": "kv_write_idx", "attn_inp_v_idxs": "kv_write_idx"}),
        ("after/gemma4-mixed/stateful", {}),
    ],
)
def test_roles_come_from_the_graph(dump: str, roles: dict[str, str]) -> None:
    found = input_roles(ovp.read_model(RECORDED / dump / "model.xml").model)
    assert set(found.values()) <= MAKERS.keys()
    # A name that is a role itself tells the same as the graph.
    told = {name: role for name, role in found.items() if name not in MAKERS and not role.startswith("rs_")}
    assert told.pop("attn_inp_kq_mask", "self_kq_mask") == "self_kq_mask"
    assert told == roles
    assert {name: role for name, role in found.items() if name in MAKERS and name != role} == {}


def test_roles_do_not_come_from_names() -> None:
    model = ovp.read_model(RECORDED / "after/llama-gqa/stateless/model.xml").model
    wanted = {}
    for number, parameter in enumerate(model.get_parameters()):
        name = parameter.output(0).get_any_name()
        if not name.startswith("cache_"):
            wanted[f"leaf_{number}"] = {
                "attn_inp_kq_mask": "self_kq_mask",
                "attn_inp_k_idxs": "kv_write_idx",
                "attn_inp_v_idxs": "kv_write_idx",
            }.get(name, name)
            parameter.output(0).get_tensor().set_names({f"leaf_{number}"})
            parameter.set_friendly_name(f"leaf_{number}")
    assert input_roles(model) == wanted
    imported = ovp.read_model(model)
    check(session(imported), "llama-gqa")  # with its caches outside
    Pipeline(passes()).run(imported)
    check(session(imported), "llama-gqa")


def test_two_inputs_that_index_tables_are_told_by_their_names() -> None:
    """Learned positions index a table as tokens do."""
    ids, places = tiny.parameter("input_ids", [1, -1], "i64"), tiny.parameter("position_ids", [1, -1], "i64")
    table = ops.constant(np.ones((8, 4), np.float32))
    rows = [ops.gather(table, p, ops.constant(np.int64(0))) for p in (ids, places)]
    model = Model([tiny.result(ops.add(*rows).output(0), "y")], [ids, places], "learned")
    assert input_roles(model) == {}


def test_a_mask_of_rank_2_is_no_attention_mask_of_ggml() -> None:
    mask = tiny.parameter("mask", [-1, -1], "f32")
    q = tiny.parameter("q", [1, 2, -1, 4], "f32")
    attention = ops.scaled_dot_product_attention(q, q, q, mask)
    model = Model([tiny.result(attention.output(0), "y")], [mask, q], "rank_2")
    assert input_roles(model) == {}


def test_heads_of_a_stateless_dump_are_known() -> None:
    info = ovp.read_model(RECORDED / "before/gemma4-mixed/stateless/model.xml").info
    assert [layer.n_heads_kv for layer in info.layers] == [4, 4, 4, 4, 4, 1]
    assert [layer.key_size for layer in info.layers] == [layer.value_size for layer in info.layers] == [16] * 5 + [32]


def test_info_of_a_caller_gets_the_roles_of_the_graph() -> None:
    info = ovp.GraphInfo(architecture="mine", roles={"leaf_39": "beam_idx"})
    imported = ovp.read_model(RECORDED / "before/llama-gqa/stateful/model.xml", info=info)
    assert imported.info == info
    assert imported.info.roles["leaf_39"] == "out_ids"


def test_a_session_says_which_input_it_cannot_make() -> None:
    odd = tiny.parameter("leaf_3", [1, -1], "i64")
    model = Model([tiny.result(ops.convert(odd, "f32").output(0), "y")], [odd], "odd")
    with pytest.raises(ovp.StateError, match="input leaf_3 i64"):
        session(ovp.read_model(model))
