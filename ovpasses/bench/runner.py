"""What an arm must be able to do to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Runner(Protocol):
    """An arm that is ready to run.

    Attributes:
        name: of the arm.
        stuck: why it cannot go back to a depth, in one line; "" when it can.
    """

    name: str
    stuck: str

    def reach(self, prefix: np.ndarray, there: Sequence[Runner]) -> None:
        """Stand at the depth that a prefix has, untimed.

        Args:
            prefix: token ids ``[depth]``; as long as the one before it, or longer.
            there: runners that stand at this depth already, whose states may be taken.
        """
        ...

    def back(self) -> bool:
        """Stand at the depth again; False when that cannot be done, and nothing has changed."""
        ...

    def prefill(self, ids: np.ndarray) -> float:
        """Run a prompt after the depth; seconds."""
        ...

    def decode(self, ids: np.ndarray) -> list[float]:
        """Run token by token, the first one untimed; seconds of each of the others."""
        ...
