"""The names of arrays on a GPU that gputop finds, against the program's own, and what its readings cost a training step.

    names.py GPUTOP [PAIRS] [jax] [torch]

Programs: JAX with each of its allocators, JAX beside PyTorch, CuPy, and CuPy beside PyTorch. Each trains, and keeps one array
more at each step. Then steps are timed in alternating pairs (12) with and without gputop, which reads the pool 20 times a
second, the names once a second, or the Python stacks. With `jax` or `torch`, only steps of
these are timed. Exit 1 if a name, a size or the array that grows is wrong.
"""

import json
import os
import statistics
import subprocess
import sys
import time

COMMANDS = """
import json, os, sys, time
def names(of, prefix):
    if isinstance(of, dict):
        return {name: array for key, value in of.items() for name, array in names(value, f"{prefix}[{key!r}]").items()}
    if isinstance(of, list):
        return {name: array for index, value in enumerate(of) for name, array in names(value, f"{prefix}[{index}]").items()}
    return {prefix: of}
def truth():
    named = names(params, "params") | names(moments, "moments") | names(history, "history")
    return {name: [array.nbytes, list(array.shape), str(array.dtype)] for name, array in named.items()}
def timed(count):
    start = time.perf_counter()
    for _ in range(count):
        train()
    wait()
    return (time.perf_counter() - start) / count * 1e3
for _ in range(3):
    train()
wait()
print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    word, *numbers = line.split()
    if word == "truth":
        answer = truth()
    elif word == "keep":
        answer = [history.append(train()) for _ in range(int(numbers[0]))]
    else:
        answer = [timed(int(numbers[0])) for _ in range(int(numbers[1]))]
    print(json.dumps(answer), flush=True)
os._exit(0)
"""

