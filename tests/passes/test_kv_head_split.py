"""KVHeadSplit: flat and wrongly split KV caches to each layer's own [1,seq,heads,size]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino import Model, PartialShape, Shape

import ovpasses as ovp
from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses import KVHeadSplit, MakeKVStateful, Pipeline, RewriteError, read_model
from ovpasses._openvino import Constant, Node, ops
from ovpasses.equivalence import structure_digest
from ovpasses.passes._edit import consumers, set_variable_shape
from ovpasses.passes._states import find_append, states
from tests.conftest import nmse
from tests.passes.helpers import (
    CORE,
    assert_same,
    assert_same_numbers,
    check_pass,
    check_unchanged,
    nodes,
    only_skip,
    run,
)

RECORDED = Path(__file__).parents[2] / "models" / "recorded"
SWAP = [0, 2, 1, 3]


def reshape(value: Any, target: list[int]) -> Node:
    return ops.reshape(value, tiny.int_constant(target), special_zero=False)


def flat(heads: int = 2, size: int = 4, *, read_heads: int = 0, reader: bool = True, name: str = "cache_k_l0") -> Model:
    """Rows ``x [1,t,h,d]`` flattened and scattered into ``[1,1,cells,h*d]``, read back as ``[1,h,cells,d]``."""
    x, idx = tiny.parameter("x", [1, -1, heads, size], "f32"), tiny.parameter("idx", [-1], "i64")
    cache, end = tiny.parameter(name, [1, 1, -1, heads * size], "f32"), tiny.parameter("end", [1], "i64")
    rows = reshape(ops.relu(x), [1, 1, -1, heads * size]) if reader else reshape(x, [1, 1, -1, heads * size])
    grown = ops.scatter_update(cache, idx, rows, tiny.int_constant(2))
    n = read_heads or heads
    split = reshape(grown, [1, -1, n, heads * size // n])
    cut = ops.slice(split, tiny.int_constant([0]), end, tiny.int_constant([1]), tiny.int_constant([1]))
    seen = ops.transpose(cut, tiny.int_constant(SWAP))
    return Model([tiny.result(seen.output(0), "y"), tiny.result(grown.output(0), "out")], [x, idx, cache, end], "flat")


def flat_after(heads: int = 2, size: int = 4) -> Model:
    x, idx = tiny.parameter("x", [1, -1, heads, size], "f32"), tiny.parameter("idx", [-1], "i64")
    cache, end = tiny.parameter("cache_k_l0", [1, -1, heads, size], "f32"), tiny.parameter("end", [1], "i64")
    rows = reshape(ops.relu(x), [1, -1, heads, size])
    grown = ops.scatter_update(cache, idx, rows, tiny.int_constant(1))
    cut = ops.slice(grown, tiny.int_constant([0]), end, tiny.int_constant([1]), tiny.int_constant([1]))
    seen = ops.transpose(cut, tiny.int_constant(SWAP))
    return Model([tiny.result(seen.output(0), "y"), tiny.result(grown.output(0), "out")], [x, idx, cache, end], "after")


def state(
    declared: list[int] | None = None,
    *,
    readers: tuple[str, ...] = ("reshape",),
    dtype: str = "f32",
    name: str = "cache_k_l0",
) -> Model:
    """Rows of 4 heads x 2 appended to a state that is declared ``[1,seq,1,8]``; readers ``y0, y1, ..``."""
    declared = declared or [1, -1, 1, 8]
    x = tiny.parameter("x", [1, -1, 4, 2], dtype)
    read, variable = tiny.state(name, declared, dtype)
    rows = reshape(reshape(ops.relu(x), [1, 1, -1, 8]), declared)
    grown = ops.concat([read, rows], axis=declared.index(-1))
    read_as: dict[str, Any] = {
        "reshape": lambda: ops.transpose(reshape(grown, [1, -1, 4, 2]), tiny.int_constant(SWAP)),
        "misread": lambda: reshape(ops.transpose(grown, tiny.int_constant(SWAP)), [1, 4, -1, 2]),
        "relu": lambda: ops.relu(grown),
        "past": lambda: ops.relu(read),
        "shape": lambda: ops.shape_of(grown),
    }
    results = [tiny.result(read_as[r]().output(0), f"y{i}") for i, r in enumerate(readers)]
    return Model(results, [tiny.written(grown.output(0), variable)], [x], "state")


def state_after(dtype: str = "f32") -> Model:
    x = tiny.parameter("x", [1, -1, 4, 2], dtype)
    read, variable = tiny.state("cache_k_l0", [1, -1, 4, 2], dtype)
    rows = reshape(reshape(ops.relu(x), [1, 1, -1, 8]), [1, -1, 4, 2])
    grown = ops.concat([read, rows], axis=1)  # only the last Reshape of the rows is replaced
    seen = ops.transpose(grown, tiny.int_constant(SWAP))
    return Model([tiny.result(seen.output(0), "y0")], [tiny.written(grown.output(0), variable)], [x], "after")


def shapes(model: Model) -> list[str]:
    return [str(v.info.data_shape) for v in model.get_variables()]


# Rewrites ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_flat_cache(heads: int) -> None:
    model, _ = check_pass(KVHeadSplit, lambda: flat(heads), flat_after(heads), rewritten=1, numbers=False)
    assert model.input("cache_k_l0").get_partial_shape() == PartialShape([1, -1, heads, 4])
    assert model.output("out").get_partial_shape() == PartialShape([1, -1, heads, 4])
    random = np.random.default_rng(3)
    cache, x = random.standard_normal((1, 1, 8, heads * 4), "f4"), random.standard_normal((1, 2, heads, 4), "f4")
    feed = {"x": x, "idx": np.array([5, 2]), "end": np.array([6])}
    before = CORE.compile_model(flat(heads), "CPU")({**feed, "cache_k_l0": cache})
    after = CORE.compile_model(model, "CPU")({**feed, "cache_k_l0": cache.reshape(1, 8, heads, 4)})
    np.testing.assert_array_equal(after["y"], before["y"])
    np.testing.assert_array_equal(after["out"].reshape(cache.shape), before["out"])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_wrongly_split_state(dtype: str) -> None:
    model, _ = check_pass(KVHeadSplit, lambda: state(dtype=dtype), state_after(dtype), rewritten=1, numbers=False)
    assert shapes(model) == ["[1,?,4,2]"]
    if dtype != "bf16":  # NumPy has no bf16
        assert_same_numbers(run(model), run(state(dtype=dtype)), states=False)


def test_flat_state() -> None:
    model, _ = check_pass(KVHeadSplit, lambda: state([1, 1, -1, 8]), state_after(), rewritten=1, numbers=False)
    assert_same_numbers(run(model), run(state([1, 1, -1, 8])), states=False)


def test_a_wrong_split_that_is_misread_becomes_right() -> None:
    model, _ = check_pass(KVHeadSplit, lambda: state(readers=("misread",)), state_after(), rewritten=1, numbers=False)
    right = run(state(readers=("reshape",)))
    assert_same_numbers(run(model), right, states=False)
    with pytest.raises(AssertionError):  # the graph before was wrong, so the comparison above says something
        assert_same_numbers(run(state(readers=("misread",))), right, states=False)


def test_an_initial_value_is_split_too() -> None:
    def build() -> Model:
        model = state()
        (read,) = nodes(model, "ReadValue")
        values = np.arange(24, dtype=np.float32)
        read.set_arguments([Constant(read.get_output_element_type(0), Shape([1, 3, 1, 8]), values).output(0)])
        model.validate_nodes_and_infer_types()
        return model

    model, _ = check_pass(KVHeadSplit, build, rewritten=1, numbers=False)
    assert_same_numbers(run(model), run(build()), states=False)


@pytest.mark.parametrize(
    "readers", [("relu",), ("reshape", "relu"), ("past", "reshape"), ("shape", "relu"), ("relu", "relu")]
)
def test_other_readers_see_what_they_saw(readers: tuple[str, ...]) -> None:
    model = state(readers=readers)
    KVHeadSplit({0: (4, 2, 2)}).run_on_model(model)
    assert shapes(model) == ["[1,?,4,2]"]
    assert [p.get_partial_shape() for p in model.outputs] == [
        p.get_partial_shape() for p in state(readers=readers).outputs
    ]
    assert_same_numbers(run(model), run(state(readers=readers)), states=False)


def test_a_second_result_keeps_the_flat_shape() -> None:
    model = flat()
    (grown,) = nodes(model, "ScatterUpdate")
    model.add_results([tiny.result(grown.output(0), "cache_again")])
    KVHeadSplit().run_on_model(model)
    found = sorted(str(r.get_output_partial_shape(0)) for r in model.get_results())
    assert found == ["[1,1,?,8]", "[1,2,?,4]", "[1,?,2,4]"]


def test_names_and_variable_ids_stay() -> None:
    model = state(name="cache_v_l7#41")
    KVHeadSplit().run_on_model(model)
    (read,) = nodes(model, "ReadValue")
    assert read.output(0).get_names() == {"cache_v_l7#41"}
    assert [v.info.variable_id for v in model.get_variables()] == [
        v.info.variable_id for v in state(name="cache_v_l7#41").get_variables()
    ]


# Head counts ---------------------------------------------------------------------------------------------------------


def test_the_table_wins_and_is_by_layer_and_kind() -> None:
    table = {3: (2, 4, 8), 4: (8, 1, 1)}
    model = state(name="cache_k_l3")
    KVHeadSplit(table).run_on_model(model)
    assert shapes(model) == ["[1,?,2,4]"]
    other = state(name="cache_v_l4")
    KVHeadSplit(table).run_on_model(other)
    assert shapes(other) == ["[1,?,8,1]"]


def test_a_graph_info_is_a_table() -> None:
    layer = ovp.LayerInfo(0, "attention", n_heads_kv=2, key_size=4, value_size=4)
    model = state()
    KVHeadSplit(ovp.GraphInfo(layers=(layer,))).run_on_model(model)
    assert shapes(model) == ["[1,?,2,4]"]
    unknown = state()
    KVHeadSplit(ovp.GraphInfo(layers=(ovp.LayerInfo(0, "attention"),))).run_on_model(unknown)
    assert shapes(unknown) == ["[1,?,4,2]"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("table", "words"), [({0: (3, 2, 2)}, "3 x 2 = 6"), ({0: (4, 4, 2)}, "4 x 4 = 16")])
def test_a_table_that_does_not_fit_is_an_error(table: Any, words: str, strict: bool) -> None:
    model = state()
    digest = structure_digest(model)
    with pytest.raises(RewriteError) as caught:
        KVHeadSplit(table, strict=strict).run_on_model(model)
    assert "layer 0" in str(caught.value)
    assert "8 elements" in str(caught.value)
    assert words in str(caught.value)
    assert structure_digest(model) == digest


def test_the_table_is_shown() -> None:
    assert repr(KVHeadSplit({0: (4, 2, 2)}, strict=True)) == "KVHeadSplit({0: (4, 2, 2)}, strict=True)"
    assert repr(KVHeadSplit()) == "KVHeadSplit()"


# Skips ---------------------------------------------------------------------------------------------------------------


def no_growth() -> Model:
    cache = tiny.parameter("cache_k_l0", [1, 1, -1, 8], "f32")
    return Model([tiny.result(ops.relu(cache).output(0), "y")], [cache], "no_growth")


def undivided() -> Model:
    """Ten elements per token, which the reader wants as 3 x 3."""
    x, idx = tiny.parameter("x", [1, 1, -1, 10], "f32"), tiny.parameter("idx", [-1], "i64")
    cache = tiny.parameter("cache_k_l5", [1, 1, -1, 10], "f32")
    grown = ops.scatter_update(cache, idx, x, tiny.int_constant(2))
    y = reshape(grown, [1, -1, 3, 3])
    return Model([tiny.result(y.output(0), "y"), tiny.result(grown.output(0), "out")], [x, idx, cache], "undivided")


def unreadable() -> Model:
    x, idx = tiny.parameter("x", [1, 1, -1, 8], "f32"), tiny.parameter("idx", [-1], "i64")
    cache = tiny.parameter("cache_k_l0", [1, 1, -1, 8], "f32")
    grown = ops.scatter_update(cache, idx, x, tiny.int_constant(2))
    y = reshape(grown, [-1, 8])
    return Model([tiny.result(y.output(0), "y"), tiny.result(grown.output(0), "out")], [x, idx, cache], "unreadable")


@pytest.mark.parametrize(
    ("build", "table", "step", "words"),
    [
        (no_growth, None, "update", ["nothing grows it"]),
        (unreadable, None, "heads", ["8 elements per token", "give heads="]),
        (undivided, None, "divide", ["layer 5", "10 elements", "3 x 3 = 9"]),
        (lambda: state([1, 4, -1, 2]), {0: (1, 8, 8)}, "layout", ["[1,4,?,2]", "behind 4 heads"]),
        (lambda: state([1, -1, 4, 2]), None, "already", ["4 x 2 already", "[1,?,4,2]"]),
        (lambda: state([1, 4, -1, 2]), None, "already", ["4 x 2 already", "[1,4,?,2]"]),
        (lambda: state([1, -1, 8], readers=("relu",)), None, "cache", ["[1,?,8]", "wanted rank 4"]),
    ],
)
def test_skips(build: Any, table: Any, step: str, words: list[str]) -> None:
    found, reason = only_skip(check_unchanged(lambda: KVHeadSplit(table), build))
    assert found == step
    for word in words:
        assert word in reason


def test_the_gguf_frontends_layout_is_right_already() -> None:
    report = check_unchanged(KVHeadSplit, lambda: tiny.scattered(Decoder(layers=2, heads=(2, 1))))
    assert [s.step for s in report.skipped] == ["already"] * 4


def test_strict_raises_before_any_edit() -> None:
    model = undivided()
    digest = structure_digest(model)
    with pytest.raises(RewriteError, match="layer 5: 10 elements"):
        KVHeadSplit(strict=True).run_on_model(model)
    assert structure_digest(model) == digest


# Recorded graphs -----------------------------------------------------------------------------------------------------

# Layers x (K and V): written down from the models' README. States and caches of the other dumps are right already.
FLAT = {
    ("before", "llama-gqa"): (6, ["[1,?,3,16]"] * 3),
    ("after", "llama-gqa"): (6, ["[1,?,3,16]"] * 3),
    ("before", "gemma4-mixed"): (12, [*["[1,?,4,16]"] * 5, "[1,?,1,32]"]),
    ("after", "gemma4-mixed"): (12, [*["[1,?,4,16]"] * 5, "[1,?,1,32]"]),
}


@pytest.mark.parametrize(("age", "name"), FLAT)
def test_recorded_stateless_dumps(age: str, name: str) -> None:
    count, keys = FLAT[age, name]
    build = lambda: read_model(RECORDED / age / name / "stateless/model.xml").model  # noqa: E731
    model, _ = check_pass(KVHeadSplit, build, rewritten=count, numbers=False)
    found = {p.get_any_name().split("#")[0]: str(p.get_partial_shape()) for p in model.inputs}
    assert [found[f"cache_k_l{layer}"] for layer in range(len(keys))] == keys
    assert [found[f"cache_v_l{layer}"] for layer in range(len(keys))] == keys


@pytest.mark.parametrize("chunk", ["model_prefill", "model_decode"])
@pytest.mark.parametrize(("age", "name"), FLAT)
def test_recorded_static_dumps(age: str, name: str, chunk: str) -> None:
    model = read_model(RECORDED / age / name / f"static/{chunk}.xml").model
    KVHeadSplit(strict=True).run_on_model(model)
    found = {p.get_any_name().split("#")[0]: str(p.get_partial_shape()) for p in model.inputs}
    keys = [s.replace("?", "256") for s in FLAT[age, name][1]]
    assert [found[f"cache_k_l{layer}"] for layer in range(len(keys))] == keys


@pytest.mark.parametrize(
    ("dump", "states_there"),
    [
        ("before/llama-gqa/stateful", 6),
        ("before/llama-gqa/stateful-prerelayout", 6),
        ("after/llama-gqa/stateful", 6),
        ("after/llama-gqa/stateful-prerelayout", 6),
        ("after/gemma4-mixed/stateful", 12),
        ("after/gemma4-mixed/stateful-prerelayout", 12),
    ],
)
def test_recorded_stateful_dumps_are_right_already(dump: str, states_there: int) -> None:
    report = check_unchanged(KVHeadSplit, lambda: read_model(RECORDED / dump / "model.xml").model)
    assert [s.step for s in report.skipped] == ["already"] * states_there


@pytest.mark.parametrize("split_first", [True, False])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma4-mixed"])
def test_stateless_dumps_get_the_states_of_stateful_ones(name: str, split_first: bool) -> None:
    model = read_model(RECORDED / "after" / name / "stateless/model.xml").model
    passes: list[Any] = [KVHeadSplit(), MakeKVStateful()]
    Pipeline(passes if split_first else passes[::-1]).run(model)
    wanted = read_model(RECORDED / "after" / name / "stateful-prerelayout/model.xml").model
    mine, theirs = ({s.variable.info.variable_id: s for s in states(m)} for m in (model, wanted))
    assert mine.keys() == theirs.keys()
    for key, state_there in theirs.items():
        info, info_there = mine[key].variable.info, state_there.variable.info
        one_head = info_there.data_shape[2] == 1
        if split_first or not one_head:  # a flat state of one head is one of [1, heads, seq, size], which is right too
            assert info.data_shape == info_there.data_shape, key
            append = find_append(mine[key])
            assert not isinstance(append, str)
            assert append.axis == 1
            readers = {i.get_node().get_type_name() for i in consumers(append.concat.output(0))}
            assert readers == {"Assign", "Transpose"}
        assert info.data_type == info_there.data_type
    left = {p.get_any_name() for p in model.inputs}
    assert left == {"inp_tokens", "inp_pos", "out_ids", "attn_inp_kq_mask"}
    assert not nodes(model, "ScatterUpdate")


def test_make_kv_stateful_alone_makes_flat_states() -> None:
    model = read_model(RECORDED / "after/llama-gqa/stateless/model.xml").model
    MakeKVStateful().run_on_model(model)
    assert shapes(model) == ["[1,1,?,48]"] * 6
    assert {p.get_any_name() for p in model.inputs} == {"inp_tokens", "inp_pos", "out_ids", "attn_inp_kq_mask"}


def one_count_for_all(model: Model, *, misread: bool) -> None:
    """What an exporter makes that takes the last layer's one head for every layer: states ``[1,seq,1,heads*size]``."""
    for one in list(states(model)):
        heads, size = (one.variable.info.data_shape[d].get_length() for d in (2, 3))
        append = find_append(one)
        assert not isinstance(append, str)
        if heads == 1:
            continue
        grown = append.concat.output(0)
        transposes = [i.get_node() for i in consumers(grown) if i.get_node() is not one.assign]
        set_variable_shape(one.variable, PartialShape([1, -1, 1, heads * size]))
        one.read.validate_and_infer_types()
        append.concat.input(1).replace_source_output(reshape(append.rows, [1, -1, 1, heads * size]).output(0))
        append.concat.validate_and_infer_types()
        for transpose in transposes:
            assert transpose.get_type_name() == "Transpose"
            if misread:
                wrong = reshape(ops.transpose(grown, tiny.int_constant(SWAP)), [1, heads, -1, size])
                for reader in consumers(transpose.output(0)):
                    reader.replace_source_output(wrong.output(0))
            else:
                transpose.input(0).replace_source_output(reshape(grown, [1, -1, heads, size]).output(0))
    model.validate_nodes_and_infer_types()


