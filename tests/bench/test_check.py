"""Arms that compute something else are refused before they are timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovpasses.bench.arms import parse_arm
from ovpasses.bench.check import check_numbers
from ovpasses.bench.genai import GenAIRunner
from ovpasses.bench.session_runner import SessionRunner
from ovpasses.bench.settings import BenchError
from tests.bench.conftest import Opened

PROMPT, TOKENS = np.arange(8), np.arange(3)


class Fixed(SessionRunner):
    """Gives the logits that it is told to."""

    def __init__(self, name: str, rows: np.ndarray, held: str = "f16") -> None:
        self.arm, self.name, self.held, self._rows = parse_arm(f"{name}="), name, held, rows

    def logits(self, prompt: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return self._rows


class GoesOnWith(GenAIRunner):
    """Goes on with the token that it is told to."""

    def __init__(self, token: int) -> None:
        self.name, self._token = "genai", token

    def next_token(self, prompt: np.ndarray) -> int:
        return self._token


ROWS = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)


def test_real_arms_agree_and_stand_at_the_start_again(opened: Opened) -> None:
    arms = [
        opened("dump="),
        opened("axis=KVStateSeqAxis"),
        opened("u8=KVStateSeqAxis,BeamReorder;KV_CACHE_PRECISION=u8"),
    ]
    found = check_numbers(arms, PROMPT, TOKENS)
    assert list(found) == ["axis", "u8"]
    assert found["axis"].rows == 4
    assert found["axis"].nmse is not None
    assert found["axis"].nmse <= 1e-6
    assert (found["axis"].bound, found["u8"].bound) == (1e-2, 1e-1)
    assert [arm.session.position for arm in arms] == [0, 0, 0]
    assert [bool(arm.stuck) for arm in arms] == [False, False, True]
    assert str(found["axis"]).endswith(", 4 of 4")


@pytest.mark.parametrize("wrong", [2 * ROWS, ROWS[:, ::-1], np.roll(ROWS, 1, axis=0), 1.12 * ROWS])
def test_other_logits_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(
        BenchError, match=r"^arm b \(as it is\): its logits are .* NMSE from those of a, wanted at most 0"
    ):
        check_numbers([Fixed("a", ROWS), Fixed("b", wrong)], PROMPT, TOKENS)


def test_states_in_u8_may_be_further_off() -> None:
    near = 1.12 * ROWS  # NMSE 1.4e-2
    assert check_numbers([Fixed("a", ROWS), Fixed("b", near, "u8")], PROMPT, TOKENS)["b"].bound == 1e-1
    with pytest.raises(BenchError, match=r"wanted at most 0\.1 with states in u8"):
        check_numbers([Fixed("a", ROWS), Fixed("b", 2 * ROWS, "u8")], PROMPT, TOKENS)


def test_logits_that_are_no_numbers_are_refused() -> None:
    holes = ROWS.copy()
    holes[1, 2] = np.nan
    for pair in ([holes, ROWS], [ROWS, holes]):
        with pytest.raises(BenchError, match="its logits are not finite"):
            check_numbers([Fixed(name, rows) for name, rows in zip("ab", pair, strict=True)], PROMPT, TOKENS)


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(BenchError, match=r"arm b: logits \[4, 999\], those of a are \[4, 1000\]"):
        check_numbers([Fixed("a", ROWS), Fixed("b", ROWS[:, 1:])], PROMPT, TOKENS)


def test_the_token_of_genai_must_be_a_likely_one() -> None:
    best: Any = np.argsort(-ROWS[0])
    found = check_numbers([GoesOnWith(int(best[9])), Fixed("a", ROWS)], PROMPT, TOKENS)
    assert found["genai"].rank == 10
    with pytest.raises(
        BenchError, match=r"arm genai: goes on with token \d+, which is no. 11 of 1000 of a, wanted one"
    ):
        check_numbers([Fixed("a", ROWS), GoesOnWith(int(best[10]))], PROMPT, TOKENS)


def test_without_logits_there_is_nothing_to_compare() -> None:
    assert check_numbers([GoesOnWith(3)], PROMPT, TOKENS) == {}
