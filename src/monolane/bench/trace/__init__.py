"""Traces: when each worker waited and worked in each stage. Measured, written for Perfetto, and drawn."""
