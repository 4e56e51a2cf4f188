"""Running a rewritten model: device and configuration, sessions, text in and out."""

from ovpasses.runtime.checkpoints import Checkpoint
from ovpasses.runtime.chunked_prefill import ChunkedSession
from ovpasses.runtime.devices import compile_model, device_config
from ovpasses.runtime.session import Session
from ovpasses.runtime.slot_sessions import SlotSessions

__all__ = ["Checkpoint", "ChunkedSession", "Session", "SlotSessions", "compile_model", "device_config"]
