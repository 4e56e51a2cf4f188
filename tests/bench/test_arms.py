"""What ``--arm`` means."""

from __future__ import annotations

import pytest

from ovpasses.bench import BenchError, choose_arms, parse_arm
from ovpasses.bench.arms import CATALOG
from ovpasses.pipeline import PRESETS


def test_passes_by_either_name_and_properties() -> None:
    arm = parse_arm("mine=MakeKVStateful, beam-reorder;KV_CACHE_PRECISION=u8;A=b=c")
    assert (arm.name, arm.what) == ("mine", ("MakeKVStateful", "BeamReorder"))
    assert arm.config == {"KV_CACHE_PRECISION": "u8", "A": "b=c"}
    assert [type(step).__name__ for step in arm.pipeline().passes] == ["MakeKVStateful", "BeamReorder"]
    assert str(arm) == "MakeKVStateful, BeamReorder; KV_CACHE_PRECISION=u8; A=b=c"
    assert not arm.optional


def test_an_arm_without_passes_is_the_model_as_it_is() -> None:
    arm = parse_arm("dump=")
    assert arm.pipeline().passes == []
    assert str(arm) == "as it is"


def test_words_in_place_of_passes() -> None:
    assert parse_arm("mine=genai").is_genai
    assert parse_arm("mine=static").is_static
    assert parse_arm("mine=stateful").pipeline().name == "stateful"


def test_the_first_arms_are_the_preset_without_some_passes() -> None:
    preset = {type(step).__name__ for step in PRESETS["stateful"](False, False)}
    left_out = {name: preset - set(parse_arm(name).what) for name in ("ggml", "seq-axis", "beam")}
    assert left_out == {
        "ggml": {"KVStateSeqAxis", "BeamReorder"},
        "seq-axis": {"BeamReorder"},
        "beam": {"KVStateSeqAxis"},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("other", r"--arm 'other': wanted all, NAME=PASS,PASS\[;KEY=VALUE\], or one of ggml, seq-axis"),
        ("=BeamReorder", "--arm '=BeamReorder': wanted all"),
        ("a=BeamOrder", "--arm a: pass 'BeamOrder' is not known, wanted one of .*; or alone one of stateful, static"),
        ("a=stateful,BeamReorder", "--arm a: pass 'stateful' is not known"),
        ("a=stateful;u8", "--arm a: property 'u8', wanted KEY=VALUE"),
    ],
)
def test_what_is_no_arm_is_refused(text: str, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        parse_arm(text)


def test_default_and_all_may_do_without_an_arm_that_cannot_be_run() -> None:
    assert [(arm.name, arm.optional) for arm in choose_arms([])] == [
        ("ggml", True),
        ("stateful", True),
        ("genai", True),
    ]
    assert [arm.name for arm in choose_arms(["all"])] == list(CATALOG)
    assert [arm.optional for arm in choose_arms(["genai", "x=BeamReorder"])] == [False, False]
    assert [arm.name for arm in choose_arms(["x=", "all"])][:2] == ["x", "ggml"]


def test_two_arms_of_one_name_are_refused() -> None:
    with pytest.raises(BenchError, match="--arm beam: two arms have this name"):
        choose_arms(["all", "beam=BeamReorder"])
