"""Checks of the tree's shape: see `python3 -m ci.tree --help`."""
