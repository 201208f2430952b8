"""A folder on a disk of a chosen speed: ext4 on a loop device whose writes the kernel throttles.

The throttle is blkio's of cgroup v1, set at its root, because what the page cache writes back belongs to nobody in particular there. So
that the page cache does not swallow a whole recording, it may hold only some megabytes of this disk (`strict_limit`, `max_bytes`): a
`write` then waits for the disk, as it does on a machine whose memory is full of what is still to be written.
"""

import contextlib
import subprocess
from pathlib import Path

from versus.runner import Refusal, output

THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
# The image is sparse: it takes what is written into it.
IMAGE_BYTES = 12 << 30
CACHED_BYTES = 32 << 20


@contextlib.contextmanager
def slow_disk(scratch, megabytes_a_second):
    """A folder on such a disk; everything is taken apart at the end."""
    if not THROTTLE.exists():
        raise Refusal(f"a slow disk needs the blkio controller of cgroup v1 ({THROTTLE}), which this machine does not have; "
                      "name a folder on a slow disk with --work DIR and take the variant switches")
    image, folder = scratch / "slow.img", scratch / "slow"
    with contextlib.ExitStack() as undo:
        with open(image, "wb") as file:
            undo.callback(image.unlink)
            file.truncate(IMAGE_BYTES)
        device = output(["losetup", "--find", "--show", "--direct-io=on", image]).strip()
        undo.callback(try_to, ["losetup", "-d", device])
        output(["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", device])
        number = Path(f"/sys/block/{Path(device).name}/dev").read_text().strip()
        throttle(number, megabytes_a_second * 1_000_000)
        undo.callback(throttle, number, 0)
        limits = Path(f"/sys/class/bdi/{number}")
        for name, value, before in (("strict_limit", 1, 0), ("max_bytes", CACHED_BYTES, None)):
            if (limits / name).exists():
                (limits / name).write_text(str(value))
                if before is not None:
                    undo.callback((limits / name).write_text, str(before))
        if (limits / "max_ratio").exists():
            # Takes the limit in bytes away, too.
            undo.callback((limits / "max_ratio").write_text, "100")
        folder.mkdir(exist_ok=True)
        undo.callback(folder.rmdir)
        output(["mount", device, folder])
        undo.callback(try_to, ["umount", folder])
        yield folder


def throttle(number, bytes_a_second):
    """0 takes the limit away."""
    THROTTLE.write_text(f"{number} {bytes_a_second}\n")


def try_to(argv):
    subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
