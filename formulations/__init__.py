"""How solvers see the decisions; found by the planner through entry points."""
