"""The decision of which node lends memory to whom: data, evaluator, search, thresholds."""
