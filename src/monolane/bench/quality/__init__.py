"""How well a model answers: the share of HumanEval's problems that it solves."""
