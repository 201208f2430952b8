"""What a recording says was lost, by ring: one judge for the files of all recorders.

The kernel tells of losses twice, and neither tells all:

* A LOST record, written into the ring when it has room again, counts every record that did not fit since the one before, of whatever
  event. It comes too late for what is lost last: then there is no record after it that could bring it.
* The events' own count (PERF_FORMAT_LOST, Linux 6.0), which a recorder reads at the end and writes as LOST_SAMPLES. It has what was lost
  last, by event; but a recorder that is killed, or older, or forgets a ring, does not write it.

Both count the same losses, so for each ring the larger one holds, never their sum. What LOST records of a ring tell beyond
all its LOST_SAMPLES counts as lost samples, because nobody says that it was anything else.

LOST records come through `perf script`, which unpacks what is compressed; LOST_SAMPLES through `perf report --stats`, which adds them up by
event, and from the file itself by ring, for perf prints their event only.
"""

import re
import struct
from collections import Counter

from versus.runner import Refusal, output

MAGIC = b"PERFILE2"
LOST_SAMPLES, ID_INDEX, AUXTRACE = 13, 69, 71
# No process has this number: perf then prints no samples, and LOST records all the same.
NOBODY = "2147483647"


def judged(perf, file, event):
    """Samples of the event; how many of them were lost (see above); the records lost by each count; and throttlings."""
    stats = output([perf, "report", "--stats", "-i", file])
    head, _, of_event = stats.partition(f"{event} stats:")
    if not of_event:
        raise Refusal(f"`perf report --stats` says nothing about {event}:\n{stats[-1000:]}")
    # The next event's lines begin with its name.
    of_event = re.split(r"^\S.* stats:$", of_event, maxsplit=1, flags=re.MULTILINE)[0]
    samples, counted = count(of_event, "SAMPLE"), count(of_event, "LOST_SAMPLES")
    all_counted = sum(count(part, "LOST_SAMPLES") for part in re.split(r"^\S.* stats:$", stats, flags=re.MULTILINE)[2:])
    records = lost_records(perf, file) if count(head, "LOST") else Counter()
    beyond = beyond_counts(records, lost_samples(file), all_counted)
    if samples + counted + beyond == 0:
        raise Refusal(f"nothing of {event} was recorded:\n{stats[-1000:]}")
    return {"samples": samples, "lost": counted + beyond, "lost_samples": counted, "lost_records": sum(records.values()),
            "lost_in_all": all_counted + beyond, "throttled": count(head, "THROTTLE")}


def count(stats, kind):
    line = re.search(rf"^\s*{kind} events:\s+(\d+)", stats, re.MULTILINE)
    return int(line[1]) if line else 0


def beyond_counts(records, counts, all_counted):
    """What LOST records tell beyond LOST_SAMPLES, ring by ring; over all rings where LOST_SAMPLES do not tell theirs."""
    if None in records or sum(counts.values()) != all_counted:
        return max(0, sum(records.values()) - all_counted)
    return sum(max(0, lost - counts[cpu]) for cpu, lost in records.items())


def lost_records(perf, file):
    """Records that LOST records tell of, by CPU; all under None where records do not tell theirs."""
    found = Counter()
    for fields, line in (("tid,cpu,time", r"\[(\d+)\].*PERF_RECORD_LOST lost (\d+)"), ("tid,time", r"()PERF_RECORD_LOST lost (\d+)")):
        try:
            said = output([perf, "script", "--show-lost-events", "--pid", NOBODY, "-F", fields, "-i", file])
        except Refusal as refusal:
            if "CPU attribute" not in str(refusal):
                raise
            continue
        for cpu, lost in re.findall(line, said):
            found[int(cpu) if cpu else None] += int(lost)
        return found
    raise Refusal(f"perf script does not tell what {file} lost")


def lost_samples(file):
    """What LOST_SAMPLES records tell, by CPU, as far as they stand in the file as they are: neither tool packs its own."""
    cpus, lost = {}, []
    paths = [file] if file.is_file() else [file / "data", *sorted(file.glob("data.[0-9]*"))]
    for path in paths:
        with open(path, "rb") as recording:
            for kind, body in records(recording, (LOST_SAMPLES, ID_INDEX)):
                if kind == LOST_SAMPLES:
                    lost.append(words(body))
                else:
                    cpus.update(ids(words(body)))
    found = Counter()
    for amount, *rest in lost:
        # The event's id is one of the words after the amount; which one depends on what else samples have.
        if cpu := next((cpus[word] for word in rest if word in cpus), None):
            found[cpu - 1] += amount
    return found


def ids(index):
    """Each event's id, and its CPU + 1, of an ID_INDEX record: a number of entries, then id, place, CPU, task of each."""
    number = index[0] if index else 0
    for at in range(1, min(1 + 4 * number, len(index) - 3), 4):
        yield index[at], (index[at + 2] & 0xFFFF_FFFF) + 1


def words(body):
    return struct.unpack(f"<{len(body) // 8}Q", body[:len(body) // 8 * 8])


def records(recording, kinds):
    """The records of these kinds in a file, with or without perf's header: (kind, body)."""
    head = recording.read(104)
    at, size = struct.unpack_from("<QQ", head, 40) if head[:8] == MAGIC else (0, recording.seek(0, 2))
    end = at + size
    while at + 8 <= end:
        recording.seek(at)
        kind, _, length = struct.unpack("<IHH", recording.read(8).ljust(8, b"\0"))
        if length < 8:
            return
        body = recording.read(length - 8) if kind in kinds or kind == AUXTRACE else b""
        if kind in kinds:
            yield kind, body
        # The bytes of a trace follow their record.
        at += length + (words(body)[0] if kind == AUXTRACE and len(body) >= 8 else 0)
