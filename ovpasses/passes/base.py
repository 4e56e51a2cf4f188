"""The base of every ovpasses pass: an ``openvino.passes.ModelPass`` that keeps a report."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import perf_counter
from typing import ClassVar

from openvino import Model

from ovpasses._openvino import ModelPass
from ovpasses.errors import RewriteError, one_line
from ovpasses.passes.report import PassReport

Edit = Callable[[], None]


class ReportedPass(ModelPass):  # type: ignore[misc]
    """A model pass that decides everything first, then edits, and says what it did in ``self.report``.

    Subclasses implement :meth:`plan`: record every candidate in the report as done or skipped, and
    return a list of edits (callables without arguments). Nothing is edited before all are decided, so a
    refusal leaves the graph as it was.

    Args:
        strict: raise :class:`RewriteError`, before anything is edited, when a candidate must be skipped
            for any other reason than already having the wanted form.
    """

    looked_for: ClassVar[str] = "candidate"

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.report = PassReport(type(self).__name__, self.looked_for)

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        """Decide on every candidate; return what is to be edited, in order."""
        raise NotImplementedError

    def run_on_model(self, model: Model) -> bool:
        """Rewrite ``model`` in place; the report of the latest run is ``self.report``.

        Returns:
            True when something was rewritten.

        Raises:
            RewriteError: ``strict`` is set and a candidate cannot be rewritten, or the graph cannot be read.
                The model is unchanged.
        """
        model = Model(model)  # a Manager hands over the bare C++ model; the wrapper shares its graph
        started = perf_counter()
        self.report = report = PassReport(type(self).__name__, self.looked_for)
        report.ops_before = report.ops_after = len(model.get_ops())
        try:
            edits = self.plan(model, report)
        except RuntimeError as error:
            why = one_line(error)
            raise RewriteError(f"{report.name}: cannot read this graph: {why}; nothing was changed") from error
        if self.strict and report.unsettled:
            more = f" (and {len(report.unsettled) - 1} more)" if len(report.unsettled) > 1 else ""
            raise RewriteError(f"{report.name}: {report.unsettled[0]}{more}; nothing was changed", (report,))
        for edit in edits:
            edit()
        if edits:
            model.validate_nodes_and_infer_types()
            report.ops_after = len(model.get_ops())
        report.seconds = perf_counter() - started
        return bool(edits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([*self._options(), *(['strict=True'] if self.strict else [])])})"

    def _options(self) -> list[str]:
        """The arguments of its constructor that are no defaults, but for ``strict``."""
        return []

    @classmethod
    def cli_name(cls) -> str:
        """The class name in kebab case: ``KVStateSeqAxis`` -> ``kv-state-seq-axis``."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()
