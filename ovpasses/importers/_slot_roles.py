"""The inputs by which a dump is told which slots and sequences of its caches a call reads, clears and writes."""

from __future__ import annotations

from openvino import Model

from ovpasses._openvino import Node, Output
from ovpasses.importers._sequence_caches import sequence_caches
from ovpasses.importers._slot_rows import Rows
from ovpasses.importers._slots import behind_views, slot_caches


def slot_roles(model: Model) -> dict[Node, str]:
    """The inputs that say which slots a call reads, clears and writes, with their roles (see ``input_roles``).

    ``seq_active`` lists the sequences that a call runs, in a graph that takes a list of them (BatchSequences).
    """
    roles: dict[Node, str] = {}

    def tell(role: str, *values: Output | None) -> None:
        for value in values:
            source = behind_views(value).get_node() if value is not None else None
            if source is not None and source.get_type_name() == "Parameter":
                roles[source] = role

    for cache in slot_caches(model):
        for read in cache.reads:
            roles[read.slots] = "rs_s_copy"
            tell("s_copy_active_slot_len", read.end if read.is_active else read.begin)
        if cache.reset is not None:
            tell("cache_rs_reset_idx", *(i.get_source_output() for i in cache.reset.index))
            tell("cache_rs_reset_len", *(i.get_source_output() for i in cache.reset.count))
        for write in cache.writes:
            tell("rs_remainder_begin" if write in cache.remainders else "rs_slot_begin", write.begin)
        rows = cache.rows
        if isinstance(rows, Rows) and rows.cut.get_type_name() == "Slice":
            tell("rs_src_begin", rows.cut.input_value(1))
    for cached in sequence_caches(model):
        if cached.is_listed:
            tell("seq_active", cached.chosen.input_value(1))
            tell("attention_size", *(cut.input_value(2) for cut in cached.cuts))
    return roles
