"""Files on disk: written atomically, hashed, locked, and checked when read."""
