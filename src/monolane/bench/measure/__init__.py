"""The benchmark of a model or a server: an accuracy check, then speeds, measured together with the read ceiling."""
