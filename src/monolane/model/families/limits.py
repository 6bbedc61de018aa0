"""Limits that no model exceeds. They bound every size that is computed from a config."""

HIDDEN_LIMIT = 1 << 17
LAYERS_LIMIT = 1 << 10
HEADS_LIMIT = 1 << 10
HEAD_DIM_LIMIT = 1 << 10
FFN_LIMIT = 1 << 20
EXPERTS_LIMIT = 1 << 12
VOCAB_LIMIT = 1 << 22
CONTEXT_LIMIT = 1 << 24
