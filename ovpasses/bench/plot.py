"""A picture of a bench: speed by depth, a line per arm (extra ``plots``: matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ovpasses.bench.report import BenchReport
from ovpasses.bench.samples import DECODE, PREFILL
from ovpasses.bench.settings import BenchError


def check_plot(path: Path) -> None:
    """Make sure that a plot can be written, before minutes are spent on what it shows.

    Raises:
        BenchError: matplotlib is not installed, does not write such files, or there is no such folder.
    """
    known = sorted(_figure().canvas.get_supported_filetypes())
    if path.suffix.lower().lstrip(".") not in known:
        raise BenchError(f"{path}: matplotlib writes no such file, wanted one of .{', .'.join(known)}")
    if not path.absolute().parent.is_dir():
        raise BenchError(f"{path}: cannot be written: there is no folder {path.absolute().parent}")


def save_plot(report: BenchReport, path: Path) -> None:
    """Write two panels, prefill and decode: medians in tokens/s by depth, with the least and the most.

    Raises:
        BenchError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure = _figure()
    depths = report.settings.depths
    places = range(len(depths))  # depths grow by factors and begin at 0: evenly spaced, not to scale
    for panel, measure in zip(figure.subplots(1, 2), (PREFILL, DECODE), strict=True):
        for number, arm in enumerate(report.arms):
            beside = [place + 0.04 * (number - len(report.arms) / 2) for place in places]
            series = [report.of(arm.name, depth, measure) for depth in depths]
            rates = [one.rate for one in series]
            below = [one.rate - one.tokens / max(one.seconds) for one in series]
            above = [one.tokens / min(one.seconds) - one.rate for one in series]
            panel.errorbar(beside, rates, yerr=[below, above], label=arm.name, marker="o", capsize=3)
        panel.set_title(f"{measure} of {report.settings.chunk} tokens" if measure == PREFILL else measure)
        panel.set_xticks(places, [str(depth) for depth in depths])
        panel.set_xlabel("depth, tokens in the cache")
        panel.set_ylabel("tokens/s")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(f"{Path(report.model).name}, {report.machine.processor}, openvino {report.machine.release}", size=9)
    figure.savefig(path)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no state of the process
    except ImportError as error:
        raise BenchError("--plot needs matplotlib; install ovpasses[plots]") from error
    return Figure(figsize=(10, 4.2), layout="constrained")
