"""Running a rewritten model: device and configuration, sessions, text in and out."""

from ovpasses.runtime.devices import compile_model, device_config
from ovpasses.runtime.session import Session

__all__ = ["Session", "compile_model", "device_config"]
