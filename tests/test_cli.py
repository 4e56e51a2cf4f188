"""The command line, as its users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino
import pytest

import ovpasses as ovp
from ovpasses.cli import main
from ovpasses.runtime.state_file import read_state_file
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


def run_tokens(capsys: pytest.CaptureFixture[str], model: object, ids: Any, folder: Path, *options: object) -> Any:
    """``run --tokens``; its JSON."""
    np.save(folder / "ids.npy", np.asarray(ids))
    command = ("run", model, "--tokens", folder / "ids.npy", "--json", "--config", "INFERENCE_NUM_THREADS=1")
    return json.loads(call(capsys, *command, *options))


@pytest.mark.needs_2026_4
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["llama-gqa", "gemma4-mixed", "qwen35"])
def test_a_run_goes_on_from_a_saved_state(
    capsys: pytest.CaptureFixture[str],
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    static: bool,
) -> None:
    monkeypatch.setenv("GGML_OPENVINO_FORCE_STATIC", str(int(static)))
    monkeypatch.setenv("GGML_OPENVINO_PREFILL_CHUNK_SIZE", "16")
    model, ids = recorded / f"gguf/tiny-{name}.gguf", np.load(recorded / f"logits/{name}.npz")["tokens"].tolist()
    options = ("--context", 96) if static else ()
    state, logits = tmp_path / "s.safetensors", [tmp_path / "whole.npy", tmp_path / "resumed.npy"]
    first = run_tokens(capsys, model, ids[:20], tmp_path, "-n", 4, "--save-state", state, *options)
    saved = read_state_file(state)
    assert (first["restored_tokens"], first["position"]) == (0, 23)
    assert saved.tokens is not None
    assert saved.tokens.tolist() == [*ids[:20], *first["tokens"][:3]]
    before = [*ids[:20], *first["tokens"][:3]]
    again = ("--restore-state", state, "--save-state", state)
    second = run_tokens(capsys, model, ids[20:25], tmp_path, "-n", 3, *again, "--logits", logits[1], *options)
    assert (second["restored_tokens"], second["position"]) == (23, 30)
    whole = run_tokens(capsys, model, [*before, *ids[20:25]], tmp_path, "-n", 3, "--logits", logits[0], *options)
    assert second["tokens"] == whole["tokens"]
    np.testing.assert_allclose(np.load(logits[1]), np.load(logits[0]), rtol=1e-6, atol=0.05)  # f16 caches
    saved = read_state_file(state)
    assert saved.tokens is not None
    assert saved.tokens.tolist() == [*before, *ids[20:25], *second["tokens"][:2]]


@pytest.mark.needs_2026_4
def test_a_saved_state_without_tokens_stays_so(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path
) -> None:
    path, model = tmp_path / "s.safetensors", recorded / "gguf/tiny-llama-gqa.gguf"
    imported = ovp.read_model(model)
    ovp.Pipeline.preset("stateful").run(imported)
    session = ovp.Session(ovp.compile_model(imported, "CPU"), imported.info)
    session.prefill([1, 2, 3])
    session.save(path)
    found = run_tokens(capsys, model, [4, 5], tmp_path, "-n", 1, "--restore-state", path, "--save-state", path)
    assert (found["restored_tokens"], found["position"]) == (3, 5)
    assert read_state_file(path).tokens is None


@pytest.mark.needs_2026_4
def test_what_cannot_be_restored_or_saved_is_one_line(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path
) -> None:
    model, state = recorded / "gguf/tiny-llama-gqa.gguf", tmp_path / "s.safetensors"
    run_tokens(capsys, model, range(30), tmp_path, "-n", 0, "--save-state", state)
    (tmp_path / "bad.safetensors").write_bytes(state.read_bytes()[:-1])
    np.save(tmp_path / "ids.npy", [1, 2])
    tokens = ("--tokens", tmp_path / "ids.npy")
    other = recorded / "gguf/tiny-qwen35.gguf"
    for options, message in (
        ((model, "--restore-state", state), "--restore-state is given without what comes after it, wanted --prompt or"),
        ((model, *tokens, "--restore-state", tmp_path / "bad.safetensors"), "damaged"),
        ((model, *tokens, "--restore-state", tmp_path / "none.safetensors"), "cannot be read: No such file"),
        ((other, *tokens, "--restore-state", state), "is of a model with weights"),
        ((model, *tokens, "--save-state", tmp_path / "no" / "s.safetensors"), "cannot be written: there is no folder"),
        ((model, *tokens, "--logits", tmp_path / "no" / "l.npy"), "cannot be written: there is no folder"),
        (
            (model, *tokens, "--restore-state", state, "-n", "2018"),
            "2 prompt tokens after 30 restored ones and 2018 to generate go past the model's context of 2048 tokens",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["run", *map(str, options)])
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out) == (2, "")
        assert captured.err.count("\n") == 1
        assert message in captured.err
    assert state.exists()


class _Tokenizer:
    """Puts token 1 before a text, as one of llama does."""

    def __init__(self, path: str) -> None:
        pass

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        ids = [1] * add_special_tokens + [10 + len(word) for word in text.split()]
        return SimpleNamespace(input_ids=SimpleNamespace(data=np.array([ids])))

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))

    def get_eos_token_id(self) -> int:
        return -1


@pytest.mark.needs_2026_4
def test_a_prompt_after_a_restored_state_does_not_begin_a_text(
    capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", SimpleNamespace(Tokenizer=_Tokenizer))
    model, state = recorded / "gguf/tiny-llama-gqa.gguf", tmp_path / "s.safetensors"
    command = ("run", model, "--json", "-n", 1, "--prompt")
    first = json.loads(call(capsys, *command, "one two", "--save-state", state))
    second = json.loads(call(capsys, *command, "three four", "--restore-state", state))
    assert (first["prompt_tokens"], second["prompt_tokens"]) == ([1, 13, 13], [15, 14])
    assert (second["restored_tokens"], second["position"]) == (3, 5)
    imported = ovp.read_model(model)
    ovp.Pipeline.preset("stateful").run(imported)
    ovp.Session(ovp.compile_model(imported, "CPU"), imported.info).save(state)  # of nothing: the text begins after it
    third = json.loads(call(capsys, *command, "three four", "--restore-state", state))
    assert third["prompt_tokens"] == [1, 15, 14]
    assert "restore" in call(capsys, "run", model, "--prompt", "a", "-n", 1, "--restore-state", state)


@pytest.mark.needs_2026_4
def test_inspect_prints_a_saved_state(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    state = tmp_path / "s.safetensors"
    run_tokens(capsys, recorded / "gguf/tiny-gemma4-mixed.gguf", range(30), tmp_path, "-n", 1, "--save-state", state)
    found = json.loads(call(capsys, "inspect", state, "--json"))
    assert (found["position"], found["tokens"]) == (30, list(range(30)))
    assert found["rotation"] == {"n_rot_k": 0, "n_rot_v": 0}
    assert len(found["states"]) == 12
    windows = {s["layer"]: s["window"] for s in found["states"] if s["kind"] == "key"}
    assert [windows[layer] for layer in range(6)] == [64] * 5 + [None]
    out = call(capsys, "inspect", state)
    assert "position 30" in out
    assert "heads 4, seq 30, size 16" in out
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(state)])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert "damaged" in captured.err
