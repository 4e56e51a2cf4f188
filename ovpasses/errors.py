"""Everything ovpasses raises on purpose. A message is one line: what, where, found, wanted, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ovpasses.passes.report import PassReport


class OvpassesError(Exception):
    """Base of all errors that ovpasses raises on purpose."""


class ModelReadError(OvpassesError):
    """A model file is missing, damaged, or holds what no importer understands."""


class RewriteError(OvpassesError):
    """A rewrite was demanded and could not be done, or left an invalid graph.

    Attributes:
        reports: reports of the passes that ran, the failing one last.
    """

    def __init__(self, message: str, reports: tuple[PassReport, ...] = ()) -> None:
        super().__init__(message)
        self.reports = reports


class DeviceError(OvpassesError):
    """A device is absent, refuses the model, or its configuration cannot be used."""


class StateError(OvpassesError):
    """A session was asked for something that its state or its model does not allow."""


def one_line(error: BaseException) -> str:
    """The most telling line of an exception, for use inside a one-line message.

    OpenVINO reports as "Exception from <file>:" / "Check '<expression>' failed at <file>:" / text, nested;
    the innermost text is what a user can act on.
    """
    noise = ("Exception from", "Check '", "Exception while", "While validating node", "Error has occurred")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(noise)]
    return (telling or lines or [type(error).__name__])[-1]
