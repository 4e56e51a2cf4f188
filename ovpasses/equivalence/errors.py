"""What a comparison raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovpasses.errors import OvpassesError

if TYPE_CHECKING:
    from ovpasses.equivalence.equivalence_report import EquivalenceReport


class CheckError(OvpassesError):
    """A comparison that would mean nothing: it cannot fail, or cannot be made."""


class NotEquivalentError(OvpassesError, AssertionError):
    """Two models do not give the same.

    Attributes:
        report: what was compared, and where they differ.
    """

    def __init__(self, report: EquivalenceReport) -> None:
        super().__init__(report.summary)
        self.report = report

    def __reduce__(self) -> tuple[type[NotEquivalentError], tuple[EquivalenceReport]]:
        return type(self), (self.report,)  # else it would be made again of its text
