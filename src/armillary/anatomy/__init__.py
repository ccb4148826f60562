"""What a model is made of: layers, heads, their weights, and how it encodes position."""
