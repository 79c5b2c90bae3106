"""The probe allocator on a real card: what it finds, what it costs, and that everything comes back.

    python3 benches/hardware/probe/run.py target/release/gputop [GPU]

Needs nvidia-smi and, for three of the parts, PyTorch. Each part prints what it saw and a line OK or NOT OK; the exit code
is the number of those. About 40 s on an H200 whose driver is awake.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time

GPUTOP = os.path.abspath(sys.argv[1])
GPU = sys.argv[2] if len(sys.argv) > 2 else "0"
MIB = 1 << 20
GIB = 1 << 30
BEGUN = time.monotonic()
faults = 0

# Another process's memory, in pieces between live blocks, until its input ends.
FRAGMENTED = """
import sys, torch
blocks = [torch.empty(n % 37 * (1 << 18) + 1000, dtype=torch.uint8, device="cuda") for n in range(3000)]
blocks += [torch.empty((n % 11 + 1) << 22, dtype=torch.uint8, device="cuda") for n in range(300)]
del blocks[::2]
torch.cuda.synchronize()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), flush=True)
sys.stdin.read()
"""


def part(title):
    print(f"\n== {title}  ({time.monotonic() - BEGUN:.1f} s)", flush=True)


def check(what, is_so):
    global faults
    print(("OK      " if is_so else "NOT OK  ") + what, flush=True)
    faults += not is_so


def used():
    """MiB in use on the card, as nvidia-smi says."""
    query = ["nvidia-smi", "-i", GPU, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.check_output(query, text=True).split()[0])


def lives(pid):
    """Not where it only waits to be collected by whoever inherited it."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def settled(before, within=5.0):
    """Waits until as much is in use as before; what is in use at last."""
    end = time.monotonic() + within
    while abs(used() - before) > 8 and time.monotonic() < end:
        time.sleep(0.1)
    return used()


