"""How many cards should work together: data, evaluator, search of one decision (6.7.4)."""
