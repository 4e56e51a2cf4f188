"""The command line, as its users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovpasses as ovp
from ovpasses.cli import main
from tests.conftest import nmse


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run in this process; the exit code must be 0; returns stdout."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


@pytest.mark.needs_2026_4
def test_demo_continues_with_paris_and_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "run", "demo", "--prompt", "The capital of France is", "-n", "4")
    assert out.startswith("The capital of France is Paris")
    for stage in ("load", "rewrite", "compile", "prefill", "decode"):
        assert stage in out
    assert "5 tokens" in out


def test_run_with_token_ids_and_logits(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    reference = np.load(recorded / "logits/llama-gqa.npz")
    np.save(tmp_path / "ids.npy", reference["tokens"][:12])
    out = call(
        capsys,
        *("run", recorded / "gguf/tiny-llama-gqa.gguf", "--tokens", tmp_path / "ids.npy", "-n", "3", "--json"),
        *("--logits", tmp_path / "logits.npy", "--config", "INFERENCE_PRECISION_HINT=f32"),
    )
    result = json.loads(out)
    logits = np.load(tmp_path / "logits.npy")
    assert logits.shape == (3, 320)
    assert nmse(logits[:1], reference["logits"][11:12]) <= 1e-5
    assert result["tokens"] == logits.argmax(1).tolist()
    assert result["figures"]["prefill_tokens"] == 12
    assert result["figures"]["decode_tokens"] == 2
    assert [p["rewritten"] for p in result["report"]["passes"] if p["name"] == "MakeKVStateful"] == [6]


@pytest.mark.parametrize("name", ["gemma4-mixed", "qwen35"])
def test_convert_writes_what_plain_openvino_runs(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path, name: str
) -> None:
    out = call(capsys, "convert", recorded / f"gguf/tiny-{name}.gguf", "-o", tmp_path / "m.xml")
    assert {"gemma4-mixed": "12 of 12 rewritten", "qwen35": "8 of 8 rewritten"}[name] in out
    report = json.loads((tmp_path / "m.report.json").read_text())
    assert report["name"] == "stateful"
    script = (
        "import sys, openvino; core = openvino.Core(); core.compile_model(core.read_model(sys.argv[1]), 'CPU');"
        "assert not any(m.startswith('ovpasses') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "m.xml")], check=True, timeout=120)


def test_converted_model_runs_like_the_gguf(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    call(capsys, "convert", recorded / "gguf/tiny-gemma4-mixed.gguf", "-o", tmp_path / "m.xml", "--json")
    reference = np.load(recorded / "logits/gemma4-mixed.npz")
    imported = ovp.read_model(tmp_path / "m.xml")
    session = ovp.Session(ovp.compile_model(imported, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), imported.info)
    assert nmse(session.prefill(reference["tokens"], all_logits=True), reference["logits"]) <= 1e-5


@pytest.mark.parametrize(("name", "states"), [("llama-gqa", 6), ("gemma4-mixed", 12)])
def test_convert_one_pass_gives_openvinos_own_graph(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path, name: str, states: int
) -> None:
    """What the C++ pass made of the same graph, op for op."""
    from ovpasses.equivalence import compare_structure

    source = recorded / "after" / name
    out = call(
        capsys,
        *("convert", source / "stateful-prerelayout/model.xml", "--pass", "KVStateSeqAxis"),
        *("-o", tmp_path / "out.xml", "--json"),
    )
    (report,) = json.loads(out)["report"]["passes"]
    assert report["rewritten"] == report["candidates"] == states
    core = openvino.Core()
    made, wanted = core.read_model(tmp_path / "out.xml"), core.read_model(source / "stateful/model.xml")
    assert compare_structure(made, wanted).same
    assert not compare_structure(core.read_model(source / "stateful-prerelayout/model.xml"), wanted).same


def test_convert_leaves_nothing_behind_when_refused(recorded: Path, tmp_path: Path) -> None:
    dump = recorded / "after/qwen35/stateless/model.xml"
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(dump), "-o", str(tmp_path / "o.xml"), "--pass", "BeamReorder"])
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_inspect(capsys: pytest.CaptureFixture[str], recorded: Path) -> None:
    found: dict[str, Any] = json.loads(call(capsys, "inspect", recorded / "gguf/tiny-qwen35.gguf", "--json"))
    assert [layer["kind"] for layer in found["info"]["layers"]] == ["recurrent"] * 3 + ["attention"]
    assert {port["name"] for port in found["inputs"]} >= {"inp_tokens", "cache_k_l3", "ssm_state_l0"}
    counts = {p["name"]: (p["candidates"], p["rewritten"]) for p in found["passes"]}
    assert counts["MakeKVStateful"] == (8, 8)
    assert counts["KVStateSeqAxis"] == (0, 0)
    table = call(capsys, "inspect", recorded / "after/llama-gqa/stateful/model.xml")
    assert "the sequence is on dim 2 already" in " ".join(table.split())


def test_inspect_does_not_change_the_model(recorded: Path) -> None:
    from ovpasses.equivalence import compare_structure
    from ovpasses.inspection import inspect_model

    imported = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    untouched = ovp.read_model(recorded / "gguf/tiny-llama-gqa.gguf")
    inspect_model(imported)
    assert compare_structure(imported.model, untouched.model).same


def test_passes_lists_every_pass_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(call(capsys, "passes", "--json"))
    assert {"MakeKVStateful", "KVStateSeqAxis", "BeamReorder"} <= set(listed["passes"])
    assert "stateful" in listed["presets"]
    assert "kv-state-seq-axis" in call(capsys, "passes")


def test_pass_by_command_line_name(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    dump = recorded / "after/llama-gqa/stateful-prerelayout/model.xml"
    out = call(
        capsys, "convert", dump, "-o", tmp_path / "o.xml", "--pass", "kv-state-seq-axis", "--pass", "beam-reorder"
    )
    assert "KVStateSeqAxis" in out
    assert "BeamReorder" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version").strip() == ovp.__version__


@pytest.mark.needs_2026_4
def test_info_of_another_file_says_what_a_dump_does_not(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path
) -> None:
    """The sliding window of gemma4 is in no dump: its GGUF says it, or what ``inspect --json`` printed of that."""
    gguf = recorded / "gguf/tiny-gemma4-mixed.gguf"
    (tmp_path / "info.json").write_text(call(capsys, "inspect", gguf, "--json"))
    reference = np.load(recorded / "logits/gemma4-mixed.npz")
    np.save(tmp_path / "ids.npy", reference["tokens"])
    dump = recorded / "after/gemma4-mixed/stateless/model.xml"
    for known, right in ((gguf, True), (tmp_path / "info.json", True), (None, False)):
        out = tmp_path / "logits.npy"
        options = ["--info", known] if known else []
        call(capsys, "run", dump, "--tokens", tmp_path / "ids.npy", "-n", "1", "--logits", out, "--json", *options)
        assert (nmse(np.load(out), reference["logits"][-1:]) <= 1e-5) is right


def test_diff_of_two_graphs(capsys: pytest.CaptureFixture[str], recorded: Path) -> None:
    folder = recorded / "after/llama-gqa"
    before, after = folder / "stateful-prerelayout/model.xml", folder / "stateful/model.xml"
    assert call(capsys, "diff", after, after)
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["diff", str(before), str(after), *options])
        assert ended.value.code == 1
        assert "Concat" in capsys.readouterr().out
