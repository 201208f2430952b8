"""Every function of real programs, probed (bench/everything.py)."""
