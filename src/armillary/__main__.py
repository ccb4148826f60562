"""`python -m armillary` is the program too."""

from armillary.cli import main

main()
