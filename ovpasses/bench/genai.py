"""An arm that OpenVINO GenAI runs, from the same GGUF, with the same token ids (extra ``text``: openvino-genai)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from openvino import Tensor

from ovpasses.bench.arms import Arm
from ovpasses.bench.runner import Runner
from ovpasses.bench.settings import BenchError, Settings
from ovpasses.errors import one_line


class GenAIRunner:
    """GenAI's pipeline with paged attention, timed by its own metrics.

    It keeps the blocks of prompts that it has seen, so a depth is reached once and gone back to at no cost; to whole
    blocks of 32 tokens: at another depth up to 31 tokens more are timed as part of a prompt.

    Args:
        arm: its configuration.
        path: the GGUF.
        settings: device, most tokens per inference.
        threads: that it is to run with; None leaves the choice to OpenVINO.

    Raises:
        BenchError: openvino-genai is not installed, or cannot read this file.
    """

    def __init__(self, arm: Arm, path: Path, settings: Settings, threads: int | None) -> None:
        try:
            import openvino_genai
        except ImportError as error:
            raise BenchError(f"arm {arm.name}: openvino-genai is not installed; install ovpasses[text]") from error
        self.arm, self.name, self.stuck = arm, arm.name, ""
        self.program = f"openvino-genai {openvino_genai.__version__.split('-')[0]}"
        self.held = arm.config.get("KV_CACHE_PRECISION", "")
        self.threads = threads
        self._genai: Any = openvino_genai
        self._prefix = np.zeros(0, dtype=np.int64)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = settings.step
        properties = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        try:
            self._pipeline = openvino_genai.LLMPipeline(
                str(path), settings.device, scheduler_config=scheduler, **{**properties, **arm.config}
            )
        except Exception as error:
            raise BenchError(f"arm {arm.name}: openvino-genai cannot read {path} ({one_line(error)})") from error

    def next_token(self, prompt: np.ndarray) -> int:
        """The token that it goes on with after a prompt ``[T]``."""
        return int(self._generate(prompt, 1).tokens[0][0])

    def reach(self, prefix: np.ndarray, there: Sequence[Runner]) -> None:
        """As :class:`Runner`."""
        self._prefix = prefix
        if prefix.size:
            self._generate(prefix, 1)

    def back(self) -> bool:
        """As :class:`Runner`: every prompt begins at the depth."""
        return True

    def prefill(self, ids: np.ndarray) -> float:
        """As :class:`Runner`: the time to the first token."""
        found = self._generate(np.concatenate([self._prefix, ids]), 1)
        return float(found.perf_metrics.get_ttft().mean) / 1e3  # ms

    def decode(self, ids: np.ndarray) -> list[float]:
        """As :class:`Runner`; the tokens are those that it generates, as many."""
        prompt = self._prefix if self._prefix.size else ids[:1]
        found = self._generate(prompt, ids.size + 1)
        durations = [float(us) / 1e6 for us in found.perf_metrics.raw_metrics.m_durations]
        return durations[1:]  # the first is of the token that goes untimed

    def _generate(self, prompt: np.ndarray, count: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = count
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        try:
            return self._pipeline.generate(Tensor(np.ascontiguousarray(prompt[None], dtype=np.int64)), config)
        except RuntimeError as error:
            raise BenchError(f"arm {self.name}: openvino-genai failed ({one_line(error)})") from error
