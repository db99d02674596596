"""An attack on the package, kept as a suite: `make attack`, or `python -m attack --help`."""
