"""Pictures of what is around a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from openvino import Model

import ovpasses as ovp
from ovpasses import visualize
from ovpasses._openvino import ops
from ovpasses.visualize import PictureError
from tests.visualize.svg import edges, nodes, text

pytestmark = pytest.mark.usefixtures("drawn_by_package")


@pytest.fixture
def llama(recorded: Path) -> ovp.ImportedModel:
    return ovp.read_model(recorded / "after/llama-gqa/stateful/model.xml")


def fan_out(readers: int) -> Model:
    source = ops.parameter([2], np.float32, name="source")
    return Model([ops.result(ops.relu(source)) for _ in range(readers)], [source])


def test_two_hops_around_attention(llama: ovp.ImportedModel) -> None:
    picture = visualize.subgraph(llama, "ScaledDotProductAttention_192")
    (centre,) = [node for node in nodes(picture) if node.look == "focus"]
    assert centre.lines == ("ScaledDotProductAttention", "scale 0.25", "ScaledDotProductAttention_192")
    assert len(nodes(picture)) == 13
    assert "f16 [1,6,?,16]" in {edge.lines[0] for edge in edges(picture)}
    whole = visualize.subgraph(llama, "ScaledDotProductAttention_192", hops=1)
    assert {node.lines[-1] for node in nodes(whole)} < {node.lines[-1] for node in nodes(picture)}


def test_no_hops_is_the_node_alone(llama: ovp.ImportedModel) -> None:
    picture = visualize.subgraph(llama, "ScaledDotProductAttention_192", 0)
    assert len(nodes(picture)) == 1
    assert not edges(picture)


@pytest.mark.parametrize("name", ["cache_k_l0cache_k_l0", "ReadValue_912", "cache_k_l0"])
def test_state_by_any_of_its_names(llama: ovp.ImportedModel, name: str) -> None:
    picture = visualize.subgraph(llama, name, hops=1)
    (centre,) = [node for node in nodes(picture) if node.look == "focus"]
    assert centre.lines == ("ReadValue", "cache_k_l0")


def test_state_is_drawn_unlike_an_op(llama: ovp.ImportedModel) -> None:
    source = visualize.subgraph(llama, "cache_k_l0", hops=2).source
    round_ops = {line.split('"')[1].split(r"\n")[0] for line in source.splitlines() if "shape=cylinder" in line}
    assert round_ops == {"ReadValue", "Assign"}


def test_unknown_node_names_the_closest(llama: ovp.ImportedModel) -> None:
    with pytest.raises(PictureError) as raised:
        visualize.subgraph(llama, "ScaledDotProductAttention_191")
    message = str(raised.value)
    assert "446 ops" in message
    assert "'ScaledDotProductAttention_192'" in message
    assert "\n" not in message
    assert isinstance(raised.value, ovp.OvpassesError)


@pytest.mark.parametrize(("hops", "neighbours"), [(-1, 6), (1, 0)])
def test_sizes_that_cannot_be(llama: ovp.ImportedModel, hops: int, neighbours: int) -> None:
    with pytest.raises(PictureError, match="wanted at least 0 and 1"):
        visualize.subgraph(llama, "cache_k_l0", hops, neighbours=neighbours)


def test_fan_out_is_capped_and_counted() -> None:
    picture = visualize.subgraph(fan_out(500), "source", hops=2)
    assert len([node for node in nodes(picture) if node.op == "Relu"]) == 6
    assert "+494 more readers" in text(picture)
    assert "+480 more readers" in text(visualize.subgraph(fan_out(500), "source", hops=1, neighbours=20))
    assert "more readers" not in text(visualize.subgraph(fan_out(6), "source", hops=1))


def test_constant_is_part_of_its_reader_or_the_centre() -> None:
    source, shared = ops.parameter([2], np.float32), ops.constant(np.float32([1.5, 2]))
    shared.set_friendly_name("shared")
    large = ops.constant(np.zeros((2, 64), np.float32))
    model = Model([ops.result(ops.add(source, shared)), ops.result(ops.matmul(source, large, False, False))], [source])
    around = visualize.subgraph(model, source.get_friendly_name(), hops=1)
    assert "input 1 [1.5,2]" in text(around)
    assert "weights f32 [2,64]" in text(around)
    assert {node.op for node in nodes(around)} == {"Parameter", "Add", "MatMul"}
    assert {node.op for node in nodes(visualize.subgraph(model, "shared", hops=1))} == {"Constant", "Add"}


def test_names_are_text_and_not_markup() -> None:
    names = ["<b>x</b>", 'a&b"c', r"p\n\lq", "{r|s}"]
    source = ops.parameter([2], np.float32, name="<in>")
    value = source
    for name in names:
        value = ops.relu(value)
        value.set_friendly_name(name)
    shown = text(visualize.subgraph(Model([ops.result(value)], [source]), "<in>", hops=9))
    for name in ["<in>", *names]:
        assert name in shown


def test_long_names_are_shortened_and_kept_as_tooltips() -> None:
    long = "blk.0." + "x" * 80 + "/7"
    source = ops.parameter([2], np.float32, name=long)
    picture = visualize.subgraph(Model([ops.result(source)], [source]), long, hops=0)
    (node,) = nodes(picture)
    assert len(node.lines[-1]) == 30
    assert node.lines[-1].startswith("blk.0.")
    assert node.lines[-1].endswith("/7")
    assert long in picture.svg
