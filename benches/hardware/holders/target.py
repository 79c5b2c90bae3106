"""Trains a small transformer that holds GPU memory in many ways, and reports each tensor.

Commands on stdin, each answered by one line of JSON:
  truth      addresses of the storages by name, all tensors that Python knows, and torch.cuda.memory_allocated()
  churn      creates and drops objects and tensors, and collects garbage, until the command stop
  stop       prints the number of objects that were created per second
  steps N    runs N training steps, and prints the milliseconds of each
  oom        asks for 1 PiB, and prints how many allocations have failed
  quit

Options: --layers N --width N --batch N --leaks N (losses that keep their graph)
"""
import argparse
import collections
import copy
import gc
import json
import os
import sys
import threading
import time

import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--layers", type=int, default=8)
options.add_argument("--width", type=int, default=1024)
options.add_argument("--batch", type=int, default=2048)
options.add_argument("--leaks", type=int, default=4)
options = options.parse_args()
DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return self.query(x) * torch.sigmoid(self.key(x)) * self.scale


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.embedding = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make_closure():
    hidden = torch.zeros(70_000, device=DEVICE)
    return lambda: hidden


class Slots:
    __slots__ = ["before", "held"]

    def __init__(self):
        self.held = torch.zeros(30_000, device=DEVICE)


def suspended():
    held_by_generator = torch.zeros(40_000, device=DEVICE)
    yield held_by_generator.shape


def wait_with_local(started):
    held_by_thread = torch.zeros(50_000, device=DEVICE)
    started.release()
    threading.Event().wait()
    return held_by_thread


def fail():
    kept_by_exception = torch.zeros(90_000, device=DEVICE)
    raise ValueError("kept", kept_by_exception.shape)


def step(keeps_graph=False):
    x = torch.zeros(options.batch, options.width, device=DEVICE)
    loss = model(x).sum()
    loss.backward(retain_graph=keeps_graph)
    optimizer.step()
    return loss


model = Transformer(options.layers, options.width).to(DEVICE)
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = [step(keeps_graph=True) for _ in range(options.leaks)]
cache = {f"step_{number}": torch.zeros(80_000 + number, device=DEVICE) for number in range(5)}
closure = make_closure()
view = cache["step_0"][100:200]
slots = Slots()
queue = collections.deque([{"é": torch.zeros(20_000, device=DEVICE)}])
generator = suspended()
next(generator)
started = threading.Semaphore(0)
threading.Thread(target=wait_with_local, args=[started], daemon=True).start()
started.acquire()
try:
    fail()
except ValueError as error:
    failure = error


def storage(tensor):
    held = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()  # before torch 2.0
    return [held.data_ptr(), held.nbytes()]


def saved_tensors():
    """Addresses of the storages that the graphs of the losses keep."""
    found, seen, waiting = set(), set(), [loss.grad_fn for loss in losses]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        for name in dir(node):
            if not name.startswith("_saved_"):
                continue
            try:
                values = getattr(node, name)
            except RuntimeError:  # freed by backward
                continue
            values = values if isinstance(values, (tuple, list)) else [values]
            found |= {storage(value)[0] for value in values if isinstance(value, torch.Tensor)}
    return sorted(found)


def stack(frame):
    while frame:
        yield frame
        frame = frame.f_back


def python_tensors():
    """Address and bytes of the storage, shape and type of each tensor that has a Python object."""
    # Unlike isinstance(), this runs no code of the objects.
    found = [held for held in gc.get_objects() if issubclass(type(held), torch.Tensor) and held.is_cuda]
    return [[*storage(held), list(held.shape), str(held.dtype).replace("torch.", "")] for held in found]


def truth():
    parameters = dict(model.named_parameters())
    hidden = closure.__closure__[0].cell_contents
    frame = failure.__traceback__.tb_next.tb_frame
    frames = sys._current_frames().values()
    waiting = [outer for inner in frames for outer in stack(inner) if outer.f_code.co_name == "wait_with_local"]
    # Python 3.8 lacks the operator | for dictionaries.
    names = {
        "parameter": {
            **{f"model.{name}": storage(value) for name, value in parameters.items()},
            **{f"ema.{name}": storage(value) for name, value in ema.named_parameters()},
        },
        "gradient": {f"model.{name}.grad": storage(value.grad) for name, value in parameters.items()},
        "buffer": {
            **{f"model.{name}": storage(value) for name, value in model.named_buffers()},
            **{f"ema.{name}": storage(value) for name, value in ema.named_buffers()},
        },
        "optimizer_state": {
            f"optimizer.state[model.{name}]['{key}']": storage(value)
            for name, parameter in parameters.items()
            for key, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and value.is_cuda
        },
        "variable": {
            **{f"losses[{number}]": storage(value) for number, value in enumerate(losses)},
            **{f"cache['{key}']": storage(value) for key, value in cache.items()},
            "closure.__closure__[0]": storage(hidden),
            "slots.held": storage(slots.held),
            "queue[0]['é']": storage(queue[0]["é"]),
            "generator.held_by_generator": storage(generator.gi_frame.f_locals["held_by_generator"]),
            "held_by_thread": storage(waiting[0].f_locals["held_by_thread"]),
            "failure.__traceback__.tb_next.tb_frame.kept_by_exception": storage(frame.f_locals["kept_by_exception"]),
        },
    }
    saved = saved_tensors()
    gc.collect()
    return {
        "pid": os.getpid(),
        "allocated": torch.cuda.memory_allocated(),
        "names": names,
        "saved": saved,
        "tensors": python_tensors(),
    }


class Churn:
    """A thread that creates and drops objects and tensors as fast as it can."""

    COLLECT_EVERY = 20_000

    def __init__(self):
        self.is_stopped, self.operations, self.start = False, 0, time.perf_counter()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        kept = [None] * 1000
        while not self.is_stopped:
            kept[self.operations % 1000] = {"index": [self.operations], "name": str(self.operations)}
            if self.operations % 100 == 0:
                kept[self.operations % 997] = {"tensor": torch.empty(1 + self.operations % 5000, device=DEVICE)}
            if self.operations % self.COLLECT_EVERY == 0:
                gc.collect()
            self.operations += 1

    def stop(self):
        self.is_stopped = True
        self.thread.join()
        return {"operations_per_second": self.operations / (time.perf_counter() - self.start)}


def timed_steps(count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
    return times


def fail_to_allocate():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
    except RuntimeError:
        return {"num_ooms": torch.cuda.memory_stats()["num_ooms"]}


def answer(command, *arguments):
    global churn
    if command == "truth":
        return truth()
    if command == "churn":
        churn = Churn()
        return {}
    if command == "stop":
        return churn.stop()
    if command == "oom":
        return fail_to_allocate()
    return timed_steps(int(arguments[0]))


churn = None
print(json.dumps({"pid": os.getpid(), "python": sys.version.split()[0], "torch": torch.__version__}), flush=True)
for line in sys.stdin:
    if line.split() == ["quit"]:
        break
    print(json.dumps(answer(*line.split())), flush=True)
