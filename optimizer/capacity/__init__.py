"""The capacity decision: servers, racks and serving instances for many models (sections 5, 7)."""
