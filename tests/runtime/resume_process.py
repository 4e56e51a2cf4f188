"""Run by test_resume in a process of its own: restores saved states and goes on, and says what that cost."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from tests.runtime.pair_helpers import AnySession, opened_file


def digests(session: AnySession, tokens: list[int]) -> list[str]:
    """Of the logits of every step, all their bytes."""
    return [hashlib.sha256(session.decode(token).tobytes()).hexdigest() for token in tokens]


def count_inferences() -> list[int]:
    """A list that gets the number of tokens of every inference from now on."""
    counts: list[int] = []
    infer = openvino.InferRequest.infer

    def counted(self: openvino.InferRequest, inputs: Any = None, *rest: Any, **more: Any) -> Any:
        counts.append(int(np.prod(inputs["inp_tokens"].shape)))
        return infer(self, inputs, *rest, **more)

    openvino.InferRequest.infer = counted
    return counts


def main() -> None:
    jobs = json.loads(sys.argv[1])
    counts, found = count_inferences(), []
    opened = {pair: opened_file(pair[0], Path(pair[1])) for pair in {(job[0], job[1]) for job in jobs}}
    for kind, model, state, tokens in jobs:
        session = opened[kind, model]
        counts.clear()
        position = session.restore(state)
        found.append({"position": position, "logits": digests(session, tokens), "counts": list(counts)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
