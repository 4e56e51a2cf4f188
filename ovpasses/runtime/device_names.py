"""What a device name of OpenVINO may stand for."""

from __future__ import annotations

import re

from ovpasses.errors import DeviceError

# AUTO by itself may choose a CPU, and begins on one while another device compiles; ``AUTO:-CPU`` does not.
_MAY_BE_CPU = re.compile(r"AUTO|CPU(\.\d+)?|\w+:(.*,)?CPU(\.\d+)?(\(\d+\))?(,.*)?")


FAMILIES = ("CPU", "GPU", "NPU")
_COMPOSED = ("AUTO", "HETERO", "MULTI", "BATCH")


def check_device_name(device: str) -> None:
    """Make sure that a device may be called so, whether or not it is there.

    Raises:
        DeviceError: it may not; or an NPU is one of several, which would all have to run its static pair.
    """
    first, _, others = device.partition(":")
    if first.split(".")[0] not in (*FAMILIES, *_COMPOSED):
        raise DeviceError(f"device {device} is not known, wanted one of {', '.join((*FAMILIES, *_COMPOSED))}")
    if any(is_npu(other.split("(")[0]) for other in others.split(",")):
        raise DeviceError(f"device {device} has an NPU among others, which runs other models than they; name it alone")


def is_npu(device: str) -> bool:
    """Whether a device is an NPU (``NPU``, ``NPU.0``)."""
    return device.split(".")[0] == "NPU"


def may_be_cpu(device: str) -> bool:
    """Whether what is compiled for it may run on a CPU: ``CPU``, ``AUTO``, ``HETERO:GPU,CPU``, ``BATCH:CPU(4)``."""
    return _MAY_BE_CPU.fullmatch(device) is not None
