"""What a session can do with its states beside running tokens: cut, copy, save and restore them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import GraphInfo
from ovpasses.runtime.checkpoints import Checkpoint, Checkpoints
from ovpasses.runtime.ggml_rows import from_ggml_rows, to_ggml_rows
from ovpasses.runtime.ports import integer_ids
from ovpasses.runtime.state_keeper import StateKeeper, checked_rotation
from ovpasses.runtime.states import StateStore, Values


class Resumable:
    """A session whose states can be cut back, copied, saved and restored, wherever they are kept.

    Args:
        states: all of them, at position 0.
        info: of the model.
        cells: tokens that the caches hold; None when they are inside the model, or it does not say.
        rotation: sizes of the rotation of keys and of values.
        fingerprint: of the weights, None when not known.
        checkpoints: how many of the newest checkpoints to keep for :meth:`trim`.

    Raises:
        StateError: ``rotation`` is no such pair.
    """

    def __init__(
        self,
        states: StateStore,
        info: GraphInfo,
        cells: int | None,
        rotation: tuple[int, int],
        fingerprint: str | None,
        checkpoints: int,
    ) -> None:
        self.info = info
        self._cells = cells
        self._keeper = StateKeeper(states, info, checked_rotation(rotation), fingerprint)
        self._checkpoints = Checkpoints(checkpoints)
        self._position = 0
        self._failed = False

    @property
    def position(self) -> int:
        """Tokens run so far; the next one gets this position."""
        return self._position

    @property
    def capacity(self) -> int | None:
        """Positions there are, in tokens: cells of the caches or the model's context; None without a limit."""
        return min((n for n in (self._cells, self.info.context_length) if n is not None), default=None)

    def reset(self) -> None:
        """Forget everything: the next token is at position 0 again. Other sequences of the same caches go on."""
        self._failed = True
        self._keeper.states.clear()
        self._checkpoints.clear()
        self._position = 0
        self._failed = False

    def trim(self, n: int) -> int:
        """Keep the first ``n`` tokens and forget those after them; each state is cut along its own sequence axis.

        A recurrent state cannot be cut: then the session goes back to the latest checkpoint at or before ``n``, and the
        tokens from there to ``n`` are to be run again.

        Args:
            n: tokens to keep, at most :attr:`position`; all is nothing to do, 0 is a reset.

        Returns:
            The position now: ``n``, or that of the checkpoint.

        Raises:
            StateError: ``n`` is no such number, a recurrent state stands in the way and there is no checkpoint, or
                states cannot be read exactly. The session is as it was.
        """
        self._keeper.check_count(n, self._position)
        if n == self._position and not self._failed:
            return self._position
        if n == 0:
            self.reset()
            return 0
        self._check_known("trim")
        states, to, recurrent = self._keeper.states, int(n), {}
        kept = self._checkpoints.at_or_before(to)
        if kept is not None:
            to, recurrent = kept.position, kept.recurrent
        else:
            self._keeper.check_cut(to, self._position)
        self._change(lambda: states.cut(to, self._position, recurrent) if to else states.clear(), to)
        self._checkpoints.went_back(to)
        return self._position

    def checkpoint(self) -> Checkpoint:
        """Copy all states, recurrent ones too.

        Returns:
            What :meth:`restore` takes, in this session or in another one of the same compiled model. The session keeps
            the newest ones itself, for :meth:`trim`.

        Raises:
            StateError: states cannot be read exactly.
        """
        self._check_known("checkpoint")
        values = self._keeper.states.read(self._position)
        if self._keeper.states.recurrent:  # what only grows can be cut without one
            self._checkpoints.add(self._position, self._recurrent(values))
        return Checkpoint(self._position, values, self._keeper.states.compiled)

    def _recurrent(self, values: Values) -> Values:
        return {info.name: values[info.name] for info in self._keeper.states.recurrent}

    def save(self, path: str | os.PathLike[str], tokens: Sequence[int] | np.ndarray | None = None) -> None:
        """Write all states to a ``.safetensors`` file, whole or not at all, with what :meth:`trim` can go back to.

        Args:
            path: the file; one that is there is replaced, and a link to one stays a link.
            tokens: the ids that were run, to be kept with them.

        Raises:
            StateError: states cannot be read exactly; the weights' fingerprint is not known;
                there are more tokens or fewer than were run, or other than integers; or the file cannot be written.
        """
        self._check_known("save")
        ids = None if tokens is None else integer_ids(tokens)
        if ids is not None and ids.size != self._position:
            raise StateError(f"{ids.size} tokens are given to save with the state, wanted the {self._position} run")
        self._keeper.save(path, self._position, ids, self._checkpoints.by_position())

    def restore(self, source: Checkpoint | str | os.PathLike[str], *, convert: bool = False) -> int:
        """Take the states of a checkpoint or of a file in place of those that are; the next token costs one step.

        Args:
            source: from :meth:`checkpoint` or :meth:`save`. A file may come from another layout of the same model, and
                from a session that keeps its states elsewhere.
            convert: take a file whose states are f16 where the session's are f32, which is exact, or the other way
                round, which rounds; else it is refused.

        Returns:
            The position now.

        Raises:
            StateError: the checkpoint is of another compiled model; the file cannot be read, is damaged, or is of
                another model, rotation, type or format version; or it is past the context. The session is as it was.
        """
        self._check_known("restore")
        if isinstance(source, Checkpoint):
            values = self._keeper.of_checkpoint(source)
            self._take(values.items(), source.position, "the checkpoint")
            if self._keeper.states.recurrent:
                self._checkpoints.restored(source.position, self._recurrent(values))
            return self._position
        with self._keeper.opened(source, self._position, convert=convert) as file:
            self._take(file.values(), file.position, str(source))
        self._checkpoints.clear()
        for at, recurrent in file.checkpoints.items():
            self._checkpoints.add(at, recurrent)
        return self._position

    def seed(self, rows: Mapping[str, np.ndarray], *, position: int | None = None) -> int:
        """Start from the rows of ggml's cache instead of from tokens; the next token costs one step.

        Rows are copied into each state's own axis order, and floats of another width are converted.

        Args:
            rows: by ggml's names: ``cache_k_l0``, ``cache_v_l0`` and so on, f16 or f32 ``[tokens, heads*size]``, row i
                of position i and rotated as the session says; of recurrent layers ``cache_r_l0`` and ``cache_s_l0``,
                ``[width]``, as ggml keeps them (of a delta net the value dim before the key dim).
            position: how many tokens the rows are of; needed only where no state grows.

        Returns:
            The position now, which the next token gets: the number of rows.

        Raises:
            StateError: the session is not at position 0; rows of a layer are missing, or some are of none; their
                number, width or type is wrong, or a value is not finite in the state's type; they are past the
                context, or past a layer's sliding window, from where on ggml's cache is no plain prefix; or states
                cannot be set exactly. The session is as it was.
        """
        self._check_known("seed")
        if self._position:
            raise StateError(f"cannot seed: the session stands at position {self._position}, wanted 0; reset it first")
        now = self._keeper.states.read(0)
        values, count = from_ggml_rows(rows, self._keeper.states, now, self.info, position)
        self._take(values.items(), count, "the rows")
        return self._position

    def rows(self) -> dict[str, np.ndarray]:
        """A copy of all states as :meth:`seed` takes them, in the types that they have.

        Raises:
            StateError: states cannot be read exactly, or one is none that ggml has.
        """
        self._check_known("read rows")
        return to_ggml_rows(self._keeper.states, self._keeper.states.read(self._position), self._position)

    def _take(self, values: Iterable[tuple[str, np.ndarray]], position: int, where: str) -> None:
        """Set all states; at position 0 they are those of a new session, of which no values are needed."""
        if self.capacity is not None and position > self.capacity:
            raise StateError(f"{where}: is at position {position}, the context has {self.capacity} tokens")
        states = self._keeper.states
        if position:
            self._change(lambda: states.write(values), position)
            return
        for _ in values:  # a file is read to its end, to find out whether it is whole
            pass
        self._change(states.clear, 0)

    def _change(self, change: Callable[[], None], position: int) -> None:
        before = self._keeper.states.changes
        self._failed = True  # until the position goes with the states again, whatever interrupts it
        try:
            change()
        except BaseException:
            self._failed = self._keeper.states.changes != before
            raise
        self._position = position
        self._failed = False

    def _check_known(self, what: str) -> None:
        """Refuse what needs states that are known."""
        if self._failed:
            raise StateError(f"cannot {what}: an earlier inference or change failed or was interrupted; reset it")
