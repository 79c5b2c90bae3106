#!/usr/bin/env python3
"""Compares `gputop memory PID --json` with the truth, and measures how much it slows the program.

    benches/hardware/holders/compare.py GPUTOP [--python PYTHON] [--pairs 10] [options of target.py]

Starts target.py, which trains a small transformer and reports the address of each tensor. Fails if a parameter,
gradient, buffer or optimizer state has another name or class, or if the sums differ. Then it times training steps in
alternating pairs: without a look, and with one look a second.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

options = argparse.ArgumentParser()
options.add_argument("gputop")
options.add_argument("--python", default=sys.executable)
options.add_argument("--pairs", type=int, default=10)
options.add_argument("--steps", type=int, default=40)
options, target_options = options.parse_known_args()

script = pathlib.Path(__file__).with_name("target.py")
target = subprocess.Popen(
    [options.python, script, *target_options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)


def answer():
    line = target.stdout.readline()
    if not line:
        sys.exit("target.py has exited")
    return json.loads(line)


def ask(command):
    target.stdin.write(command + "\n")
    target.stdin.flush()
    return answer()


def look():
    start = time.perf_counter()
    done = subprocess.run([options.gputop, "memory", str(pid), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gputop memory: {done.stderr.strip()}")
    return json.loads(done.stdout)["holders"], (time.perf_counter() - start) * 1000


def compare(truth, holders):
    """Returns the number of differences that are errors."""
    print(f"allocated: {truth['allocated']} B, gputop {holders['allocated']} B, {holders['quality']}")
    if "limit" in holders:
        print(f"limit: {holders['limit']}")
    errors = int(truth["allocated"] != holders["allocated"])
    groups = holders["groups"]
    errors += int(sum(group["bytes"] for group in groups) != holders["allocated"])
    blocks, sizes = collections.Counter(), collections.Counter()
    listed = {}
    for group in groups:
        blocks[group["class"]] += group["count"]
        sizes[group["class"]] += group["bytes"]
        listed |= {tensor["address"]: (group["class"], tensor["name"]) for tensor in group["tensors"]}
    for kind, size in sizes.most_common():
        print(f"  {kind:20} {blocks[kind]:6} blocks {size / 2**20:12.2f} MiB")
    for kind, names in truth["names"].items():
        right, wrong, unlisted = 0, [], 0
        for name, (address, _) in names.items():
            if address not in listed:
                unlisted += 1  # not among the largest of its group
            elif listed[address] == (kind, name):
                right += 1
            else:
                wrong.append((name, listed[address]))
        print(f"{kind}: {right} of {len(names)} right, {unlisted} not listed, wrong: {wrong[:3]}")
        errors += len(wrong)
    saved = [listed[address][0] for address in truth["saved"] if address in listed]
    print(f"saved by autograd: {len(truth['saved'])}, listed as {dict(collections.Counter(saved))}")
    return errors


def with_looks(command):
    """Runs a command in the target while gputop looks once a second."""
    is_done = threading.Event()
    looks = []

    def keep_looking():
        while not is_done.is_set():
            looks.append(look()[1])
            is_done.wait(max(0, 1 - looks[-1] / 1000))

    thread = threading.Thread(target=keep_looking)
    thread.start()
    times = ask(command)
    is_done.set()
    thread.join()
    return times, looks


started = answer()
pid = started["ready"]
print(f"Python {started['python']}, torch {started['torch']}")
truth = ask("truth")
errors = compare(truth, look()[0])
took = [look() for _ in range(5)]
print(f"five looks: {[holders['took'] for holders, _ in took]} ms, with start {[round(ms) for _, ms in took]} ms")
ask(f"steps {options.steps}")
alone, beside, looks = [], [], []
for _ in range(options.pairs):
    alone.append(statistics.median(ask(f"steps {options.steps}")))
    times, during = with_looks(f"steps {options.steps}")
    beside.append(statistics.median(times))
    looks += during
if options.pairs:
    print(f"step alone {statistics.median(alone):.3f} ms, with looks {statistics.median(beside):.3f} ms")
    difference = [b / a - 1 for a, b in zip(alone, beside)]
    print(f"difference per pair: median {statistics.median(difference):+.2%}, all {[f'{d:+.1%}' for d in difference]}")
    print(f"{len(looks)} looks of {statistics.median(looks):.0f} ms during training")
target.stdin.write("quit\n")
target.stdin.close()
target.wait()
sys.exit(errors > 0)
