"""What a token would take on a machine that is not here, from a model's config, and from runs measured elsewhere."""
