"""Rewrites gone wrong: 37 changes of rewritten recorded models, each of which a check must find.

``scripts/mutants.py`` prints what finds each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from openvino import Model

import ovpasses as ovp
from ovpasses._openvino import ops
from ovpasses.equivalence import EquivalenceReport, compare_numbers
from tests.equivalence.graph_edits import (
    append,
    attention,
    change,
    change_all,
    feed,
    ints,
    of_type,
    ordered,
    parameter,
    plus,
    readers_of,
    reshaped,
    state,
    swap_sources,
    upstream,
)
from tests.equivalence.model_forms import Models, batched, copied, dump, gguf, rewritten, static_pair

Plant = Callable[[Model], None]


@dataclass(frozen=True)
class Base:
    """A model as it was recorded, and its rewrite, which the mutants change.

    Attributes:
        recorded, rewrite: make them.
        steps: tokens of each step.
        new: holds what needs OpenVINO 2026.4.
    """

    recorded: Callable[[], Models]
    rewrite: Callable[[], Models]
    steps: tuple[int, ...] = (7, 1, 1)
    new: bool = True


BASES = {
    "llama": Base(
        lambda: dump("llama-gqa", "stateful-prerelayout"),
        lambda: rewritten(dump("llama-gqa", "stateful-prerelayout")),
        new=False,
    ),
    "gemma": Base(
        lambda: dump("gemma4-mixed", "stateful-prerelayout"),
        lambda: rewritten(dump("gemma4-mixed", "stateful-prerelayout")),
        steps=(70, 1),
    ),
    "qwen": Base(lambda: dump("qwen35", "stateless"), lambda: rewritten(dump("qwen35", "stateless"))),
    "qwen pair": Base(lambda: dump("qwen35", "stateless"), lambda: static_pair(dump("qwen35", "stateless"))),
    "llama pair": Base(
        lambda: dump("llama-gqa", "stateless"), lambda: static_pair(ovp.read_model(gguf("llama-gqa")), context=32)
    ),
    "slots": Base(
        lambda: dump("qwen35", "stateless-slots-2-of-4"), lambda: batched(dump("qwen35", "stateless-slots-2-of-4"))
    ),
}


@cache
def models_of(base: str) -> tuple[Models, Models]:
    """Recorded and rewritten; neither is to be changed."""
    return BASES[base].recorded(), BASES[base].rewrite()


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        name: what went wrong.
        base: key in ``BASES``.
        plant: makes the change in place.
        part: of a static pair, 0 the prefill model, 1 the decode model.
    """

    name: str
    base: str
    plant: Plant
    part: int = 0

    def check(self) -> EquivalenceReport:
        """Compare the recorded model with the rewrite that has the change.

        Raises:
            OvpassesError: the check refuses it.
        """
        recorded, rewrite = models_of(self.base)
        pair = rewrite if isinstance(rewrite, tuple) else (rewrite,)
        mutated = tuple(copied(one) if i == self.part else one for i, one in enumerate(pair))
        self.plant(mutated[self.part].model)
        mutated[self.part].model.validate_nodes_and_infer_types()
        return compare_numbers(recorded, mutated if len(mutated) > 1 else mutated[0], steps=BASES[self.base].steps)


def killed_by(report: EquivalenceReport) -> str:
    """The output or state, and the step, that tells a mutant; "" when it survives."""
    if report.first is not None:
        first = report.first
        return f"{first.kind} {first.name}, step {first.step}: NMSE {first.distance.nmse:.0e}"
    return f"error line: {report.differences[0]}" if report.differences else ""


MUTANTS: list[Mutant] = []


def mutant(name: str, base: str, part: int = 0) -> Callable[[Plant], Plant]:
    """Add a change to the list."""

    def add(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(name, base, plant, part))
        return plant

    return add


# Layout and growth of keys and values --------------------------------------------------------------------------------


@mutant("Transpose of the new rows dropped", "llama")
def _(model: Model) -> None:
    concat = append(model, "cache_k_l0").concat
    feed(concat, 1, reshaped(concat.input_value(1).get_node().input_value(0), 1, 3, -1, 16))


