"""A program that keeps something of every step: the loss with its graph. leak.py GPU SECONDS"""

import sys
import time

import torch


def main():
    device, seconds = f"cuda:{sys.argv[1]}", float(sys.argv[2])
    net = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-5)
    free, _ = torch.cuda.mem_get_info(device)
    # Activations of one step: five of this size.
    rows = int(free / (seconds / 0.5) / 5 / (8192 * 4))
    losses = []
    while True:
        start = time.time()
        loss = net(torch.randn(rows, 8192, device=device)).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        print(f"step {len(losses)} loss {loss.item():.4f}", flush=True)
        time.sleep(max(0.0, 0.5 - (time.time() - start)))


main()
