"""Programs that are slow for one known reason: `program.py MODE FOLDER`.

Prints the seconds that the main thread has spent in each phase, as JSON, about five times a second.
"""

import asyncio
import json
import os
import sys
import threading
import time

MODE, FOLDER = sys.argv[1:]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
sys.path.insert(0, FOLDER)

from torch.serialization import save
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

spent = {}
printed = time.perf_counter()


class phase:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *_):
        global printed
        now = time.perf_counter()
        spent[self.name] = spent.get(self.name, 0) + now - self.start
        if now - printed > 0.2:
            printed = now
            print(json.dumps(spent), flush=True)


def work(seconds):
    end = time.perf_counter() + seconds
    total = 0
    while time.perf_counter() < end:
        total += sum(range(100))
    return total


def train(seconds=0.012):
    with phase("python"):
        work(seconds)


def decode():
    return work(0.05)


def load(iterator, name, seconds):
    while True:
        with phase(name):
            iterator.__next__()
        train(seconds)


def loader():
    load(_MultiProcessingDataLoaderIter(decode, 2), "loader_wait", 0.003)


def inline():
    load(_SingleProcessDataLoaderIter(decode), "loader_inline", 0.012)


def checkpoint():
    while True:
        train()
        with phase("checkpoint"):
            save(os.path.join(FOLDER, "model.pt"), 0.02)


def evaluate():
    work(0.02)


def evaluating():
    while True:
        train()
        with phase("evaluation"):
            evaluate()


def disk():
    path = os.path.join(FOLDER, "data")
    with open(path, "wb") as file:
        file.write(bytes(8 << 20))
    file = open(path, "rb", buffering=0)
    while True:
        train()
        with phase("disk"):
            for _ in range(8):
                file.seek(0)
                file.read(8 << 20)


def modules():
    number = 0
    while True:
        number += 1
        with open(os.path.join(FOLDER, f"module_{number}.py"), "w") as file:
            file.write("import time\nend = time.perf_counter() + 0.05\nwhile time.perf_counter() < end:\n    pass\n")
        with phase("import"):
            __import__(f"module_{number}")
        train()


def spin():
    count = 0
    while True:
        count += 1


def gil():
    threading.Thread(target=spin, name="spinner", daemon=True).start()
    threading.Thread(target=spin, name="spinner", daemon=True).start()
    while True:
        train()


def server():
    with phase("event_loop"):
        print(json.dumps({"event_loop": 1}), flush=True)
        asyncio.run(asyncio.sleep(1_000))


def thread():
    """The main thread only waits; another one computes."""
    def serve():
        while True:
            forward()
    worker = threading.Thread(target=serve, name="engine", daemon=True)
    worker.start()
    print(json.dumps({"forward": 1}), flush=True)
    worker.join()


def forward():
    from torch.nn.functional import linear
    linear(0.02)


def sync():
    tensor = Tensor()
    while True:
        train()
        with phase("sync"):
            read(tensor)


class Tensor:
    # Runs in C, as a method of a real tensor does.
    item = staticmethod(lambda: None)


def read(tensor):
    wait = time.sleep
    Tensor.item = staticmethod(wait)
    return (1.0, tensor.item(0.03))


globals()[MODE]()
