"""Benchmarks: the read ceiling of a machine, the speed of Monolane, and the speed of other engines, in one run."""
