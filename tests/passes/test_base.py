"""ReportedPass: decide first, then edit; strict refuses before anything is edited."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from openvino import Model

from models import tiny_graphs as tiny
from models.tiny_graphs import Decoder
from ovpasses import BeamReorder, KVStateSeqAxis, MakeKVStateful, Pipeline, RewriteError
from ovpasses._openvino import Manager
from ovpasses.passes._edit import redirect, rewire, transpose_0213
from ovpasses.passes.base import Edit, ReportedPass
from ovpasses.passes.report import PassReport
from tests.passes.helpers import Trace, assert_same, assert_same_numbers, check_unchanged, nodes


class Scripted(ReportedPass):
    """Rewrites nothing, reports what the test wants."""

    looked_for: ClassVar[str] = "thing"
    skips: ClassVar[tuple[str, ...]] = ()
    edited: ClassVar[list[str]] = []

    def plan(self, model: Model, report: PassReport) -> list[Edit]:
        for step in self.skips:
            report.skip(f"node_{step}", step, f"not {step}")
        report.done("site")
        return [lambda: self.edited.append("edited")]


def scripted(*skips: str) -> type[Scripted]:
    return type("Scripted", (Scripted,), {"skips": skips, "edited": []})


def graph() -> Model:
    return tiny.stateful(Decoder())


def test_strict_raises_before_anything_is_edited() -> None:
    kind = scripted("already", "append", "state")
    one = kind(strict=True)
    with pytest.raises(RewriteError, match=r"^Scripted: node_append: not append \(and 1 more\); nothing was changed$"):
        one.run_on_model(graph())
    assert kind.edited == []


def test_strict_error_carries_the_report() -> None:
    one = scripted("append")(strict=True)
    with pytest.raises(RewriteError) as caught:
        one.run_on_model(graph())
    assert caught.value.reports == (one.report,)


def test_strict_accepts_what_is_settled() -> None:
    kind = scripted("already", "kind")
    assert kind(strict=True).run_on_model(graph()) is True
    assert kind.edited == ["edited"]


def test_not_strict_rewrites_the_rest() -> None:
    kind = scripted("append")
    assert kind().run_on_model(graph()) is True
    assert kind.edited == ["edited"]


def test_strict_in_a_bare_manager_keeps_its_type() -> None:
    manager = Manager()
    manager.register_pass(scripted("append")(strict=True))
    with pytest.raises(RewriteError, match="nothing was changed"):
        manager.run_passes(graph())


def test_strict_in_a_pipeline_names_the_pass_and_keeps_the_reports() -> None:
    model = tiny.stateful(Decoder(layout="sbhd"))
    with pytest.raises(RewriteError, match="KVStateSeqAxis: cache_") as caught:
        Pipeline([BeamReorder(), KVStateSeqAxis(strict=True)]).run(model)
    assert [report.name for report in caught.value.reports] == ["BeamReorder", "KVStateSeqAxis"]


def test_a_pass_that_leaves_an_invalid_graph_is_named() -> None:
    class Breaks(ReportedPass):
        def plan(self, model: Model, report: PassReport) -> list[Edit]:
            report.done("concat")
            (concat, *_) = nodes(model, "Concat")
            return [lambda: concat.set_attribute("axis", 9)]

    with pytest.raises(RewriteError, match=r"Breaks \(after KVStateSeqAxis\): left an invalid graph"):
        Pipeline([KVStateSeqAxis(), Breaks()]).run(graph())


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (KVStateSeqAxis, "kv-state-seq-axis"),
        (MakeKVStateful, "make-kv-stateful"),
        (BeamReorder, "beam-reorder"),
    ],
)
def test_cli_name(kind: type[ReportedPass], name: str) -> None:
    assert kind.cli_name() == name


def test_repr_rebuilds() -> None:
    for one in (KVStateSeqAxis(), BeamReorder(strict=True)):
        assert repr(eval(repr(one))) == repr(one)
    assert repr(BeamReorder(strict=True)) == "BeamReorder(strict=True)"


# Editing helpers -----------------------------------------------------------------------------------------------------


def test_rewiring_refuses_another_type_or_rank() -> None:
    model = graph()
    concat = nodes(model, "Concat")[0]
    for shape, dtype in (([1, -1, 2, 4], "f16"), ([1, 8], "f32")):
        other = tiny.parameter("other", shape, dtype)
        with pytest.raises(RewriteError, match=r"input 1 of .*grown: cannot be fed Parameter other"):
            rewire(concat.input(1), other.output(0))
    assert_same(model, graph())


def test_redirecting_takes_tensor_names_along() -> None:
    x = tiny.parameter("x", [2], "f32")
    one, other = tiny.ops.relu(x), tiny.ops.relu(x)
    one.output(0).get_tensor().set_names({"hidden"})
    Model([tiny.result(tiny.ops.exp(one).output(0), "y")], [x])
    redirect(one.output(0), other.output(0))
    assert other.output(0).get_names() == {"hidden"}
    assert one.output(0).get_names() == set()


def test_a_constant_is_transposed_at_once() -> None:
    values = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    found = transpose_0213(tiny.ops.constant(values).output(0), "turned")
    assert found.get_type_name() == "Constant"
    np.testing.assert_array_equal(found.data, values.transpose(0, 2, 1, 3))


# The checks themselves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["doubled", "swapped heads", "nan", "missing", "off by a little"])
def test_the_number_check_fails_when_it_should(fault: str) -> None:
    def trace(value: np.ndarray) -> Trace:
        return Trace([{"y": value}], [{}])

    right = np.random.default_rng(0).standard_normal((1, 3, 2, 4))
    wrong = {
        "doubled": right * 2,
        "swapped heads": right[:, :, ::-1],
        "nan": np.where(right == right.max(), np.nan, right),
        "missing": right[:, :2],
        "off by a little": right + 1e-4,
    }[fault]
    assert_same_numbers(trace(right), trace(right.copy()))
    with pytest.raises(AssertionError):
        assert_same_numbers(trace(wrong), trace(right), 1e-6)


def test_the_pass_check_fails_for_a_report_that_is_wrong() -> None:
    class Lies(ReportedPass):
        def plan(self, model: Model, report: PassReport) -> list[Edit]:
            report.done("nothing")
            return [lambda: None]

    with pytest.raises(AssertionError):
        check_unchanged(Lies, graph)
