"""The names that ggml-exported graphs use; matched here and nowhere else."""

from __future__ import annotations

import re

CACHE_NAME = re.compile(r"(?:^|\.)(?P<kind>cache_k|cache_v|cache_r|cache_s|conv_state|ssm_state)_l(?P<layer>\d+)")

# Hugging Face style exports: past_key_values.0.key -> present.0.key
PAST_NAME = re.compile(r"^past(?:_key_values?)?[._](?P<layer>\d+)[._](?P<kind>key|value)")


def layer_of(name: str) -> int | None:
    """The layer number in a cache name (``cache_k_l3``, ``cache_k_l3#566``, ``past_key_values.3.key``)."""
    found = CACHE_NAME.search(name) or PAST_NAME.match(name)
    return int(found["layer"]) if found else None
