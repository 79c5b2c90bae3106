"""Writes a wheel that installs the command gputop: wheel.py ROOT VERSION ARCH OUT.

ROOT contains bin/gputop. Two wheels of the same files are identical.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).parent
PACKAGE = "gputop_cuda"


def main():
    root, version, arch, out = sys.argv[1:]
    tag = f"py3-none-manylinux_2_17_{arch}.manylinux2014_{arch}"
    info = f"{PACKAGE}-{version}.dist-info"
    readme = (HERE.parent / "README.md").read_text()
    description = next(
        line.split('"')[1]
        for line in (HERE.parent / "Cargo.toml").read_text().splitlines()
        if line.startswith("description = ")
    )
    metadata = (
        f"Metadata-Version: 2.1\nName: gputop-cuda\nVersion: {version}\nSummary: {description}\n"
        f"License: MIT\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{readme}"
    )
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in tag.split("-")[-1].split("."))
    files = [
        (f"{PACKAGE}/__init__.py", (HERE / "python/__init__.py").read_bytes(), 0o644),
        (f"{PACKAGE}/__main__.py", (HERE / "python/__main__.py").read_bytes(), 0o644),
        (f"{PACKAGE}-{version}.data/scripts/gputop", pathlib.Path(root, "bin/gputop").read_bytes(), 0o755),
        (f"{info}/LICENSE", (HERE.parent / "LICENSE").read_bytes(), 0o644),
        (f"{info}/METADATA", metadata.encode(), 0o644),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: gputop\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644),
    ]
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    with zipfile.ZipFile(pathlib.Path(out, f"{PACKAGE}-{version}-{tag}.whl"), "w") as wheel:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6])
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


main()
