"""What a machine really gives: read bandwidth, hand-offs, barriers, launches; measured, kept and drawn."""
