"""Holds a gputop recording against what nvidia-smi said meanwhile: compare.py RECORDING NVIDIA_SMI_TXT

A reading of nvidia-smi counts as equal when a frame within the same second has it (to nvidia-smi's MiB, which it rounds
up). One that lies between two neighbouring frames moved inside that second; what is neither is printed.
"""

import bisect
import json
import subprocess
import sys

MIB = 1 << 20
SECOND = 1000


def frames_of(path):
    text = subprocess.run(["zstd", "-dc", path], capture_output=True, check=False).stdout
    return [json.loads(line)["frame"] for line in text.splitlines() if line.startswith(b'{"frame"')]


def samples_of(path):
    samples = []
    for line in open(path, encoding="utf-8"):
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "T":
            before, after = map(int, rest.split())
            samples.append({"before": before, "after": after, "free": {}, "process": {}})
        elif kind == "G":
            _, uuid, _, free, _ = [field.strip() for field in rest.split(",")]
            samples[-1]["free"][uuid] = int(free)
        elif kind == "P" and "," in rest:
            uuid, pid, used = [field.strip() for field in rest.split(",")]
            if used.isdigit():
                samples[-1]["process"][uuid, int(pid)] = int(used)
    return samples


def free_of(frame):
    return {gpu["uuid"]: gpu["memory"]["free_bytes"] / MIB for gpu in frame["gpus"]}


def processes_of(frame):
    return {
        (gpu["uuid"], process["pid"]): process["vram_bytes"] / MIB
        for gpu in frame["gpus"]
        if isinstance(gpu["processes"], list)
        for process in gpu["processes"]
        if isinstance(process.get("vram_bytes"), int)
    }


def judge(value, near):
    """`value` of nvidia-smi against the frames' values of the same second; 0 where a frame does not have it."""
    if any(abs(other - value) <= 1 for other in near):
        return "equal"
    return "between" if min(near) <= value <= max(near) else "outside"


def main():
    frames, samples = frames_of(sys.argv[1]), samples_of(sys.argv[2])
    times = [frame["time"] for frame in frames]
    counts = {}
    for sample in samples:
        if sample["before"] < times[0] + SECOND or sample["after"] > times[-1] - SECOND:
            continue
        first = bisect.bisect_left(times, sample["before"] - SECOND)
        last = bisect.bisect_right(times, sample["after"] + SECOND)
        near = frames[first:last]
        for kind, of in (("free", free_of), ("process", processes_of)):
            seen = [of(frame) for frame in near]
            for key, value in sample[kind].items():
                verdict = judge(value, [values.get(key, 0) for values in seen])
                counts[kind, verdict] = counts.get((kind, verdict), 0) + 1
                if verdict == "outside":
                    at = (sample["before"] - times[0]) / SECOND
                    print(f"{at:7.1f} s  {kind} {key}: nvidia-smi {value}, gputop {[round(v.get(key, 0)) for v in seen]} MiB")
    for (kind, verdict), count in sorted(counts.items()):
        print(f"{kind:8} {verdict:8} {count}")


main()
