"""Writes a memory snapshot as torch's `_dump_snapshot` does, without torch: segments, blocks, a trace, stacks.

    make.py FILE EVENTS [SEED]

The trace repeats training steps: parameters that stay, activations that come and go, a list that grows, an OOM. Objects
are shared as `_snapshot()` shares them (names, frames, stacks), so a byte of the file means what it means there.
"""

import pickle
import random
import sys

MIB = 1 << 20


def frames():
    """Stacks as torch gives them: the innermost frame first, each frame one object."""
    made = {}

    def frame(file, line, name):
        return made.setdefault((file, line, name), {"filename": file, "line": line, "name": name})

    torch = "/opt/venv/lib/python3.12/site-packages/torch/"
    call = frame(torch + "nn/modules/module.py", 1750, "_call_impl")
    stacks = []
    for layer in range(24):
        for part, line in (("attention", 41), ("mlp", 58), ("norm", 73)):
            stacks.append(
                [
                    frame(torch + "nn/modules/linear.py", 125, "forward"),
                    call,
                    frame("/home/ana/job/model.py", line, part),
                    call,
                    frame("/home/ana/job/model.py", 100 + layer, "forward"),
                    frame("/home/ana/job/train.py", 57, "step"),
                    frame("/home/ana/job/train.py", 90, "main"),
                ]
            )
    log = [frame("/home/ana/job/train.py", 61, "keep"), frame("/home/ana/job/train.py", 90, "main")]
    return stacks, log


def device(number, events, rng, stacks, log):
    base = 0x7F0000000000 + (number << 40)
    trace, segments, clock = [], [], 1_719_260_553_557_947
    tick = 0
    spare = {}
    end = [base]
    owner = {}

    def note(action, addr, size, stack):
        nonlocal tick
        tick += rng.randrange(1, 60)
        entry = {
            "action": action,
            "device_free" if action == "oom" else "addr": addr,
            "size": size,
            "stream": 0,
            "time_us": clock + tick,
        }
        if stack is not None:
            entry["frames"] = stack
        trace.append(entry)

    def allocate(size, stack):
        rounded = (size + 511) // 512 * 512
        free = spare.get(rounded)
        if free:
            addr = free.pop()
        else:
            total = max(2 * MIB, (rounded + 2 * MIB - 1) // (2 * MIB) * 2 * MIB)
            addr = end[0]
            end[0] += total + 2 * MIB
            owner[addr] = (total, rounded)
            note("segment_alloc", addr, total, stack)
        note("alloc", addr, size, stack)
        live[addr] = (size, rounded, stack)
        return addr

    def let_go(addr):
        size, rounded, stack = live.pop(addr)
        note("free_requested", addr, size, stack)
        note("free_completed", addr, size, stack)
        spare.setdefault(rounded, []).append(addr)

    live = {}
    for stack in stacks:
        allocate(rng.randrange(1 * MIB, 64 * MIB), stack)
    step = 0
    while len(trace) < events:
        step += 1
        length = rng.choice((512, 768, 1024, 2048))
        held = [allocate(length * 128 * (1 + n % 9), stack) for n, stack in enumerate(stacks)]
        allocate(300_000 + 4096 * (step % 7), log)
        if step % 500 == 250:
            note("oom", 12 * MIB, 900 * MIB, stacks[5])
        for addr in reversed(held):
            let_go(addr)
        if step > 40:
            # The cache is kept small: sizes repeat.
            for rounded, sizes in list(spare.items()):
                for addr in sizes[:-3]:
                    total, _ = owner.pop(addr)
                    note("segment_free", addr, total, None)
                del sizes[:-3]
    for addr in sorted(owner):
        total, rounded = owner[addr]
        mine = live.get(addr)
        blocks = []
        if mine:
            size, rounded, stack = mine
            blocks.append(block(addr, rounded, size, "active_allocated", stack))
        if total > rounded or not mine:
            used = rounded if mine else 0
            blocks.append(block(addr + used, total - used, 0, "inactive", []))
        segments.append(
            {
                "device": number,
                "address": addr,
                "total_size": total,
                "allocated_size": rounded if mine else 0,
                "active_size": rounded if mine else 0,
                "requested_size": mine[0] if mine else 0,
                "stream": 0,
                "segment_type": "large" if rounded > MIB else "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": mine[2] if mine else [],
                "blocks": blocks,
            }
        )
    return trace, segments


def block(address, size, requested, state, stack):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": stack}


def snapshot(events, seed):
    stacks, log = frames()
    trace, segments = device(0, events, random.Random(seed), stacks, log)
    return {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.8,
            "expandable_segments": False,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {str(1 << n): 0 for n in range(16)},
        },
        "external_annotations": [],
    }


if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(snapshot(int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 7), file)
