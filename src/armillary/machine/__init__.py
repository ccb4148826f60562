"""The machine we run on: its memory, threads, temporary folders, and what libraries print."""
