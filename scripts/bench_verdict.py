#!/usr/bin/env python3
"""Compares the figures of scripts/bench.sh with the goals: bench_verdict.py DIR SUITE..."""
import json
import os
import statistics
import sys

GB_PER_GIB = 1.073741824
# scripts/bench.sh: four devices of 200,000,000 bytes per second each.
LIMITS_MB_PER_S = 4 * 200
# Processors that other programs may use beside a rate that is judged, not only shown.
QUIET = 0.2


def rows(directory, suite):
    """The rows of a suite by (layer, phase); None if it did not run."""
    try:
        with open(os.path.join(directory, suite + ".json")) as file:
            report = json.load(file)
    except (OSError, ValueError):
        return None
    return {(row["name"], row["phase"]): row for row in report["rows"]}


def is_quiet(directory, suite):
    """Whether other programs left the processors alone while the suite ran."""
    with open(os.path.join(directory, suite + ".json")) as file:
        foreign = json.load(file)["rounds"]["foreign"]
    return statistics.median(foreign) <= QUIET


def ratio(layer, base, *phases):
    """Per phase: quotients of the same repeat."""

    def samples(table):
        for phase in phases:
            ours, theirs = (table.get((name, phase), {"rate": []}) for name in (layer, base))
            yield phase, [a / b for a, b in zip(ours["rate"], theirs["rate"]) if b > 0]

    return samples


def speed_up(suite, *phases):
    """Per phase: the pool's rate over that on one member, repeat by repeat."""

    def samples(table, directory):
        one = rows(directory, suite)
        for phase in phases if one else ():
            pairs = zip(table[("pool", phase)]["rate"], one[("pool", phase)]["rate"])
            yield phase, [a / b for a, b in pairs if b > 0]

    samples.needs = suite
    return samples


def of_limits(layer, *phases):
    """Per phase: part of what the throttles of all devices together let through."""

    def samples(table):
        for phase in phases:
            yield phase, [a / LIMITS_MB_PER_S for a in table[(layer, phase)]["rate"]]

    return samples


def cpu_per_gb(layer, *phases):
    """CPU seconds of the whole machine per 10^9 bytes."""

    def samples(table):
        for phase in phases:
            yield phase, [cpu / GB_PER_GIB for cpu in table[(layer, phase)]["cpu"]]

    return samples


def rate(*phases):
    """Per phase: operations per second of all nodes together."""

    def samples(table):
        for phase in phases:
            yield phase, table.get(("nodes", phase), {"rate": []})["rate"]

    return samples


def each(count, *phases):
    """Per phase: requests or messages of one kind for each operation."""

    def samples(table):
        for phase in phases:
            yield phase, table.get(("nodes", phase), {"more": {}})["more"].get(count + " each", [])

    return samples


def peak(table):
    """The largest resident size seen, MiB."""
    yield "peak, MiB", [max(max(row["rate"]) for (name, _), row in table.items() if name == "peak")]


