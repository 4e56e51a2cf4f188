"""``python -m ovpasses.cli``: the command line without its entry point."""

from ovpasses.cli import main

main()
