"""``python -m monolane``: the same as ``monolane``."""

from monolane.cli import main

main()
