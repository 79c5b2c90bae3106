"""Redirects the CUDA runtime inside torch 1.13's libc10_cuda.so and libtorch_python.so to the fake one.

record_holders.py installs this file as sitecustomize.py. The functions of an inner runtime are found in .symtab. Their
first bytes become a jump to the fake function of the same name.
"""
import ctypes
import os
import re
import subprocess

PAGE = 4096
READ_WRITE_EXECUTE = 7
# Libraries that contain a runtime, and an exported function of each, from which its address follows.
LIBRARIES = {
    "libc10_cuda.so": "_ZN3c104cuda12device_countEv",
    "libtorch_python.so": "_Z28THCPModule_hasPrimaryContextP7_objectS0_",
}


def redirect(path, known):
    library, fake, libc = ctypes.CDLL(path), ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    symbols = subprocess.run(["readelf", "-W", "-s", path], stdout=subprocess.PIPE, universal_newlines=True).stdout
    functions = re.findall(r": (\w+) +\d+ FUNC .* (cuda[A-Z]\w+|" + known + ")$", symbols, re.M)
    offsets = {name: int(value, 16) for value, name in functions if int(value, 16)}
    base = ctypes.cast(getattr(library, known), ctypes.c_void_p).value - offsets.pop(known)
    for name, offset in offsets.items():
        target = getattr(fake, name, None)
        if not target:
            continue
        at = base + offset
        libc.mprotect(ctypes.c_void_p(at // PAGE * PAGE), ctypes.c_size_t(2 * PAGE), READ_WRITE_EXECUTE)
        # movabs $target, %rax; jmp *%rax
        address = ctypes.cast(target, ctypes.c_void_p).value.to_bytes(8, "little")
        ctypes.memmove(at, b"\x48\xb8" + address + b"\xff\xe0", 12)


torch = os.environ.get("FAKE_CUDA_TORCH")
if torch:
    for name, known in LIBRARIES.items():
        redirect(torch + "/lib/" + name, known)
