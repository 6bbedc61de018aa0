"""``monolane plan``: predicts the time per token of a model on a machine, from its config and from measured runs."""
