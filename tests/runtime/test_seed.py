"""Session.seed and Session.rows: ggml's cache rows to states of any layout, and back; or a refusal without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovpasses as ovp
from ovpasses.ggml_names import CACHE_NAME
from ovpasses.runtime.ggml_rows import GGML_NAMES
from tests.conftest import RECORDED, nmse
from tests.runtime.pair_helpers import dump, dynamic, gguf, opened
from tests.runtime.state_helpers import F32, LAYOUTS, NAMES, Prepared, content, prepared

Rows = dict[str, np.ndarray]
GGML = {"conv_state": "cache_r", "ssm_state": "cache_s"}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokens() -> Callable[[str], np.ndarray]:
    return lambda name: np.load(RECORDED / f"logits/{name}.npz")["tokens"]


@pytest.fixture(scope="module")
def reference(name: str) -> Prepared:
    """Its states are ``[1, seq, heads, size]``, the order of ggml's rows, and f32."""
    return prepared(gguf(name), LAYOUTS["made stateful"], F32)


@pytest.fixture(scope="module", params=["made stateful", "axis moved", "preset"])
def model(request: pytest.FixtureRequest, name: str, reference: Prepared) -> Prepared:
    if request.param == "axis moved":
        return prepared(gguf(name), LAYOUTS["axis moved"], F32)
    return reference if request.param == "made stateful" else dynamic(name, True)


@pytest.fixture(scope="module")
def llama() -> Prepared:
    return dynamic("llama-gqa", True)


@pytest.fixture(scope="module")
def hybrid() -> Prepared:
    return dynamic("qwen35", True)


def ggml_rows(session: ovp.Session) -> Rows:
    """What is in the states of the reference, as it lies in memory."""
    found = {}
    for state in session._request.query_state():
        match = CACHE_NAME.search(state.name)
        assert match is not None
        value = np.array(state.state.data)
        kind = GGML.get(match["kind"], match["kind"])
        grows = kind in ("cache_k", "cache_v")
        found[f"{kind}_l{match['layer']}"] = value.reshape(session.position, -1) if grows else value.reshape(-1)
    return found


def dumped_rows(session: ovp.Session) -> Rows:
    """What llama.cpp's graph has in its caches."""
    cache = session._cache
    assert cache is not None
    names = [n for n in cache._values if CACHE_NAME.search(n)]
    return {n: cache.value(n)[: None if n.startswith(("cache_r", "cache_s")) else session.position] for n in names}


@pytest.mark.parametrize("n", [1, 63, 64])
def test_the_next_tokens_are_those_of_a_run_without_a_break(
    name: str, reference: Prepared, model: Prepared, tokens: Callable[[str], np.ndarray], n: int
) -> None:
    source, target = ovp.Session(*reference), ovp.Session(*model)
    source.prefill(tokens(name)[:n])
    assert target.seed(ggml_rows(source), position=n) == target.position == n
    following = tokens(name)[n : n + 6]
    found, wanted = ([s.decode(int(t)) for t in following] for s in (target, source))
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(wanted), rtol=1e-6, atol=1e-5)
    llama_cpp = np.load(RECORDED / f"logits/{name}.npz")["logits"][n : n + 6]
    assert nmse(np.concatenate(found), llama_cpp) <= 1e-5


def test_rows_of_a_llama_cpp_dump(name: str, tokens: Callable[[str], np.ndarray]) -> None:
    """f16 rows into f16 states, into f32 ones, and into a static pair."""
    source = ovp.Session(*dump(name))
    source.prefill(tokens(name)[:50])
    rows = dumped_rows(source)
    assert rows["cache_k_l3" if name == "qwen35" else "cache_k_l0"].dtype == np.float16
    wanted = np.load(RECORDED / f"logits/{name}.npz")["logits"][50:56]
    following = tokens(name)[50:56]
    for target in (opened(kind, name) for kind in ("dynamic", "f32 dynamic", "pair", "f32 pair", "dump")):
        assert target.seed(rows) == target.position == 50
        found = target.prefill(following, all_logits=True)
        assert nmse(found, wanted) <= 1e-5


def test_rows_are_permuted_and_not_reinterpreted(tokens: Callable[[str], np.ndarray]) -> None:
    source, target, wrong = (
        ovp.Session(*dump("llama-gqa")),
        *(ovp.Session(*dynamic("llama-gqa", True)) for _ in range(2)),
    )
    source.prefill(tokens("llama-gqa")[:20])
    rows = dumped_rows(source)
    target.seed(rows)
    states = {state.name: np.array(state.state.data) for state in target._request.query_state()}
    for name, row in rows.items():
        state = states[name + name]
        assert (state.shape, row.shape) == ((1, 3, 20, 16), (20, 48))
        for head in range(3):
            assert np.array_equal(state[0, head, 7], row[7, head * 16 : head * 16 + 16])
    wrong.seed({n: np.moveaxis(r.reshape(3, 20, 16), 0, 1).reshape(20, 48) for n, r in rows.items()})
    for state in wrong._request.query_state():  # has the rows' buffer, as if the permutation had been left out
        assert np.array_equal(np.array(state.state.data).ravel(), rows[state.name[:10]].ravel())
    logits = np.load(RECORDED / "logits/llama-gqa.npz")["logits"][20]
    following = int(tokens("llama-gqa")[20])
    assert nmse(target.decode(following)[0], logits) <= 1e-5
    assert nmse(wrong.decode(following)[0], logits) > 1e-3


