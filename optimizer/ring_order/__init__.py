"""The decision of how a ring of cards runs over NUMA nodes: data, evaluator, exact search."""
