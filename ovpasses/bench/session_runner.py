"""An arm that a session of ours runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
from openvino import Core

from ovpasses.bench.arms import Arm
from ovpasses.bench.runner import Runner
from ovpasses.bench.settings import BenchError, Settings
from ovpasses.errors import OvpassesError, StateError
from ovpasses.ggml_names import layer_of
from ovpasses.importers import ImportedModel
from ovpasses.importers.graph_info import RECURRENT
from ovpasses.pipeline import Pipeline, PipelineReport
from ovpasses.runtime import ChunkedSession, Session, compile_model
from ovpasses.runtime.request_states import held_types


class SessionRunner:
    """A session that is timed.

    Args:
        arm: what was done to the model.
        session: at position 0.
        reports: of the pipelines.
        held: the types that states or caches are held in.
        threads: that the device runs it with, None when it does not tell.
        clock: seconds.
    """

    program = "ovpasses"

    def __init__(
        self,
        arm: Arm,
        session: Session | ChunkedSession,
        *,
        reports: Sequence[PipelineReport] = (),
        held: str = "",
        threads: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.arm, self.name = arm, arm.name
        self.session = session
        self.reports = reports
        self.held = held
        self.threads = threads
        self.stuck = ""
        self._clock = clock
        self._depth = 0

    def logits(self, prompt: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Logits f32 ``[1 + T, vocab]`` of a prompt's last token and of T tokens after it; forgets them all.

        ``stuck`` then says why this session cannot be taken back to a depth, if it cannot.
        """
        rows = [self.session.prefill(prompt), *(self.session.decode(int(token)) for token in tokens)]
        try:
            self.session.checkpoint()
        except StateError as error:
            self.stuck = str(error)
        self.session.reset()
        return np.concatenate(rows)

    def reach(self, prefix: np.ndarray, there: Sequence[Runner]) -> None:
        """As :class:`Runner`; the states of another session cost a copy where a prefill costs minutes."""
        self.back()
        self._depth = int(prefix.size)
        if self.session.position > self._depth or not prefix.size:
            self.session.reset()
        if self.session.position < self._depth and not self._took(there):
            self.session.prefill(prefix[self.session.position :])
        if prefix.size and not self.stuck and any(layer.kind == RECURRENT for layer in self.session.info.layers):
            self.session.checkpoint()  # what trim goes back to, where states cannot be cut

    def back(self) -> bool:
        """As :class:`Runner`."""
        if self.stuck and self._depth:
            return False
        return self.session.trim(self._depth) == self._depth

    def prefill(self, ids: np.ndarray) -> float:
        """As :class:`Runner`."""
        started = self._clock()
        self.session.prefill(ids)
        return self._clock() - started

    def decode(self, ids: np.ndarray) -> list[float]:
        """As :class:`Runner`; the first token may make room for more in the states, all at once."""
        self.session.decode(int(ids[0]))
        return [self._timed(int(token)) for token in ids[1:]]

    def _timed(self, token: int) -> float:
        started = self._clock()
        self.session.decode(token)
        return self._clock() - started

    def _took(self, there: Sequence[Runner]) -> bool:
        source = next((r for r in there if isinstance(r, SessionRunner) and not r.stuck), None)
        if source is None or self.stuck:
            return False
        try:
            rows = source.session.rows()
            self.session.reset()
            self.session.seed(rows, position=source.session.position)
        except StateError:  # states that ggml does not have, or past a sliding window: prefilled then
            return False
        return True


def open_session(arm: Arm, imported: ImportedModel, settings: Settings, core: Core) -> SessionRunner:
    """Rewrite a copy of a model as an arm says, and compile it.

    Raises:
        BenchError: a pass, the device or the session refuses; names the arm.
    """
    threads = {} if settings.threads is None else {"INFERENCE_NUM_THREADS": settings.threads}
    most = max(settings.depths) + settings.room
    try:
        reports, compiled = [], []
        for pipeline in _pipelines(arm, settings, most):
            copy = ImportedModel(imported.model.clone(), imported.info, imported.source)
            reports.append(pipeline.run(copy, keep_graph=False))
            compiled.append(compile_model(copy, settings.device, {**threads, **arm.config}, core=core))
        session: Session | ChunkedSession
        if arm.is_static:
            session = ChunkedSession(compiled[0], compiled[1], imported.info, checkpoints=1)
        else:
            session = Session(compiled[0], imported.info, step=settings.step, cells=most, checkpoints=1)
        return SessionRunner(arm, session, reports=reports, held=_held(compiled[-1]), threads=_threads(compiled[-1]))
    except OvpassesError as error:
        raise BenchError(f"arm {arm.name}: {error}") from error


def _pipelines(arm: Arm, settings: Settings, context: int) -> list[Pipeline]:
    if not arm.is_static:
        return [arm.pipeline()]
    prefill = Pipeline.preset("static-prefill", chunk=settings.step, context=context)
    return [prefill, Pipeline.preset("static-decode", context=context)]


def _held(compiled: Any) -> str:
    """The types of the states, or of the caches outside the model."""
    types = set(held_types(compiled)) or {
        port.get_element_type().get_type_name() for port in compiled.inputs if layer_of(port.get_any_name()) is not None
    }
    return ", ".join(sorted(types))


def _threads(compiled: Any) -> int | None:
    with suppress(RuntimeError):  # not a property of every device
        return int(compiled.get_property("INFERENCE_NUM_THREADS"))
    return None
