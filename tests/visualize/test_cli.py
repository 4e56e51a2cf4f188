"""``ovpasses inspect --picture`` and ``--netron``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ovpasses.cli import main


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return captured.out if ended.value.code == 0 else captured.err


@pytest.mark.usefixtures("drawn_by_package")
def test_picture_of_a_pass_and_of_a_node(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    dump, out = recorded / "after/llama-gqa/stateful-prerelayout/model.xml", tmp_path / "p.svg"
    said = call(capsys, "inspect", dump, "--picture", out, "--pass", "kv-state-seq-axis", "--node", "cache_v_l1")
    assert said == f"{out}: KVStateSeqAxis: cache_v_l1\n"
    assert "cache_v_l1" in out.read_text()
    said = call(capsys, "inspect", dump, "--picture", out, "--node", "cache_k_l0", "--hops", "1", "--json")
    assert json.loads(said) == {"picture": str(out), "title": "ReadValue_912 and 1 hop around"}
    said = call(capsys, "inspect", dump, "--picture", out, "--preset", "stateful", "--pass", "BeamReorder")
    assert "BeamReorder: cache_k_l0" in said


def test_picture_of_nothing_is_refused(capsys: pytest.CaptureFixture[str], recorded: Path, tmp_path: Path) -> None:
    dump, out = recorded / "after/llama-gqa/stateful/model.xml", tmp_path / "p.svg"
    for options, why in (
        (["--picture", out], "--node NAME, or --pass NAME"),
        (["--node", "x"], "--picture OUT.svg"),
        (["--picture", out, "--node", "x"], "is not among the 446 ops"),
        (["--picture", out, "--pass", "KVStateSeqAxis"], "rewrote nothing"),
        (["--picture", tmp_path / "p.png", "--node", "cache_k_l0"], "written as .svg or .dot"),
    ):
        said = call(capsys, "inspect", dump, *options)
        assert why in said
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_netron_serves_until_it_is_ended(
    capsys: pytest.CaptureFixture[str], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fake = SimpleNamespace(
        start=lambda file, browse: calls.append(Path(file).name) or ("localhost", 8080),
        wait=lambda: calls.append("wait"),
    )
    monkeypatch.setitem(sys.modules, "netron", fake)
    said = call(capsys, "inspect", recorded / "after/llama-gqa/stateful/model.xml", "--netron")
    assert said == "http://localhost:8080 (Ctrl-C ends it)\n"
    assert calls == ["model.xml", "wait"]