DIRECT, BUFFERED = ("write", "read"), ("write+fsync", "cold read")
LARGER = "cold read, little memory"
SMALL, BOTH, APPEND = "small file, write here, read there", "both write one block by turns", "append by turns"
LOCKS = ("flock, all nodes", "fcntl, all nodes")
STAT, LIST = "stat of another node's files", "list and stat another node's files"
CREATE, UNLINK = "create in one directory", "unlink in one directory"
# What, suite, figures, "least", "most", "told", or "quiet" (least, on a machine that nobody else uses), goal.
GOALS = [
    # 1 MiB requests, unit 256 KiB: 0.98 where that is the stripe width or more (to 4 members), 0.95 where it
    # is less (half of it on 8).
    ("pool / raw, 4 members", "ladder4", ratio("pool", "raw", *DIRECT), "least", 0.98),
    ("pool / raw, 2 members", "ladder2", ratio("pool", "raw", *DIRECT), "least", 0.98),
    ("pool / raw, 1 loop device", "ladder1", ratio("pool", "raw", *DIRECT), "least", 0.98),
    ("pool / raw, 1 plain file", "file1", ratio("pool", "raw", *DIRECT), "least", 0.98),
    ("pool / raw, 8 members (requests of half the width)", "ladder8", ratio("pool", "raw", *DIRECT), "least", 0.95),
    ("2 throttled devices over 1, pool", "throttled2", speed_up("throttled1", *DIRECT), "least", 1.95),
    ("3 throttled devices over 1, pool", "throttled3", speed_up("throttled1", *DIRECT), "least", 2.90),
    ("4 throttled devices over 1, pool", "throttled", speed_up("throttled1", *DIRECT), "least", 3.85),
    ("native API / raw, 4 members", "ladder4", ratio("native", "raw", *DIRECT), "least", 0.90),
    ("native API / raw, 1 member", "ladder1", ratio("native", "raw", *DIRECT), "least", 0.90),
    ("mount / raw, 4 throttled devices", "throttled", ratio("mount", "raw", *DIRECT), "least", 0.95),
    ("mount / limits, 4 throttled devices", "throttled", of_limits("mount", *DIRECT), "least", 0.95),
    ("raw / limits, 4 throttled devices", "throttled", of_limits("raw", *DIRECT), "least", 0.95),
    ("mount / raw, 1 device in RAM", "ladder1", ratio("mount", "raw", *DIRECT), "least", 0.70),
    # Raw is one copy at the speed of the processor's cache: shown, not judged.
    ("mount / raw, 1 plain file in RAM", "file1", ratio("mount", "raw", *DIRECT), "told", None),
    ("mount / raw, 4 in RAM", "ladder4", ratio("mount", "raw", *DIRECT), "least", 0.40),
    ("CPU of the mount, s per GB", "ladder4", cpu_per_gb("mount", *DIRECT), "most", 0.30),
    ("mount / XFS, buffered, on a disk", "buffered", ratio("mount", "xfs", *BUFFERED), "least", 0.70),
    ("the same, files larger than memory", "buffered", ratio("mount", "xfs", LARGER), "least", 0.70),
    # No disk gives the bytes: everything is copies, three for the mount and two for XFS.
    ("mount / XFS, buffered, in RAM", "buffered-ram", ratio("mount", "xfs", *BUFFERED), "told", None),
    ("mount / XFS, empty files", "meta", ratio("mount", "xfs", "create+close"), "least", 0.25),
    ("memory of a mount", "memory", peak, "most", 512),
    # Two nodes that meet: what an operation costs, which does not depend on the machine, and how many there are.
    ("compare-and-writes each", "share", each("compare-and-writes", SMALL), "most", 2.1),
    ("compare-and-writes each", "share", each("compare-and-writes", BOTH, APPEND, STAT, LIST), "most", 1.1),
    ("messages each", "share", each("messages", SMALL), "most", 4.2),
    ("messages each", "share", each("messages", BOTH, APPEND, STAT, LIST), "most", 2.2),
    ("reads each", "share", each("reads", SMALL, BOTH, STAT, LIST), "most", 1.2),
    ("reads each", "share", each("reads", APPEND), "most", 2.2),
    ("compare-and-writes each", "share", each("compare-and-writes", *LOCKS, CREATE, UNLINK), "told", None),
    ("per second", "share", rate(SMALL), "quiet", 5000),
    ("per second", "share", rate(BOTH, APPEND), "quiet", 4000),
    ("per second, both nodes", "share", rate(*LOCKS), "quiet", 10000),
    ("per second, both nodes", "share", rate(STAT), "quiet", 40000),
    ("per second, both nodes", "share", rate(LIST), "quiet", 80000),
    ("per second, both nodes", "share", rate(CREATE, UNLINK), "told", None),
]


def main(directory, suites):
    short = 0
    table = []
    for what, suite, figures, sense, goal in GOALS:
        if suite not in suites:
            continue
        measured = rows(directory, suite)
        needs = getattr(figures, "needs", None)
        # What it is compared with may not have been asked for: that is no figure either.
        if measured is None or needs and (needs not in suites or rows(directory, needs) is None):
            table.append((what, "", f"{goal:g}" if goal else "", "not measured", "", "FAILED"))
            short += 1
            continue
        if sense == "quiet":
            sense = "least" if is_quiet(directory, suite) else "told"
        for phase, samples in figures(measured, directory) if needs else figures(measured):
            if not samples:
                table.append((what, phase, f"{goal:g}" if goal else "", "not measured", "", "FAILED"))
                short += 1
                continue
            median = statistics.median(samples)
            spread = f"{min(samples):.2f}..{max(samples):.2f}" if len(samples) > 1 else ""
            if sense == "told":
                table.append((what, phase, "", f"{median:.2f}", spread, ""))
                continue
            good = median >= goal if sense == "least" else median <= goal
            short += not good
            sign = ">=" if sense == "least" else "<="
            number = f"{median:.2f}" if goal < 100 else f"{median:.0f}"
            verdict = "met" if good else "SHORT"
            table.append((what, phase, f"{sign} {goal:g}", number, spread, verdict))
    header = ("", "phase", "goal", "median", "spread", "verdict")
    widths = [max(len(row[i]) for row in [header, *table]) for i in range(len(header))]
    for row in [header, *table]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"\n{short} short of the goal or not measured; all samples in {directory}" if short else
          f"\nall goals met; all samples in {directory}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
