#!/usr/bin/env python3
"""Records the test data of crates/peek/tests/pure/torch_dump.rs from a harness of the test bed (tests/fake_cuda).

    record.py GPUTOP DIRECTORY VERSION SCENARIO[-expandable] HARNESS [ARGUMENT...]

HARNESS is a program that links the libc10_cuda.so of a torch wheel, obeys one command a line and answers in JSON
lines. It is brought into the scenario's state; then gputop writes what it reads of it to
DIRECTORY/VERSION/SCENARIO.dump.zst, and PyTorch's own answer (getDeviceStats of both devices and snapshot) goes to
SCENARIO.json.zst beside it. The environment goes to the harness: PYTORCH_CUDA_ALLOC_CONF and the fake runtime's own.
"""

import json
import pathlib
import subprocess
import sys

SCENARIOS = {
    "fresh": [],
    "one": ["alloc 1"],
    "mixed": [
        "alloc 90", "free 0.4", "alloc 20", "oom", "pool 8", "rec", "dev 1", "alloc 30", "free 0.2", "oom", "oom",
        "stream 1", "alloc 20", "dev 0", "stream 1", "alloc 25", "free 0.2",
    ],
    "idle-pool": ["alloc 50", "pool 30", "free 1.0"],
    "pool-only": ["pool 30"],
    "all-freed": ["alloc 100", "free 1.0"],
    "emptied": ["alloc 100", "free 1.0", "empty"],
    "reset": ["alloc 100", "free 0.5", "resetacc 0", "resetpeak 0", "alloc 20", "free 0.3"],
    "streams": ["alloc 30", "stream 1", "alloc 30", "stream 1", "alloc 30", "stream 0", "alloc 20", "free 0.5"],
    # Of a harness that was linked without -fPIC, and so owns the library's variable.
    "copy-relocation": ["alloc 30", "free 0.3"],
    "many": ["alloc 9000 2048", "free 0.5", "alloc 1000"],
}


class Harness:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = next(self.answers())["pid"]

    def answers(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        raise SystemExit("the harness died")

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        value = None
        for answer in self.answers():
            if answer["kind"] == "error":
                raise SystemExit(f"{command}: {answer['what']}")
            if answer["kind"] == "done":
                return value
            value = answer


def compressed(text):
    return subprocess.run(["zstd", "-19", "-q", "-c"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def main():
    gputop, directory, version, scenario, *command = sys.argv[1:]
    harness = Harness(command)
    for step in SCENARIOS[scenario.removesuffix("-expandable")]:
        harness.do(step)
    target = pathlib.Path(directory) / version
    target.mkdir(parents=True, exist_ok=True)
    dump = target / f"{scenario}.dump.zst"
    subprocess.run([gputop, "allocator", str(harness.pid), "--dump", str(dump)], check=True)
    truth = {"stats": [harness.do(f"stats {device}") for device in range(2)], **harness.do("snap")}
    (target / f"{scenario}.json.zst").write_bytes(compressed(json.dumps(truth)))
    harness.process.stdin.write("quit\n")
    harness.process.stdin.close()
    harness.process.wait(10)
    print(version, scenario, dump.stat().st_size)


main()
