"""The decision of where to cut layers into pipeline stages: data, evaluator, exact search."""
