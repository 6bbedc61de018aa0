"""When every worker waited and worked, stage by stage: measured, written for a viewer, drawn."""
