#!/usr/bin/env python3
"""Records a dump for crates/peek/tests/pure/holders_dump.rs with any Python and any torch release, on a host without a GPU.

    tests/fake_cuda/record_holders.py PYTHON TORCH GPUTOP [PROGRAM]

    tests/fake_cuda/record_holders.py ~/.pyenv/versions/3.10.13/bin/python3 2.1.2 target/release/gputop

Installs the release into target/bed with install_torch.py, starts benches/hardware/holders/target.py, writes dump.zst
and truth.json to crates/peek/tests/data/holders/python3.10-torch2.1.2, and compares the names that GPUTOP reads with the truth.
PROGRAM is one of programs.py instead. Its libraries are found through PYTHONPATH.
"""
import json
import os
import pathlib
import subprocess
import sys

import fetch
import install_torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAMS = ROOT / "benches/hardware/holders"
TRANSFORMER = [PROGRAMS / "target.py", "--layers", "1", "--width", "32", "--batch", "4"]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(python, version, gputop, program=None):
    index = fetch.Index()
    folder = install_torch.install(index, index.wheels("torch"), version, python, ROOT / "target/bed")
    environment = {**os.environ, **json.loads((folder / "launch.json").read_text())["environment"]}
    environment["PYTHONPATH"] += f":{os.environ.get('PYTHONPATH', '')}"
    out = ROOT / "crates/peek/tests/data/holders" / (f"{folder.name}-{program}" if program else folder.name)
    command = [PROGRAMS / "programs.py", program] if program else TRANSFORMER
    with subprocess.Popen(
        [python, *command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        pid = str(json.loads(target.stdout.readline())["pid"])
        target.stdin.write("truth\n")
        target.stdin.flush()
        truth = target.stdout.readline()
        out.mkdir(parents=True, exist_ok=True)
        (out / "truth.json").write_text(truth)
        run(gputop, "memory", pid, "--dump", out / "dump.zst")
        holders = json.loads(run(gputop, "memory", pid, "--json"))["holders"]
        target.stdin.close()
    compare(json.loads(truth), holders)


def compare(truth, holders):
    found = {}
    for group in holders["groups"]:
        found.update({tensor["address"]: (group["class"], tensor["name"]) for tensor in group["tensors"]})
    print(f"{holders['allocated']} of {truth['allocated']} B, {holders['took']} ms, {holders.get('limit', '')}")
    for kind, names in truth["names"].items():
        wrong = [(name, found.get(at)) for name, (at, _) in names.items() if found.get(at) != (kind, name)]
        print(f"{kind}: {len(names) - len(wrong)} right, {len(wrong)} wrong {wrong[:5]}")
    named = {address for names in truth["names"].values() for address, _ in names.values()}
    saved = set(truth["saved"]) - named
    lost = [address for address in saved if found.get(address, ("",))[0] != "saved_for_backward"]
    print(f"saved for backward: {len(saved) - len(lost)} of {len(saved)} storages without a name of their own")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
