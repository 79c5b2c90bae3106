"""Every statistic and block of `gputop allocator` against PyTorch's own, under four settings: compare.py GPUTOP"""

import json
import os
import pathlib
import subprocess
import sys

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "max_split": "max_split_size_mb:64",
    "fraction": "garbage_collection_threshold:0.6",
}
STATISTICS = {
    "allocated_bytes": "allocated_bytes.all",
    "reserved_bytes": "reserved_bytes.all",
    "active_bytes": "active_bytes.all",
    "inactive_split_bytes": "inactive_split_bytes.all",
    "requested_bytes": "requested_bytes.all",
    "segments": "segment.all",
}
STATES = {
    "active_allocated": "allocated",
    "active_pending_free": "active",
    "active_awaiting_free": "active",
    "inactive": "free",
}


def read(gputop, pid):
    words = [gputop, "allocator", str(pid), "--json", "--blocks"]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["devices"][0]


def differences(device, truth):
    found = [] if device["exact"] else ["the map is not exact"]
    for ours, theirs in STATISTICS.items():
        for which in ("current", "peak"):
            pair = device["stats"][ours][which], truth["stats"].get(f"{theirs}.{which}")
            if pair[0] != pair[1]:
                found.append(f"{ours} {which}: {pair[0]}, PyTorch says {pair[1]}")
    for name in ("num_alloc_retries", "num_ooms"):
        if device["stats"][name] != truth["stats"][name]:
            found.append(f"{name}: {device['stats'][name]}, PyTorch says {truth['stats'][name]}")
    blocks = {
        (block["address"], block["size"], block["state"])
        for segment in device["segments"]
        for block in segment["blocks"]
        if block["state"] != "unmapped"
    }
    said = {(address, size, STATES[state]) for address, size, state in truth["blocks"]}
    if blocks != said:
        found.append(f"{len(blocks - said)} blocks that PyTorch does not have, {len(said - blocks)} that it has")
    return found


def main():
    victim = pathlib.Path(__file__).with_name("victim.py")
    wrong = compared = 0
    for name, setting in SETTINGS.items():
        environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting)
        words = [sys.executable, str(victim), name]
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for line in program.stdout:
            truth = json.loads(line)
            found = differences(read(sys.argv[1], program.pid), truth)
            compared += len(truth["blocks"]) + 2 * len(STATISTICS) + 2
            wrong += len(found)
            print(f"{name:12} {truth['name']:16} {'; '.join(found) or 'equal'}", flush=True)
            program.stdin.write("\n")
            program.stdin.flush()
        program.wait()
    print(f"{compared} statistics and blocks compared, {wrong} differences")
    sys.exit(wrong > 0)


main()
