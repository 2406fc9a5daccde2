"""How far inputs may move before the optimal plan changes, and which input matters most."""
