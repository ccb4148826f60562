"""Train small models: the loop, regularizers, position schemes, the attention monitor, and the two bundled models."""
