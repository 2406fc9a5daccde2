"""The decision of where experts stand: data, evaluator, bound, a first placement."""
