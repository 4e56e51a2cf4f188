"""A place that was rewritten, before and after, side by side."""

from __future__ import annotations

from collections import Counter
from functools import partial

from openvino import Model

from ovpasses.importers import ImportedModel
from ovpasses.passes.report import PassReport
from ovpasses.pipeline import PipelineReport
from ovpasses.visualize._changes import KEPT, Changes, Side
from ovpasses.visualize._draw import Digraph, add_count, add_title, draw_part, new_graph
from ovpasses.visualize._frames import MARGIN
from ovpasses.visualize._picture import Picture, PictureError
from ovpasses.visualize._regions import connected, region
from ovpasses.visualize._replay import Chosen, before_and_after
from ovpasses.visualize._view import View

MOST = 24  # changed nodes of one picture
READERS = 3  # readers of one node


def rewrite(source: PipelineReport | ImportedModel | Model, what: Chosen, *, site: str | None = None) -> Picture:
    """Picture what a pass makes of one place: before, after, the nodes that differ, shapes on the edges.

    Args:
        source: the report of a pipeline's run, or a model; a model is not changed, the pass runs on a clone.
        what: the pass: its name, class, or an instance.
        site: the place, as the report's ``sites`` name it; the first when not given.

    Raises:
        PictureError: the pass rewrote nothing or not this place, it was not in the run, or the run kept no graph.
        RewriteError: no pass is of that name, or it refuses the model.
    """
    before, after, report = before_and_after(source, what)
    place = _site(report, site)
    changes = Changes(View(before), View(after))
    return _picture(changes, region(changes, report.sites, place), f"{report.name}: {place}")


def difference(before: ImportedModel | Model, after: ImportedModel | Model, *, site: str | None = None) -> Picture:
    """Picture where two graphs of one model differ; nodes of one op and friendly name are the same node.

    Args:
        before: the one graph.
        after: the other.
        site: a node or tensor name to picture the surroundings of; the first difference when not given.

    Raises:
        PictureError: they do not differ, or not near ``site``.
    """
    first, second = (View(model.model if isinstance(model, ImportedModel) else model) for model in (before, after))
    changes = Changes(first, second)
    if site is None:
        return _picture(changes, connected(changes), "the first difference")
    if not second.called(site):
        first.find(site)
    return _picture(changes, region(changes, [site], site), f"difference at {site}")


def _site(report: PassReport, site: str | None) -> str:
    if not report.sites:
        why = "; ".join([report.summary(), *report.skip_lines()[:1]])
        raise PictureError(f"{report.name} rewrote nothing, there is no before and after: {why}")
    if site is None or site in report.sites:
        return site or report.sites[0]
    known = ", ".join(report.sites[:4]) + (", ..." if len(report.sites) > 4 else "")
    raise PictureError(f"{report.name} did not rewrite {site!r}; it rewrote {known}")


def _picture(changes: Changes, found: list[int], title: str) -> Picture:
    if not found:
        raise PictureError(f"{title}: no node differs there")
    chosen = _chosen(changes, found)
    if len(found) > len(chosen):
        title += f" ({len(chosen)} of {len(found)} changed nodes)"
    shown = {*chosen, *_context(changes, chosen)}
    graph, looks = new_graph(), set()
    for name, side in zip(("before", "after"), changes.sides, strict=True):
        with graph.subgraph(name=f"cluster_{name}") as part:
            part.attr(label=name, style="rounded", color="#b0b0b0", margin=str(MARGIN))
            looks |= _draw_side(part, changes, side, shown, name)
            for number in chosen:
                _count_readers(part, side, number, shown, name)
    add_title(graph, title, looks)
    return Picture(graph.source, title)


def _draw_side(part: Digraph, changes: Changes, side: Side, shown: set[int], prefix: str) -> set[str]:
    places = {side.position[n]: n for n in shown if n in side.position}
    places = {i: n for i, n in places.items() if not side.view.constant[i]}
    joined = {i for i in places if any(other in places for other in side.view.neighbours(i))}
    status = {i: changes.status[n] for i, n in places.items() if i in joined or changes.status[n] != KEPT}
    return draw_part(part, side.view, status, prefix, partial(changes.edge_status, side))


def _count_readers(part: Digraph, side: Side, number: int, shown: set[int], prefix: str) -> None:
    i = side.position.get(number)
    if i is None or side.view.constant[i]:
        return
    hidden = [reader for reader in side.view.reader_nodes(i) if side.number[reader] not in shown]
    if hidden:
        add_count(part, prefix, i, len(hidden), above=False)


def _chosen(changes: Changes, found: list[int]) -> list[int]:
    """As many of the changed nodes as a picture holds: the nearest, and of each no more readers than fit."""
    chosen: list[int] = []
    left_out: set[int] = set()
    readers: Counter[int] = Counter()
    for number in found:
        feeds = [other for other in changes.feeds(number) if other in chosen]
        full = bool(feeds) and all(readers[other] >= READERS for other in feeds)
        near = changes.neighbours(number)
        if full or len(chosen) == MOST or (near & left_out and not near & set(chosen)):
            left_out.add(number)
            continue
        readers.update(feeds)
        chosen.append(number)
    return chosen


def _context(changes: Changes, chosen: list[int]) -> set[int]:
    """The kept nodes that the chosen ones read, and as many as fit of those that read them."""
    found: set[int] = set()
    for number in chosen:
        inputs = changes.feeds(number)
        readers = changes.neighbours(number) - inputs
        room = READERS - len(readers & set(chosen))
        kept = sorted(n for n in readers if changes.status[n] == KEPT)
        found |= {n for n in inputs if changes.status[n] == KEPT} | set(kept[: max(room, 0)])
    return found
