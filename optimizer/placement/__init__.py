"""The decision which cards form each group of ranks: data, evaluator, closed forms, search."""
