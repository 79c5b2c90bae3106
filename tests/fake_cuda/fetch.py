#!/usr/bin/env python3
"""Takes what the bed needs out of torch's wheels: a megabyte or two of each half-gigabyte wheel.

    fetch.py DIRECTORY [VERSION…]        versions.txt beside this file says which when none is named

A wheel is a zip: its table of contents is at its end, and its files can be read by range request. Per version,

    DIRECTORY/VERSION/lib/       libc10.so, libc10_cuda.so, libgomp
    DIRECTORY/VERSION/include/   the headers of c10 (from 2.7 on, also torch/headeronly)
    DIRECTORY/VERSION/fetched.json   wheel, CUDA runtime, and size and SHA-256 of each file: it is written last

and per CUDA release the headers of its runtime under DIRECTORY/cuda-N/include. What is there already is checked
against fetched.json and not fetched again. The last line on stdout are the versions, with `newest` resolved.

Which index: what pip is configured to ask, in whatever way (pip.conf, environment), with its certificate and proxy.
"""

import base64
import concurrent.futures
import hashlib
import html.parser
import json
import os
import pathlib
import platform
import re
import shutil
import ssl
import struct
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib

# Two files of a wheel that are no further apart than this come in one request.
GAP = 32 << 10
TRIES = 4
# Raised when what is taken changes, so that older folders are fetched again.
SELECTION = 2


class Failure(Exception):
    """One sentence for the person who ran this."""


# --- the index -------------------------------------------------------------------------------------------------


class Index:
    """A package index (PEP 503) as pip would ask it."""

    def __init__(self):
        try:
            from pip._internal.commands import create_command
        except ImportError:
            raise Failure("pip is not installed for this Python, and it is pip that knows which index to ask.")
        # The options of `pip download` after pip.conf, environment and pip's defaults.
        options, _ = create_command("download").parse_args([])
        if options.no_index:
            raise Failure("pip is configured with no-index: there is no index to fetch torch from.")
        self.roots = [options.index_url, *options.extra_index_urls]
        context = ssl.create_default_context(cafile=options.cert or None)
        handlers = [urllib.request.HTTPSHandler(context=context)]
        if options.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": options.proxy, "https": options.proxy}))
        self.opener = urllib.request.build_opener(*handlers)
        self.timeout = options.timeout
        self.received = 0
        self.lock = threading.Lock()

    def open(self, url, headers):
        """Answer's headers and body; several tries, as a mirror may be busy."""
        url, authorization = without_credentials(url)
        request = urllib.request.Request(url, headers={"User-Agent": "pip", **authorization, **headers})
        for attempt in range(TRIES):
            try:
                with self.opener.open(request, timeout=self.timeout) as answer:
                    body = answer.read()
                with self.lock:
                    self.received += len(body)
                return answer, body
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    raise
                last = error
            except OSError as error:
                last = error
            time.sleep(1 + 2 * attempt)
        raise last

    def wheels(self, package):
        """File name → address of every wheel of a package."""
        found = {}
        reason = "has no such package"
        for root in self.roots:
            url = f"{root.rstrip('/')}/{package}/"
            try:
                answer, body = self.open(url, {"Accept": "text/html"})
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    reason = f"answers {error.code}"
                continue
            except OSError as error:
                reason = f"does not answer ({error})"
                continue
            page = Links()
            page.feed(body.decode())
            for link in page.links:
                address = urllib.parse.urljoin(answer.url, link)
                name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rsplit("/", 1)[-1])
                if name.endswith(".whl"):
                    found.setdefault(name, inherit_credentials(address.split("#")[0], root))
        if not found:
            raise Failure(f"No wheels of {package}: the index that pip is configured with {reason}.")
        return found


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links = []

    def handle_starttag(self, tag, attributes):
        href = dict(attributes).get("href")
        if tag == "a" and href:
            self.links.append(href)


def without_credentials(url):
    """An address may carry user and password; urllib wants them as a header."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is None:
        return url, {}
    pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    bare = parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]).geturl()
    return bare, {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def inherit_credentials(url, root):
    """Files on the index's own host want what the index wanted."""
    parts, of_root = urllib.parse.urlsplit(url), urllib.parse.urlsplit(root)
    if parts.username is None and of_root.username is not None and parts.hostname == of_root.hostname:
        return parts._replace(netloc=of_root.netloc).geturl()
    return url


def numbers(version):
    return tuple(int(number) for number in version.split("."))


