"""``python -m stepctl``."""

from stepctl.cli.main import main

main()
