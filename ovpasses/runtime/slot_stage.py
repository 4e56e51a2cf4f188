"""One compiled model that runs several sequences in a batch: its inputs from a step of each, and its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from openvino import CompiledModel, Tensor

from ovpasses.errors import StateError
from ovpasses.importers.graph_info import RECURRENT, GraphInfo
from ovpasses.runtime.inputs import (
    MAKERS,
    MASK_INPUTS,
    POSITION_INPUTS,
    ROW_INPUTS,
    TOKEN_INPUTS,
    VALID_INPUT,
    Step,
)
from ovpasses.runtime.ports import check_inputs, input_tensor, last_dim, logits_port, read_logits
from ovpasses.runtime.shared_caches import carried_ports

LIST_ROLE, SLOTS_ROLE, TOKENS_ROLE = "seq_active", "rs_s_copy", TOKEN_INPUTS[0]  # of llama.cpp's dumps only


@dataclass(frozen=True)
class Batch:
    """One inference: a step of each of B sequences, all of T tokens, padding included.

    Attributes:
        steps: of every sequence, in the order of the batch.
        cells: cells of a sequence that attention covers.
        spare: a cell that holds nothing, counted over all sequences, where the keys and values of padding go.
        slots: how many sequences the caches hold.
    """

    steps: Sequence[Step]
    cells: int
    spare: int
    slots: int

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.steps[0].count

    def value(self, role: str, rows: np.ndarray) -> np.ndarray:
        """An input of this role.

        Args:
            role: one of ``MAKERS``.
            rows: which of the B*T tokens get logits, counted sequence by sequence.
        """
        if role in ROW_INPUTS:
            return rows
        each = [self._of(role, step) for step in self.steps]
        if role in POSITION_INPUTS:
            planes = [one.reshape(self.steps[0].planes, -1) for one in each]
            return np.concatenate(planes, axis=1).reshape(-1)
        if role in MASK_INPUTS:
            return np.stack(each)[:, None]
        if role == "attention_size":
            return np.array([self.cells])
        if role == "token_len_per_seq":
            return each[0]
        return np.concatenate(each)

    def listed(self) -> np.ndarray:
        """All slots, those of the batch first."""
        active = [step.slot for step in self.steps]
        return np.array([*active, *(slot for slot in range(self.slots) if slot not in active)])

    def _of(self, role: str, step: Step) -> np.ndarray:
        if role == "kv_write_idx":
            real = step.count if step.real is None else step.real
            at = step.first_cell + step.positions
            return np.where(np.arange(step.count) < real, at, self.spare)
        return MAKERS[role](step)


class SlotStage:
    """A compiled model of BatchSequences: any number of sequences and tokens, or a fixed number.

    Attributes:
        sequences, tokens, rows: B, T of each sequence, and rows of logits; None where the model leaves it open.
        knows_padding: padding leaves no trace in recurrent layers, or there are none.
        carried: its caches, by name.

    Args:
        compiled: the model.
        info: what :func:`ovpasses.read_model` found out about it.

    Raises:
        StateError: it needs inputs that a session cannot make, or no list of sequences.
    """

    def __init__(self, compiled: CompiledModel, info: GraphInfo) -> None:
        ports = {port.get_any_name(): port for port in compiled.inputs}
        self._roles = {name: info.roles.get(name, name) for name in ports}
        self.carried = carried_ports(compiled)
        check_inputs(ports, self._roles, self.carried, info, several=True)
        self._ports = {name: port for name, port in ports.items() if name not in self.carried}
        by_role = {self._roles[name]: port for name, port in self._ports.items()}
        if LIST_ROLE not in by_role or TOKENS_ROLE not in by_role:
            raise StateError(f"the model has no input {LIST_ROLE} or no tokens, wanted one of BatchSequences")
        self.sequences = last_dim(by_role[LIST_ROLE])
        whole = last_dim(by_role[TOKENS_ROLE])
        self.tokens = None if whole is None or self.sequences is None else whole // self.sequences
        chosen = next((by_role[role] for role in ROW_INPUTS if role in by_role), None)
        self.rows = None if chosen is None else last_dim(chosen)
        self._picks_rows = chosen is not None
        self.knows_padding = VALID_INPUT in by_role or all(layer.kind != RECURRENT for layer in info.layers)
        self._logits = logits_port(compiled, info)
        self.request = compiled.create_infer_request()

    def infer(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        """Run a batch; the logits of its ``rows``, f32 ``[R, vocab]``, no more than the model gives."""
        filled = rows if self.rows is None else np.concatenate([rows, np.full(self.rows - rows.size, rows[-1])])
        self.request.infer({name: self._input(name, batch, filled) for name in self._ports})
        logits = read_logits(self.request, self._logits)
        return logits[: rows.size] if self._picks_rows else logits[rows]

    def _input(self, name: str, batch: Batch, rows: np.ndarray) -> Tensor:
        role, port = self._roles[name], self._ports[name]
        whole_list = role == SLOTS_ROLE and last_dim(port) is not None
        return input_tensor(name, batch.listed() if whole_list else batch.value(role, rows), port)


def takes_batches(compiled: CompiledModel) -> bool:
    """Whether a compiled model takes a list of sequences."""
    return any(LIST_ROLE in port.get_names() for port in compiled.inputs)
