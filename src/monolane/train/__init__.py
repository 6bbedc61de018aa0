"""Laneformers in PyTorch: text, tokenizer, training, export, and the experiment that compares ways to exchange."""
