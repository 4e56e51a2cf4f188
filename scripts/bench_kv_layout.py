"""The four layouts of a KV cache at depth 2048: ``ovpasses bench`` with the arms that differ in nothing else.

``.venv/bin/python scripts/bench_kv_layout.py [options of ovpasses bench]``. Times on a shared machine drift; compare
within one run.
"""

from __future__ import annotations

import sys

from ovpasses.cli import main

ARMS = ("ggml", "seq-axis", "beam", "stateful")

if __name__ == "__main__":
    options = sys.argv[1:] or ["--depth", "2048"]
    main(["bench", "demo", *(word for arm in ARMS for word in ("--arm", arm)), *options])
