"""Pictures of graphs: the surroundings of a node, and a place that a pass rewrote, before and after.

Needs the extra ``pictures``.
"""

from ovpasses.visualize._netron import open_in_netron
from ovpasses.visualize._picture import Picture, PictureError
from ovpasses.visualize._rewrite import difference, rewrite
from ovpasses.visualize._subgraph import subgraph

__all__ = ["Picture", "PictureError", "difference", "open_in_netron", "rewrite", "subgraph"]
