"""What the machines have told, kept from one run to the next: a file for each machine."""

import dataclasses
import json

from . import rows


def path_of(folder, kernel, variant):
    """Where the outcomes of a machine are."""
    return folder / "outcomes" / f"{kernel}-{variant.name}.json"


def read(folder, kernel, variant):
    """From the names of rows to their outcomes, of all runs so far; the newest of each."""
    path = path_of(folder, kernel, variant)
    if not path.exists():
        return {}
    return {name: rows.Outcome(**outcome) for name, outcome in json.loads(path.read_text()).items()}


def add(folder, kernel, variant, newer):
    """Keeps outcomes, in the place of older ones."""
    path = path_of(folder, kernel, variant)
    path.parent.mkdir(exist_ok=True)
    kept = read(folder, kernel, variant) | newer
    text = json.dumps({name: dataclasses.asdict(outcome) for name, outcome in kept.items()}, indent=1)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)
