"""A program that spends its time on two things: mixed.py FIRST SECOND [SHARE].

It spends about SHARE (0.7) of the time on FIRST, the rest on SECOND. Prints the seconds spent on each once a second.
"""

import json
import os
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

FOLDER = os.environ.get("MIXED_FOLDER") or tempfile.mkdtemp()
MIB = 1 << 20
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
small = torch.randn(1024, device="cuda")
pageable = torch.randn(64 * MIB)


def work(seconds):
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(100))
    return total


class Busy(Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        work(0.02)
        return torch.zeros(1024)


class Slow(Busy):
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.zeros(1024)


loaders = {}


def batches(kind, workers):
    if (kind, workers) not in loaders:
        loaders[kind, workers] = iter(DataLoader(kind(), batch_size=4, num_workers=workers))
    return next(loaders[kind, workers])


def loader():
    batches(Busy, 1)


def storage():
    batches(Slow, 1)


def inline():
    batches(Busy, 0)


def python():
    work(0.02)


def checkpoint():
    torch.save({"model": net.state_dict(), "more": [pageable[: 4 * MIB]]}, os.path.join(FOLDER, "model.pt"))


def evaluate():
    net.eval()
    with torch.no_grad():
        for _ in range(20):
            net(torch.zeros(8, 1024, device="cuda")).argmax(-1).cpu()
    net.train()


def copies():
    for _ in range(4):
        pageable.to("cuda")
    torch.cuda.synchronize()


def disk():
    path = os.path.join(FOLDER, "data.bin")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(os.urandom(MIB) * 64)
            os.fsync(file.fileno())
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.read()


def kernels():
    global small
    with torch.no_grad():
        for _ in range(1500):
            small = torch.sin(small) * 0.999
    small[0].item()


def gpu():
    """The GPU works all the time, and the program waits for it."""
    for _ in range(20):
        torch.mm(matrix, matrix)
    torch.cuda.synchronize()


def main(first, second, share=0.7):
    phases, spent, printed = [globals()[first], globals()[second]], [0.0, 0.0], time.perf_counter()
    shares = [float(share), 1 - float(share)]
    while True:
        # The phase that lacks most.
        number = min((0, 1), key=lambda one: spent[one] / shares[one])
        start = time.perf_counter()
        phases[number]()
        now = time.perf_counter()
        spent[number] += now - start
        if now - printed > 1:
            printed = now
            print(json.dumps({first: spent[0], second: spent[1]}), flush=True)


main(*sys.argv[1:])
