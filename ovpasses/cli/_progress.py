"""Progress on a terminal's stderr; nothing at all elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalProgress(Progress):
    """Progress that goes away when it is done.

    Args:
        columns: what it shows.
        quiet: show nothing on a terminal either.
    """

    def __init__(self, *columns: str | ProgressColumn, quiet: bool) -> None:
        console = Console(stderr=True)
        super().__init__(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)

    def stop(self) -> None:
        if not self.disable:  # Rich 13 would print an empty line
            super().stop()
