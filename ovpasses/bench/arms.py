"""The arms of a bench: combinations of passes with a configuration, and OpenVINO GenAI on the same file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ovpasses.bench.settings import BenchError
from ovpasses.errors import RewriteError
from ovpasses.pipeline import Pipeline, pass_by_name

GENAI, STATIC, STATEFUL = "genai", "static", "stateful"

_SEQ_AXIS, _BEAM = "KVStateSeqAxis", "BeamReorder"
_OTHERS = ("KVHeadSplit", "MakeKVStateful", "LowerGatedDeltaNet")

# Name to what it is, in the form that --arm takes. The first three are the preset without one pass or both.
CATALOG = {
    "ggml": ",".join(_OTHERS),
    "seq-axis": ",".join((*_OTHERS, _SEQ_AXIS)),
    "beam": ",".join((*_OTHERS, _BEAM)),
    "stateful": STATEFUL,
    "stateful-u8": f"{STATEFUL};KV_CACHE_PRECISION=u8",
    "static": STATIC,
    "genai": f"{GENAI};KV_CACHE_PRECISION=f16",
    "genai-u8": f"{GENAI};KV_CACHE_PRECISION=u8",
}
DEFAULT = ("ggml", "stateful", "genai")
ALL = "all"

FORM = "NAME=PASS,PASS[;KEY=VALUE]"


@dataclass(frozen=True)
class Arm:
    """One of the things that are timed against each other.

    Attributes:
        name: for tables.
        what: "stateful" (the preset), "static" (the static pair), "genai", or names of passes; none for the model as
            it is.
        config: OpenVINO properties.
        optional: it was not asked for by name: where it cannot be run, the bench goes on without it and says so.
    """

    name: str
    what: tuple[str, ...]
    config: dict[str, str] = field(default_factory=dict)
    optional: bool = False

    @property
    def is_genai(self) -> bool:
        """Whether OpenVINO GenAI runs it."""
        return self.what == (GENAI,)

    @property
    def is_static(self) -> bool:
        """Whether it is a static pair."""
        return self.what == (STATIC,)

    def pipeline(self) -> Pipeline:
        """What rewrites the model of an arm that is neither GenAI nor a static pair."""
        if self.what == (STATEFUL,):
            return Pipeline.preset(STATEFUL)
        return Pipeline([pass_by_name(name)() for name in self.what], self.name)

    def __str__(self) -> str:
        return "; ".join(
            [", ".join(self.what) or "as it is", *(f"{key}={value}" for key, value in self.config.items())]
        )


def parse_arm(text: str) -> Arm:
    """An arm from the text of ``--arm``.

    Args:
        text: a name of ``CATALOG``, or ``NAME=WHAT[;KEY=VALUE...]``, WHAT being passes by name with commas between
            them, ``stateful``, ``static``, ``genai``, or nothing.

    Raises:
        BenchError: it is neither, or names a pass that there is not.
    """
    name, equals, spec = (text, "=", CATALOG[text]) if text in CATALOG else text.partition("=")
    if not name or not equals:
        raise BenchError(f"--arm {text!r}: wanted {ALL}, {FORM}, or one of {', '.join(CATALOG)}")
    what, *properties = spec.split(";")
    names = tuple(part.strip() for part in what.split(",") if part.strip())
    if names not in ((GENAI,), (STATIC,), (STATEFUL,)):
        try:
            names = tuple(pass_by_name(part).__name__ for part in names)
        except RewriteError as error:
            raise BenchError(f"--arm {name}: {error}; or alone one of {STATEFUL}, {STATIC}, {GENAI}") from None
    config = {}
    for entry in properties:
        key, found, value = entry.strip().partition("=")
        if not key or not found:
            raise BenchError(f"--arm {name}: property {entry!r}, wanted KEY=VALUE")
        config[key] = value
    return Arm(name, names, config)


def choose_arms(texts: Sequence[str]) -> list[Arm]:
    """The arms that are asked for, the one that the others are compared with first.

    Args:
        texts: of ``--arm``; none means ``DEFAULT``, ``all`` means all of ``CATALOG``.

    Raises:
        BenchError: as :func:`parse_arm`, or two have one name.
    """
    found = []
    for text in texts or DEFAULT:
        if text == ALL or not texts:
            found += [replace(parse_arm(name), optional=True) for name in (CATALOG if text == ALL else (text,))]
        else:
            found.append(parse_arm(text))
    names = [arm.name for arm in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BenchError(f"--arm {twice[0]}: two arms have this name, wanted a name of its own for each")
    return found