def test_a_delta_net_state_has_its_value_dim_first(hybrid: Prepared, tokens: Callable[[str], np.ndarray]) -> None:
    """Guards the tests above: with the key dim first logits are wrong."""
    source, wrong = ovp.Session(*dump("qwen35")), ovp.Session(*hybrid)
    source.prefill(tokens("qwen35")[:50])
    turned = {
        n: r.reshape(4, 16, 16).swapaxes(1, 2).reshape(-1) if n.startswith("cache_s") else r
        for n, r in dumped_rows(source).items()
    }
    wrong.seed(turned)
    logits = np.load(RECORDED / "logits/qwen35.npz")["logits"][50]
    assert nmse(wrong.decode(int(tokens("qwen35")[50]))[0], logits) > 1e-3


def test_rows_are_the_way_back(name: str, reference: Prepared, tokens: Callable[[str], np.ndarray]) -> None:
    source, target = ovp.Session(*reference), opened("f32 dynamic", name)
    for session in (source, target):
        assert all(len(r) == 0 for n, r in session.rows().items() if n.startswith(("cache_k", "cache_v")))
    source.prefill(tokens(name)[:33])
    rows = source.rows()
    assert {n: r.tobytes() for n, r in rows.items()} == {n: r.tobytes() for n, r in ggml_rows(source).items()}
    target.seed(rows)
    assert {n: r.tobytes() for n, r in target.rows().items()} == {n: r.tobytes() for n, r in rows.items()}
    outside = ovp.Session(*dump(name))
    outside.prefill(tokens(name)[:33])
    assert {n: r.tobytes() for n, r in outside.rows().items()} == {
        n: r.tobytes() for n, r in dumped_rows(outside).items()
    }


def test_floats_of_another_width_are_converted(llama: Prepared, tokens: Callable[[str], np.ndarray]) -> None:
    """By a static pair of llama.cpp's too, whose caches are f16; the result is that of f16 rows."""
    source = ovp.Session(*llama)
    source.prefill(tokens("llama-gqa")[:20])
    rows = source.rows()
    for open_session in (lambda: opened("dumped pair", "llama-gqa"), lambda: opened("dynamic", "llama-gqa")):
        logits = []
        for kind in (np.float16, np.float32, np.float64):
            session = open_session()
            session.seed({n: r.astype(np.float16).astype(kind) for n, r in rows.items()})
            logits.append(session.decode(int(tokens("llama-gqa")[20])))
        assert np.array_equal(logits[0], logits[1])
        assert np.array_equal(logits[0], logits[2])
        rounded = open_session()
        rounded.seed(rows)
        assert np.array_equal(rounded.decode(int(tokens("llama-gqa")[20])), logits[0])


def _changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Rows], Rows]:
    return lambda rows: {**rows, name: change(rows[name])}


def _all(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Rows], Rows]:
    return lambda rows: {n: change(r) for n, r in rows.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: {n: r for n, r in rows.items() if n != "cache_v_l1"}, "the rows of cache_v_l1 are missing"),
        (lambda rows: {}, "the rows of cache_k_l0 are missing"),
        (lambda rows: {**rows, "cache_k_l9": rows["cache_k_l0"]}, "cache_k_l9 is none of the model's caches, wanted c"),
        (_changed("cache_v_l1", lambda r: r[:-1]), "cache_v_l1 has 19 rows and cache_k_l0 20, wanted the same"),
        (
            _changed("cache_v_l1", lambda r: r[:, :-1]),
            r"cache_v_l1 is \[20, 47\], wanted \[tokens, 48\] \(of 3 x 16",
        ),
        (_changed("cache_v_l1", lambda r: r.reshape(20, 3, 16)), r"cache_v_l1 is \[20, 3, 16\], wanted \[tokens, 48\]"),
        (_changed("cache_k_l2", lambda r: r.astype(np.int32)), "cache_k_l2 is int32, wanted f32 or floats of another"),
        (_changed("cache_k_l2", lambda r: r.astype(bool)), "cache_k_l2 is bool, wanted f32"),
        (_changed("cache_k_l2", lambda r: np.where(r == r[3, 3], np.nan, r)), "cache_k_l2 holds values that are not f"),
        (_changed("cache_k_l2", lambda r: np.where(r == r[3, 3], 1e300, r)), "cache_k_l2 holds values that are not fi"),
        (_all(lambda r: r[:0]), "has 0 rows, wanted at least 1"),
        (_all(lambda r: np.zeros((2049, 48), np.float32)), "is at position 2049, the context has 2048 tokens"),
    ],
)
def test_rows_that_do_not_fit(
    llama: Prepared, tokens: Callable[[str], np.ndarray], change: Callable[[Rows], Rows], message: str
) -> None:
    source, session = ovp.Session(*llama), ovp.Session(*llama)
    source.prefill(tokens("llama-gqa")[:20])
    rows = change({n: r.astype(np.float64) for n, r in source.rows().items()})
    with pytest.raises(ovp.StateError, match=message) as refusal:
        session.seed(rows)
    assert "\n" not in str(refusal.value)
    assert session.position == 0
    assert content(session) == content(ovp.Session(*llama))
    assert session.seed(source.rows()) == 20
    assert np.array_equal(session.decode(5), source.decode(5))


