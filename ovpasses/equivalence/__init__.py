"""Are two graphs the same? In structure (ops, attributes, constants, edges, states), and in numbers."""

from ovpasses.equivalence.equivalence_report import Comparison, EquivalenceReport
from ovpasses.equivalence.errors import CheckError, NotEquivalentError
from ovpasses.equivalence.numbers import assert_equivalent, compare_numbers
from ovpasses.equivalence.structure import StructureReport, compare_structure, structure_digest

__all__ = [
    "CheckError",
    "Comparison",
    "EquivalenceReport",
    "NotEquivalentError",
    "StructureReport",
    "assert_equivalent",
    "compare_numbers",
    "compare_structure",
    "structure_digest",
]
