"""What being read costs a training step: alternating pairs with gputop's memory screen open (statistics 20 times a
second, a map each second) and without. step_time.py GPUTOP [PAIRS]"""

import statistics
import subprocess
import sys
import time

import torch


def tmux(*words):
    subprocess.run(["tmux", "-L", "step-time", *words], capture_output=True, check=False)


def open_memory_screen(gputop):
    tmux("new-session", "-d", "-s", "reader", "-x", "120", "-y", "40", gputop)
    time.sleep(1.5)
    tmux("send-keys", "-t", "reader", "Tab")
    tmux("send-keys", "-t", "reader", "M")
    time.sleep(1)


class Training:
    def __init__(self):
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
        self.net = torch.nn.TransformerEncoder(layer, 8).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.batch = torch.randn(16, 512, 1024, device="cuda")
        # A cache with a few thousand blocks, so that a map is work.
        self.kept = [torch.empty((i % 97 + 1) * 65536, dtype=torch.uint8, device="cuda") for i in range(3000)]
        del self.kept[::3]

    def step(self):
        self.net(self.batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def milliseconds(self, steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps * 1e3


def measure(training, gputop, is_read):
    if is_read:
        open_memory_screen(gputop)
    median = statistics.median(training.milliseconds(12) for _ in range(6))
    if is_read:
        tmux("kill-server")
        time.sleep(0.3)
    return median


def main():
    gputop, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
    training = Training()
    training.milliseconds(60)
    shares = []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        times = {is_read: measure(training, gputop, is_read) for is_read in order}
        shares.append(times[True] / times[False] - 1)
        print(f"{pair:3} without {times[False]:8.3f} ms, read {times[True]:8.3f} ms", flush=True)
    print(f"median of {pairs} pairs {statistics.median(shares):+.3%}, from {min(shares):+.3%} to {max(shares):+.3%}")


main()