def releases(wheels, of_machine=None):
    """Release → wheel names for this machine; pre-releases and local versions are none."""
    machine = of_machine or platform.machine()
    found = {}
    for name in wheels:
        parts = name[: -len(".whl")].split("-")
        version, tag = parts[1], parts[-1]
        if re.fullmatch(r"\d+(\.\d+)+", version) and "manylinux" in tag and tag.endswith(machine):
            found.setdefault(version, []).append(name)
    return found


# --- a wheel, by range request ---------------------------------------------------------------------------------


class Wheel:
    def __init__(self, index, name, url):
        self.index, self.name, self.url = index, name, url
        tail, size = self.range(None, 65_558)  # the longest that the end record of a zip may be
        end = tail.rfind(b"PK\5\6")
        if end < 0:
            raise Failure(f"{name} is not a wheel: no zip directory at its end.")
        length, start = struct.unpack_from("<II", tail, end + 12)
        if 0xFFFFFFFF in (length, start):
            length, start = struct.unpack_from("<QQ", tail, tail.rfind(b"PK\6\6") + 40)
        if start >= size - len(tail):
            directory = tail[start - (size - len(tail)) :][:length]
        else:
            directory, _ = self.range(start, start + length)
        self.members = members(directory)
        # A file ends where the next one begins, in the order in which they lie there.
        starts = sorted(member.offset for member in self.members.values()) + [start]
        after = dict(zip(starts, starts[1:]))
        for member in self.members.values():
            member.end = after[member.offset]

    def range(self, start, end):
        """Bytes [start, end) and the size of the whole; start None: the last `end` bytes."""
        span = f"-{end}" if start is None else f"{start}-{end - 1}"
        answer, body = self.index.open(self.url, {"Range": f"bytes={span}", "Accept-Encoding": "identity"})
        if answer.status != 206:
            raise Failure(f"{self.name}: the index does not answer range requests, and whole wheels are too large.")
        if start is not None and len(body) != end - start:
            raise Failure(f"{self.name}: asked for {end - start} bytes, got {len(body)}.")
        return body, int(answer.headers["Content-Range"].rsplit("/", 1)[1])

    def read(self, names):
        """Yields (name, content), checked against size and CRC of the zip; neighbours come in one request."""
        wanted = sorted((self.members[name] for name in names), key=lambda member: member.offset)
        while wanted:
            run = [wanted.pop(0)]
            while wanted and wanted[0].offset - run[-1].end <= GAP:
                run.append(wanted.pop(0))
            start = run[0].offset
            data, _ = self.range(start, run[-1].end)
            for member in run:
                yield member.name, member.extract(data[member.offset - start : member.end - start], self.name)


class Member:
    def __init__(self, name, method, crc, packed, size, offset):
        self.name, self.method, self.crc = name, method, crc
        self.packed, self.size, self.offset, self.end = packed, size, offset, None

    def extract(self, data, wheel):
        name_length, extra_length = struct.unpack_from("<HH", data, 26)
        start = 30 + name_length + extra_length
        content = data[start : start + self.packed]
        if self.method == 8:
            content = zlib.decompress(content, -15)
        if len(content) != self.size or zlib.crc32(content) != self.crc:
            raise Failure(f"{wheel}: {self.name} arrived damaged (its size or CRC is not the zip's).")
        return content


def members(directory):
    """The central directory of a zip, with the 64-bit fields that wheels beyond 4 GiB have."""
    found, at = {}, 0
    while directory[at : at + 4] == b"PK\1\2":
        method, = struct.unpack_from("<H", directory, at + 10)
        crc, packed, size, name_length, extra_length, comment_length = struct.unpack_from("<IIIHHH", directory, at + 16)
        offset, = struct.unpack_from("<I", directory, at + 42)
        name = directory[at + 46 : at + 46 + name_length].decode()
        extra = directory[at + 46 + name_length :][:extra_length]
        while len(extra) >= 4:
            kind, length = struct.unpack_from("<HH", extra)
            if kind == 1:
                wide = list(struct.unpack_from(f"<{length // 8}Q", extra, 4))
                size = wide.pop(0) if size == 0xFFFFFFFF else size
                packed = wide.pop(0) if packed == 0xFFFFFFFF else packed
                offset = wide.pop(0) if offset == 0xFFFFFFFF else offset
            extra = extra[4 + length :]
        found[name] = Member(name, method, crc, packed, size, offset)
        at += 46 + name_length + extra_length + comment_length
    return found


# --- what is kept ----------------------------------------------------------------------------------------------


