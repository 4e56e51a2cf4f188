"""Files that are signed right and say anything: refused in one line, or restored exactly; nothing in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ovpasses as ovp
from tests.conftest import RECORDED
from tests.runtime.state_bytes import signed, split
from tests.runtime.state_helpers import TOKENS, content, prepared

pytestmark = pytest.mark.needs_2026_4

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 3, 4, 16, 2**31, 2**63, 2**64, 10**30, 0.5, float("nan"), "", "f16", "f32", "I64"]),
    st.text(max_size=8),
    st.lists(st.integers(-2, 20), max_size=5),
)


class Subject:
    """A session at 6 tokens, a file of one at 9 tokens and a checkpoint at 4, and what each holds."""

    def __init__(self, path: Path) -> None:
        compiled, info = prepared(RECORDED / "gguf/tiny-qwen35.gguf")
        source, self.session = ovp.Session(compiled, info), ovp.Session(compiled, info)
        source.prefill(TOKENS[:4])
        source.checkpoint()
        source.prefill(TOKENS[4:9])
        source.save(path, TOKENS[:9])
        self.saved = content(source)
        self.table, self.data = split(path.read_bytes())
        self.session.prefill(TOKENS[20:26])
        self.start = self.session.checkpoint()
        self.before = content(self.session)
        self.target = path.with_name("fuzzed.safetensors")

    def take(self, data: bytes) -> None:
        """Restore it: either nothing has changed, or everything is as it was saved."""
        self.target.write_bytes(data)
        refusal = ""
        try:
            position = self.session.restore(self.target)
        except ovp.StateError as error:
            position, refusal = self.session.position, str(error)
        if refusal:
            assert "\n" not in refusal
            assert len(refusal) < 2000
            assert position == 6
            assert content(self.session) == self.before
            return
        assert position == 9
        assert content(self.session) == self.saved
        self.session.restore(self.start)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(tmp_path_factory.mktemp("fuzz") / "state.safetensors")


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in nested lists and dicts there is a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from _places(one, (*at, key))


def _changed(value: Any, at: tuple[Any, ...], new: Any, drop: bool) -> None:
    for key in at[:-1]:
        value = value[key]
    if drop:
        del value[at[-1]]
    else:
        value[at[-1]] = new


BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@BOUNDED
@given(data=st.data())
def test_a_field_of_the_header_is_anything(subject: Subject, data: st.DataObject) -> None:
    table = json.loads(json.dumps(subject.table))
    states = json.loads(table["__metadata__"]["states"])
    inside = data.draw(st.booleans(), "in the states")
    chosen = states if inside else table
    at = data.draw(st.sampled_from(sorted(_places(chosen), key=str)), "where")
    _changed(chosen, at, data.draw(ODD, "value"), data.draw(st.booleans(), "drop"))
    if inside:
        table["__metadata__"]["states"] = json.dumps(states)
    if isinstance(table.get("__metadata__"), dict):
        subject.take(signed(table, subject.data))
    else:
        subject.take(signed({**table, "__metadata__": {}}, subject.data))


@BOUNDED
@given(data=st.data())
def test_bytes_are_changed_cut_or_added(subject: Subject, data: st.DataObject) -> None:
    whole = signed(subject.table, subject.data)
    at = data.draw(st.integers(0, len(whole) - 1), "at")
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "length"]), "kind")
    if kind == "flip":
        whole = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    elif kind == "cut":
        whole = whole[:at]
    elif kind == "insert":
        whole = whole[:at] + data.draw(st.binary(min_size=1, max_size=9)) + whole[at:]
    else:
        whole = data.draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little") + whole[8:]
    subject.take(whole)


def test_the_file_that_nothing_was_changed_in_is_taken(subject: Subject) -> None:
    subject.target.write_bytes(signed(subject.table, subject.data))
    assert subject.session.restore(subject.target) == 9
    assert np.array_equal(subject.session.trim(5), 4)
    subject.session.restore(subject.start)
