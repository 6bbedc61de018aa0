"""The command line, one file per command."""

from monolane.cli.app import app, main

__all__ = ["app", "main"]
