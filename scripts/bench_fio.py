#!/usr/bin/env python3
"""Compares the kit with fio's io_uring engine and with lmbench's lmdd, on one loop device over a
file in RAM: bench_fio.py [ROUNDS [SECONDS]].

In turn in each round, every second round the other way round; medians of the ratios, their least and most, goals.
Random 4 KiB reads, 16 at a time (DEPTH=N): requests per second. 1 MiB reads, 8 at a time: bandwidth; the kit's buffers
are in huge pages, fio's with HUGE=1 (which wants some: vm.nr_hugepages). Of both, processor time of a request: the
machine's and the process's own. lmdd, 1 MiB, one at a time, through the page cache (lmbench's knows no direct I/O on
Linux): bandwidth. The exit status is 1 if something is short of its goal. ONLY="small large lmdd" names what is run.
Root. fio: Debian package fio. lmdd of lmbench (non-free): LMDD=PATH, or it is left out. BRAID=PATH: another build than
the release one.
"""
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
HERE = os.path.dirname(os.path.abspath(__file__))
BRAID = os.environ.get("BRAID", os.path.join(HERE, "../target/release/braid"))
LMDD = os.environ.get("LMDD", "/usr/lib/lmbench/bin/x86_64-linux-gnu/lmdd")
DEPTH = int(os.environ.get("DEPTH", "16"))
SIZE = 512 << 20


def machine():
    """CPU seconds of the machine since it started, without waiting and without what others took."""
    with open("/proc/stat") as stat:
        fields = [int(f) for f in stat.readline().split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def run(words):
    """Its output and its messages, its own CPU seconds, those of the machine."""
    own, all_ = resource.getrusage(resource.RUSAGE_CHILDREN), machine()
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr or done.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    return (done.stdout, done.stderr), used, machine() - all_


def fio(device, request, depth, order, *more):
    """Requests and bytes per second, CPU for a request: own, the machine's."""
    job = ["fio", "--name=x", f"--filename={device}", "--ioengine=io_uring", "--direct=1", "--time_based",
           f"--rw={order}", f"--bs={request}", f"--iodepth={depth}", f"--runtime={SECONDS}",
           f"--size={SIZE}", "--output-format=json", "--norandommap", "--thread", *more]
    (text, _), own, all_ = run(job)
    read = json.loads(text)["jobs"][0]["read"]
    ops = read["total_ios"]
    return read["iops"], read["bw_bytes"], own / ops, all_ / ops


def xdd(device, request, depth, order):
    """The same of the kit."""
    with tempfile.TemporaryDirectory() as scratch:
        csv = os.path.join(scratch, "csv")
        blocks = request // 1024
        job = [BRAID, "xdd", "-op", "read", "-target", device, "-reqsize", str(blocks), "-dio",
               "-queuedepth", str(depth), "-runtime", str(SECONDS), "-csvout", csv]
        if order == "randread":
            job += ["-seek", "random", "-seek", "range", str(SIZE // 1024)]
        else:
            job += ["-seek", "range", str(SIZE // 1024)]
        _, own, all_ = run(job)
        with open(csv) as file:
            fields = [line for line in file if line.startswith("combined")][0].split(",")
    bytes_, ops, seconds = float(fields[3]), float(fields[4]), float(fields[5])
    return ops / seconds, bytes_ / seconds, own / ops, all_ / ops


def lmdd(program, device):
    """MB/s of one pass over the device."""
    words = [*program, f"if={device}", "bs=1m", f"move={SIZE >> 20}m"]
    said, _, _ = run(words)
    return float(re.search(r"([\d.]+) MB/sec", "".join(said)).group(1))


def told(what, ratios, goal, sense="least"):
    """One line; whether the goal is met."""
    median = statistics.median(ratios)
    good = median >= goal if sense == "least" else median <= goal
    met = f"goal {'>=' if sense == 'least' else '<='} {goal}: {'met' if good else 'SHORT'}"
    print(f"{what:58} {median:6.3f} ({min(ratios):.3f}..{max(ratios):.3f})  {met}")
    return good


def processor(pairs):
    """Lines of the processor time of a request."""
    what = "CPU for a request over fio's"
    whole = told(f"{what}, whole machine", [x[3] / f[3] for x, f in pairs], 1.05, "most")
    own = told(f"{what}, own process", [x[2] / f[2] for x, f in pairs], 1.05, "most")
    return whole and own


def small(pairs):
    """Lines of the small requests, from figures of the kit and of fio."""
    print(f"random reads of 4 KiB, {DEPTH} at a time; fio {statistics.median(f[0] for _, f in pairs):.0f} IOPS")
    rate = told("IOPS over fio's", [x[0] / f[0] for x, f in pairs], 0.95)
    return processor(pairs) and rate


def large(pairs):
    """Lines of the large ones."""
    print(f"reads of 1 MiB, 8 at a time; fio {statistics.median(f[1] for _, f in pairs) / 1e6:.0f} MB/s")
    rate = told("bandwidth over fio's", [x[1] / f[1] for x, f in pairs], 0.98)
    return processor(pairs) and rate


def compare(one, other):
    """Figures of both in turn, by round."""
    pairs = []
    for n in range(ROUNDS):
        if n % 2:
            second = other()
            pairs.append((one(), second))
        else:
            first = one()
            pairs.append((first, other()))
    return pairs


def main():
    """Sets up, compares, takes down; whether all goals are met."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="braid-bench-fio") as backing:
        for _ in range(SIZE >> 20):
            backing.write(os.urandom(1 << 10) * 1024)
        backing.flush()
        words = ["losetup", "--find", "--show", "--direct-io=on", backing.name]
        device = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        try:
            return measure(device)
        finally:
            subprocess.run(["losetup", "-d", device], check=True)


def measure(device):
    """All rows; whether all goals are met."""
    only = os.environ.get("ONLY", "small large lmdd").split()
    good = True
    if "small" in only:
        good &= small(compare(lambda: xdd(device, 4096, DEPTH, "randread"),
                              lambda: fio(device, 4096, DEPTH, "randread")))
    if "large" in only:
        huge = ["--iomem=mmaphuge", "--hugepage-size=2m"] if os.environ.get("HUGE") else []
        good &= large(compare(lambda: xdd(device, 1 << 20, 8, "read"),
                              lambda: fio(device, 1 << 20, 8, "read", *huge)))
    if "lmdd" in only and not os.path.exists(LMDD):
        print("lmdd of lmbench is not here (LMDD=PATH): left out")
    elif "lmdd" in only:
        pairs = compare(lambda: lmdd([BRAID, "lmdd"], device), lambda: lmdd([LMDD], device))
        print(f"lmdd, reads of 1 MiB; lmbench {statistics.median(f for _, f in pairs):.0f} MB/s")
        good &= told("bandwidth over lmbench's lmdd", [x / f for x, f in pairs], 0.95)
    return good


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
