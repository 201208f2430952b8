"""A newcomer's hour: ten programs under kymo, with the README's commands only."""