def probe(*args):
    done = subprocess.run(
        [GPUTOP, "probe", "--gpu", GPU, *args], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def probe_json(*args):
    code, out, err = probe("--json", *args)
    if err:
        print("stderr:", err.strip())
    return code, json.loads(out) if out else {}


def summary(found):
    """The figures that matter, in lines."""
    print("outcome", found.get("outcome"), found.get("reason", ""))
    fill = found.get("driver") or {}
    if fill:
        print(
            f"fill    {fill['held_bytes'] / GIB:.3f} of {fill['wanted_bytes'] / GIB:.3f} GiB,"
            f" largest {fill['largest_bytes'] / GIB:.3f}, cut short {fill['cut_short']}"
        )
        for size in fill["latency"]:
            print(
                f"        {size['bytes'] / MIB:>9.0f} MiB  x{size['count']}"
                f"  refused {size['failed']}  longest {size['longest_us'] / 1e3:.2f} ms"
            )
    for run in found.get("patterns", []):
        print(
            f"pattern {run['policy']:<11}{run['requests_made']:>4} of {run['requests']} requests"
            f"  reserved {run['reserved_bytes'] / MIB:7.0f}  free {run['free_bytes'] / MIB:7.0f}"
            f"  largest {run['largest_free_block'] / MIB:7.1f} MiB"
            f"  ext {run.get('external_fragmentation') or 0:.2f}  failed {run['failures']}"
            f"  {run['us'] / 1e3:.1f} ms  {run.get('missing', '')}"
        )
    print("cost   ", json.dumps(found.get("cost")))


def empty_card():
    part("a card as it is")
    before = used()
    print("in use before", before, "MiB")
    for args in (["--limit", "3s"], [], []):
        code, found = probe_json(*args)
        print("--", " ".join(args) or "default limit")
        summary(found)
        check("exit code 0", code == 0)
    after = settled(before)
    check(f"as much in use after as before: {before} and {after} MiB", abs(after - before) <= 8)
    code, out, err = probe("--limit", "3s")
    print(out + err)


def beside_fragmented():
    part("beside a PyTorch process whose cache lies in pieces")
    child = subprocess.Popen(
        [sys.executable, "-c", FRAGMENTED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": GPU},
    )
    allocated, reserved = map(int, child.stdout.readline().split())
    print(f"allocated {allocated / MIB:.0f} MiB, reserved {reserved / MIB:.0f} MiB")
    before = used()
    code, out, err = probe("--pid", str(child.pid), "--limit", "3s")
    print(out + err)
    code, found = probe_json("--pid", str(child.pid), "--limit", "3s")
    side = found.get("process") or {}
    check("exit code 0", code == 0)
    check(
        f"free blocks of the process are reserved - allocated: {side.get('free_bytes', 0) / MIB:.0f} MiB,"
        f" {side.get('missing', '')}",
        side.get("free_bytes") == reserved - allocated,
    )
    check(
        "the pattern is that process's",
        all(run["source"].startswith(f"PID {child.pid},") for run in found["patterns"]),
    )
    total = found.get("total_bytes", 0)
    check(
        "10 % of the card stay free where others live",
        found.get("headroom_bytes", 0) == max(total // 10, GIB),
    )
    check(f"all is back: {before} and {settled(before)} MiB", abs(used() - before) <= 8)
    child.communicate()


def child_of(pid):
    """The probe's child, once it is there."""
    for _ in range(500):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = open(f"/proc/{entry}/stat").read().rsplit(")", 1)[1].split()[1]
                command = open(f"/proc/{entry}/cmdline", "rb").read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and b"probe-child" in command:
                return int(entry)
        time.sleep(0.002)
    return None


def killed(whom):
    part(f"kill -9 of the {whom} while memory is held")
    before = used()
    peak = floor = nvml.used()
    process = subprocess.Popen(
        [GPUTOP, "probe", "--gpu", GPU, "--limit", "30s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = child_of(process.pid)
    # The whole thing takes a second: it is killed as soon as clearly more than a context is in use.
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        peak = max(peak, nvml.used())
        if peak - floor > 4096:
            break
    target = child if whom == "child" else process.pid
    was_there = process.poll() is None
    if was_there and target:
        os.kill(target, signal.SIGKILL)
    out, err = process.communicate()
    print("in use before", before, "MiB, when it was killed", peak, "MiB")
    print("it said:", (out + err).strip()[:300])
    check("it was caught while it held memory", was_there and peak - floor > 4096)
    after = settled(before)
    check(f"all is back: {before} and {after} MiB", abs(after - before) <= 8)
    check("no child is left", child is None or not lives(child))


class Nvml:
    """nvidia-smi takes longer to start than a probe takes."""

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.device = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(int(GPU), ctypes.byref(self.device))

    def used(self):
        memory = (ctypes.c_ulonglong * 3)()
        self.lib.nvmlDeviceGetMemoryInfo(self.device, memory)
        return memory[2] // MIB


class Cuda:
    """The driver's calls, for a card filled in pieces without a framework in between."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        device = ctypes.c_int()
        assert self.lib.cuInit(0) == 0
        assert self.lib.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device) == 0
        assert self.lib.cuCtxSetCurrent(self.context) == 0

    def alloc(self, size):
        address = ctypes.c_uint64()
        code = self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return address.value if code == 0 else None

    def free(self, address):
        self.lib.cuMemFree_v2(ctypes.c_uint64(address))


def fill(pattern):
    """Fills the card in pieces of 2 MiB, frees a part of them, says so, waits."""
    cuda = Cuda()
    pieces = []
    while (address := cuda.alloc(2 * MIB)) is not None:
        pieces.append(address)
    pieces.sort()
    random.seed(1)
    gone = {
        "every other": pieces[::2],
        "random half": random.sample(pieces, len(pieces) // 2),
        "one half": pieces[: len(pieces) // 2],
    }[pattern]
    for address in gone:
        cuda.free(address)
    print(len(pieces), len(gone), flush=True)
    sys.stdin.read()


def scattered():
    for pattern in ("every other", "random half"):
        part(f"the card filled in pieces of 2 MiB, freed: {pattern}")
        before = used()
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), GPUTOP, GPU, "--fill", pattern],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": GPU, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        print("pieces, freed:", child.stdout.readline().strip(), " in use:", used(), "MiB")
        code, found = probe_json("--limit", "3s")
        summary(found)
        print(*probe("--limit", "3s"))
        # Whether a context still finds room among the pieces is the driver's luck; either way the probe says which.
        print("context:", found.get("outcome"))
        check("it says how it went", found.get("outcome") in ("done", "no_context"))
        child.communicate()
        check(f"all is back: {before} and {settled(before)} MiB", abs(used() - before) <= 8)


if "--fill" in sys.argv:
    fill(sys.argv[-1])
    sys.exit(0)

print(subprocess.check_output(["nvidia-smi", "-i", GPU], text=True))
nvml = Nvml()
empty_card()
killed("child")
killed("program")
try:
    import torch  # noqa: F401
except ImportError:
    print("\nno PyTorch here: one part is left out")
else:
    beside_fragmented()
scattered()
part("done")
print(faults, "not as expected")
sys.exit(faults)