@pytest.mark.parametrize("misread", [True, False])
def test_one_count_for_all_layers_is_repaired(misread: bool) -> None:
    """4 x 16 read as 1 x 64: garbage where the readers believe it, llama.cpp's logits after the pass."""
    reference = np.load(RECORDED / "logits/gemma4-mixed.npz")
    tokens, wanted = reference["tokens"], reference["logits"]
    known = read_model(RECORDED / "gguf/tiny-gemma4-mixed.gguf").info

    def logits(repair: bool) -> np.ndarray:
        dump = read_model(RECORDED / "after/gemma4-mixed/stateful-prerelayout/model.xml", info=known)
        one_count_for_all(dump.model, misread=misread)
        assert shapes(dump.model).count("[1,?,1,64]") == 10
        passes: list[Any] = [ovp.BeamReorder()]
        if repair:
            passes.insert(0, KVHeadSplit(strict=True))
        report = Pipeline(passes).run(dump)
        if repair:
            assert report["KVHeadSplit"].rewritten == 10
            assert sorted(set(shapes(dump.model))) == ["[1,?,1,32]", "[1,?,4,16]"]
        session = ovp.Session(ovp.compile_model(dump, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), dump.info)
        rows = [session.prefill(tokens[:76], all_logits=True), *(session.decode(int(t)) for t in tokens[76:])]
        return np.concatenate(rows)

    broken, repaired = nmse(logits(False), wanted), nmse(logits(True), wanted)
    assert repaired <= 1e-5
    assert (broken > 0.1) == misread


