"""A newcomer's hour: real programs under kymo, with the README's commands only."""
