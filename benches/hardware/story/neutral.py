"""Takes a machine out of a finished recording: neutral.py FROM TO OLD=NEW…

Serial numbers are left out, with that as their reason; in all text OLD becomes NEW (folders, for the most part). The
file keeps its shape (src/source/layout.rs): a greeting, minutes with their notes, an index. Needs zstd.
"""

import json
import struct
import subprocess
import sys

LEFT_OUT = {"missing": "not_read", "hint": "left out of the built-in recording"}
NOTE, INDEX = 0x184D2A51, 0x184D2A5E
END = b"gputopIX"


def zstd(data, *words):
    return subprocess.run(["zstd", "-q", *words], input=data, capture_output=True, check=True).stdout


def without_serials(value):
    if isinstance(value, dict):
        return {k: LEFT_OUT if k == "serial" and isinstance(v, str) else without_serials(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_serials(one) for one in value]
    return value


def dumped(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def skippable(magic, payload):
    return struct.pack("<II", magic, len(payload)) + payload


def main():
    source, to, *pairs = sys.argv[1:]
    with open(source, "rb") as file:
        data = file.read()

    def neutral(text):
        text = text.decode()
        for pair in pairs:
            old, new = pair.split("=", 1)
            text = text.replace(old, new)
        return b"".join(dumped(without_serials(json.loads(line))) for line in text.splitlines())

    def packed(compressed):
        text = neutral(zstd(compressed, "-dc"))
        return zstd(text, "-19", "--long=24", f"--stream-size={len(text)}")

    magic, length = struct.unpack("<II", data[:8])
    out = skippable(magic, neutral(data[8 : 8 + length]))
    assert data[-8:] == END, "it was not finished"
    (tail,) = struct.unpack("<I", data[-12:-8])
    index = json.loads(data[len(data) - tail + 8 : -12])
    minutes = []
    for minute in index["minutes"]:
        begin, end = minute["offset"], minute["offset"] + minute["bytes"]
        frame = packed(data[begin:end])
        _, length = struct.unpack("<II", data[end : end + 8])
        summary = data[end + 8 : end + 8 + length].split(b"\n", 1)[1]
        minute = dict(minute, offset=len(out), bytes=len(frame), note=0)
        note = skippable(NOTE, dumped(minute) + packed(summary))
        out += frame + note
        minutes.append(dict(minute, note=len(note)))
    line = dumped({"offset": len(out), "minutes": minutes})
    out += skippable(INDEX, line + struct.pack("<I", 8 + len(line) + 12) + END)
    with open(to, "wb") as file:
        file.write(out)


main()
