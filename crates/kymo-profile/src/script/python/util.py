# `Util`: times, sums and names, for scripts that import it where perf is not installed.
import errno

FUTEX_WAIT = 0
FUTEX_WAKE = 1
FUTEX_PRIVATE_FLAG = 128
FUTEX_CLOCK_REALTIME = 256
FUTEX_CMD_MASK = ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)

NSECS_PER_SEC = 1000000000


def avg(total, n):
    return total / n


def nsecs(secs, nsecs):
    return secs * NSECS_PER_SEC + nsecs


def nsecs_secs(nsecs):
    return nsecs / NSECS_PER_SEC


def nsecs_nsecs(nsecs):
    return nsecs % NSECS_PER_SEC


def nsecs_str(nsecs):
    return ("%5u.%09u" % (nsecs_secs(nsecs), nsecs_nsecs(nsecs)),)


def add_stats(dict, key, value):
    """Least, greatest, average and count of a key's values; the average weighs late values more."""
    low, high, average, count = dict.get(key, (value, value, value, 0))
    dict[key] = (min(low, value), max(high, value), (average + value) / 2, count + 1)


def clear_term():
    print("\x1b[H\x1b[2J")


def syscall_name(id):
    try:
        import audit

        return audit.audit_syscall_to_name(id, audit.audit_detect_machine())
    except Exception:
        return str(id)


def strerror(nr):
    return errno.errorcode.get(abs(nr), "Unknown %d errno" % nr)
