"""Others who run the same weights, measured in the same rounds by the same clock."""
