#!/usr/bin/env python3
"""Compares `gputop memory PID --json` with the truth, and measures how much it slows the program.

    benches/hardware/holders/compare.py GPUTOP [--all] [--only NAME,NAME] [--python PYTHON] [--pairs 10]
        [options of target.py]

Starts target.py, which trains a small transformer and reports the address of each tensor. With `--all`, also starts each
program of programs.py, except those whose library is not installed. With `--only`, starts only these programs. Fails if a
parameter, gradient, buffer or optimizer state has another name or class, if the sums differ, if a leak is not named within
its readings, or if 90 % of the named bytes of the large heap take longer than 0.5 s. The same names are compared while the
program creates and drops objects as fast as it can. Then training steps are timed in alternating pairs: without a reading,
and with one reading a second.
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

HERE = pathlib.Path(__file__).parent
PROGRAMS = ["generation", "training", "compiled", "cuda_graph", "large_heap", "loss_list", "hook", "cache", "closure", "traceback"]
DISTRIBUTED = ["ddp", "fsdp1", "fsdp2"]
# Each is skipped if its library is not installed.
LIBRARIES = ["huggingface", "torchao", "bitsandbytes", "deepspeed"]
READINGS_FOR_GROWTH = 3
STEPS_BETWEEN_READINGS = 5
LARGE_HEAP_LIMIT_MS = 500
LARGE_HEAP_SHARE = 0.9
READINGS_OF_BUSY_PROGRAM = 10


class Target:
    """A Python program that answers commands about its own tensors."""

    def __init__(self, script, *arguments):
        self.process = subprocess.Popen(
            [options.python, HERE / script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started = self.answer()
        self.missing = started.get("missing")
        if self.missing:
            return
        self.pid = started["pid"]
        print(f"Python {started['python']}, torch {started['torch']}")

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the program has exited")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def read(self):
        """Returns the holders and the milliseconds of one `gputop memory`."""
        start = time.perf_counter()
        done = subprocess.run([options.gputop, "memory", str(self.pid), "--json"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"gputop memory: {done.stderr.strip()}")
        return json.loads(done.stdout)["holders"], (time.perf_counter() - start) * 1000

    def quit(self):
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait()


def tensors_by_address(holders):
    """Returns the class and the names of each listed tensor."""
    return {
        tensor["address"]: (group["class"], [tensor["name"], *tensor["aliases"]])
        for group in holders["groups"]
        for tensor in group["tensors"]
    }


def compare_names(kind, names, listed):
    """Returns the number of right names, and the tensors with another name or class."""
    found = [(name, listed[address]) for name, (address, _) in names.items() if address in listed]
    wrong = [(name, held) for name, held in found if held[0] != kind or name not in held[1]]
    return len(found) - len(wrong), wrong


def compare(truth, holders):
    """Returns the number of differences that are errors."""
    print(f"allocated: {truth['allocated']} B, gputop {holders['allocated']} B, {holders['quality']}")
    if "limit" in holders:
        print(f"limit: {holders['limit']}")
    errors = int(truth["allocated"] != holders["allocated"])
    groups = holders["groups"]
    errors += int(sum(group["bytes"] for group in groups) != holders["allocated"])
    blocks, sizes = collections.Counter(), collections.Counter()
    for group in groups:
        blocks[group["class"]] += group["count"]
        sizes[group["class"]] += group["bytes"]
    for kind, size in sizes.most_common():
        print(f"  {kind:20} {blocks[kind]:6} blocks {size / 2**20:12.2f} MiB")
    listed = tensors_by_address(holders)
    for kind, names in truth["names"].items():
        right, wrong = compare_names(kind, names, listed)
        # Tensors that are not among the largest of their group are not listed.
        print(f"{kind}: {right} of {len(names)} right, {len(names) - right - len(wrong)} not listed, wrong: {wrong[:3]}")
        errors += len(wrong)
    saved = [listed[address][0] for address in truth["saved"] if address in listed]
    print(f"saved by autograd: {len(truth['saved'])}, listed as {dict(collections.Counter(saved))}")
    return errors


def compare_growth(target, expected):
    """Returns 1 if the group that grows is not named as growing after three readings."""
    watch = subprocess.Popen(
        [options.gputop, "memory", str(target.pid), "--json", "--watch", "1s"], stdout=subprocess.PIPE, text=True
    )
    for _ in range(READINGS_FOR_GROWTH):
        document = json.loads(watch.stdout.readline())
        target.ask(f"steps {STEPS_BETWEEN_READINGS}")
    watch.terminate()
    watch.wait()
    growing = [change["name"] for change in document.get("growth", []) if "rate" in change]
    is_named = any(name.startswith(expected) for name in growing)
    print(f"growth: expected {expected}, growing {growing}: {'right' if is_named else 'WRONG'}")
    return int(not is_named)


def compare_busy(target, truth):
    """Returns the number of wrong names and sums in readings of a program that creates and drops objects."""
    target.ask("churn")
    readings = [target.read()[0] for _ in range(READINGS_OF_BUSY_PROGRAM)]
    rate = target.ask("stop")["operations_per_second"]
    right, errors = 0, 0
    for holders in readings:
        listed = tensors_by_address(holders)
        errors += int(sum(group["bytes"] for group in holders["groups"]) != holders["allocated"])
        for kind, names in truth["names"].items():
            found, wrong = compare_names(kind, names, listed)
            right += found
            errors += len(wrong)
    complete = sum("limit" not in holders for holders in readings)
    print(f"busy: {rate:.0f} operations/s, {complete} of {len(readings)} readings complete, {right} names right, {errors} errors")
    return errors


def compare_large_heap(holders):
    """Returns 1 if too few bytes have a name, or if the reading took too long."""
    named = sum(group["bytes"] for group in holders["groups"] if group["name"])
    share = named / max(holders["allocated"], 1)
    is_right = share >= LARGE_HEAP_SHARE and holders["took"] <= LARGE_HEAP_LIMIT_MS
    print(f"large heap: {share:.1%} named in {holders['took']} ms: {'right' if is_right else 'WRONG'}")
    return int(not is_right)


def compare_program(name):
    print(f"\n== {name}")
    target = Target("programs.py", name)
    if target.missing:
        print(f"skipped: {target.missing} is not installed")
        return 0
    truth = target.ask("truth")
    holders, _ = target.read()
    errors = compare(truth, holders)
    took = [target.read()[0]["took"] for _ in range(5)]
    print(f"five readings: {took} ms")
    if truth["grows"]:
        errors += compare_growth(target, truth["grows"])
    if name == "large_heap":
        errors += compare_large_heap(holders)
    target.quit()
    return errors


def with_readings(target, command):
    """Runs a command in the target while gputop reads it once a second."""
    is_done = threading.Event()
    readings = []

    def keep_reading():
        while not is_done.is_set():
            readings.append(target.read()[1])
            is_done.wait(max(0, 1 - readings[-1] / 1000))

    thread = threading.Thread(target=keep_reading)
    thread.start()
    times = target.ask(command)
    is_done.set()
    thread.join()
    return times, readings


def compare_transformer(target_options):
    target = Target("target.py", *target_options)
    truth = target.ask("truth")
    errors = compare(truth, target.read()[0])
    took = [target.read() for _ in range(5)]
    print(f"five readings: {[held['took'] for held, _ in took]} ms, with start {[round(ms) for _, ms in took]} ms")
    errors += compare_busy(target, truth)
    command = f"steps {options.steps}"
    target.ask(command)
    alone, beside, readings = [], [], []
    for _ in range(options.pairs):
        alone.append(statistics.median(target.ask(command)))
        times, during = with_readings(target, command)
        beside.append(statistics.median(times))
        readings += during
    if options.pairs:
        print(f"step alone {statistics.median(alone):.3f} ms, with readings {statistics.median(beside):.3f} ms")
        change = [b / a - 1 for a, b in zip(alone, beside)]
        print(f"change per pair: median {statistics.median(change):+.2%}, all {[f'{d:+.1%}' for d in change]}")
        print(f"{len(readings)} readings of {statistics.median(readings):.0f} ms during training")
    target.quit()
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gputop")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", type=lambda names: names.split(","))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    options, target_options = parser.parse_known_args()
    errors = {} if options.only else {"transformer": compare_transformer(target_options)}
    names = options.only or (PROGRAMS + DISTRIBUTED + LIBRARIES if options.all else [])
    errors |= {name: compare_program(name) for name in names}
    print(f"\ndifferences: {errors}")
    sys.exit(any(errors.values()))
