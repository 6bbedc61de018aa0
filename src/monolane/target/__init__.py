"""Targets: each runs a plan and its tape on one kind of hardware."""

from monolane.target.opening import open_target, plan_for

__all__ = ["open_target", "plan_for"]