@mutant("wrong order in the Transpose of the new rows", "llama")
def _(model: Model) -> None:
    concat = append(model, "cache_v_l1").concat
    feed(concat, 1, reshaped(ordered(concat.input_value(1).get_node().input_value(0), 0, 2, 3, 1), 1, 3, -1, 16))


@mutant("Concat on axis 1 for 2, read as if it were on 2", "llama")
def _(model: Model) -> None:
    concat = append(model, "cache_k_l1").concat
    past, rows = (reshaped(value, 1, -1, 3, 16) for value in concat.input_values())
    change_all(concat.output(0), lambda _: reshaped(ops.concat([past, rows], 1), 1, 3, -1, 16))


@mutant("operands of the Concat swapped", "llama")
def _(model: Model) -> None:
    concat = append(model, "cache_v_l2").concat
    concat.set_arguments(concat.input_values()[::-1])


@mutant("Assign fed by its ReadValue", "llama")
def _(model: Model) -> None:
    feed(state(model, "cache_v_l1").assign, 0, state(model, "cache_v_l1").read)


@mutant("Assign fed by the new rows alone", "llama")
def _(model: Model) -> None:
    feed(state(model, "cache_k_l2").assign, 0, append(model, "cache_k_l2").concat.input_value(1))


@mutant("Assigns of key and value swapped", "llama")
def _(model: Model) -> None:
    swap_sources(state(model, "cache_k_l0").assign, state(model, "cache_v_l0").assign)


@mutant("Assigns of two layers swapped", "llama")
def _(model: Model) -> None:
    swap_sources(state(model, "cache_k_l0").assign, state(model, "cache_k_l1").assign)


@mutant("beam Gather on the heads", "llama")
def _(model: Model) -> None:
    gather = state(model, "cache_k_l0").beam_gather
    assert gather is not None
    feed(gather, 2, 1)


@mutant("a state starts with a row of zeros", "llama")
def _(model: Model) -> None:
    feed(state(model, "cache_v_l0").read, 0, np.zeros((1, 3, 1, 16), np.float16))


@mutant("heads read as those of another layer", "gemma")
def _(model: Model) -> None:
    rows = append(model, "cache_v_l1").concat.input_value(1).get_node()  # [1, t, 4, 16] read as the last layer's 1 x 64
    change(rows, 0, lambda r: reshaped(ordered(reshaped(r, 1, -1, 4, 16), 0, 2, 1, 3), 1, -1, 4, 16))


# Attention -----------------------------------------------------------------------------------------------------------


@mutant("mask one cell to the right", "llama")
def _(model: Model) -> None:
    change_all(parameter(model, "self_kq_mask"), lambda mask: ops.roll(mask, ints(1), ints(-1)))


@mutant("a layer without mask", "llama")
def _(model: Model) -> None:
    zero = ops.constant(np.zeros(1, np.float16))
    change(attention(model, 1), 3, lambda mask: ops.broadcast(zero, ops.shape_of(mask)))


@mutant("key and value exchanged in attention", "llama")
def _(model: Model) -> None:
    layer = attention(model, 2)
    keys, values = layer.input_value(1), layer.input_value(2)
    feed(layer, 1, values)
    feed(layer, 2, keys)


@mutant("key heads tiled instead of grouped", "llama")
def _(model: Model) -> None:
    feed(attention(model, 0), 1, ops.tile(append(model, "cache_k_l0").concat, ints(1, 2, 1, 1)))


@mutant("scale of attention doubled", "llama")
def _(model: Model) -> None:
    change(attention(model, 1), 4, lambda scale: ops.multiply(scale, np.float16(2)))


@mutant("all positions one too high", "llama")
def _(model: Model) -> None:
    change_all(parameter(model, "inp_pos"), plus(1))


@mutant("logits of the token before", "llama")
def _(model: Model) -> None:
    change_all(parameter(model, "out_ids"), lambda rows: ops.relu(plus(-1)(rows).output(0)))


@mutant("full mask for a sliding layer", "gemma")
def _(model: Model) -> None:
    feed(attention(model, 0), 3, attention(model, 5).input_value(3))


@mutant("sliding mask for the full layer", "gemma")
def _(model: Model) -> None:
    feed(attention(model, 5), 3, attention(model, 0).input_value(3))


