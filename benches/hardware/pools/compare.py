"""The pools of JAX and CuPy that gputop reads from outside, against the programs' own figures.

    compare.py GPUTOP FOLDER

Programs: JAX with each of its allocators, two JAX processes on one GPU, arrays sharded over all GPUs, CuPy, and CuPy beside
PyTorch. Then what `gputop run` says of a JAX program that runs out of memory beside another. FOLDER/pools.jsonl has every
figure of both sides. Exit 1 if one differs.
"""

import json
import os
import subprocess
import sys
import time

JAX = """
import json, os, random, sys
import jax, jax.numpy as jnp, numpy as np
chance, kept = random.Random(1), {}
for number in range(400):
    if chance.random() < 0.65 or not kept:
        kept[number] = jax.device_put(np.zeros(int(2 ** chance.uniform(4, 26)), np.uint8))
    else:
        kept.pop(chance.choice(list(kept)))
if os.environ.get("SHARDED"):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    weights = jax.device_put(jnp.ones((8192, 4096)), rows)
    kept["product"] = jax.jit(lambda a: jnp.tanh(a @ a.T))(weights)
step = jax.jit(lambda a: jnp.tanh(a @ a))
product = step(jnp.ones((2048, 2048)))
for array in [*kept.values(), product]:
    array.block_until_ready()
import gc, time
gc.collect()
time.sleep(0.5)
def statistics(device):
    try:
        return device.memory_stats() or {}
    except Exception:
        return {}
pools = [dict(statistics(one), ordinal=one.local_hardware_id) for one in jax.local_devices()]
pools = [dict(allocated=one.get("bytes_in_use"), allocated_peak=one.get("peak_bytes_in_use"), reserved=one.get("pool_bytes"),
              limit=one.get("bytes_limit"), ordinal=one["ordinal"], largest_free_block=one.get("largest_free_block_bytes"))
         for one in pools]
print(json.dumps({"pools": [one for one in pools if one["allocated"] is not None], "version": jax.__version__}), flush=True)
sys.stdin.readline()
os._exit(0)
"""

CUPY = """
import json, os, random, sys
import cupy
if os.environ.get("WITH_TORCH"):
    import torch
    held = torch.ones(300 << 20, dtype=torch.uint8, device="cuda")
chance, kept = random.Random(2), {}
for number in range(1500):
    if chance.random() < 0.6 or not kept:
        kept[number] = cupy.zeros(int(2 ** chance.uniform(4, 26)), dtype=cupy.uint8)
    else:
        kept.pop(chance.choice(list(kept)))
stream = cupy.cuda.Stream()
with stream:
    more = [cupy.zeros(3_000_000, dtype=cupy.uint8) for _ in range(20)]
    del more[::2]
cupy.cuda.Device().synchronize()
pool = cupy.get_default_memory_pool()
print(json.dumps({"pools": [dict(allocated=pool.used_bytes(), reserved=pool.total_bytes(), ordinal=0)],
                  "version": cupy.__version__}), flush=True)
sys.stdin.readline()
os._exit(0)
"""

FULL = """
import jax, jax.numpy as jnp
kept = []
while True:
    kept.append(jnp.ones((1 << 30,), jnp.uint8).block_until_ready())
"""

