"""Targets: what runs a plan and its tape on a machine."""

from monolane.target.opening import open_target, plan_for

__all__ = ["open_target", "plan_for"]
