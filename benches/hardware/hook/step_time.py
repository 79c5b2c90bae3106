"""What the Python hook costs a training step: two processes on one GPU, one with the hook, that train in turns.

step_time.py GPUTOP [PAIRS]: under four minutes for the default of 24 pairs, of which each third is a fresh pair of
processes, so that how one of them happens to lie in memory decides nothing. The last line is the figure.
"""

import os
import statistics
import subprocess
import sys
import time

GENERATIONS = 3
RUNS, STEPS = 5, 12


def serve():
    """In a child: trains when told to and says how long a step took, in milliseconds."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 8).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    batch = torch.randn(16, 512, 1024, device="cuda")

    def run():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            net(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS * 1e3

    for _ in range(3):
        run()
    hook = sys.modules.get("gputop_hook")
    print("hooked" if hook and hook._has_observer and hook._counts_steps else "bare", flush=True)
    for _ in sys.stdin:
        print(statistics.median(run() for _ in range(RUNS)), flush=True)


def start(hook):
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if hook:
        environment["PYTHONPATH"] = hook
    command = [sys.executable, os.path.abspath(__file__), "--serve"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    said = child.stdout.readline().strip()
    assert said == ("hooked" if hook else "bare"), f"the child says it is {said!r}"
    return child


def milliseconds(child):
    child.stdin.write("\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def start_time(hook):
    """Of a Python that does nothing."""
    environment = dict(os.environ, PYTHONPATH=hook) if hook else dict(os.environ)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    return (time.perf_counter() - began) * 1e3


def main():
    gputop, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 24
    hook = subprocess.run([gputop, "hook", "path"], capture_output=True, text=True, check=True).stdout.strip()
    shares = []
    for generation in range(GENERATIONS):
        bare, hooked = start(None), start(hook)
        for pair in range(max(pairs // GENERATIONS, 4)):
            # Which comes first changes, so that neither always finds the warmer card.
            order = (bare, hooked) if pair % 2 else (hooked, bare)
            took = {child: milliseconds(child) for child in order}
            shares.append(100 * (took[hooked] / took[bare] - 1))
            print(f"{generation} {pair}: {took[bare]:.3f} ms without, {took[hooked]:.3f} ms with, {shares[-1]:+.3f} %", flush=True)
        for child in (bare, hooked):
            child.stdin.close()
            child.wait()
    starts = [(start_time(None), start_time(hook)) for _ in range(20)]
    quick = [statistics.median(column) for column in zip(*starts)]
    print(f"python -c pass: {quick[0]:.1f} ms without, {quick[1]:.1f} ms with the hook")
    middle = statistics.quantiles(shares, n=4)
    print(f"{len(shares)} pairs: median {statistics.median(shares):+.3f} %, middle half {middle[0]:+.3f} to {middle[2]:+.3f} %")


if sys.argv[1] == "--serve":
    serve()
else:
    main()
