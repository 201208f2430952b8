"""Programs whose files move, vanish or lie in other roots: whether their names are right."""
