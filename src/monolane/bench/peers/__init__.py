"""Peers: other engines that run the same weights, measured in the same rounds by the same clock."""
