#!/usr/bin/env python3
"""Installs whole torch wheels that run on the fake CUDA runtime, so that Python programs train on a host without a GPU.

    install_torch.py DIRECTORY

Installs the releases of RELEASES, each with an installed Python that has a wheel. Each gets a folder:

    DIRECTORY/python3.8-torch1.13.1/packages/     torch and the packages that it imports
    DIRECTORY/python3.8-torch1.13.1/cuda/         the CUDA libraries that the wheel needs, built from runtime.cpp
    DIRECTORY/python3.8-torch1.13.1/launch.json   command and environment of a Python that uses them; written last

The wheel's own libraries run. runtime.cpp replaces the CUDA runtime, and all other CUDA functions return 0. Kernels do
nothing, so the values of the tensors are meaningless, but torch allocates and names them as on a GPU. A complete folder
is not installed again. The last line on stdout lists the folders.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import fetch

HERE = pathlib.Path(__file__).resolve().parent
# The oldest release runs with the oldest Python, the newest with the newest, and the middle one with the middle one.
RELEASES = {"1.13.1": 0.0, "2.4.1": 0.5, "newest": 1.0}
DEPENDENCIES = ["typing_extensions", "sympy", "networkx", "jinja2", "filelock", "fsspec", "setuptools"]
MIN_PYTHON = 8
# Parts of the wheel that a running program does not use.
UNUSED = re.compile(r"torch/(include|share|test)/|torch/bin/protoc|.*/libtorch_cuda_linalg\.so$")
CUDA = re.compile(r"(__)?cu|nv|nccl")
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libutil|libstdc\+\+|libgcc_s|libz|ld-linux.*)\.")
# The wheels of torch 1.13 contain some libraries of CUDA.
BUNDLED = re.compile(r"libcudart-|libnvToolsExt-|libnvrtc")

# Functions whose callers fail if they return only 0.
FUNCTIONS = {
    "cublasLtMatmulAlgoGetHeuristic": """int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*,
        void*, int, void*, int* count) { *count = 1; return 0; }""",
}


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


# --- CUDA libraries --------------------------------------------------------------------------------------------


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
    stubs = folder / f"{name}.cpp"
    stubs.write_text("".join(f'extern "C" {function}\n' for function in functions))
    versions = "".join(
        f"{version} {{ global: {'*' if with_runtime else '; '.join(sorted(names))}; }};\n"
        for version, names in needed.items()
    )
    script = folder / f"{name}.versions"
    script.write_text(versions)
    script = [f"-Wl,--version-script={script}"] if versions else []
    run("g++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *source, stubs, "-o", folder / name,
        f"-Wl,-soname,{name}", *script, "-ldl")


def build_cuda(torch, folder):
    libraries = sorted((torch / "lib").glob("*.so*"))
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


# --- Python and its packages -----------------------------------------------------------------------------------


def minor_version(python):
    return int(run(python, "-c", "import sys; print(sys.version_info[1])"))


def pythons():
    """Returns the installed interpreters, one for each minor version of Python."""
    paths = [shutil.which("python3"), "/usr/bin/python3"]
    paths += (pathlib.Path.home() / ".pyenv/versions").glob("3.*/bin/python3")
    found = {minor_version(path): str(path) for path in filter(os.path.exists, paths)}
    return {minor: path for minor, path in sorted(found.items()) if minor >= MIN_PYTHON}


def is_for(wheel, minor):
    return f"-cp3{minor}-cp3{minor}-" in wheel


def select(wheels, version, position, interpreters):
    """Returns the Python for a release."""
    names = fetch.releases(wheels).get(version, [])
    supported = [path for minor, path in interpreters.items() if any(is_for(name, minor) for name in names)]
    if not supported:
        raise fetch.Failure(f"No installed Python 3 has a wheel of torch {version}. Install others with pyenv.")
    return supported[int(position * (len(supported) - 1))]


def unpack(index, name, url, folder):
    wheel = fetch.Wheel(index, name, url)
    paths = [path for path in wheel.members if not UNUSED.match(path) and not BUNDLED.match(path.rsplit("/", 1)[-1])]
    for path, content in wheel.read(paths):
        target = folder / path
        if not path.endswith("/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def install(index, wheels, version, python, directory):
    """Installs a release for a Python, unless its folder is complete, and returns the folder."""
    minor = minor_version(python)
    name = next((name for name in fetch.releases(wheels).get(version, []) if is_for(name, minor)), None)
    if not name:
        raise fetch.Failure(f"The index has no wheel of torch {version} for Python 3.{minor}.")
    folder = pathlib.Path(directory).resolve() / f"python3.{minor}-torch{version}"
    packages, cuda, launch = folder / "packages", folder / "cuda", folder / "launch.json"
    sources = [HERE / "runtime.cpp", HERE / "redirect_inner_runtime.py", HERE / "install_torch.py"]
    newest = max(source.stat().st_mtime for source in sources)
    if launch.exists() and launch.stat().st_mtime >= newest:
        return folder
    # `complete` is written after the download, which is not repeated when only the sources have changed.
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        packages.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--no-compile"]
        run(*pip, "--only-binary=:all:", f"--python-version=3.{minor}", f"--target={packages}", *DEPENDENCIES)
        unpack(index, name, wheels[name], packages)
        complete.touch()
    shutil.rmtree(cuda, ignore_errors=True)
    cuda.mkdir()
    torch = packages / "torch"
    build_cuda(torch, cuda)
    paths = [packages]
    environment = {"LD_LIBRARY_PATH": str(cuda), "FAKE_CUDA_DEVICES": "1"}
    if "cudart" not in run("readelf", "-d", torch / "lib/libc10_cuda.so"):
        shutil.copy(HERE / "redirect_inner_runtime.py", cuda / "sitecustomize.py")
        paths.insert(0, cuda)
        environment["FAKE_CUDA_TORCH"] = str(torch)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    launch.write_text(json.dumps({"python": python, "environment": environment}, indent=1) + "\n")
    return folder


def main(directory):
    directory = pathlib.Path(directory)
    index, interpreters = fetch.Index(), pythons()
    wheels = index.wheels("torch")
    newest = max(fetch.releases(wheels), key=fetch.numbers)
    releases = {newest if version == "newest" else version: position for version, position in RELEASES.items()}
    with concurrent.futures.ThreadPoolExecutor(len(releases)) as pool:
        jobs = [
            pool.submit(install, index, wheels, version, select(wheels, version, position, interpreters), directory)
            for version, position in releases.items()
        ]
        folders = [job.result().name for job in jobs]
    print(f"torch for Python: {index.received / 1e6:.0f} MB received", file=sys.stderr)
    print(*folders)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except fetch.Failure as failure:
        sys.exit(f"install_torch.py: {failure}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"install_torch.py: {error}")
