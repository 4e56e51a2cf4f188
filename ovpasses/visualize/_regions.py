"""Which changed nodes belong to which rewritten place."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ovpasses.visualize._changes import Changes

# Kept nodes in a row between a place and what changed there; for one that is alone.
_REACH, _REACH_ALONE = 5, 3
_HUB = 8  # a kept node with more neighbours joins nothing: a mask is read by every layer


def region(changes: Changes, sites: Sequence[str], site: str) -> list[int]:
    """The changed nodes around one of several places, the nearest first.

    A changed node belongs to the place that it is nearest to; changed nodes that feed one of them, such as a mask
    that all layers share, are part of each.

    Args:
        changes: the graphs.
        sites: what the places are called.
        site: one of them.
    """
    differing = set(changes.differing())
    nearest, order = _nearest(changes, sites, differing)
    found = [number for number in order if number in differing and nearest[number] == site]
    waiting = list(found)
    while waiting:
        for number in sorted(changes.feeds(waiting.pop(0)) & differing):
            if number not in found:
                found.append(number)
                waiting.append(number)
    return found


def connected(changes: Changes) -> list[int]:
    """The first of the groups of changed nodes that hang together, and what feeds it."""
    differing = changes.differing()
    names = [_name(changes, number) for number in differing[:1]]
    return region(changes, names, names[0]) if names else []


def _name(changes: Changes, number: int) -> str:
    side = next(side for side in changes.sides if number in side.position)
    return side.view.name(side.position[number])


def _nearest(changes: Changes, sites: Sequence[str], differing: set[int]) -> tuple[dict[int, str], list[int]]:
    """For every node within reach of a place the nearest place, and the nodes in order of distance."""
    nearest: dict[int, str] = {}
    order: list[int] = []
    waiting: deque[tuple[int, int, str]] = deque()
    called = _called(changes, set(sites))
    reach = _REACH if len(sites) > 1 else _REACH_ALONE
    waiting.extend((number, 0, site) for site in sites for number in called.get(site, ()))
    while waiting:
        number, kept, site = waiting.popleft()
        if number in nearest:
            continue
        nearest[number] = site
        order.append(number)
        neighbours = sorted(changes.neighbours(number))
        far = kept >= reach or (kept and len(neighbours) > _HUB)
        if far or (number in differing and _is_input(changes, number)):
            continue
        waiting.extend((other, 0 if other in differing else kept + 1, site) for other in neighbours)
    return nearest, order


def _is_input(changes: Changes, number: int) -> bool:
    """A new or removed input, which all places may read: it is part of each, and joins none to another."""
    sides = [side for side in changes.sides if number in side.position]
    return all(side.view.kinds[side.position[number]] == "Parameter" for side in sides)


def _called(changes: Changes, names: set[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for side in changes.sides:
        for i, number in enumerate(side.number):
            for name in side.view.names(i) & names:
                found.setdefault(name, []).append(number)
    return found
