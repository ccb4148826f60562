"""Training small models: a loop that is a loop, and the recipe of the two bundled models."""
