"""Speed of prefill and decode by depth: pass combinations, GenAI and llama.cpp against each other."""

from ovpasses.bench.arms import Arm, choose_arms, parse_arm
from ovpasses.bench.benchmark import benchmark
from ovpasses.bench.report import BenchReport
from ovpasses.bench.samples import Series
from ovpasses.bench.settings import BenchError, Settings

__all__ = ["Arm", "BenchError", "BenchReport", "Series", "Settings", "benchmark", "choose_arms", "parse_arm"]
