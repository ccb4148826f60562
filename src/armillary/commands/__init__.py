"""The commands, one file per subject; cli.py registers them. torch is imported inside functions, to start fast."""
