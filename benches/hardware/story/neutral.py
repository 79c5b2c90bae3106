"""Removes what identifies a machine from a finished recording: neutral.py FROM TO [OLD=NEW…] [--user SCRIPT=NAME:UID…]

Serial numbers are removed, with that as their reason. OLD is replaced by NEW in all text; most of these are directories.
Processes whose command contains SCRIPT are given to the user NAME, because programs on a borrowed machine all run as
root. The layout of the file is that of src/source/layout.rs: a greeting, minutes with their notes, and an index. Needs
zstd.
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


def anonymous(value, users):
    if isinstance(value, list):
        return [anonymous(one, users) for one in value]
    if not isinstance(value, dict):
        return value
    value = {k: LEFT_OUT if k == "serial" and isinstance(v, str) else anonymous(v, users) for k, v in value.items()}
    for script, (name, uid) in users.items():
        if "user" in value and script in str(value.get("command")):
            value.update(user=name, uid=uid)
    return value


def dumped(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def skippable(magic, payload):
    return struct.pack("<II", magic, len(payload)) + payload


def main():
    source, to, *pairs = sys.argv[1:]
    users = {}
    if "--user" in pairs:
        at = pairs.index("--user")
        for given in pairs[at + 1 :]:
            script, user = given.split("=", 1)
            name, uid = user.split(":")
            users[script] = (name, int(uid))
        pairs = pairs[:at]
    with open(source, "rb") as file:
        data = file.read()

    def neutral(text):
        text = text.decode()
        for pair in pairs:
            old, new = pair.split("=", 1)
            text = text.replace(old, new)
        return b"".join(dumped(anonymous(json.loads(line), users)) for line in text.splitlines())

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
