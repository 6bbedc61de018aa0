"""``monolane ceiling``: measure the read bandwidth and the cost of hand-offs, barriers and launches of this machine."""