TORCH = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(net.parameters())
batch = torch.randn(16384, 1024, device="cuda")
"""

TORCH_STEP = """
params, moments, history = {}, {}, []
class Trainer: pass
trainer = Trainer()
def train():
    net(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
wait = torch.cuda.synchronize
"""

JAX = """
import jax, jax.numpy as jnp
class Trainer: pass
def layer(width):
    return {"kernel": jnp.full((width, width), 0.01, jnp.float32), "bias": jnp.zeros((width,), jnp.bfloat16)}
params = {"embed": jnp.ones((4096, 1024), jnp.float16), "layers": [layer(1024) for _ in range(6)]}
trainer = Trainer()
moments = trainer.moments = jax.tree.map(lambda array: jnp.zeros(array.shape, jnp.float32), params)
history, batch = [], jnp.ones((32768, 1024), jnp.float32)
def loss(params, batch):
    for one in params["layers"]:
        batch = jnp.tanh(batch @ one["kernel"] + one["bias"])
    return jnp.square(batch).mean()
@jax.jit
def update(params, moments, batch):
    gradient = jax.grad(loss)(params, batch)
    moments = jax.tree.map(lambda old, new: 0.9 * old + new.astype(jnp.float32), moments, gradient)
    return jax.tree.map(lambda old, moment: (old - 0.01 * moment).astype(old.dtype), params, moments), moments
def train():
    global params, moments
    params, moments = update(params, moments, batch)
    trainer.moments = moments
    return params["layers"][0]["bias"] + 1
def wait():
    jax.block_until_ready((params, moments))
"""

CUPY = """
import cupy
class Trainer: pass
params = {"layers": [{"kernel": cupy.full((1024, 1024), 0.01, cupy.float32), "bias": cupy.zeros(1024, cupy.float16)} for _ in range(6)]}
trainer = Trainer()
moments = trainer.moments = {"first": [cupy.zeros_like(one["kernel"]) for one in params["layers"]]}
history, batch = [], cupy.ones((2048, 1024), cupy.float32)
def train():
    x = batch
    for one, moment in zip(params["layers"], moments["first"]):
        x = cupy.tanh(x @ one["kernel"] + one["bias"])
        moment *= 0.9
        one["kernel"] -= 0.01 * moment
    return params["layers"][0]["bias"] + 1
wait = cupy.cuda.Device().synchronize
"""

CASES = [
    ("jax, preallocated", JAX, {}),
    ("jax, as needed", JAX, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ("jax, cuda_async", JAX, {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    ("jax, platform", JAX, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    ("jax and torch", TORCH + JAX, {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}),
    ("cupy", CUPY, {}),
    ("cupy and torch", TORCH + CUPY, {}),
]
READERS = {
    "pool": None,
    "names": ["memory", "PID", "--json", "--watch", "1s"],
    "stacks": ["why", "PID", "--watch", "60s"],
}
STEPS_BETWEEN_READINGS, READINGS = 5, 6
BLOCKS, BLOCK_MS = 8, 250


class Program:
    def __init__(self, code, environment):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", code + COMMANDS]
        self.process = subprocess.Popen(command, env=dict(os.environ, **environment), **pipes)
        self.pid = self.answer()["pid"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the program has exited")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def quit(self):
        self.process.stdin.close()
        self.process.wait()


def read(gputop, pid):
    done = subprocess.run([gputop, "memory", str(pid), "--json"], capture_output=True, text=True)
    return json.loads(done.stdout)["holders"] if done.returncode == 0 else {"groups": [], "limit": done.stderr.strip()}


def compare(truth, holders):
    """Returns the names that are missing, and those with another size, shape or data type."""
    listed = {
        name: [tensor["bytes"], tensor["shape"], tensor["dtype"]]
        for group in holders["groups"]
        for tensor in group["tensors"]
        for name in [tensor["name"], *tensor["aliases"]]
    }
    # An array of the trainer has two names.
    found = {name: listed.get(name, listed.get(f"trainer.{name}")) for name in truth}
    missing = [name for name in truth if not found[name]]
    # The pools of CuPy count whole blocks of 512 bytes.
    wrong = [
        (name, found[name], expected)
        for name, expected in truth.items()
        if found[name] and (found[name][1:] != expected[1:] or not 0 <= found[name][0] - expected[0] < 512)
    ]
    return missing, wrong


def growing(gputop, program):
    """Returns the names of what grows while the program keeps an array at each step."""
    command = [gputop, "memory", str(program.pid), "--json", "--watch", "1s"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    document = {}
    for _ in range(READINGS):
        document = json.loads(watch.stdout.readline() or "{}")
        program.ask(f"keep {STEPS_BETWEEN_READINGS}")
    watch.kill()
    watch.wait()
    return [change["name"] for change in document.get("growth", []) if "rate" in change]


def check(gputop, name, code, environment):
    program = Program(code, environment)
    program.ask("keep 3")
    truth, holders = program.ask("truth"), read(gputop, program.pid)
    missing, wrong = compare(truth, holders)
    took = [read(gputop, program.pid).get("took") for _ in range(3)]
    grown = growing(gputop, program)
    program.quit()
    is_right = not missing and not wrong and any(one.startswith("history") for one in grown)
    print(f"{name:18} {'right' if is_right else 'WRONG'}: {len(truth) - len(missing) - len(wrong)} of {len(truth)} names, {took} ms, grows: {grown}", flush=True)
    print(f"    missing {missing[:3]}, wrong {wrong[:2]}, allocated {holders.get('allocated')}, {holders.get('quality')}, limit: {holders.get('limit')}", flush=True)
    return is_right


def tmux(*words):
    subprocess.run(["tmux", "-L", "array-names", *words], capture_output=True, check=False)


class Reader:
    """gputop while it reads a process in one of three ways."""

    def __init__(self, gputop, kind, pid):
        self.command = READERS[kind]
        if self.command:
            words = [str(pid) if word == "PID" else word for word in self.command]
            self.process = subprocess.Popen([gputop, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        else:
            tmux("new-session", "-d", "-s", "reader", "-x", "120", "-y", "40", gputop)
            time.sleep(1)
            tmux("send-keys", "-t", "reader", "Tab")
            tmux("send-keys", "-t", "reader", "M")
        time.sleep(1)

    def stop(self):
        if self.command:
            self.process.kill()
            self.process.wait()
        else:
            tmux("kill-server")
            time.sleep(0.3)


def cost(gputop, name, code, pairs):
    """Prints how much longer a step takes while gputop reads the program."""
    program = Program(code, {})
    first = program.ask("time 50 5")[-1]
    command = f"time {max(int(BLOCK_MS / first), 1)} {BLOCKS}"
    program.ask(command)
    for kind in READERS:
        changes = []
        for pair in range(pairs):
            # Which comes first changes, so that neither always finds the warmer card.
            times = {}
            for is_read in (True, False) if pair % 2 else (False, True):
                reader = Reader(gputop, kind, program.pid) if is_read else None
                times[is_read] = statistics.median(program.ask(command))
                if reader:
                    reader.stop()
            changes.append(100 * (times[True] / times[False] - 1))
        quarters = statistics.quantiles(changes, n=4)
        print(f"{name}, {kind}: step {times[False]:.3f} ms, {pairs} pairs: median {statistics.median(changes):+.3f} %, middle half {quarters[0]:+.3f} to {quarters[2]:+.3f} %", flush=True)
    program.quit()


def main(gputop, pairs=12, *only):
    results = [check(gputop, *case) for case in CASES if not only]
    for name, code in (("jax", JAX), ("torch", TORCH + TORCH_STEP)):
        if name in only or not only:
            cost(gputop, name, code, int(pairs))
    if not only:
        print(f"{sum(results)} of {len(results)} right")
    sys.exit(0 if all(results) else 1)


main(*sys.argv[1:])
