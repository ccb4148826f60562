"""From an Atlas to what its numbers mean. A lens never runs a model."""
