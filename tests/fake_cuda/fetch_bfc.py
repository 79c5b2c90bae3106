#!/usr/bin/env python3
"""Builds the bed for the allocators of JAX and TensorFlow: `fetch_bfc.py DIRECTORY`.

    DIRECTORY/NAME/LIBRARY          the library with the allocator, from a wheel
    DIRECTORY/NAME/symbols.txt      offsets of its constructor, AllocateRaw, DeallocateRaw and GetStats; written last
    DIRECTORY/harness               bfc_harness.cpp

Each release in RELEASES has another layout, except for the two of TensorFlow. Existing folders are not fetched again.
The libraries have 2.1 GB in all. Building needs g++ and nm.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys

from fetch import Failure, Index, Wheel, releases

# Name, package, version, and library in the wheel.
PLUGIN = r".*/xla_cuda_plugin\.so"
FRAMEWORK = r"tensorflow/libtensorflow_framework\.so\.2"
RELEASES = (
    ("jax-0.4.30", "jax-cuda12-pjrt", "0.4.30", PLUGIN),
    ("jax-0.6.2", "jax-cuda12-pjrt", "0.6.2", PLUGIN),
    ("jax-0.10.2", "jax-cuda13-pjrt", "0.10.2", PLUGIN),
    ("jax-0.11.2", "jax-cuda13-pjrt", "0.11.2", PLUGIN),
    ("jax-0.12.0.1", "jax-cuda13-pjrt", "0.12.0.1", PLUGIN),
    ("tensorflow-2.15.1", "tensorflow", "2.15.1", FRAMEWORK),
    ("tensorflow-2.21.0", "tensorflow", "2.21.0", FRAMEWORK),
)
ALLOCATOR = "_ZN3tsl12BFCAllocator"
FUNCTIONS = (ALLOCATOR + "11AllocateRawEmm", ALLOCATOR + "13DeallocateRawEPv", ALLOCATOR + "8GetStatsEv")
CONSTRUCTORS = {PLUGIN: ALLOCATOR + "C[12]E", FRAMEWORK: "_ZN10tensorflow15GPUBFCAllocatorC[12]E"}


def fetch(index, folder, package, version, library):
    wheels = index.wheels(package)
    names = releases(wheels).get(version)
    if not names:
        raise Failure(f"The index has no {package} {version} for this machine.")
    name = min(names, key=lambda name: ("-cp311-cp311-" not in name, name))
    wheel = Wheel(index, name, wheels[name])
    paths = [path for path in wheel.members if re.fullmatch(library, path)]
    if len(paths) != 1:
        raise Failure(f"{name} does not contain the library.")
    folder.mkdir(parents=True, exist_ok=True)
    [(path, content)] = wheel.read(paths)
    target = folder / path.rsplit("/", 1)[1]
    target.write_bytes(content)
    return target


def symbols(library, constructor):
    """Plugins have the symbols in .symtab, TensorFlow's libraries in .dynsym."""
    found = {}
    for table in ([], ["--dynamic"]):
        lines = subprocess.run(["nm", *table, str(library)], capture_output=True, text=True, check=True).stdout
        for address, name in re.findall(r"^([0-9a-f]+) [tTwW] (\S+)$", lines, re.MULTILINE):
            found.setdefault(name.split("@")[0], address)
    constructors = [found[name] for name in sorted(found) if re.match(constructor, name)]
    if not constructors or any(name not in found for name in FUNCTIONS):
        raise Failure(f"{library} does not name the functions of the allocator.")
    return [constructors[0], *(found[name] for name in FUNCTIONS)]


def prepare(index, directory, name, package, version, library):
    folder = directory / name
    if not (folder / "symbols.txt").exists():
        target = fetch(index, folder, package, version, library)
        (folder / "symbols.txt").write_text(" ".join(symbols(target, CONSTRUCTORS[library])) + "\n")


def main(directory):
    directory.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(__file__).with_name("bfc_harness.cpp")
    harness = ["g++", "-std=c++17", "-O1", "-Wall", str(source), "-o", str(directory / "harness"), "-ldl", "-lpthread"]
    subprocess.run(harness, check=True)
    index = Index()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda release: prepare(index, directory, *release), RELEASES))
    print(directory)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        main(pathlib.Path(sys.argv[1]))
    except (Failure, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"fetch_bfc.py: {error}")
