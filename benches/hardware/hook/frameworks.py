"""Whether what gputop shows of JAX's and CuPy's pools is what they say themselves, on a real GPU.

frameworks.py GPUTOP: under a minute; needs JAX with CUDA and CuPy. Each program is started by `gputop run`, allocates known sizes, prints
its own statistics and waits; meanwhile `gputop once --json` must show the same. The exit code is 0 where all agree.
"""

import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
PATIENCE = 25

JAX = """
import jax, jax.numpy as jnp, json, sys
kept = [jnp.ones((mib << 20,), jnp.uint8).block_until_ready() for mib in (64, 128, 256)]
gone = jnp.ones((512 << 20,), jnp.uint8).block_until_ready()
del gone
stats = jax.local_devices()[0].memory_stats()
print(json.dumps({
    "allocated": stats["bytes_in_use"], "allocated_peak": stats["peak_bytes_in_use"],
    "reserved": stats.get("pool_bytes"), "limit": stats.get("bytes_limit"),
    "at_least": sum(x.nbytes for x in kept),
}), flush=True)
sys.stdin.read()
"""

CUPY = """
import cupy, json, sys
kept = [cupy.ones(mib << 20, cupy.uint8) for mib in (64, 128, 256)]
gone = cupy.ones(512 << 20, cupy.uint8)
del gone
cupy.cuda.Device().synchronize()
pool = cupy.get_default_memory_pool()
print(json.dumps({
    "allocated": pool.used_bytes(), "allocated_peak": None, "reserved": pool.total_bytes(), "limit": None,
    "at_least": sum(x.nbytes for x in kept),
}), flush=True)
sys.stdin.read()
"""

CASES = [
    ("jax, all at once", "jax", JAX, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    ("jax, as needed", "jax", JAX, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ("cupy", "cupy", CUPY, {}),
]


def told(gputop, framework):
    """The pool of a framework as gputop shows it, once it does."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        output = subprocess.run([gputop, "once", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        pools = json.loads(output.stdout or b"{}").get("pools") or {}
        for pool in pools.get("reported_pools", []):
            if pool["framework"] == framework and isinstance(pool["allocated"], int) and pool["allocated"] >= 448 * MIB:
                return pool
        time.sleep(0.2)
    return None


def check(gputop, name, framework, program, environment):
    child = subprocess.Popen(
        [gputop, "run", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, **environment),
    )
    try:
        said = child.stdout.readline()
        if not said:
            print("%-18s FAILED: the program did not start" % name)
            return False
        said = json.loads(said)
        shown = told(gputop, framework)
    finally:
        child.stdin.close()
        child.wait()
    if shown is None:
        print("%-18s FAILED: nothing was shown within %d s" % (name, PATIENCE))
        return False
    wrong = []
    for figure in ("allocated", "allocated_peak", "reserved", "limit"):
        value = shown[figure]
        if said[figure] is None:
            if not isinstance(value, dict):
                wrong.append("%s is %r, though it is not told" % (figure, value))
        elif value != said[figure]:
            wrong.append("%s is %r, the program says %r" % (figure, value, said[figure]))
    if not isinstance(shown.get("gpu"), str):
        wrong.append("its GPU: %r" % shown.get("gpu"))
    if shown["allocated"] < said["at_least"]:
        wrong.append("allocated is less than the arrays")
    figures = ", ".join("%s %.1f MiB" % (k, shown[k] / MIB) for k in ("allocated", "reserved") if isinstance(shown[k], int))
    print("%-18s %s: %s  (%s)" % (name, "FAILED" if wrong else "agrees", figures, shown["allocator"]))
    for line in wrong:
        print("  " + line)
    return not wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    results = [check(sys.argv[1], *case) for case in CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
