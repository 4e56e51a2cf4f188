"""The facts of the machine that figures are of."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from openvino import Core


@dataclass(frozen=True)
class Machine:
    """What figures depend on beside the model.

    Attributes:
        processor: full name of the device.
        cores: logical ones that the system has.
        system: operating system and architecture.
        openvino: version.
    """

    processor: str
    cores: int
    system: str
    openvino: str

    @property
    def release(self) -> str:
        """The release of OpenVINO, without its build."""
        return self.openvino.split("-")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def machine_of(device: str, core: Core) -> Machine:
    """The facts of this machine, as seen from a device."""
    name = device
    with suppress(RuntimeError):  # AUTO and the like have no name of their own
        name = str(core.get_property(device, "FULL_DEVICE_NAME"))
    system = f"{platform.system()} {platform.machine()}"
    return Machine(name.strip(), os.cpu_count() or 1, system, version("openvino"))
