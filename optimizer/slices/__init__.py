"""The decision of which slices stand where on a torus: data, evaluator, exact search."""
