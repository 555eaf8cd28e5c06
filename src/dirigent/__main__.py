"""`python -m dirigent` is the `dirigent` command."""

from dirigent.cli import main

main()
