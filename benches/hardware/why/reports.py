"""Public reports of slow training, each as a small program: reports.py NAME.

The name says what the report found in the end. Each program prints the cause that `gputop why PID` should name, with a
word of the line or sentence that it should show, and trains until it is killed.
"""

import os
import subprocess
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

# Cause that `gputop why` should name, and a word of the line or sentence that tells it from others of the same cause.
EXPECTED = {
    "affinity": ("data_loader", "one core"),  # pytorch/pytorch#101850
    "threads": ("data_loader", "cores"),  # open-mmlab/mmdetection#6867
    "broadcast": ("other_rank", "broadcast"),  # Lightning-AI/pytorch-lightning#21487
    "nvidia_smi": ("child_process", "nvidia-smi"),  # Lightning-AI/pytorch-lightning#189
    "step_counter": ("waits_for_gpu", ".item()"),  # Lightning-AI/pytorch-lightning#19955
    "item": ("waits_for_gpu", ".item()"),  # konstmish/prodigy#38
    "reopened": ("data_loader", "workers"),  # visionml/pytracking#374
    "pageable": ("copies_to_gpu", "pin_memory"),  # ostris/ai-toolkit#813
    "graphs": ("compiles", "CUDA graph"),  # pytorch/pytorch#188150
}
DEVICE = "cuda"
net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(DEVICE)


def work(seconds):
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(100))
    return total


def step(optimizer):
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


class Images(Dataset):
    def __init__(self, count=1 << 30, seconds=0.01):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        work(self.seconds)
        return torch.zeros(256)


class Resized(Images):
    """Uses a library that starts a thread for each core, in each worker."""

    def __getitem__(self, index):
        torch.set_num_threads(16)
        matrix = torch.rand(600, 600)
        for _ in range(4):
            matrix = matrix @ matrix
        return matrix[0]


def train(loader):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        for _ in loader:
            step(optimizer)


def affinity():
    """A package that is imported binds the process, and so all workers, to one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    train(DataLoader(Images(), batch_size=4, num_workers=4))


def threads():
    train(DataLoader(Resized(), batch_size=4, num_workers=8))


def broadcast():
    """Each step asks the other rank whether it was told to stop. The other rank is slower."""
    folder = tempfile.mkdtemp()
    rank = 1 if os.fork() == 0 else 0
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    flag = torch.zeros(1)
    while True:
        if rank == 1:
            time.sleep(0.05)
        torch.distributed.broadcast(flag, 1)
        work(0.002)


def nvidia_smi():
    """Memory is logged after each step, by running nvidia-smi."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "nvidia-smi"), "w") as file:
        file.write("#!/bin/sh\nsleep 0.2; echo 40000, 81559\n")
    os.chmod(file.name, 0o755)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        step(optimizer)
        subprocess.run([file.name, "--query-gpu=memory.used"], stdout=subprocess.PIPE, check=True)


def step_counter():
    """After a resume, the optimizer's step counters are on the GPU, and it reads each of them in each step."""
    # Like Adam of the report, but it does not divide by a power of the counter, which is 0 on the fake CUDA.
    optimizer = torch.optim.Adagrad(net.parameters(), 0.1, foreach=False)
    step(optimizer)
    for state in optimizer.state.values():
        state["step"] = state["step"].to(DEVICE)
    while True:
        step(optimizer)


class Prodigy(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"d": 1.0})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            norm = parameter.grad.abs().sum().item()
            parameter.sub_(parameter.grad, alpha=0.1 + norm * 0)


def item():
    optimizer = Prodigy(net.parameters())
    while True:
        step(optimizer)


def reopened():
    """Epochs are short, and the workers are started again for each."""
    train(DataLoader(Images(8, 0.001), batch_size=4, num_workers=4))


def pageable():
    images = torch.randn(64 << 20)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    while True:
        images.to(DEVICE)
        torch.cuda.synchronize()
        step(optimizer)


def graphs():
    """Each length of a batch is a shape of its own, and gets a CUDA graph of its own."""
    compiled = torch.compile(net, mode="reduce-overhead", dynamic=False)
    length = 0
    while True:
        length += 1
        compiled(torch.zeros(length, 256, device=DEVICE))


if __name__ == "__main__":
    print("expected:", *EXPECTED[sys.argv[1]], flush=True)
    globals()[sys.argv[1]]()
