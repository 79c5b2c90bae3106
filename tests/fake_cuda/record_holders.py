#!/usr/bin/env python3
"""Records a dump for tests/it/holders_dump.rs with any Python and any torch wheel, on a host without a GPU.

    pip download --no-deps torch==2.1.2 --python-version 3.10 --only-binary=:all:     then unzip it into TORCH
    pip install --target TORCH typing_extensions sympy networkx jinja2 filelock fsspec
    tests/fake_cuda/record_holders.py PYTHON TORCH GPUTOP tests/data/holders/python3.10-torch2.1.2

The wheel's own libraries run. This script builds the CUDA libraries that they need: runtime.cpp, and functions that
return 0 for everything else. They stay in TORCH/cuda. Kernels do nothing, so the values of the tensors are meaningless,
but torch allocates and names them as on a GPU. The script starts benches/hardware/holders/target.py, writes dump.zst
and truth.json, and compares the names that GPUTOP reads with the truth.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parent.parent / "benches/hardware/holders/target.py"
OPTIONS = ["--layers", "1", "--width", "32", "--batch", "4"]
CUDA = re.compile(r"(__)?cu|nv|nccl")
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libutil|libstdc\+\+|libgcc_s|libz|ld-linux.*)\.")

# Functions whose callers fail if they return only 0.
FUNCTIONS = {
    "cublasLtMatmulAlgoGetHeuristic": """int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*,
        void*, int, void*, int* count) { *count = 1; return 0; }""",
}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needs(libraries):
    """Returns the undefined symbols of the wheel by library and version, for each library that the wheel lacks."""
    needed, undefined, defined, owners = set(), collections.defaultdict(set), set(), {}
    for library in libraries:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", library)))
        owner = ""
        for field, value in re.findall(r"(File|Name): (\S+)", run("readelf", "-V", library)):
            if field == "File":
                owner = value
            else:
                owners[value] = owner
        for line in run("readelf", "-W", "--dyn-syms", library).splitlines():
            columns = line.split()
            if len(columns) < 8 or not columns[0].rstrip(":").isdigit():
                continue
            name, _, version = columns[7].replace("@@", "@").partition("@")
            if columns[6] == "UND":
                undefined[version].add(name)
            else:
                defined.add(name)
    here = {library.name for library in libraries}
    needs = {name: {} for name in needed if name not in here and not SYSTEM.match(name)}
    for version, names in undefined.items():
        if owners.get(version) in needs:
            needs[owners[version]][version] = names
    # Symbols without a version may be in any library, so libcuda.so.1 gets all of CUDA's.
    unversioned = {name for name in undefined.get("", set()) - defined if CUDA.match(name)}
    return needs, unversioned


def build(folder, name, needed, unversioned, with_runtime):
    """Builds a library that exports the needed symbols, by version, and others that have none."""
    source = [HERE / "runtime.cpp"] if with_runtime else []
    known = set(re.findall(r"(?:EXPORT [^(\n]*?|UNSUPPORTED\()(\w+)[()]", source[0].read_text())) if source else set()
    symbols = sorted(unversioned.union(*needed.values()) - known)
    functions = (FUNCTIONS.get(symbol, f"long {symbol}() {{ return 0; }}") for symbol in symbols)
    (folder / "stubs.cpp").write_text("".join(f'extern "C" {function}\n' for function in functions))
    versions = "".join(
        f"{version} {{ global: {'*' if with_runtime else '; '.join(sorted(names))}; }};\n"
        for version, names in needed.items()
    )
    (folder / "versions").write_text(versions)
    script = [f"-Wl,--version-script={folder}/versions"] if versions else []
    run("g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *source, folder / "stubs.cpp", "-o", folder / name,
        f"-Wl,-soname,{name}", *script, "-ldl")


def build_all(torch, folder):
    # The wheels of torch 1.13 contain some libraries of CUDA.
    bundled = re.compile(r"libcudart-|libnvToolsExt-|libnvrtc")
    libraries = sorted(path for path in (torch / "torch/lib").glob("*.so*") if not bundled.match(path.name))
    for path in (torch / "torch/lib").iterdir():
        if bundled.match(path.name):
            path.unlink()
    needed, unversioned = needs(libraries)
    for name in sorted({"libcuda.so.1", "libnvidia-ml.so.1", *needed}):
        is_driver = name.startswith(("libcuda.so", "libnvidia-ml"))
        # The driver's libraries have the runtime's functions too, because runtime.cpp looks them up there.
        others = unversioned if is_driver else {symbol for symbol in unversioned if is_in(symbol, name)}
        build(folder, name, needed.get(name, {}), others, is_driver or name.startswith("libcudart"))


def is_in(symbol, library):
    """Returns true for `cublasLtCreate` and `libcublasLt.so.12`."""
    stem = re.match(r"lib([A-Za-z]+)", library)[1].lower()
    return stem != "cudart" and symbol.lower().startswith(stem)


def main(python, torch, gputop, out):
    torch, out = pathlib.Path(torch).resolve(), pathlib.Path(out)
    libraries = torch / "cuda"
    if not libraries.exists():
        libraries.mkdir()
        build_all(torch, libraries)
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": torch, "FAKE_CUDA_DEVICES": "1"}
    if "cudart" not in run("readelf", "-d", torch / "torch/lib/libc10_cuda.so"):
        shutil.copy(HERE / "redirect_inner_runtime.py", libraries / "sitecustomize.py")
        environment |= {"PYTHONPATH": f"{libraries}:{torch}", "FAKE_CUDA_TORCH": torch / "torch"}
    with subprocess.Popen(
        [python, TARGET, *OPTIONS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        pid = str(json.loads(target.stdout.readline())["ready"])
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
    saved = [address for address in truth["saved"] if found.get(address, ("",))[0] == "saved_for_backward"]
    print(f"saved for backward: {len(saved)} of {len(truth['saved'])} storages, the others have a name")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
