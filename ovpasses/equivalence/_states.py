"""States by what they mean: kind and layer, tokens in front, whatever the layout and wherever they are kept."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from openvino import CompiledModel, InferRequest

from ovpasses.equivalence._metrics import distance
from ovpasses.runtime.request_states import RequestStates
from ovpasses.runtime.resumable import Resumable
from ovpasses.runtime.states import StateInfo, Values, rows_first

_TOLD = re.compile(r" of layer \d+")


def meaning(info: StateInfo, suffix: str = "") -> str:
    """What a state is called in any form of its model."""
    return (f"{info.kind} of layer {info.layer}" if info.layer is not None else info.label) + suffix


def session_states(session: Resumable, suffix: str = "") -> Values:
    """Of a session, wherever it keeps them.

    Raises:
        StateError: they cannot be read exactly, or one does not hold a row per token that was run.
    """
    states, position = session._keeper.states, session.position
    found = {}
    for name, value in states.read(position).items():
        info = states.infos[name]
        axis = states.axis(info, value.shape, position) if info.grows else None
        found[meaning(info, suffix)] = rows_first(value, axis)
    return found


class GraphStates:
    """Of a graph that no session runs. The axis that was empty before the first step is taken for the sequence."""

    def __init__(self, compiled: CompiledModel, request: InferRequest) -> None:
        self.infos = RequestStates(compiled, request).infos
        self._request = request

    def read(self) -> Values:
        found = {}
        for state in self._request.query_state():
            info = self.infos[state.name]
            axis = info.axes[0] if len(info.axes) == 1 else None
            found[meaning(info)] = rows_first(np.array(state.state.data), axis)
        return found


def paired_by_content(a: Values, b: Values, apart: Collection[str] = ()) -> dict[str, str]:
    """Which states of two models stand for each other where their names do not tell.

    States are told apart by nothing but what is done with them, so any pairing that holds from step to step will do:
    the nearest of one shape are taken first.

    Args:
        a, b: by meaning, after one step.
        apart: keys of both that hold other values in each. Such names may be given in another order; those that tell
            kind and layer are taken at their word.

    Returns:
        Key in b to key in a, of those whose key the other has not, and of those that are apart.
    """
    moved = {key for key in apart if not _TOLD.search(key)}
    mine, theirs = ({k: v for k, v in x.items() if (k not in y or k in moved) and v.size} for x, y in ((a, b), (b, a)))
    near = [
        (distance(x, y).nmse if np.isfinite(x).all() and np.isfinite(y).all() else np.inf, i, j)
        for i, x in mine.items()
        for j, y in theirs.items()
        if x.shape == y.shape
    ]
    found: dict[str, str] = {}
    for _, i, j in sorted(near, key=lambda pair: pair[0]):
        if j not in found and i not in found.values():
            found[j] = i
    return found
