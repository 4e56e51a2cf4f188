"""Are two graphs the same? In structure (ops, attributes, constants, edges, states)."""

from ovpasses.equivalence.structure import StructureReport, compare_structure, structure_digest

__all__ = ["StructureReport", "compare_structure", "structure_digest"]
