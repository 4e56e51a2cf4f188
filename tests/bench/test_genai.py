"""GenAI as an arm: what it is asked, and which of its figures are taken."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ovpasses.bench import BenchError, Settings, parse_arm
from ovpasses.bench.genai import GenAIRunner

SETTINGS = Settings(depths=(0, 64), chunk=32, threads=2)


class Pipeline:
    """Stands in for openvino_genai.LLMPipeline."""

    def __init__(self, path: str, device: str, **properties: Any) -> None:
        if path.endswith("broken.gguf"):
            raise RuntimeError("Exception from src/x.cpp:1:\nUnsupported quantization type\n")
        self.opened = (path, device, properties)
        self.asked: list[tuple[list[int], int]] = []

    def generate(self, tensor: Any, config: Any) -> Any:
        self.asked.append((tensor.data.reshape(-1).tolist(), config.max_new_tokens))
        assert config.ignore_eos
        assert not config.do_sample
        raw = SimpleNamespace(m_durations=[1000.0 * (n + 1) for n in range(config.max_new_tokens - 1)])
        metrics = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=250.0), raw_metrics=raw)
        return SimpleNamespace(tokens=[[17]], perf_metrics=metrics)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("openvino_genai")
    module.__version__ = "1.2"
    module.SchedulerConfig = module.GenerationConfig = SimpleNamespace
    module.LLMPipeline = Pipeline
    monkeypatch.setitem(sys.modules, "openvino_genai", module)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.usefixtures("stand_in")
def test_prompts_begin_at_the_depth_and_its_own_figures_are_taken() -> None:
    runner = GenAIRunner(parse_arm("genai"), Path("m.gguf"), SETTINGS, 2)
    asked = runner._pipeline.asked
    runner.reach(ids(), [])
    assert asked == []
    assert runner.decode(ids(9, 8, 7)) == [2e-3, 3e-3]  # of three tokens after the first the first goes untimed
    runner.reach(ids(1, 2), [])
    assert runner.back()
    assert runner.prefill(ids(5, 6)) == 0.25
    assert runner.decode(ids(9, 8, 7)) == [2e-3, 3e-3]
    assert runner.next_token(ids(4)) == 17
    assert asked == [([9], 4), ([1, 2], 1), ([1, 2, 5, 6], 1), ([1, 2], 4), ([4], 1)]


@pytest.mark.usefixtures("stand_in")
def test_it_gets_the_same_threads_inferences_and_precision() -> None:
    runner = GenAIRunner(parse_arm("genai"), Path("m.gguf"), SETTINGS, 2)
    path, device, properties = runner._pipeline.opened
    scheduler = properties.pop("scheduler_config")
    assert (path, device, properties) == ("m.gguf", "CPU", {"INFERENCE_NUM_THREADS": 2, "KV_CACHE_PRECISION": "f16"})
    assert (scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens) == (True, 32)
    assert (runner.held, runner.threads, runner.program) == ("f16", 2, "openvino-genai 1.2")


@pytest.mark.usefixtures("stand_in")
def test_a_file_that_it_cannot_read() -> None:
    with pytest.raises(BenchError, match=r"^arm genai: openvino-genai cannot read broken.gguf \(Unsupported quant"):
        GenAIRunner(parse_arm("genai"), Path("broken.gguf"), SETTINGS, 2)


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(BenchError, match=r"openvino-genai is not installed; install ovpasses\[text\]"):
        GenAIRunner(parse_arm("genai"), Path("m.gguf"), SETTINGS, 2)
