"""The states of sequences that run together: each is cut, copied, saved and restored alone, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ovpasses as ovp
from ovpasses.runtime.shared_caches import PairedTensors
from ovpasses.runtime.slot_sessions import Slot
from tests.conftest import RECORDED, nmse
from tests.runtime.slot_helpers import CONTEXT, TOKENS, dynamic, everything, one_by_one, pair, static

FORMS: dict[str, Callable[[], ovp.SlotSessions]] = {
    "any number": lambda: ovp.SlotSessions(*dynamic("after"), cells=CONTEXT),
    "static pair": lambda: pair("after"),
    "one by one": lambda: ovp.SlotSessions(*one_by_one("after"), cells=CONTEXT),
}
PROMPTS = {1: TOKENS[0][:5], 3: TOKENS[1][:4]}
NEXT = [7, 8, 9]


@pytest.fixture(params=["any number", "static pair"])
def sessions(request: pytest.FixtureRequest) -> ovp.SlotSessions:
    """Sequences 1 and 3 at positions 5 and 4."""
    made = FORMS[request.param]()
    made.prefill(PROMPTS)
    return made


def after(one: ovp.Session | Slot) -> np.ndarray:
    return np.concatenate([one.decode(token) for token in NEXT])


def alone(sessions: ovp.SlotSessions, tokens: np.ndarray, slot: int = 0) -> np.ndarray:
    """Logits of ``NEXT`` after these tokens in a sequence that nothing else has run in."""
    assert sessions[slot].position == 0
    sessions[slot].prefill(tokens)
    return after(sessions[slot])


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("source", FORMS)
def test_a_sequence_goes_into_any_slot_of_any_form(source: str, target: str, tmp_path: Path) -> None:
    first, second = FORMS[source](), FORMS[target]()
    first.prefill(PROMPTS)
    second.prefill({0: [1, 2], 2: [3, 4, 5]})
    resting = everything(second, (0, 1, 3)) if target != "one by one" else None
    first[3].save(tmp_path / "s.safetensors", tokens=PROMPTS[3])
    assert second[2].restore(tmp_path / "s.safetensors") == second[2].position == 4
    if resting is not None:
        assert everything(second, (0, 1, 3)) == resting
    rows = first[3].rows()
    assert {name: row.tobytes() for name, row in second[2].rows().items()} == {n: r.tobytes() for n, r in rows.items()}
    found, wanted = after(second[2]), after(first[3])
    assert nmse(found, wanted) < 1e-10
    if source == target:
        assert np.array_equal(found, wanted)
    assert second[0].position == 2


def test_a_file_goes_into_a_session_of_one_sequence_and_back(sessions: ovp.SlotSessions, tmp_path: Path) -> None:
    """Another dump of the same model, with its states inside."""
    imported = ovp.read_model(RECORDED / "after/qwen35/stateless/model.xml")
    ovp.Pipeline.preset("stateful").run(imported)
    config = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    one = ovp.Session(ovp.compile_model(imported, "CPU", config), imported.info)
    sessions[1].save(tmp_path / "s.safetensors")
    assert one.restore(tmp_path / "s.safetensors", convert=True) == 5
    one.decode(6)
    one.save(tmp_path / "t.safetensors")
    sessions[1].restore(tmp_path / "t.safetensors", convert=True)
    found, wanted = after(sessions[1]), after(one)
    assert nmse(found, wanted) < 1e-5


def test_a_checkpoint_and_rows_of_one_sequence_go_into_another(sessions: ovp.SlotSessions) -> None:
    wanted = alone(sessions, PROMPTS[1])
    checkpoint, rows = sessions[1].checkpoint(), sessions[1].rows()
    assert sessions[3].restore(checkpoint) == 5
    assert np.array_equal(after(sessions[3]), wanted)
    assert sessions[2].seed(rows) == 5
    assert np.array_equal(after(sessions[2]), wanted)
    assert sessions[1].position == 5
    assert np.array_equal(after(sessions[1]), wanted)


def test_trim_goes_back_to_a_checkpoint_of_that_sequence(sessions: ovp.SlotSessions) -> None:
    sessions[1].checkpoint()
    sessions[3].checkpoint()
    sessions.decode({1: 20, 3: 21})
    resting = everything(sessions, (0, 1, 2))
    assert sessions[3].trim(4) == 4
    assert everything(sessions, (0, 1, 2)) == resting
    assert (sessions[1].position, sessions[3].position) == (6, 4)
    assert np.array_equal(after(sessions[3]), alone(sessions, PROMPTS[3]))
    with pytest.raises(ovp.StateError, match=r"cannot trim to 2: cache_r_l0 is a recurrent state"):
        sessions[1].trim(2)
    assert sessions[1].position == 6


def test_a_refusal_leaves_no_trace(sessions: ovp.SlotSessions, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    sessions[1].save(path)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    before = everything(sessions, range(4))
    for refused in (
        lambda: sessions[3].restore(path),
        lambda: sessions[3].seed(sessions[1].rows()),
        lambda: sessions[3].trim(9),
        lambda: sessions[3].save(path, tokens=[1]),
    ):
        with pytest.raises(ovp.StateError):
            refused()
    assert everything(sessions, range(4)) == before
    assert [one.position for one in sessions] == [0, 5, 0, 4]


def test_an_interrupt_between_caches_and_position_is_not_forgotten(
    sessions: ovp.SlotSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PairedTensors.advance

    def interrupted(caches: PairedTensors) -> None:
        whole(caches)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PairedTensors, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sessions[1].decode(20)
    for refused in (lambda: sessions.decode({3: 1, 1: 1}), lambda: sessions[1].decode(1), sessions[1].checkpoint):
        with pytest.raises(ovp.StateError, match="was interrupted; reset it"):
            refused()
    assert sessions[3].position == 4
    found = after(sessions[3])
    sessions[1].reset()
    assert np.array_equal(alone(sessions, PROMPTS[1], 1), alone(sessions, PROMPTS[1]))
    sessions[3].reset()
    assert np.array_equal(alone(sessions, PROMPTS[3], 3), found)


def test_every_sequence_has_the_options(tmp_path: Path) -> None:
    for compiled in (dynamic("after"), one_by_one("after")):
        turned, plain = ovp.SlotSessions(*compiled, rotation=(64, 64)), ovp.SlotSessions(*compiled)
        turned[2].prefill([1, 2])
        turned[2].save(tmp_path / "s.safetensors")
        with pytest.raises(ovp.StateError, match=r"rotat"):
            plain[2].restore(tmp_path / "s.safetensors")
        assert turned[3].restore(tmp_path / "s.safetensors") == 2


def test_nothing_is_run_when_one_of_several_is_refused() -> None:
    """Where sequences run one by one, too."""
    sessions = FORMS["one by one"]()
    with pytest.raises(ovp.StateError, match="outside the vocabulary"):
        sessions.prefill({0: [1, 2, 3], 1: [99999]})
    assert [one.position for one in sessions] == [0, 0, 0, 0]


def test_a_sequence_is_run_by_one_session_only() -> None:
    compiled, info = one_by_one("after")
    first = ovp.Session(compiled, info, cells=CONTEXT)
    with pytest.raises(ovp.StateError, match="slot 0 is another session's already"):
        ovp.Session(compiled, info, beside=first)
    second = ovp.Session(compiled, info, slot=1, beside=first)
    second.prefill([1, 2])
    del second
    again = ovp.Session(compiled, info, slot=1, beside=first)  # of whom nobody is left
    assert nmse(again.prefill(PROMPTS[1]), first.prefill(PROMPTS[1])) < 1e-10
    with pytest.raises(ovp.StateError, match="beside is no session of this compiled model"):
        ovp.Session(*one_by_one("before"), slot=1, beside=first)


def test_two_models_of_other_weights_are_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    (prefill, info), (decode, _) = static("after", "prefill"), static("after", "decode")
    ovp.SlotSessions(prefill, info, decode=decode)
    monkeypatch.setattr(decode, "ovpasses_fingerprint", "0" * 32)
    with pytest.raises(ovp.StateError, match="wanted one model"):
        ovp.SlotSessions(prefill, info, decode=decode)
