"""What a device name of OpenVINO may stand for."""

from __future__ import annotations

import re

# AUTO by itself may choose a CPU, and begins on one while another device compiles; ``AUTO:-CPU`` does not.
_MAY_BE_CPU = re.compile(r"AUTO|CPU(\.\d+)?|\w+:(.*,)?CPU(\.\d+)?(\(\d+\))?(,.*)?")


def is_npu(device: str) -> bool:
    """Whether a device is an NPU (``NPU``, ``NPU.0``)."""
    return device.split(".")[0] == "NPU"


def may_be_cpu(device: str) -> bool:
    """Whether what is compiled for it may run on a CPU: ``CPU``, ``AUTO``, ``HETERO:GPU,CPU``, ``BATCH:CPU(4)``."""
    return _MAY_BE_CPU.fullmatch(device) is not None
