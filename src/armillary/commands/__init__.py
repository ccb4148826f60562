"""The commands, one file per subject; cli.py names them. torch is imported only inside, when a command runs."""