def kept(folder):
    """What fetched.json says, if all that it names is there and whole."""
    try:
        fetched = json.loads((folder / "fetched.json").read_text())
        if fetched["selection"] != SELECTION:
            return None
        for path, (size, digest) in fetched["files"].items():
            content = (folder / path).read_bytes()
            if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
                return None
        return fetched
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(folder, contents, **facts):
    """Writes a folder anew; fetched.json comes last, so that a half-written folder is seen as such."""
    shutil.rmtree(folder, ignore_errors=True)
    files = {}
    for path, content in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        files[path] = (len(content), hashlib.sha256(content).hexdigest())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fetched.json").write_text(json.dumps({"selection": SELECTION, **facts, "files": files}, indent=1) + "\n")


def fetch_torch(index, wheels, version, folder):
    fetched = kept(folder)
    if fetched:
        return fetched["cuda"]
    names = releases(wheels).get(version)
    if not names:
        raise Failure(f"The index has no torch {version} for Linux on {platform.machine()}.")
    # Which Python a wheel is for matters nothing here; one and the same is taken everywhere, where there is a choice.
    name = min(names, key=lambda name: ("-cp311-cp311-" not in name, name))
    wheel = Wheel(index, name, wheels[name])
    paths = {}
    for path in wheel.members:
        library = re.fullmatch(r"torch/lib/(libc10\.so|libc10_cuda\.so|libgomp[^/]*\.so[.\d]*)", path)
        header = re.fullmatch(r"torch/(include/(?:c10|torch/headeronly)/.*\.(?:h|hpp|def))", path)
        if library:
            paths[path] = f"lib/{library[1]}"
        elif header:
            paths[path] = header[1]
    if "lib/libc10_cuda.so" not in paths.values():
        raise Failure(f"{name} holds no libc10_cuda.so: it is a build without CUDA.")
    contents = {paths[path]: content for path, content in wheel.read(paths)}
    runtime = re.search(rb"\0libcudart\.so\.([\d.]+)\0", contents["lib/libc10_cuda.so"])
    # torch 1.13 has the runtime of CUDA 11 inside.
    cuda = runtime[1].decode() if runtime else "11.0"
    keep(folder, contents, wheel=name, cuda=cuda, cuda_inside=not runtime)
    return cuda


def fetch_cuda(index, cuda, folder):
    """The headers of the CUDA runtime, of the newest release of that major version."""
    if kept(folder):
        return
    major = cuda.split(".")[0]
    suffix = f"-cu{major}" if int(major) < 13 else ""
    contents, sources = {}, []
    # crt/ is the compiler's: in its package up to CUDA 12, in one of its own from 13 on. CUDA 11's wheel of the
    # compiler lacks it; 12's serves, as it only spells attributes.
    crt = {"11": ("nvidia-cuda-nvcc-cu12", "12"), "12": ("nvidia-cuda-nvcc-cu12", "12")}.get(major, ("nvidia-cuda-crt", major))
    for package, of_major in ((f"nvidia-cuda-runtime{suffix}", major), crt):
        wheels = index.wheels(package)
        names = {version: found for version, found in releases(wheels).items() if version.split(".")[0] == of_major}
        if not names:
            raise Failure(f"The index has no {package} of CUDA {of_major} for Linux on {platform.machine()}.")
        name = min(names[max(names, key=numbers)])
        wheel = Wheel(index, name, wheels[name])
        only = r"\w+\.h(?:pp)?" if package.startswith("nvidia-cuda-runtime") else r"crt/\w+\.h(?:pp)?"
        paths = {path: match[1] for path in wheel.members if (match := re.fullmatch(rf".*/(include/{only})", path))}
        contents.update((paths[path], content) for path, content in wheel.read(paths))
        sources.append(name)
    keep(folder, contents, wheels=sources)


def main(directory, asked):
    directory = pathlib.Path(directory)
    if not asked:
        lines = pathlib.Path(__file__).with_name("versions.txt").read_text().splitlines()
        asked = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    index = Index()
    have = {version for version in asked if kept(directory / version)}
    wheels = {} if have == set(asked) else index.wheels("torch")
    versions = sorted({max(releases(wheels), key=numbers) if v == "newest" else v for v in asked}, key=numbers)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        cudas = list(pool.map(lambda v: fetch_torch(index, wheels, v, directory / v), versions))
        needed = sorted(set(cudas))
        list(pool.map(lambda c: fetch_cuda(index, c, directory / f"cuda-{c.split('.')[0]}"), needed))
    print(f"releases of torch: {len(versions)}, {index.received / 1e6:.1f} MB received", file=sys.stderr)
    print(*versions)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2:])
    except Failure as failure:
        sys.exit(f"fetch.py: {failure}")
    except OSError as error:
        sys.exit(f"fetch.py: {error}.")