CASES = [
    ("jax, preallocated", [(JAX, {})]),
    ("jax, fraction 0.3", [(JAX, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"})]),
    ("jax, as needed", [(JAX, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})]),
    ("jax, cuda_async", [(JAX, {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"})]),
    ("jax, platform", [(JAX, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"})]),
    ("jax, vmm", [(JAX, {"XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"})]),
    ("two jax on a GPU", [(JAX, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4", "CUDA_VISIBLE_DEVICES": "0"})] * 2),
    ("jax, sharded", [(JAX, {"SHARDED": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"})]),
    ("cupy", [(CUPY, {})]),
    ("cupy and torch", [(CUPY, {"WITH_TORCH": "1"})]),
]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


def start(program, environment):
    return subprocess.Popen([sys.executable, "-c", program], env=dict(os.environ, **environment), **PIPES)


def output(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout, done.stderr


def pools_of(gputop, pid):
    said, error = output(gputop, "allocator", str(pid), "--json")
    try:
        return json.loads(said)
    except ValueError:
        return {"error": error.strip() or said[:300]}


def shown_figures(pool):
    return {
        "allocated": pool["allocated_bytes"]["current"],
        "allocated_peak": pool["allocated_bytes"]["peak"],
        "reserved": pool["reserved_bytes"]["current"],
        "limit": pool["limit_bytes"],
        "largest_free_block": pool["largest_free_block"],
    }


def differences(truth, found):
    """Returns what differs, and how many figures were compared. The figures that a pool does not have are left out."""
    wrong, compared = [], 0
    pools = {pool["ordinal"]: shown_figures(pool) for pool in found.get("reported_pools", [])}
    for pool in truth["pools"]:
        ordinal = pool.pop("ordinal")
        if ordinal not in pools and pool["allocated"]:
            wrong.append(f"device {ordinal} is not shown")
        for name, value in pool.items():
            if ordinal in pools and value:
                compared += 1
                if pools[ordinal][name] != value:
                    wrong.append(f"{name} is {pools[ordinal][name]}, the program says {value}")
    return wrong, compared


def check(gputop, name, programs, out):
    running = [start(*one) for one in programs]
    wrong, figures, compared = [], [], 0
    for program in running:
        line = program.stdout.readline()
        if not line:
            wrong.append("the program did not start")
            continue
        truth, found = json.loads(line), pools_of(gputop, program.pid)
        differing, number = differences(truth, found)
        wrong, compared = wrong + differing, compared + number
        figures.append({"truth": truth, "found": found})
    shown, _ = output(gputop, "once", "-i", "1s", "--json")
    table, _ = output(gputop, "once", "-i", "1s")
    for program in running:
        program.kill()
        program.wait()
    once = json.loads(shown or "{}").get("pools", {})
    shown_pools = len(once.get("reported_pools", []))
    out.write(json.dumps({"name": name, "figures": figures, "once": once, "table": table, "wrong": wrong}) + "\n")
    error = [one["found"]["error"] for one in figures if "error" in one["found"]]
    print(f"{name:18} {'DIFFERS' if wrong else 'agrees'}: {compared} figures of {len(figures)} processes, {shown_pools} pools in once {wrong[:3]} {error}", flush=True)
    print("\n".join(line for line in table.splitlines() if "python" in line or "prealloc" in line.lower()), flush=True)
    return not wrong


def out_of_memory(gputop, out):
    """A JAX program beside one that preallocated, and one that fills its own pool. Returns what was said."""
    for name, other in [("beside another", True), ("alone", False)]:
        beside = start(JAX, {"CUDA_VISIBLE_DEVICES": "0"}) if other else None
        if beside:
            beside.stdout.readline()
        watched = {"CUDA_VISIBLE_DEVICES": "0", "XDG_STATE_HOME": "/tmp/pools-state"}
        done = subprocess.run([gputop, "run", sys.executable, "-c", FULL], env=dict(os.environ, **watched), capture_output=True, text=True)
        if beside:
            beside.kill()
            beside.wait()
        out.write(json.dumps({"name": f"out of memory, {name}", "stderr": done.stderr[-20000:]}) + "\n")
        print(f"--- out of memory, {name}: exit {done.returncode}\n{done.stderr[-2600:]}", flush=True)


def main(gputop, folder):
    os.makedirs(folder, exist_ok=True)
    start_time = time.time()
    with open(f"{folder}/pools.jsonl", "w", buffering=1) as out:
        results = [check(gputop, name, programs, out) for name, programs in CASES]
        out_of_memory(gputop, out)
    print(f"{sum(results)} of {len(results)} agree, {time.time() - start_time:.0f} s")
    sys.exit(0 if all(results) else 1)


main(*sys.argv[1:])
