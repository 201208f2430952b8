"""A recording that is as long as several: its samples again and again, each time later.

Names, mappings and everything else come once, as at the beginning of a recording; what repeats are the samples of real rounds and the
marks between rounds. So a recording of any size has the stacks and the order of a real one.
"""

import array
import struct

from versus.runner import Refusal

SAMPLE, FINISHED_ROUND = 9, 68
IDENTIFIER, IP, TID, TIME = 1 << 16, 1, 2, 4
HEADER = struct.Struct("<8s9Q")
RECORD = struct.Struct("<IHH")


def repeat(recording, times, out):
    """Writes the recording `times` times to `out`."""
    with open(recording, "rb") as file:
        magic, size, attr_size, attrs_at, attrs_size, data_at, data_size, *others = HEADER.unpack(file.read(HEADER.size))
        if magic != b"PERFILE2":
            raise Refusal(f"{recording} is no perf.data file")
        file.seek(0)
        head = bytearray(file.read(data_at))
        data = file.read(data_size)
        rest = file.read()
    (sample_type,) = struct.unpack_from("<Q", head, attrs_at + 24)
    if not sample_type & TIME:
        raise Refusal(f"{recording} has no times")
    time_at = 8 + 8 * sum(bool(sample_type & bit) for bit in (IDENTIFIER, IP, TID))
    places, pieces, base = array.array("Q"), bytearray(), 0
    at = 0
    while at < len(data):
        kind, _, length = RECORD.unpack_from(data, at)
        if kind in (SAMPLE, FINISHED_ROUND):
            if kind == SAMPLE:
                places.append((base + time_at) // 8)
            pieces += data[at:at + length]
            base += length
        at += length
    moments = array.array("Q", bytes(pieces))
    times_of = [moments[place] for place in places]
    step = max(times_of) - min(times_of) + 1_000_000
    extra = (times - 1) * len(pieces)
    struct.pack_into("<Q", head, 48, data_size + extra)
    # The sections after the data move, and a table of their places is at its end.
    features = sum(bin(word).count("1") for word in struct.unpack_from("<4Q", head, 72))
    table = bytearray(rest)
    for number in range(features):
        (place,) = struct.unpack_from("<Q", table, 16 * number)
        struct.pack_into("<Q", table, 16 * number, place + extra)
    with open(out, "wb") as file:
        file.write(head)
        file.write(data)
        for _ in range(times - 1):
            for place in places:
                moments[place] += step
            file.write(moments)
        file.write(table)
