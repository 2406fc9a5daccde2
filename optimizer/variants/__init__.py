"""Changed copies of a problem instance, and solving many of them with what they share."""