def test_repair_gives_the_graph_before_the_damage() -> None:
    dump = RECORDED / "after/gemma4-mixed/stateful-prerelayout/model.xml"
    model = read_model(dump).model
    one_count_for_all(model, misread=False)
    KVHeadSplit().run_on_model(model)
    wanted = read_model(dump).model
    for one in states(wanted):
        append = find_append(one)
        assert not isinstance(append, str)
        if one.variable.info.data_shape[2] != 1:  # the repair leaves a Reshape of rows to the shape they have
            append.concat.input(1).replace_source_output(reshape(append.rows, [1, -1, 4, 16]).output(0))
    wanted.validate_nodes_and_infer_types()
    assert_same(model, wanted)


def test_pairs_of_a_rotation_are_no_heads() -> None:
    """One head of 8, whose interleaved rotation ends in [.., 4, 2]."""
    x = tiny.parameter("x", [1, -1, 1, 4, 2], "f32")
    read, variable = tiny.state("cache_k_l0", [1, -1, 1, 8], "f32")
    grown = ops.concat([read, reshape(ops.relu(x), [1, -1, 1, 8])], axis=1)
    seen = ops.transpose(grown, tiny.int_constant(SWAP))
    model = Model([tiny.result(seen.output(0), "y")], [tiny.written(grown.output(0), variable)], [x], "rotated")
    one = KVHeadSplit()
    one.run_on_model(model)
    assert only_skip(one.report)[0] == "already"


