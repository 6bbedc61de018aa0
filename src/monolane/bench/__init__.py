"""Measuring: what the machine gives, what we take of it, and what others take of it, in one run."""
