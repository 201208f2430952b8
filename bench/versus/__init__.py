"""The races of bench/versus.py: one module per subject, `runner` is what they share."""
