"""One benchmark from end to end: a model or a server, timed beside the ceiling, after a check of accuracy."""
