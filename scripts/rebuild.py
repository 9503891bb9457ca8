#!/usr/bin/env python3
"""How fast a member is filled, and what that costs others: rebuild.py OUT.json [REPEATS] [SHAPE...]

On loop devices in RAM that the kernel throttles (cgroup v1, as `braid bench ladder --throttle`), a mirror of 2 and
parity 4+1, used through a mount. Per repeat: a member is replaced while nobody uses the pool (the rate at which the new
device is written, over its limit); then, for a stream of direct reads and one of writes: it is taken out, the stream is
timed, and timed again while another device is filled. OUT.json has the quotients, as scripts/bench_verdict.py reads them; rows
that are there already get more samples. BACKING (/dev/shm), MEMBER (bytes of a member), LIMIT (bytes per second) and
BRAID (the program) change the job. Root.
"""
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BRAID = os.environ.get("BRAID", os.path.join(HERE, "..", "target", "release", "braid"))
BACKING = os.environ.get("BACKING", "/dev/shm")
MEMBER = int(os.environ.get("MEMBER", 480 << 20))
LIMIT = int(os.environ.get("LIMIT", 100_000_000))
SHAPES = {"mirror": (2, ["--mirror", "2"]), "parity": (5, ["--parity", "1"])}
BLKIO = "/sys/fs/cgroup/blkio/blkio.throttle.%s_bps_device"
CHUNK, STREAMS, SECONDS = 1 << 20, 4, 3.0
VICTIM = "1"
NAME = f"rebuild{os.getpid()}"


