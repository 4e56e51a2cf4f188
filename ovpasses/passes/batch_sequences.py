"""BatchSequences: several sequences of a dump's caches in one inference, each in its own row of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from openvino import Model, PartialShape, Type

from ovpasses._openvino import Node
from ovpasses.errors import RewriteError
from ovpasses.importers._sequence_caches import SequenceCache, sequence_caches
from ovpasses.importers._slot_rows import Rows
from ovpasses.importers._slots import SlotCache, behind_views, slot_caches
from ovpasses.importers._walk import ATTENTION_OPS, first_downstream, port_name
from ovpasses.importers.input_roles import input_roles
from ovpasses.passes._batch_edits import Batch, batch_sequences, fix_sequences, sequence_list
from ovpasses.passes._edit import const_value, deferred, describe
from ovpasses.passes._recurrent_sites import DeltaNet, delta_nets
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

# Inputs that count sequences; the length of the list says it then.
COUNTS = ("n_seq_active", "s_copy_active_slot_len")
VALID = "chunk_valid_len"

Why = tuple[str, str] | None


class BatchSequences(ReportedPass):
    """Let one inference run any set of the sequences that a llama.cpp dump's caches hold, each T tokens.

    The dump is told a range of sequences, and folds their tokens into one row before the delta net. Here a list says
    which sequences run, in any order; row b of the batch is the b-th of the list, and tokens come in that order:
    T of the first, then T of the second.

    Before::

        cache [1,S,cells,w] -> Slice(seq_active_start : seq_active_end) -> attention
        table [1,1,S,w] -> Gather(list[0 : s_copy_active_slot_len]) -> layer
        table[:rs_slot_begin], new rows, table[..:] -> Concat -> Result
        q, k, v [1,B*T,h,s], gate, beta [1,B*T,h] -> GatedDeltaNet

    After::

        cache [1,S,cells,w] -> Gather(seq_active [B]) -> attention
        table [1,1,S,w] -> Gather(list[0 : B]) -> layer
        ScatterUpdate(table, list[0 : B], last B rows of what the layer computes) -> Result
        q, k, v -> Reshape [B,T,h,s], gate, beta -> Reshape [B,T,h] -> GatedDeltaNet

    Applies when (per cache and delta net; all together or not at all):
        sequences: all caches hold the same known number of sequences, more than one.
        rows: what the layer computes for a recurrent cache can be told (see StaticSlotCopy).
        reset: the first slot to clear and how many are inputs i64 ``[1]``.
        query: the batch of the queries that read a KV cache is not fixed to one.
        net: a delta net is the op, not lowered yet; heads and sizes are static, the state has a row per sequence.
        count: the inputs that count sequences are i64 ``[1]``.
        padding: ChunkValidLen has not run yet; after this pass it gives every sequence a length of its own.

    Leaves alone: caches of one sequence ("kind"); caches that are read by such a list ("already"), but for its length.
    Keeps: names and shapes of other inputs and of outputs. Input ``seq_active`` i64 ``[B]`` is added;
        ``cache_rs_reset_idx`` and ``cache_rs_reset_len`` become ``[B]``, a range for each sequence. Inputs whose value
        follows from the list are removed, outputs of a defrag too: rows go back to the slots they came from.
    Attention: the caches of the listed sequences are gathered and read in a batch of B. A mask over the cells of all
        S sequences would spare that copy, but costs S times the products; a range serves neighbours only.
    Numerics: as sequence by sequence, up to the order of sums in products of more rows.
    Source: the recorded dump ``qwen35/stateless-slots-2-of-4``, captured with one sequence per inference, and
        llama.cpp's own logits for a batch of two; its OpenVINO backend refuses several sequences on an NPU.

    Args:
        sequences: B, fixed; None leaves it open.
        strict: see :class:`ReportedPass`.

    Raises:
        RewriteError: ``sequences`` is not positive; or it is given and the caches hold fewer, or only one.
    """

    looked_for: ClassVar[str] = "cache of several sequences"

    def __init__(self, *, sequences: int | None = None, strict: bool = False) -> None:
        super().__init__(strict=strict)
        if sequences is not None and sequences < 1:
            raise RewriteError(f"sequences is {sequences}, wanted at least 1")
        self.sequences = sequences

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        caches = [cache for cache in slot_caches(model) if not _is_one(cache, report)]
        attended = list(sequence_caches(model))
        self._check_count(caches, attended, report)
        listed = sequence_list(model)
        if listed is not None:
            names = [*(cache.name for cache in caches), *(cache.name for cache in attended)]
            return self._of_listed(model, listed, names, report)
        batch = Batch(caches, attended, list(delta_nets(model)) if caches else [], _counts(model))
        reasons = dict(_reasons(model, batch)) if caches or attended else {}
        failed = next(((name, why) for name, why in reasons.items() if why is not None), None)
        for name, why in reasons.items():
            if failed is None:
                report.done(name)
            elif why is not None:
                report.skip(name, *why)
            else:
                report.skip(name, failed[1][0], f"all change together, but {failed[0]}: {failed[1][1]}")
        return [deferred(batch_sequences, model, batch, self.sequences, report)] if report.rewritten else []

    def _of_listed(self, model: Model, listed: Node, names: list[str], report: PassReport) -> list[Edit]:
        """A graph that takes a list already: all there is to do is to fix its length."""
        found = listed.get_output_partial_shape(0)[0]
        fixed = found.get_length() if found.is_static else None
        if self.sequences is not None and fixed is None:
            for name in names:
                report.done(name)
            return [deferred(fix_sequences, model, self.sequences)]
        for name in names:
            if self.sequences in (None, fixed):
                report.skip(name, "already", "it is read by a list of sequences")
            else:
                report.skip(name, "sequences", f"a call runs {fixed} sequences, wanted {self.sequences}")
        return []

    def _check_count(self, caches: list[SlotCache], attended: list[SequenceCache], report: PassReport) -> None:
        if self.sequences is None:
            return
        known = [c.slots for c in caches if c.slots is not None] + [c.sequences for c in attended]
        if self.sequences > min(known, default=1):
            raise RewriteError(
                f"{report.name}: sequences is {self.sequences}, but the caches hold {min(known, default=1)}; "
                "nothing was changed",
                (report,),
            )

    def _options(self) -> list[str]:
        return [f"sequences={self.sequences}"] if self.sequences is not None else []


def _is_one(cache: SlotCache, report: PassReport) -> bool:
    if cache.slots == 1:
        report.skip(cache.name, "kind", "it holds one sequence")
    return cache.slots == 1


def _counts(model: Model) -> list[Node]:
    roles = input_roles(model)
    return [p for p in model.get_parameters() if roles.get(port_name(p)) in COUNTS]


def _reasons(model: Model, batch: Batch) -> Iterator[tuple[str, Why]]:
    """Every candidate with the step and the reason why it cannot change, or None."""
    held = {cache.slots for cache in batch.slots} | {cache.sequences for cache in batch.attended}
    general = _why_not_any(model, batch, held)
    for slot in batch.slots:
        yield slot.name, general or _why_not_slots(slot)
    for attended in batch.attended:
        yield attended.name, general or _why_not_query(attended)
    for net in batch.nets:
        yield net.node.get_friendly_name(), general or _why_not_net(net)


def _why_not_any(model: Model, batch: Batch, held: set[int | None]) -> Why:
    if len(held) != 1 or None in held:
        found = ", ".join(sorted("unknown" if n is None else str(n) for n in held))
        return "sequences", f"the caches hold {found} sequences, wanted one number for all"
    if any(VALID in p.output(0).get_names() for p in model.get_parameters()):
        return (
            "padding",
            f"the graph has the input {VALID}, for one sequence; run ChunkValidLen after this pass",
        )
    for count in batch.counts:
        wrong = _why_not_scalar(count)
        if wrong is not None:
            return "count", f"input {port_name(count)} {wrong}"
    return None


def _why_not_scalar(value: Node) -> str | None:
    shape, dtype = value.get_output_partial_shape(0), value.get_output_element_type(0)
    if value.get_type_name() == "Parameter" and dtype == Type.i64 and shape == PartialShape([1]):
        return None
    return f"is {describe(value.output(0))}, wanted an input i64 [1]"


def _why_not_slots(cache: SlotCache) -> Why:
    if cache.active is None:
        return "rows", "nothing reads it by the head of a slot list"
    if not isinstance(cache.rows, Rows) or cache.update is None:
        return "rows", str(cache.rows)
    if cache.rows.cut.get_type_name() == "Gather":
        return "rows", f"its {cache.rows.kind} is chosen by an input already"
    for one in (*cache.reset.index, *cache.reset.count) if cache.reset is not None else ():
        wrong = _why_not_scalar(behind_views(one.get_source_output()).get_node())
        if wrong is not None:
            return "reset", f"a slot to clear {wrong}"
    return None


def _why_not_query(cache: SequenceCache) -> Why:
    attention = first_downstream(cache.chosen.output(0), ATTENTION_OPS)
    if attention is None:
        return "query", "leads to no attention"
    query = attention.input_value(0)
    shape = query.get_partial_shape()
    if shape.rank.is_static and shape[0].is_static:
        return "query", f"the query is {describe(query)}, wanted a batch that is not fixed"
    if any(const_value(view.input_value(1)) is None for view in cache.views):
        return "query", "the shape of a view of it is no constant"
    return None


def _why_not_net(net: DeltaNet) -> Why:
    if net.node.get_type_name() == "Loop":
        return "net", "is lowered to a Loop; run this pass before LowerGatedDeltaNet"
    shapes = [net.node.get_input_partial_shape(i) for i in range(6)]
    open_dims = [shape for i, shape in enumerate(shapes) if i != 3 and any(d.is_dynamic for d in list(shape)[2:])]
    if any(shape.rank.is_dynamic for shape in shapes) or open_dims:
        return "net", f"inputs are {', '.join(map(str, shapes))}, wanted static heads and sizes"
    if shapes[3][0].is_static:
        return "net", f"the state is {shapes[3]}, wanted a row for each sequence"
    return None
