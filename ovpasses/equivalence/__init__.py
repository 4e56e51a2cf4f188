"""Are two graphs the same? In structure (ops, attributes, constants, edges, states), and in numbers."""

from ovpasses.equivalence.numbers import (
    CheckError,
    EquivalenceReport,
    NotEquivalentError,
    assert_equivalent,
    compare_numbers,
)
from ovpasses.equivalence.structure import StructureReport, compare_structure, structure_digest

__all__ = [
    "CheckError",
    "EquivalenceReport",
    "NotEquivalentError",
    "StructureReport",
    "assert_equivalent",
    "compare_numbers",
    "compare_structure",
    "structure_digest",
]
