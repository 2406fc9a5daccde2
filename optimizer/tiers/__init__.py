"""The decision of which tier of memory holds which data: data, evaluator, search, thresholds."""