@mutant("sliding window one token longer", "gemma")
def _(model: Model) -> None:
    sliding = parameter(model, "self_kq_mask_swa")
    change_all(sliding, lambda mask: ops.maximum(mask, ops.roll(mask, ints(-1), ints(-1))))


# Recurrent layers ----------------------------------------------------------------------------------------------------


@mutant("window of the conv state one column early", "qwen")
def _(model: Model) -> None:
    window = upstream(state(model, "cache_r_l0").assign, "Slice")
    feed(window, 1, [-4])
    feed(window, 2, [-1])


@mutant("state cut from the start of the packed tensor", "qwen")
def _(model: Model) -> None:
    part = upstream(state(model, "cache_s_l1").assign, "Slice")
    feed(part, 1, [0])
    feed(part, 2, [16])


@mutant("key heads grouped instead of tiled", "qwen")
def _(model: Model) -> None:
    keys = of_type(model, "Tile")[1]
    repeated = ops.concat([ops.unsqueeze(keys.input_value(0), ints(3))] * 2, 3)
    change_all(keys.output(0), lambda _: reshaped(repeated, 1, -1, 4, 16))


@mutant("gate left out", "qwen")
def _(model: Model) -> None:
    change(of_type(model, "Loop")[0], 5, lambda gate: ops.multiply(gate, np.float32(0)))


@mutant("delta-net state not transposed", "qwen")
def _(model: Model) -> None:
    loop = of_type(model, "Loop")[2]
    feed(loop, 7, loop.input_value(7).get_node().input_value(0))


@mutant("a recurrent state starts with ones", "qwen")
def _(model: Model) -> None:
    feed(state(model, "cache_s_l0").read, 0, np.ones((1, 1, 1, 1024), np.float32))


@mutant("position planes in another order", "qwen")
def _(model: Model) -> None:
    change_all(
        parameter(model, "inp_pos"),
        lambda p: reshaped(ops.gather(reshaped(p, 4, -1), ints(3, 0, 1, 2), ints(0)), 1, 1, 1, -1),
    )


@mutant("Assigns of two recurrent layers swapped", "qwen")
def _(model: Model) -> None:
    swap_sources(state(model, "cache_s_l0").assign, state(model, "cache_s_l1").assign)


# Static pairs and several sequences ----------------------------------------------------------------------------------


@mutant("padding not told from tokens (no ChunkValidLen)", "qwen pair")
def _(model: Model) -> None:
    change_all(parameter(model, "chunk_valid_len"), lambda _: ints(5))


@mutant("padding not gated in one layer", "qwen pair")
def _(model: Model) -> None:
    ((less, port),) = readers_of(parameter(model, "chunk_valid_len"), "Less")
    feed(less, port, [5])


@mutant("conv window of a padded chunk one column late", "qwen pair")
def _(model: Model) -> None:
    end = next(node for node, _ in readers_of(parameter(model, "chunk_valid_len"), "Add"))
    change_all(end.output(0), lambda window: ops.minimum(plus(1)(window), ints(7)))


@mutant("recurrent states cleared at every chunk", "qwen pair")
def _(model: Model) -> None:
    change_all(parameter(model, "cache_rs_reset_len"), lambda _: ints(1))


@mutant("values written one cell further", "llama pair")
def _(model: Model) -> None:
    update = next(op for op in of_type(model, "ScatterUpdate") if "cache_v_l0" in op.get_friendly_name())
    change(update, 1, plus(1))


@mutant("decode writes on the cell before", "llama pair", part=1)
def _(model: Model) -> None:
    change_all(parameter(model, "inp_kv_idx"), plus(-1))


@mutant("all sequences read the first one's keys", "slots")
def _(model: Model) -> None:
    gather, port = next(readers_of(parameter(model, "seq_active"), "Gather"))
    change(gather, port, lambda active: ops.multiply(active, ints(0)))


@mutant("a recurrent state written to the next sequence", "slots")
def _(model: Model) -> None:
    update = next(op for op in of_type(model, "ScatterUpdate") if list(op.get_output_partial_shape(0))[2:] == [4, 384])
    change(update, 1, lambda slots: ops.mod(plus(1)(slots), ops.constant(np.array(4), slots.get_element_type())))
