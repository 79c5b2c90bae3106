"""Threads that wait in as many kinds of Python code as possible. `truth` prints their stacks, innermost frame first."""

import json
import os
import sys
import threading
import time

never = threading.Event()


def wait(*_):
    never.wait()
    return True


def in_a_loop():
    total = 0
    for number in range(3):
        total += number
        if number == 2:
            wait()
        total -= 1
    return total


def in_an_argument():
    return max(
        len("one"),
        int(
            wait(),
        ),
        7,
    )


def in_a_comprehension():
    return [
        wait()
        for _ in range(1)
        if _ == 0
    ]


def generator():
    yield 1
    try:
        raise ValueError("handled")
    except ValueError:
        yield wait()
    finally:
        never.is_set()


def in_a_generator():
    for value in generator():
        print(value, file=sys.stderr)


def in_a_handler():
    try:
        with threading.Lock():
            raise KeyError("handled")
    except KeyError:
        wait()
    finally:
        never.is_set()


class Waiting:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        wait()

    @property
    def value(self):
        return wait()

    def __lt__(self, other):
        return (lambda: wait())()


def in_the_end_of_with():
    with Waiting():
        never.is_set()


def in_a_property():
    return Waiting().value


def in_a_call_from_c():
    return sorted([Waiting(), Waiting()])


def in_distant_lines_of_a_long_path():
    text = "def gap():\n  if not wait:\n    1" + "\n" * 300 + "    2\n  return wait()\n\n\ngap()"
    exec(compile(text, "long/" * 100 + "generated.py", "exec"), {"wait": wait})


def deep(left):
    if left:
        return deep(left - 1)
    return wait()


def in_a_recursion():
    return deep(50)


KINDS = [kind for name, kind in sorted(globals().items()) if name.startswith("in_")]


def stacks():
    found = {}
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for thread, frame in sys._current_frames().items():
        frames = []
        while frame:
            code = frame.f_code
            frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
            frame = frame.f_back
        found[names[thread]] = frames
    return found


def is_waiting(frames):
    return frames[0][1] == threading.__file__ and any(frame[0] == "wait" and frame[1] == __file__ for frame in frames)


def start(target, name, arguments=()):
    threading.Thread(target=target, args=arguments, name=name, daemon=True).start()
    while not is_waiting(stacks()[name]):
        time.sleep(0.01)


def grow():
    """Runs code in memory that the program did not have before."""
    kept.append([str(number) * 10 for number in range(500_000)])
    code = compile("def later():\n    wait()\n\n\nlater()", "later.py", "exec")
    start(exec, "later", (code, {"wait": wait}))
    return {}


kept = []
for kind in KINDS:
    start(kind, kind.__name__)
print(json.dumps({"pid": os.getpid()}), flush=True)
for line in sys.stdin:
    answer = {"truth": stacks, "grow": grow}.get(line.strip())
    print(json.dumps(answer and answer()), flush=True)
