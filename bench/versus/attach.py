"""From the start of the recorder until it records: `record -p` on a process of sleeping threads.

The moment when a recorder records is when it answers a `ping` that lies in its `--control` fifo since before its start. Both tools
answer only from their main loop, after all events are open and on and the rings are being read (perf 6.1 has listed all threads and
mappings by then, too). The clock starts right before the recorder is spawned, so it includes exec, and for other users
also the `setpriv` that gives up privileges before it.

At that moment its descriptors are counted: all of them, and those that are events.
"""

import os
import select
import subprocess
import time
from pathlib import Path

from versus.runner import Refusal, alternate, environment, ratio_interval, seconds, spread, table
from versus.sleepers import as_user, raise_descriptors, sleeping

HELP = "the time from the start of `record -p` on thousands of threads until it records"

NOBODY = 65534
# A recorder that has not answered by then has failed.
PATIENCE_S = 60


def add_arguments(parser):
    parser.add_argument("--threads", type=int, default=2000, help="threads of the process (default: 2000)")
    parser.add_argument("--event", default="cpu-clock", help="what to record (default: cpu-clock)")
    parser.add_argument("--scopes", default="", help="also kymo with each of these --scope, separated by commas")
    parser.add_argument("--users", default=f"root,{NOBODY}", help=f"root, or numbers of users (default: root,{NOBODY})")


def run(bench, args):
    if os.geteuid() != 0:
        raise Refusal("the race has a part with privilege and one without: start it as root")
    rounds = args.rounds or 11
    limit = raise_descriptors()
    users, rows = {}, []
    for user in args.users.split(","):
        uid = None if user == "root" else int(user)
        with sleeping(bench, args.threads, uid) as pid:
            users[user] = race(bench, args, user, uid, pid, rounds)
        rows += users[user].pop("rows")
    table(["attach", "median", "min", "max", "faster", "descriptors", "events", "per event"], rows)
    return {"rounds": rounds, "threads": args.threads, "event": args.event, "descriptor_limit": limit, "users": users}


def race(bench, args, user, uid, pid, rounds):
    """All recorders of one user, in turns."""
    folder = bench.scratch / f"attach-{user}"
    folder.mkdir(exist_ok=True)
    for fifo in ("commands", "acks"):
        (folder / fifo).unlink(missing_ok=True)
        os.mkfifo(folder / fifo)
    if uid is not None:
        for path in (folder, folder / "commands", folder / "acks"):
            os.chown(path, uid, uid)
        bench.scratch.chmod(0o755)
    commands = {"perf": [bench.perf, "record", "-g"], "kymo": [bench.kymo, "record"]}
    for scope in filter(None, args.scopes.split(",")):
        commands[f"kymo --scope {scope}"] = [bench.kymo, "record", "--scope", scope]
    control = f"fifo:{folder}/commands,{folder}/acks"
    competitors, refused = {}, {}
    for who, command in commands.items():
        target = ["-e", args.event, "-p", str(pid), "-o", str(folder / "recording"), "--control", control]
        argv = [str(a) for a in [*as_user(uid), *command, *target]]
        try:
            attach(folder, argv)
        except Refusal as refusal:
            refused[who] = str(refusal)
            bench.say(f"{user}: {who} cannot: {refusal}")
        else:
            competitors[who] = lambda argv=argv: attach(folder, argv)
    runs = alternate(competitors, rounds, say=lambda words: bench.say(f"{user}: {words}"))
    return summary(user, runs, refused, len(args.event.split(",")))


def summary(user, runs, refused, events):
    result, rows = {"refused": refused}, []
    for who, of in runs.items():
        took = [run[0] for run in of]
        faster = ratio_interval([run[0] for run in runs["perf"]], took) if "perf" in runs else None
        result[who] = {"wall_s": spread(took), "descriptors": of[-1][1], "event_descriptors": of[-1][2],
                       "faster_than_perf": faster}
        ratio = "" if who == "perf" or not faster else f"{faster[0]:.1f}x ({faster[1]:.1f} .. {faster[2]:.1f})"
        rows.append([f"{user}: {who}", *(seconds(result[who]["wall_s"][k]) for k in ("median", "min", "max")),
                     ratio, of[-1][1], of[-1][2], f"{of[-1][2] / events:.0f}"])
    rows += [[f"{user}: {who}", "cannot"] + [""] * 6 for who in refused]
    result["rows"] = rows
    return result


def attach(folder, argv):
    """Starts the recorder, waits for the answer to a ping, ends it: (seconds, descriptors, those that are events)."""
    # Open for both directions, so that nothing depends on who opens first.
    commands, acks = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in ("commands", "acks"))
    said = open(folder / "said", "w+b")
    try:
        os.write(commands, b"ping\n")
        begin = time.perf_counter()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/", env=environment())
        try:
            took = answered(child, acks, begin)
            counted = descriptors(child.pid) if took else None
            os.write(commands, b"stop\n")
            child.wait(PATIENCE_S)
        finally:
            child.kill()
            child.wait()
        if took is None:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()
            raise Refusal(f"no answer to the ping: {' '.join(words[:4]) or 'nothing was said'}")
        return (took, *counted)
    finally:
        # What is left in the fifos must not answer for the next one.
        for end in (commands, acks):
            drain(end)
            os.close(end)
        said.close()


def answered(child, acks, begin):
    """Seconds until the first answer; nothing if the recorder ends without one."""
    while time.perf_counter() - begin < PATIENCE_S:
        ready, _, _ = select.select([acks], [], [], 0.1)
        if ready:
            return time.perf_counter() - begin
        if child.poll() is not None:
            return None
    return None


def drain(fifo):
    try:
        while os.read(fifo, 4096):
            pass
    except BlockingIOError:
        pass


def descriptors(pid):
    """How many files a process has open, and how many of them are events."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(entry))
        except FileNotFoundError:
            pass
    return len(names), names.count("anon_inode:[perf_event]")
