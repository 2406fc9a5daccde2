"""The decision of which mix of unlike accelerators serves a workload: data, evaluator, search."""