@pytest.mark.parametrize(
    ("position", "message"),
    [(19, "20 rows, which end at position 20 and not at 19"), ("20", "position is '20'"), (True, "position is True")],
)
def test_another_position_is_refused(
    llama: Prepared, tokens: Callable[[str], np.ndarray], position: Any, message: str
) -> None:
    source, session = ovp.Session(*llama), ovp.Session(*llama)
    source.prefill(tokens("llama-gqa")[:20])
    with pytest.raises(ovp.StateError, match=message):
        session.seed(source.rows(), position=position)
    assert session.position == 0


def test_a_session_that_has_run_something_is_not_overwritten(
    llama: Prepared, tokens: Callable[[str], np.ndarray]
) -> None:
    session, control = ovp.Session(*llama), ovp.Session(*llama)
    for one in (session, control):
        one.prefill(tokens("llama-gqa")[:5])
    with pytest.raises(ovp.StateError, match="the session stands at position 5, wanted 0; reset it first"):
        session.seed(session.rows())
    assert (session.position, content(session)) == (5, content(control))
    rows = session.rows()
    session.reset()
    assert session.seed(rows) == 5
    assert np.array_equal(session.decode(3), control.decode(3))


def test_a_hybrid_does_not_start_without_its_recurrent_rows(
    hybrid: Prepared, tokens: Callable[[str], np.ndarray]
) -> None:
    source, session = ovp.Session(*hybrid), ovp.Session(*hybrid)
    source.prefill(tokens("qwen35")[:20])
    rows = source.rows()
    some = {n: r for n, r in rows.items() if n.startswith(("cache_k", "cache_v"))}
    with pytest.raises(ovp.StateError, match="the rows of cache_r_l0 are missing; layer 0 is recurrent and cannot"):
        session.seed(some)
    with pytest.raises(ovp.StateError, match=r"cache_s_l1 is \[4, 16, 16\], wanted \[1024\] \(of 4 x 16 x 16"):
        session.seed(_changed("cache_s_l1", lambda r: r.reshape(4, 16, 16))(rows))
    assert content(session) == content(ovp.Session(*hybrid))
    assert session.seed(rows) == 20
    with pytest.raises(ovp.StateError, match="recurrent state"):
        session.trim(10)


@pytest.mark.parametrize("n", [65, 200])
def test_past_a_sliding_window(n: int) -> None:
    model = dynamic("gemma4-mixed", True)
    source, session = ovp.Session(*model), ovp.Session(*model)
    source.prefill(np.arange(n) % 320)
    message = f"cache_k_l0 is of sliding layer 0 with a window of 64 tokens, and at position {n} ggml's cache has"
    with pytest.raises(ovp.StateError, match=message):
        session.seed(source.rows())
    assert (session.position, content(session)) == (0, content(ovp.Session(*model)))
    with pytest.raises(ovp.StateError, match=message):
        opened("pair", "gemma4-mixed").seed(source.rows())


def test_states_that_cannot_be_set_exactly(tokens: Callable[[str], np.ndarray], llama: Prepared) -> None:
    source = ovp.Session(*llama)
    source.prefill(tokens("llama-gqa")[:20])
    session = ovp.Session(*prepared(gguf("llama-gqa"), config={"KV_CACHE_PRECISION": "u8"}))
    for refused in (lambda: session.seed(source.rows()), session.rows):
        with pytest.raises(ovp.StateError, match="is held in u8 and read as f16, which is not exact"):
            refused()
    assert session.position == 0


def test_every_kind_of_ggml_state_has_its_name() -> None:
    assert sorted(GGML_NAMES.values()) == ["cache_k", "cache_r", "cache_s", "cache_v"]
