"""KVHeadSplit: each KV cache in its own layer's heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from openvino import Model

from ovpasses.errors import RewriteError
from ovpasses.importers._head_counts import HeadSplit, declared_split, sequence_dim, split_from_graph
from ovpasses.importers.graph_info import ATTENTION, GraphInfo
from ovpasses.passes._kv_relayout import split_site
from ovpasses.passes._kv_sites import KVSite, NoSite, find_sites
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport

HeadTable = Mapping[int, tuple[int, int, int]]
_Skip = tuple[str, str]


class KVHeadSplit(ReportedPass):
    """Give every KV cache its layer's ``[1, seq, heads, size]``, where it is flat or split by another layer's count.

    One head count does not describe a model whose sliding and full layers differ: 4 heads x 16 read as 1 x 64 decode
    to garbage.

    Before::

        cache [1,1,cells,h*d] -> ScatterUpdate(idx, dim 2) -> Result
        rows [1,1,t,h*d] ----------------^  |-> Reshape [1,cells,h,d] -> Slice -> attention
      or, one count for all layers:
        ReadValue [1,seq,1,h*d] -> Concat(1) -> Assign
        rows [1,t,1,h*d] ------------^  |-> Transpose -> Reshape [1,h,seq,d] -> attention

    After::

        cache [1,cells,h,d] -> ScatterUpdate(idx, dim 1) -> Result
        rows -> Reshape [1,t,h,d] ------^  |-> Slice -> attention
        ReadValue [1,seq,h,d] -> Concat(1) -> Assign
        rows -> Reshape [1,t,h,d] --^  |-> Transpose -> attention

    Applies when (per cache input or state):
        cache: rank 4, the last dim static.
        update: a Concat or ScatterUpdate on dim 1 or 2 grows it, into a Result or an Assign.
        layout: the sequence is on dim 1, or on dim 2 with a single head in front of it.
        heads: the table or the graph tells the layer's head count.
        divide: the count divides the elements per token.

    Leaves alone: caches with the right split ("already"), on dim 1 or 2; what a Concat grows and nothing contradicts.
    Keeps: names, rt_info, variable ids, what other readers and Results see (a Reshape gives them the old shape).
        The cache's own Result gets the new shape, as its input does.
    Numerics: bit-exact for a flat cache. Where a wrong split was read back as in the second drawing the values
        change: that is the repair.
    Source: llama.cpp's OpenVINO backend, recorded before and after it took the count per layer, under
        ``models/recorded``.

    Args:
        heads: ``{layer: (heads, key size, value size)}`` or a :class:`GraphInfo`; layers it does not name, and None,
            are read off the graph: the rows before they are appended, else the readers before attention.
        strict: see :class:`ReportedPass`.

    Raises (when run):
        RewriteError: a layer's count in ``heads`` does not fit its cache; nothing is changed then.
    """

    looked_for: ClassVar[str] = "KV cache (input or state)"

    def __init__(self, heads: HeadTable | GraphInfo | None = None, *, strict: bool = False) -> None:
        super().__init__(strict=strict)
        self.heads = _table(heads)

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        todo: list[tuple[KVSite, HeadSplit]] = []
        for site in find_sites(model):
            if isinstance(site, NoSite):
                report.skip(site.name, site.step, site.reason)
                continue
            split = self._split(site, report)
            why = split if isinstance(split, tuple) else _why_not(site, split)
            if why is not None:
                report.skip(site.name, *why)
            elif isinstance(split, HeadSplit):
                todo.append((site, split))
                report.done(site.name)
        return [lambda site=site, split=split: split_site(site, split) for site, split in todo]  # type: ignore[misc]

    def _split(self, site: KVSite, report: PassReport) -> HeadSplit | _Skip:
        combined = _combined(site)
        if combined is None:
            return "layout", f"its shape is {site.shape}, wanted static heads and size"
        given = self.heads.get(site.layer) if site.layer is not None else None
        if given is not None:
            split = HeadSplit(given[0], given[2] if site.is_value else given[1])
            if split.combined != combined:
                raise RewriteError(
                    f"{report.name}: layer {site.layer}: {site.name} has {combined} elements per token, the table says "
                    f"{split} = {split.combined}; nothing was changed",
                    (report,),
                )
            return split
        split_found = split_from_graph(site.rows, site.update.output(0), combined)
        if split_found is None and site.update.get_type_name() == "Concat":
            return "already", f"{site.shape}, and nothing around it says otherwise"
        if split_found is None:
            return "heads", f"no value around it tells how its {combined} elements per token split; give heads="
        if split_found.combined != combined:
            layer = "of unknown number" if site.layer is None else site.layer
            return "divide", (
                f"layer {layer}: {combined} elements per token, its readers want {split_found} = {split_found.combined}"
            )
        return split_found

    def _options(self) -> list[str]:
        return [repr(self.heads)] if self.heads else []


def _table(heads: HeadTable | GraphInfo | None) -> dict[int, tuple[int, int, int]]:
    if heads is None:
        return {}
    if not isinstance(heads, GraphInfo):
        return dict(heads)
    known = {}
    for layer in heads.layers:
        if layer.kind == ATTENTION and layer.n_heads_kv and layer.key_size and layer.value_size:
            known[layer.index] = (layer.n_heads_kv, layer.key_size, layer.value_size)
    return known


def _combined(site: KVSite) -> int | None:
    """Elements per token: the dims beside batch and sequence."""
    declared = declared_split(site.shape, sequence_dim(site.shape, site.axis))
    return declared.combined if declared is not None else None


def _why_not(site: KVSite, split: HeadSplit) -> _Skip | None:
    sequence = sequence_dim(site.shape, site.axis)
    declared = site.shape[3 - sequence], site.shape[3]
    flat_input = sequence == 2 and site.state is None and site.update.get_type_name() == "ScatterUpdate"
    if declared == (split.heads, split.size) and not flat_input:
        return "already", f"split in {split} already {site.shape}"
    if sequence != site.axis:
        return (
            "layout",
            f"{site.shape} is grown on dim {site.axis}, which is not its sequence; run MakeKVStateful first",
        )
    if sequence == 2 and site.shape[1] != 1:
        return "layout", f"{site.shape} has its sequence on dim 2 behind {site.shape[1]} heads, wanted 1 or dim 1"
    return None
