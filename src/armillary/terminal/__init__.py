"""Text for the terminal: tables, progress, the anatomy of a model."""