def braid(*words):
    done = subprocess.run([BRAID, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"braid {' '.join(words)}: {done.stderr}{done.stdout}")
    return done.stdout


class Loop:
    """A throttled loop device over a file in RAM; gone at the end."""

    def __init__(self, directory, n):
        self.file = os.path.join(directory, f"member{n}")
        with open(self.file, "wb") as f:
            zeros = bytes(CHUNK)
            for _ in range(MEMBER // CHUNK):
                f.write(zeros)
        say = ["losetup", "--find", "--show", "--direct-io=on", self.file]
        self.path = subprocess.run(say, check=True, capture_output=True, text=True).stdout.strip()
        self.number = ":".join(str(f(os.stat(self.path).st_rdev)) for f in (os.major, os.minor))
        self.limit(LIMIT)

    def limit(self, rate):
        for way in ("read", "write"):
            with open(BLKIO % way, "w") as f:
                f.write(f"{self.number} {rate}")

    def written(self):
        with open(f"/sys/block/{os.path.basename(self.path)}/stat") as f:
            return int(f.read().split()[6]) * 512

    def close(self):
        self.limit(0)
        subprocess.run(["losetup", "-d", self.path], check=False)
        os.unlink(self.file)


def states():
    """Of the pool's members. By its name: one of the devices alone would find the others missing.

    Who looks while labels are written finds one device behind the others, and looks again.
    """
    for _ in range(20):
        done = subprocess.run([BRAID, "status", "--json", NAME], capture_output=True, text=True)
        if done.returncode == 0:
            return [m["state"] for m in json.loads(done.stdout)["pool"]["topology"]["members"]]
        time.sleep(0.1)
    sys.exit(f"braid status: {done.stderr}")


def fill_rate(device, running):
    """Bytes per second written to `device` while `running`, without the first and last parts."""
    samples = [(time.monotonic(), device.written())]
    while running():
        time.sleep(0.05)
        samples.append((time.monotonic(), device.written()))
    first, last = samples[0][1], samples[-1][1]
    part = [(t, w) for t, w in samples if 0.1 * (last - first) <= w - first <= 0.9 * (last - first)]
    (t0, w0), (t1, w1) = part[0], part[-1]
    return (w1 - w0) / (t1 - t0)


def stream(path, write, seconds=SECONDS):
    """Bytes per second of STREAMS direct streams that begin anew at their ends."""
    length = os.path.getsize(path) // STREAMS // CHUNK * CHUNK
    done, over = [0] * STREAMS, threading.Event()

    def run(n):
        fd = os.open(path, (os.O_WRONLY if write else os.O_RDONLY) | os.O_DIRECT)
        buffer, at = mmap.mmap(-1, CHUNK), 0
        buffer.write(os.urandom(CHUNK))
        while not over.is_set():
            place = n * length + at
            done[n] += os.pwritev(fd, [buffer], place) if write else os.preadv(fd, [buffer], place)
            at = (at + CHUNK) % length
        os.close(fd)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(STREAMS)]
    for t in threads:
        t.start()
    time.sleep(seconds / 4)
    begun, before = time.monotonic(), sum(done)
    time.sleep(seconds)
    rate = (sum(done) - before) / (time.monotonic() - begun)
    over.set()
    for t in threads:
        t.join()
    return rate


def repeat(directory, file, spare, devices, add):
    """One repeat; the device that is left over, a spare for the next."""
    replace = subprocess.Popen([BRAID, "replace", directory, VICTIM, spare.path, "--force"],
                               stdout=subprocess.DEVNULL)
    rate = fill_rate(spare, lambda: replace.poll() is None)
    if replace.returncode:
        sys.exit("the member was not replaced")
    add("filled, idle", rate / LIMIT)
    devices[int(VICTIM)], spare = spare, devices[int(VICTIM)]
    written = seconds = 0
    for way in ("read", "written"):
        braid("fail", directory, VICTIM)
        alone = stream(file, way == "written")
        braid("replace", directory, VICTIM, spare.path, "--force", "--background")
        before, begun = spare.written(), time.monotonic()
        beside = stream(file, way == "written")
        written, seconds = written + spare.written() - before, seconds + time.monotonic() - begun
        if "rebuilding" not in states():
            sys.exit("the member was filled before the stream beside it ended: take a larger MEMBER")
        add(f"{way} beside it", beside / alone)
        while "rebuilding" in states():
            time.sleep(0.2)
        devices[int(VICTIM)], spare = spare, devices[int(VICTIM)]
    add("filled beside both", written / seconds / LIMIT)
    return spare


def measure(shape, repeats, rows):
    count, options = SHAPES[shape]
    with tempfile.TemporaryDirectory(prefix="braid-rebuild-", dir=BACKING) as work:
        loops = []
        directory = os.path.join(work, "mnt")
        os.mkdir(directory)
        mounted = False
        try:
            for n in range(count + 1):
                loops.append(Loop(work, n))
            *devices, spare = loops
            paths = [d.path for d in devices]
            braid("create", "--force", NAME, *paths, *options)
            braid("mount", *paths, directory)
            mounted = True
            file = os.path.join(directory, "stream")
            free = os.statvfs(directory)
            length = free.f_bavail * free.f_frsize // 2 // (STREAMS * CHUNK) * (STREAMS * CHUNK)
            subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={length // CHUNK}", "oflag=direct",
                            "conv=fsync", "status=none"], check=True)

            def add(phase, ratio):
                print(f"  {shape}: {phase}: {ratio:.2f}", file=sys.stderr)
                rows.setdefault((shape, phase), []).append(ratio)

            for _ in range(repeats):
                spare = repeat(directory, file, spare, devices, add)
        finally:
            if mounted:
                subprocess.run([BRAID, "unmount", directory], check=False)
            for loop in loops:
                loop.close()


def main(out, repeats="5", *shapes):
    rows = {}
    if os.path.exists(out):
        with open(out) as f:
            rows = {(r["name"], r["phase"]): r["rate"] for r in json.load(f)["rows"]}
    for shape in shapes or SHAPES:
        measure(shape, int(repeats), rows)
        report = {"limit": LIMIT, "member": MEMBER,
                  "rows": [{"name": n, "phase": p, "rate": r} for (n, p), r in rows.items()]}
        with open(out + ".part", "w") as f:
            json.dump(report, f, indent=1)
        os.replace(out + ".part", out)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
