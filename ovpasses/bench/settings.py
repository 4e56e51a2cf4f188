"""What a bench measures: depths, prompt length, rounds, and what of that fits into a model's context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ovpasses.errors import OvpassesError

# A depth that is cut is cut to whole blocks of GenAI's cache, which goes back to whole blocks only.
BLOCK = 32

# Tokens that one inference takes at most; a longer prompt is run in several.
MOST_AT_ONCE = 512

# Of every measure at every depth, however long they take: one has no spread.
FEWEST_ROUNDS = 2


class BenchError(OvpassesError):
    """A bench cannot be run as asked, or what it would time is wrong."""


@dataclass(frozen=True)
class Settings:
    """How a bench is run.

    Attributes:
        depths: tokens in the cache before what is timed.
        chunk: tokens of the prompt whose prefill is timed.
        tokens: tokens that an arm decodes per round; one more goes before them, untimed.
        rounds: how often all arms take their turn, of each measure at each depth.
        seconds: when the rounds of a measure at a depth have taken this long, no further one begins; two always run.
        threads: of every arm; None leaves the choice to OpenVINO.
        device: OpenVINO device name.
        seed: of the token ids.
    """

    depths: tuple[int, ...] = (0, 512, 2048, 8192)
    chunk: int = 512
    tokens: int = 4
    rounds: int = 5
    seconds: float = 20.0
    threads: int | None = None
    device: str = "CPU"
    seed: int = 0

    @property
    def room(self) -> int:
        """Positions that are used beyond a depth, in tokens."""
        return self.chunk + self.rounds * (self.tokens + 1)

    @property
    def step(self) -> int:
        """Most tokens per inference."""
        return min(self.chunk, MOST_AT_ONCE)

    def fitted(self, context: int | None) -> tuple[Settings, list[str]]:
        """Settings whose depths are in order and fit into a context, and a line on each thing that did not.

        Args:
            context: the model's positions, in tokens; None without a limit.

        Raises:
            BenchError: not even depth 0 fits.
        """
        depths = sorted(set(self.depths))
        if context is None:
            return replace(self, depths=tuple(depths)), []
        notes = []
        fitted = replace(self, chunk=min(self.chunk, max(1, context // 2)))
        if fitted.chunk != self.chunk:
            notes.append(f"a prompt of {self.chunk} tokens leaves no room in the context of {context}: {fitted.chunk}")
        deepest = context - fitted.room
        if deepest < 0:
            raise BenchError(
                f"{self.rounds} rounds of {self.tokens} tokens do not fit into the model's context of {context} "
                "tokens; lower --rounds or --tokens"
            )
        deepest = deepest // BLOCK * BLOCK or deepest
        notes += [
            f"depth {depth} and the {fitted.room} tokens after it do not fit into the context of {context}: {deepest} "
            "instead"
            for depth in depths
            if depth > deepest
        ]
        return replace(fitted, depths=tuple(sorted({min(depth, deepest) for depth in depths}))), notes
