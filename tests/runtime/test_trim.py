"""Session.trim: what is left is a new session fed with the surviving tokens; else a refusal, without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovpasses as ovp
from ovpasses._openvino import Variable, VariableInfo, assign, ops, read_value
from tests.runtime.state_helpers import F32, LAYOUTS, OTHER, TOKENS, Prepared, content, prepared, shapes


@pytest.fixture(scope="module", params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    return LAYOUTS[request.param]


@pytest.fixture(scope="module")
def llama(layout: tuple[Any, ...], recorded: Path) -> Prepared:
    return prepared(recorded / "gguf/tiny-llama-gqa.gguf", layout)


@pytest.fixture(scope="module")
def gemma(layout: tuple[Any, ...], recorded: Path) -> Prepared:
    return prepared(recorded / "gguf/tiny-gemma4-mixed.gguf", layout)


@pytest.fixture(scope="module")
def hybrid(recorded: Path) -> Prepared:
    return prepared(recorded / "gguf/tiny-qwen35.gguf")


def assert_trims_to(model: Prepared, run: int, left: list[int]) -> None:
    session = ovp.Session(*model)
    session.prefill(TOKENS[:run])
    start = session.checkpoint()
    for n in left:
        session.restore(start)
        assert session.trim(n) == session.position == n
        fresh = ovp.Session(*model)
        if n:
            fresh.prefill(TOKENS[:n])
        assert shapes(session) == shapes(fresh)
        found, wanted = (s.prefill(OTHER[:6], all_logits=True) for s in (session, fresh))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_every_position_of_a_run(llama: Prepared) -> None:
    assert_trims_to(llama, 24, list(range(25)))


def test_every_position_of_a_run_with_sliding_windows(gemma: Prepared) -> None:
    assert_trims_to(gemma, 24, list(range(25)))


def test_positions_past_the_window(gemma: Prepared) -> None:
    assert gemma[1].windows == [64]
    assert_trims_to(gemma, 150, [1, 63, 64, 65, 127, 128, 149])


def rounds(model: Prepared, count: int) -> None:
    """Decode 4, trim 3: one token of each round stays."""
    session = ovp.Session(*model)
    kept = [int(t) for t in TOKENS[:30]]
    session.prefill(kept)
    for i in range(count):
        for token in [int(t) for t in np.roll(TOKENS, i)[:4]]:
            session.decode(token)
        kept.append(int(np.roll(TOKENS, i)[0]))
        assert session.trim(len(kept)) == len(kept)
        assert all(len(kept) in shape for shape in shapes(session).values())
    fresh = ovp.Session(*model)
    fresh.prefill(kept)
    assert shapes(session) == shapes(fresh)
    found, wanted = (s.prefill(OTHER, all_logits=True) for s in (session, fresh))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_thirty_rounds_of_decode_and_trim(llama: Prepared) -> None:
    rounds(llama, 30)


@pytest.mark.slow
def test_two_hundred_rounds_of_decode_and_trim(llama: Prepared) -> None:
    rounds(llama, 200)


@pytest.mark.slow
def test_two_hundred_rounds_with_sliding_windows(gemma: Prepared) -> None:
    rounds(gemma, 200)


@pytest.mark.parametrize("n", [11, -1, 1.5, "3", None, True, np.float32(3)])
def test_what_is_no_position_is_refused(recorded: Path, n: Any) -> None:
    model = prepared(recorded / "gguf/tiny-llama-gqa.gguf")
    session, control = ovp.Session(*model), ovp.Session(*model)
    for one in (session, control):
        one.prefill(TOKENS[:10])
    with pytest.raises(ovp.StateError, match=r"cannot trim to .*: state cache_k_l0 holds 10 tokens, position is 10"):
        session.trim(n)
    assert session.position == 10
    assert content(session) == content(control)
    assert np.array_equal(session.decode(3), control.decode(3))


def test_where_heads_sizes_and_position_are_one_number(recorded: Path) -> None:
    """A head count of 3 and 16 elements a head are no sequence of 3 or 16 tokens."""
    for passes in LAYOUTS.values():
        model = prepared(recorded / "gguf/tiny-llama-gqa.gguf", passes)
        for run in (3, 16):
            assert_trims_to(model, run, [1, 2])


def test_a_recurrent_state_cannot_go_back(hybrid: Prepared) -> None:
    session, control = ovp.Session(*hybrid), ovp.Session(*hybrid)
    first = ovp.Session(*hybrid).prefill(TOKENS[:10])
    for one in (session, control):
        one.prefill(TOKENS[:10])
        for token in TOKENS[10:14]:
            one.decode(int(token))
    message = r"cannot trim to 10: (conv|ssm)_state_l\d+ is a recurrent state \((conv|delta-net)\) at position 14"
    with pytest.raises(ovp.StateError, match=message):
        session.trim(10)
    assert session.trim(14) == session.position == 14
    assert content(session) == content(control)
    assert np.array_equal(session.decode(3), control.decode(3))
    assert session.trim(0) == session.position == 0
    assert np.array_equal(session.prefill(TOKENS[:10]), first)


@pytest.mark.parametrize("held", ["u8", "f32"])
def test_states_that_cannot_be_read_exactly_are_refused(recorded: Path, held: str) -> None:
    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    ovp.Pipeline.preset("stateful").run(imported)
    compiled = openvino.Core().compile_model(imported.model, "CPU", {"KV_CACHE_PRECISION": held})
    session = ovp.Session(compiled, imported.info)
    session.prefill(TOKENS[:5])
    for refused in (lambda: session.trim(3), session.checkpoint):
        with pytest.raises(ovp.StateError, match=f"state cache_._l. is held in {held} and read as f16, which is not"):
            refused()
    assert session.position == session.trim(5) == 5


def _appending(axes: dict[str, int]) -> openvino.Model:
    """States of 2 elements a token, each with its sequence on its own axis; logits are the sums of all they hold."""
    tokens = ops.parameter([1, -1], np.int64, "inp_tokens")
    tokens.output(0).set_names({"inp_tokens"})
    table = np.random.default_rng(0).standard_normal((8, 2)).astype(np.float32)
    rows = ops.gather(table, ops.squeeze(tokens, np.int64(0)), np.int64(0))
    sums, sinks = [], []
    for name, axis in axes.items():
        order = [1, 2]
        order.insert(axis, 0)
        laid = ops.transpose(ops.unsqueeze(rows, np.int64(1)), np.argsort(np.argsort(order)).astype(np.int64))
        info = VariableInfo()
        shape = [1, 2]
        shape.insert(axis, -1)
        info.data_shape, info.data_type, info.variable_id = openvino.PartialShape(shape), openvino.Type.f32, name
        variable = Variable(info)
        empty = [max(n, 0) for n in shape]
        read = read_value(ops.constant(np.zeros(empty, np.float32)), variable)
        grown = ops.concat([read, laid], axis)
        sinks.append(assign(grown, variable))
        sums.append(ops.reduce_sum(grown, np.array([d for d, n in enumerate(shape) if n != 2]), keep_dims=False))
    total = ops.result(ops.unsqueeze(ops.concat(sums, 0), np.int64(0)))
    return openvino.Model([total], sinks, [tokens], "appending")


@pytest.mark.parametrize("axes", [{"a": 0, "b": 0}, {"a": 1}, {"a": 2, "b": 0, "c": 1}])
def test_each_state_is_cut_along_its_own_axis(axes: dict[str, int]) -> None:
    imported = ovp.read_model(_appending(axes))
    compiled = ovp.compile_model(imported, "CPU", F32)
    for run in (1, 2, 5):
        session, fresh = (ovp.Session(compiled, imported.info, step=1) for _ in range(2))
        session.prefill(np.arange(run) % 2)
        session.trim(1)
        fresh.prefill([0])
        assert content(session) == content(fresh)
        assert np.array_equal(session.decode(1), fresh.decode(1))


def _dump(recorded: Path, config: dict[str, Any] = F32, *, counter: bool = False) -> Prepared:
    imported = ovp.read_model(recorded / "after/llama-gqa/stateless/model.xml")
    if counter:
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = openvino.PartialShape([1]), openvino.Type.f32, "counter"
        variable = Variable(info)
        read = read_value(ops.constant(np.zeros(1, np.float32)), variable)
        imported.model.add_sinks([assign(ops.add(read, np.float32(1)), variable)])
    return ovp.compile_model(imported, "CPU", config), imported.info


def test_caches_outside_the_model(recorded: Path) -> None:
    model = _dump(recorded)
    session, control = ovp.Session(*model), ovp.Session(*model)
    session.prefill(TOKENS[:20])
    assert session.trim(7) == session.position == 7
    control.prefill(TOKENS[:7])
    np.testing.assert_allclose(session.prefill(OTHER), control.prefill(OTHER), rtol=0, atol=1e-4)
    assert session.trim(0) == 0
    assert not any(view.any() for view in session._keeper.states.read(0).values())


def test_states_inside_and_outside_at_once_are_refused(recorded: Path) -> None:
    session = ovp.Session(*_dump(recorded, counter=True))
    session.prefill(TOKENS[:5])
    with pytest.raises(ovp.StateError, match="cannot trim: some states are outside the model, some inside"):
        session.trim(3)
    assert session.position == session.trim(5) == 5
    assert session.trim(0) == 0
    assert [float(s.state.data[0]) for s in session._request.query_state()] == [0]
