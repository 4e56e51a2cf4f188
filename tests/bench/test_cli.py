"""``ovpasses bench`` as its users call it: the structure of what it finds, never how fast anything is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from models.tiny_gguf import write_llama
from ovpasses.cli import main
from tests.bench.test_llama_bench import TESTS, program

SMALL = ("--chunk", "16", "--tokens", "2", "--rounds", "3", "--seconds", "100")
ARMS = ("--arm", "ggml", "--arm", "both=KVStateSeqAxis,BeamReorder;KV_CACHE_PRECISION=f16")


def call(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.out if code == 0 else captured.err


def test_json_holds_every_sample(capsys: pytest.CaptureFixture[str], dump: Path) -> None:
    out = call(capsys, dump, *SMALL, *ARMS, "--depth", 24, "--depth", 0, "--threads", 1, "--json")
    found: dict[str, Any] = json.loads(out)
    assert set(found) == {
        *("model", "architecture", "machine", "settings", "arms", "agreement", "results", "notes", "seconds"),
    }
    assert set(found["machine"]) == {"processor", "cores", "system", "openvino"}
    assert (found["settings"]["depths"], found["settings"]["threads"]) == ([0, 24], 1)
    ggml, both = found["arms"]
    assert ggml["passes"] == {"KVHeadSplit": 0, "MakeKVStateful": 0, "LowerGatedDeltaNet": 0}
    assert both["passes"] == {"KVStateSeqAxis": 6, "BeamReorder": 6}
    assert (both["held"], both["threads"], both["program"]) == ("f16", 1, "ovpasses")
    assert 0 <= found["agreement"]["both"]["nmse"] <= 1e-4
    results = {(one["arm"], one["depth"], one["measure"]): one for one in found["results"]}
    assert len(results) == len(found["results"]) == 2 * 2 * 2
    for (arm, _, kind), one in results.items():
        samples = [second for round_ in one["rounds"] for second in round_["seconds"]]
        assert len(samples) == (6 if kind == "decode" else 3)
        assert one["tokens"] == (1 if kind == "decode" else 16)
        assert 0 < one["min_s"] <= one["median_s"] <= one["max_s"]
        assert one["min_s"] == min(samples)
        assert one["tokens_per_s"] == pytest.approx(one["tokens"] / one["median_s"])
        assert one["times_as_fast"] > 0
        assert arm == "both" or one["times_as_fast"] == 1.0
    assert set(found["seconds"]) >= {"load", "check", "depth 24 reach", "depth 24 decode", "depth 0 prefill"}


def test_the_table(capsys: pytest.CaptureFixture[str], dump: Path) -> None:
    u8 = "u8=KVStateSeqAxis,BeamReorder;KV_CACHE_PRECISION=u8"
    out = call(capsys, dump, *SMALL, *ARMS, "--arm", u8, "--depth", 0, "--depth", 24)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    figures = [row for row in rows if len(row) == 8]
    assert [(row[0], row[1], row[7]) for row in figures] == [
        *(("0", "ggml", "3, 3"), ("0", "both", "3, 3"), ("0", "u8", "3, 3")),
        *(("24", "ggml", "3, 3"), ("24", "both", "3, 3"), ("24", "u8", "1, 3")),
    ]
    assert [row[3] for row in figures if row[1] == "ggml"] == ["1.00", "1.00"]
    text = " ".join(out.split())
    assert "u8: past depth 0 a prefill is timed once, after decoding, since its states cannot be cut back" in text
    assert "KVStateSeqAxis 6, BeamReorder 6" in text.replace(" │ │ │ ", " ")
    assert "x: times as fast as ggml" in text


def test_default_arms_of_what_genai_cannot_read(capsys: pytest.CaptureFixture[str], dump: Path) -> None:
    found = json.loads(call(capsys, dump, *SMALL, "--depth", 0, "--json"))
    assert [arm["name"] for arm in found["arms"]] == ["ggml", "stateful"]
    assert [note for note in found["notes"] if note.startswith("left out: arm genai: GenAI is given GGUF files only")]
    assert "arm genai: GenAI is given GGUF" in call(capsys, dump, *SMALL, "--arm", "genai", code=2)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(capsys: pytest.CaptureFixture[str], dump: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"speed.{suffix}"
    call(capsys, dump, *SMALL, "--arm", "ggml", "--depth", 0, "--depth", 24, "--plot", path)
    head = path.read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in path.read_bytes()


@pytest.mark.parametrize(
    ("name", "said"), [("speed.doc", "no such file, wanted one of .*.svg"), ("no/a.png", "no folder")]
)
def test_a_plot_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, said: str
) -> None:
    pytest.importorskip("matplotlib")
    error = call(capsys, tmp_path / "model that is not there.xml", "--plot", tmp_path / name, code=2)
    assert said.split(", wanted")[0] in error


def test_a_plot_without_matplotlib(
    capsys: pytest.CaptureFixture[str], dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = call(capsys, dump, "--plot", tmp_path / "a.png", code=2)
    assert error == "ovpasses: --plot needs matplotlib; install ovpasses[plots]\n"


@pytest.mark.needs_2026_4
def test_llama_bench_beside_the_arms(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "tests.json").write_text(json.dumps(TESTS))
    binary = program(tmp_path, f'echo "$@" > {tmp_path}/asked\ncat {tmp_path}/tests.json')
    gguf = recorded / "gguf/tiny-llama-gqa.gguf"
    settings = ("--chunk", 32, "--tokens", 4, "--rounds", 2, "--depth", 0, "--depth", 64, "--threads", 2)
    out = call(capsys, gguf, *settings, "--arm", "stateful", "--llama-bench", binary)
    assert (tmp_path / "asked").read_text().split() == [
        "-m",
        str(gguf),
        *["-o", "json", "-p", "32", "-n", "4", "-d", "0,64", "-r", "2", "-t", "2"],
    ]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    (row,) = (row for row in rows if row[:2] == ["64", "llama.cpp"])
    assert (row[2], row[4], row[5]) == ("160 (160 to 160)", "25.0 (25.0 to 25.0)", "40.0")
    assert row[3].startswith("~")
    assert all(word in out for word in ("llama-bench:", "backend CPU", "abc1234"))


def test_llama_bench_takes_a_gguf(capsys: pytest.CaptureFixture[str], dump: Path, tmp_path: Path) -> None:
    assert "llama-bench takes a GGUF only" in call(capsys, dump, "--llama-bench", tmp_path / "none", code=2)


@pytest.mark.needs_2026_4
def test_a_depth_past_the_context_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gguf = write_llama(tmp_path / "tiny.gguf", context=64)
    out = call(capsys, gguf, "--chunk", 8, "--tokens", 1, "--rounds", 2, "--depth", 99, "--arm", "stateful")
    assert "note: depth 99 and the 12 tokens after it do not fit into the context of 64: 32 instead" in out
    assert "│ 32    │ stateful │" in out


def test_an_npu_is_refused(capsys: pytest.CaptureFixture[str], dump: Path) -> None:
    assert "device NPU takes static shapes only" in call(capsys, dump, "--device", "NPU", code=2)


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
def test_genai_beside_the_arms(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino_genai")
    settings = ("--depth", 0, "--depth", 64, "--chunk", 32, "--rounds", 2, "--tokens", 2)
    found = json.loads(call(capsys, "demo", *settings, "--arm", "stateful", "--arm", "genai", "--json"))
    stateful, genai = found["arms"]
    assert (stateful["held"], genai["held"]) == ("f16", "f16")
    assert genai["program"].startswith("openvino-genai 20")
    assert found["agreement"]["genai"]["rank"] <= 491
    decoded = [one for one in found["results"] if one["arm"] == "genai" and one["measure"] == "decode"]
    assert [[len(round_["seconds"]) for round_ in one["rounds"]] for one in decoded] == [[2, 2], [2, 2]]
    assert all(one["min_s"] > 1e-4 for one in found["results"])