def test_scrambled_names_and_a_second_result() -> None:
    """Tensor names of the caches rule; another Result on a grown cache still yields all of it."""
    model = read_model(RECORDED / "after/llama-gqa/stateless/model.xml").model
    (update,) = [op for op in nodes(model, "ScatterUpdate") if "cache_k_l0" in op.get_friendly_name()]
    model.add_results([tiny.result(update.output(0), "all_of_k0")])
    for number, op in enumerate(model.get_ops()):
        op.set_friendly_name(f"n{number}")
    Pipeline([KVHeadSplit(strict=True), MakeKVStateful(strict=True)]).run(model)
    assert shapes(model) == ["[1,?,3,16]"] * 6
    assert sorted(v.info.variable_id[:10] for v in model.get_variables()) == [
        f"cache_{kind}_l{layer}" for kind in "kv" for layer in range(3)
    ]
    assert model.output("all_of_k0").get_partial_shape() == PartialShape([1, 1, -1, 48])
    assert {p.get_any_name() for p in model.inputs} == {"inp_tokens", "inp_pos", "out_ids", "attn_inp_kq_mask"}


@pytest.mark.parametrize("readers", [("relu",), ("past",)])
def test_a_state_that_nothing_contradicts_is_left(readers: tuple[str, ...]) -> None:
    def build() -> Model:
        x = tiny.parameter("x", [1, -1, 1, 8], "f32")
        read, variable = tiny.state("cache_k_l0", [1, -1, 1, 8], "f32")
        grown = ops.concat([read, x], axis=1)
        y = tiny.result(ops.relu(grown if readers == ("relu",) else read).output(0), "y")
        return Model([y], [tiny.written(grown.output(0), variable)], [x], "plain")

    step, _ = only_skip(check_unchanged(lambda: KVHeadSplit(strict=True), build))
    assert step == "already"
