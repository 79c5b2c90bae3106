"""gputop's hook: reports events inside a Python process that cannot be observed from outside.

The hook is passive. It does not import or initialize frameworks and does not change anything that the program reads, and
its errors do not reach the program. It writes reports as lines of JSON to a file of this process in the spool directory.
The file is created for the first report:

    process     facts about this process; the first line of every file
    oom         PyTorch's allocator ran out of memory: its state at that instant, and the position in the program
    exception   an uncaught exception, with its traceback as Python prints it and, if memory ran out, the statistics of
                JAX, TensorFlow and CuPy
    trace       the allocation trace of the last `oom` has been written

A separate file of one page is overwritten once a second:

    statistics  the state of the allocators of the program's frameworks

Sources of the reports:

    after `import torch.cuda`   a finder that finds no modules; at each later import it checks which awaited modules
                                are loaded. PyTorch then calls the hook when the program initializes CUDA
    out of memory               PyTorch's observer, called after the cache was flushed and before the exception is raised
    optimizer steps             PyTorch's hooks; steps are counted, and reported with other events
    exceptions                  sys.excepthook, threading.excepthook, traceback.print_exc in multiprocessing children,
                                the end of a notebook cell

Environment variables:

    GPUTOP_HOOK=0               disables the hook
    GPUTOP_HOOK_PTRACER=0       does not permit other processes of this user to read or trace this one; only relevant
                                if Yama's ptrace_scope is 1
    GPUTOP_HOOK_PTRACER=PID     permits only that process and its descendants
    GPUTOP_HOOK_SPOOL           spool directory, set by `gputop run`
    GPUTOP_HOOK_RUN             id of the run, set by `gputop run`
    GPUTOP_HOOK_TRACE           directory for allocation traces
    GPUTOP_HOOK_STATISTICS=1    writes statistics of PyTorch as well as of JAX, TensorFlow and CuPy
    GPUTOP_HOOK_STATISTICS=0    writes no statistics
"""

import os
import sys
import time

VERSION = 1

# Maximum size of the file of a process. The higher limit is for exceptions, so that the last one is always written.
_MAX_BYTES = 192 << 10
_MAX_BYTES_WITH_EXCEPTION = 256 << 10
# Maximum length of a line, and of the texts in it.
_MAX_LINE = 48 << 10
_MAX_TRACEBACK = 24 << 10
_MAX_MESSAGE = 4 << 10
_MAX_PATH = 500
# Maximum number of files in the spool directory.
_MAX_FILES = 512
# Maximum number of reported stack frames, and of frames that are searched for them.
_MAX_FRAMES = 8
_MAX_SEARCHED_FRAMES = 400
# Maximum number of snapshots for a program that survives OOMs, and their total time in seconds.
_MAX_SNAPSHOTS = 64
_MAX_SNAPSHOT_TIME = 5.0
# Maximum time for reading one snapshot in seconds, and maximum number of live blocks in it.
_MAX_WALK_TIME = 1.0
_MAX_BLOCKS = 1000000
# Allocation traces: maximum number of events, size of a file in bytes, and number of files of a process.
_MAX_TRACE_EVENTS = 100000
_MAX_TRACE_BYTES = 64 << 20
_MAX_TRACES = 4

_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "importlib", os.sep + "torch" + os.sep)


def _quietly(work, *args):
    """Calls a function, and returns None if it raises an exception."""
    try:
        return work(*args)
    except Exception:
        return None


def _milliseconds():
    return int(time.time() * 1000)


# -- Spool -----------------------------------------------------------------------------------------------------------


class _Spool:
    """The file of this process, which is created for the first line."""

    def __init__(self):
        self.pid = os.getpid()
        self.fd = None
        self.written = 0
        self.is_closed = False

    def write(self, what, data, limit=_MAX_BYTES):
        if os.getpid() != self.pid:
            # Forked without calling Python's fork hooks.
            _after_fork()
        if self.is_closed:
            return
        line = dict(data, what=what, time=_milliseconds())
        steps = _steps()
        if steps is not None:
            line["steps"] = steps
        if self.fd is None:
            self._open()
        self._put(line, limit)

    def _put(self, line, limit):
        import json

        data = json.dumps(line, default=str).encode("ascii", "replace") + b"\n"
        if len(data) > _MAX_LINE or self.written + len(data) > limit:
            return
        self.written += len(data)
        os.write(self.fd, data)

    def _open(self):
        # Opening is tried only once, even if it fails.
        self.is_closed = True
        folder = _folder(_spool_path())
        try:
            if sum(1 for _ in os.scandir(folder)) >= _MAX_FILES:
                return
            self.fd = _create(folder, _name() + "%s.jsonl")
        finally:
            os.close(folder)
        self.is_closed = False
        self._put(_process(), _MAX_BYTES)

    def forget(self):
        """Closes the file in a forked child, because it belongs to the parent."""
        if self.fd is not None:
            _quietly(os.close, self.fd)
        self.__init__()


def _folder(path):
    """Opens a directory, and creates it if it is missing. Refuses links and directories that others own or can write."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _quietly(os.mkdir, path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(fd)
        raise OSError("the spool directory belongs to another user, or others can write to it")
    return fd


def _create(folder, name):
    """Creates a new file. The name may exist if this process has replaced its program by exec."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for suffix in ("", "-1", "-2", "-3"):
        try:
            return os.open(name % suffix, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            pass
    raise OSError("all file names for this process are in use")


def _spool_path():
    """Returns the spool directory by the rule of src/user_files.rs."""
    given = os.environ.get("GPUTOP_HOOK_SPOOL")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    path = os.path.join(runtime, "gputop", "hook")
    if os.path.isabs(runtime) and os.path.isdir(runtime) and not _is_of_other_user(path):
        return path
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    path = os.path.join(state, "gputop", "hook")
    if _is_of_other_user(path):
        raise OSError("the spool directory belongs to another user")
    return path


def _is_of_other_user(path):
    """Returns True if this is root and another user owns the path or a directory above it (`sudo -E`)."""
    if os.geteuid() != 0:
        return False
    trusted = (0, os.stat(os.sep).st_uid)
    while True:
        for stat in (os.lstat, os.stat):
            try:
                if stat(path).st_uid not in trusted:
                    return True
            except OSError:
                pass
        if path == os.path.dirname(path):
            return False
        path = os.path.dirname(path)


def _name():
    """Returns `RUN.PID.START`. The run is 0 if it was not set by `gputop run`."""
    run = os.environ.get("GPUTOP_HOOK_RUN", "")
    if not (run and len(run) <= 40 and run.replace("-", "").isalnum()):
        run = "0"
    return "%s.%d.%d" % (run, os.getpid(), _started())


def _started():
    """Returns the start time of this process in kernel ticks. Together with the PID it identifies the process."""
    with open("/proc/self/stat", "rb") as file:
        # The program name may contain spaces and brackets, so count from its closing bracket.
        return int(file.read().rsplit(b")", 1)[1].split()[19])


def _process():
    found = {"what": "process", "version": VERSION, "time": _milliseconds(), "pid": os.getpid(), "start": _started()}
    found["python"] = "%d.%d.%d" % sys.version_info[:3]
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(getattr(torch, "__version__", ""))[:40]
    for name in ("RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            found["rank"] = int(os.environ[name][:9])
            break
    if _ptracer is not None:
        found["ptracer"] = _ptracer
    return found


_spool = _Spool()


# -- Loaded modules --------------------------------------------------------------------------------------------------


class _Finder:
    """The first finder in sys.meta_path. It finds no modules, but checks which awaited modules are loaded.

    This costs one lookup in a small table for each import of a new module, and adds no frame to tracebacks. PyTorch imports
    a hundred modules after the awaited ones.
    """

    def __init__(self):
        self.awaited = {}

    def find_spec(self, name, path=None, target=None):
        if self.awaited:
            try:
                self.check()
            except Exception:
                pass
        return None

    def check(self):
        for name in tuple(self.awaited):
            module = sys.modules.get(name)
            if module is None:
                continue
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False):
                continue
            callback = self.awaited.pop(name, None)
            if callback is not None:
                _quietly(callback, module)


_finder = _Finder()


# -- PyTorch ---------------------------------------------------------------------------------------------------------

_steps_begun = 0
_steps_done = 0
_counts_steps = False
_snapshots = 0
_snapshot_time = 0.0
_has_observer = False


def _when_torch_cuda(cuda):
    # PyTorch calls the function when the program initializes CUDA, or immediately if CUDA is initialized.
    cuda._lazy_call(_when_cuda_is_initialised)
    _watch_notebook()
    if os.environ.get("GPUTOP_HOOK_STATISTICS") == "1":
        _watch_statistics(cuda)


def _when_cuda_is_initialised():
    _quietly(_observe)


def _observe():
    global _has_observer
    torch = sys.modules["torch"]
    if not _has_observer:
        # Raises an exception for allocators other than the native one, which cannot be observed.
        torch._C._cuda_attach_out_of_memory_observer(_on_oom)
        _has_observer = True
    if os.environ.get("GPUTOP_HOOK_TRACE"):
        _start_trace(torch)


def _when_optimizer(optimizer):
    global _counts_steps
    optimizer.register_optimizer_step_pre_hook(_step_begins)
    optimizer.register_optimizer_step_post_hook(_step_ends)
    _counts_steps = True


def _step_begins(*_):
    global _steps_begun
    _steps_begun += 1


def _step_ends(*_):
    global _steps_done
    _steps_done += 1


def _steps():
    """Returns the number of optimizer steps begun and done, or None if they cannot be counted."""
    if not _counts_steps:
        return None
    frame = sys.modules.get("torch._dynamo.eval_frame")
    if frame is not None:
        # At the first `torch.compile` PyTorch removes the hooks from its optimizers.
        try:
            if frame.TorchPatcher.patch.cache_info().currsize:
                return None
        except AttributeError:
            return None
    return {"begun": _steps_begun, "done": _steps_done}


def _on_oom(device, requested, limit, free):
    try:
        _note_oom(device, requested, limit, free)
    except Exception:
        pass


def _note_oom(device, requested, limit, free):
    global _snapshots, _snapshot_time
    found = {"device": device, "requested_bytes": requested, "limit_bytes": limit, "free_bytes": free}
    found["thread"] = _thread_name()
    found["frames"] = _frames(sys._getframe(2))
    cuda = sys.modules["torch"].cuda
    began = time.monotonic()
    if _snapshots < _MAX_SNAPSHOTS and _snapshot_time < _MAX_SNAPSHOT_TIME:
        _snapshots += 1
        try:
            found.update(_statistics(cuda.memory_stats(device)))
            found.update(_pools(cuda, device, requested))
        except Exception as error:
            found["snapshot"] = "failed: %s" % type(error).__name__
    else:
        found["snapshot"] = "skipped"
    took = time.monotonic() - began
    _snapshot_time += took
    found["took_ms"] = round(took * 1000, 1)
    _spool.write("oom", found)
    if os.environ.get("GPUTOP_HOOK_TRACE"):
        if _quietly(_dump_trace, "oom"):
            _spool.write("trace", {"device": device})


def _statistics(stats):
    """Returns the allocator's figures with their standard names."""
    found = {}
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
        current = stats.get(name + ".all.current")
        if current is not None:
            # `requested_bytes` is the size of the failed request.
            key = "requested_in_all_bytes" if name == "requested_bytes" else name
            found[key] = {"current": current, "peak": stats.get(name + ".all.peak", current)}
    segments = stats.get("segment.all.current", 0)
    found["segments"] = {"current": segments, "peak": stats.get("segment.all.peak", segments)}
    for name in ("num_ooms", "num_alloc_retries"):
        if name in stats:
            found[name] = stats[name]
    found["live_blocks"] = stats.get("active.all.current", 0)
    return found


def _pools(cuda, device, requested):
    """Returns the contents of each pool of the device, and the largest free block that was usable for the request."""
    if cuda.memory_stats(device).get("active.all.current", 0) > _MAX_BLOCKS:
        return {"snapshot": "skipped"}
    stream = _quietly(lambda: cuda.current_stream(device).cuda_stream)
    # Small requests allocate segments of 2 MiB from the driver, all others larger segments.
    wanted_pool = "small" if requested <= 2 << 20 else "large"
    pools = {}
    largest = [0, 0]
    whole = True
    until = time.monotonic() + _MAX_WALK_TIME
    for segment in cuda.memory_snapshot():
        if segment.get("device") != device:
            continue
        if time.monotonic() > until:
            whole = False
            break
        is_private = tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)
        name = "private" if is_private else str(segment.get("segment_type", "large"))
        pool = pools.get(name)
        if pool is None:
            pool = pools[name] = {
                "pool": name,
                "segments": 0,
                "reserved_bytes": 0,
                "allocated_bytes": 0,
                "awaiting_free_bytes": 0,
                "free_bytes": 0,
                "free_blocks": 0,
                "largest_free_block": 0,
            }
        pool["segments"] += 1
        pool["reserved_bytes"] += segment["total_size"]
        for block in segment["blocks"]:
            size, state = block["size"], block["state"]
            if state == "active_allocated":
                pool["allocated_bytes"] += size
            elif state == "inactive":
                pool["free_bytes"] += size
                pool["free_blocks"] += 1
                if size > pool["largest_free_block"]:
                    pool["largest_free_block"] = size
                if name == wanted_pool:
                    same = stream is None or segment.get("stream") == stream
                    largest[0 if same else 1] = max(largest[0 if same else 1], size)
            else:
                pool["awaiting_free_bytes"] += size
    found = {"pools": list(pools.values()), "snapshot": "whole" if whole else "cut short"}
    if stream is not None:
        found["stream"] = stream
    if whole:
        found["largest_free_block"] = largest[0]
        found["largest_free_block_other_streams"] = largest[1]
    return found


# -- Position in the program -----------------------------------------------------------------------------------------


def _frames(frame):
    """Returns the innermost stack frames in the program's own code, innermost first."""
    found = _own_frames(frame)
    if not found:
        # A backward pass runs in a thread without Python frames, so use those of the main thread.
        import threading

        main = sys._current_frames().get(threading.main_thread().ident)
        found = _own_frames(main)
    return found


def _own_frames(frame):
    own, others = [], []
    for _ in range(_MAX_SEARCHED_FRAMES):
        if frame is None or len(own) >= _MAX_FRAMES:
            break
        code = frame.f_code
        if code.co_filename != __file__:
            line = {"file": code.co_filename[-_MAX_PATH:], "line": frame.f_lineno, "function": code.co_name[:200]}
            if not any(part in code.co_filename for part in _LIBRARIES):
                own.append(line)
            elif len(others) < 2:
                others.append(line)
        frame = frame.f_back
    return own or others


def _thread_name():
    threading = sys.modules.get("threading")
    if threading is None:
        return "MainThread"
    # `current_thread` would create an object for a thread that Python did not start.
    thread = threading._active.get(threading.get_ident())
    return str(thread.name)[:60] if thread is not None else "not Python's"


# -- Exceptions ------------------------------------------------------------------------------------------------------

_reported = None


def _note_exception(kind, value, trace, where):
    global _reported
    if value is None or not isinstance(value, BaseException) or _reported == id(value):
        return
    if issubclass(kind, (SystemExit, GeneratorExit)):
        return
    if hasattr(sys, "ps1"):
        # At an interactive prompt the program continues.
        where = "cell"
    _reported = id(value)
    found = {"type": _type_name(kind), "message": _text(value, _MAX_MESSAGE), "where": where}
    place = _place(trace)
    if place is not None:
        found.update(place)
    found["thread"] = _thread_name()
    found["traceback"] = _quietly(_traceback, kind, value, trace) or ""
    if where != "cell" and _quietly(_is_out_of_memory, kind, found["message"]):
        # The traceback keeps the arrays of the failed functions alive.
        found["allocators"] = _quietly(_statistics_now) or []
    _spool.write("exception", found, _MAX_BYTES_WITH_EXCEPTION)


def _is_out_of_memory(kind, message):
    words = ("RESOURCE_EXHAUSTED", "out of memory", "OOM when allocating")
    return "OutOfMemory" in kind.__name__ or any(word.lower() in message.lower() for word in words)


def _type_name(kind):
    module = getattr(kind, "__module__", None)
    name = getattr(kind, "__qualname__", str(kind))
    return name if module in (None, "builtins", "__main__") else "%s.%s" % (module, name)


def _text(value, max_length):
    try:
        text = str(value)
    except Exception:
        return "<str() of the exception failed>"
    if len(text) <= max_length:
        return text
    return text[: max_length // 2] + " [...] " + text[-max_length // 2 :]


def _place(trace):
    """Returns the innermost line in the program's own code, or else the innermost line."""
    own = last = None
    for _ in range(2000):
        if trace is None:
            break
        code = trace.tb_frame.f_code
        last = {"file": code.co_filename[-_MAX_PATH:], "line": trace.tb_lineno, "function": code.co_name[:200]}
        if not any(part in code.co_filename for part in _LIBRARIES):
            own = last
        trace = trace.tb_next
    return own or last


def _traceback(kind, value, trace):
    import traceback

    # An infinite recursion has a thousand frames, and the last ones are the useful ones.
    text = "".join(traceback.format_exception(kind, value, trace, limit=-60))
    if len(text) > _MAX_TRACEBACK:
        text = text[: _MAX_TRACEBACK // 4] + "\n[...]\n" + text[-_MAX_TRACEBACK * 3 // 4 :]
    return text


def _chain(previous, where, arguments):
    """Returns a hook that reports the exception and then calls the previous hook."""

    def hook(*args):
        try:
            kind, value, trace = arguments(*args)
            _note_exception(kind, value, trace, where)
        except Exception:
            pass
        return previous(*args)

    return hook


def _when_threading(threading):
    threading.excepthook = _chain(
        threading.excepthook, "thread", lambda args: (args.exc_type, args.exc_value, args.exc_traceback)
    )


def _when_multiprocessing(process):
    """Reports exceptions in multiprocessing children, which catch and print a fatal exception before they exit."""
    begin = process.BaseProcess._bootstrap

    # Tracebacks of children begin in `begin`, so they do not contain this frame.
    def _bootstrap(self, *args, **kwargs):
        _quietly(_watch_print_exc, begin.__code__)
        return begin(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap


def _watch_print_exc(printer):
    import traceback

    original = traceback.print_exc

    def print_exc(*args, **kwargs):
        try:
            if sys._getframe(1).f_code is printer:
                _note_exception(*sys.exc_info(), where="multiprocessing")
        except Exception:
            pass
        return original(*args, **kwargs)

    traceback.print_exc = print_exc


_watches_notebook = False


def _watch_notebook():
    """Reports exceptions in notebook cells, which do not reach sys.excepthook."""
    global _watches_notebook
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or _watches_notebook:
        return
    shell.events.register("post_run_cell", _after_cell)
    _watches_notebook = True


def _after_cell(result=None):
    try:
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            _note_exception(type(error), error, error.__traceback__, "cell")
    except Exception:
        pass


def _at_exit():
    # Python stores the fatal exception here even if the program has replaced sys.excepthook.
    value = getattr(sys, "last_value", None)
    if value is not None and not hasattr(sys, "ps1") and "IPython" not in sys.modules:
        _quietly(_note_exception, type(value), value, getattr(sys, "last_traceback", None), "program")
    if os.environ.get("GPUTOP_HOOK_TRACE") and _has_observer:
        _quietly(_dump_trace, "exit")


# -- Allocation traces -----------------------------------------------------------------------------------------------


def _start_trace(torch):
    record = torch.cuda.memory._record_memory_history
    try:
        # PyTorch 2.1 and later. Recording stacks would slow down each allocation.
        record("all", context=None, max_entries=_MAX_TRACE_EVENTS)
    except TypeError:
        record(True, record_context=False, trace_alloc_max_entries=_MAX_TRACE_EVENTS)


class _LimitedFile:
    """A file with a maximum size."""

    def __init__(self, fd):
        self.fd, self.remaining = fd, _MAX_TRACE_BYTES

    def write(self, data):
        data = memoryview(data)
        self.remaining -= data.nbytes
        if self.remaining < 0:
            raise OSError("the trace is larger than the limit")
        while data.nbytes:
            data = data[os.write(self.fd, data) :]


_dumps = 0


def _dump_trace(why):
    global _dumps
    import pickle

    _dumps += 1
    if _dumps > _MAX_TRACES:
        return
    folder = _folder(os.environ["GPUTOP_HOOK_TRACE"])
    try:
        name = "%s.%s.%d%%s.pickle" % (_name(), why, _dumps)
        fd = _create(folder, name)
        try:
            pickle.dump(sys.modules["torch"].cuda.memory._snapshot(), _LimitedFile(fd), 4)
        except BaseException:
            # An incomplete trace cannot be read.
            os.unlink(name % "", dir_fd=folder)
            raise
        finally:
            os.close(fd)
        return True
    finally:
        os.close(folder)


# -- Statistics that cannot be read from outside ---------------------------------------------------------------------

_statistics_thread = None
# Held while a framework is queried, to prevent forks meanwhile. It stays locked at exit.
_query_lock = None
# One page, which readers see either before or after a write.
_PAGE = 4096
_page = None
_MAX_DEVICES = 16


def _watch_statistics(_):
    global _statistics_thread, _query_lock
    if _statistics_thread is not None:
        return
    import _thread
    import atexit

    _query_lock = _thread.allocate_lock()
    _statistics_thread = _thread.start_new_thread(_each_second, (_query_lock,))
    os.register_at_fork(before=_pause_queries, after_in_parent=_resume_queries)
    # atexit calls functions in reverse order. The framework has registered its own already, so this one runs first.
    atexit.register(_stop_queries)


_is_paused = False


def _pause_queries():
    global _is_paused
    _is_paused = _query_lock is not None and _query_lock.acquire(timeout=0.5)


def _resume_queries():
    if _is_paused and _query_lock is not None:
        _query_lock.release()


def _stop_queries():
    global _query_lock, _page
    if _query_lock is None:
        return
    _query_lock.acquire(timeout=0.5)
    _query_lock = None
    if _page is not None:
        _quietly(lambda: os.unlink(os.readlink("/proc/self/fd/%d" % _page)))


def _each_second(query_lock):
    global _page
    pid = os.getpid()
    while os.getpid() == pid:
        time.sleep(1)
        with query_lock:
            try:
                found = _all_statistics()
                if found:
                    _page = _open_page() if _page is None else _page
                    os.pwrite(_page, _statistics_page(found), 0)
            except Exception:
                # If writing fails once, it would fail every second.
                return


def _open_page():
    import fcntl

    folder = _folder(_spool_path())
    try:
        fd = _create(folder, _name() + "%s.now")
    finally:
        os.close(folder)
    # The page is overwritten in place, so it must not be opened for appending.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    return fd


def _statistics_page(found):
    """Returns the page with as many allocators as fit."""
    import json

    line = dict(_process(), what="statistics")
    steps = _steps()
    if steps is not None:
        line["steps"] = steps
    while True:
        data = json.dumps(dict(line, allocators=found), separators=(",", ":")).encode("ascii", "replace")
        if len(data) < _PAGE:
            return data.ljust(_PAGE - 1) + b"\n"
        found = found[:-1]


def _statistics_now():
    """Returns the statistics of JAX, TensorFlow and CuPy, unless the thread that writes them is stuck."""
    if _query_lock is None or not _query_lock.acquire(timeout=0.5):
        return []
    try:
        return [found for found in _all_statistics() if found["framework"] != "torch"]
    finally:
        _query_lock.release()


def _all_statistics():
    """Returns the statistics of all frameworks that the program has imported and initialized."""
    found = []
    for read in (_torch_now, _jax_now, _tensorflow_now, _cupy_now):
        _quietly(found.extend, _until_error(read))
    return found


def _until_error(read):
    try:
        for pool in read():
            yield pool
    except Exception:
        pass


def _gauge(current, peak=None):
    """Returns a gauge without the values that are not known."""
    gauge = {"current": current, "peak": peak}
    return {name: int(value) for name, value in gauge.items() if value is not None}


def _torch_now():
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if os.environ.get("GPUTOP_HOOK_STATISTICS") != "1" or cuda is None:
        return
    if not cuda.is_initialized() or cuda.get_allocator_backend() != "native":
        return
    for device in range(min(cuda.device_count(), _MAX_DEVICES)):
        stats = cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak"):
            yield dict(_statistics(stats), framework="torch", device=device)


def _jax_now():
    # Asking JAX for its devices would initialize it, so query only the existing backends.
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = list(getattr(bridge, "_backends", {}).values())
    on_gpus = [backend for backend in backends if backend.platform in ("gpu", "cuda", "rocm")]
    chosen = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
    allocator = {"": "bfc", "default": "bfc", "cuda_async": "cuda_malloc_async"}.get(chosen, chosen)
    for backend in on_gpus or backends:
        for device in backend.local_devices()[:_MAX_DEVICES]:
            number = getattr(device, "local_hardware_id", None)
            pool = {"framework": "jax", "device": device.id if number is None else number}
            if on_gpus:
                pool["allocator"] = allocator[:20]
            # A device without statistics is reported without figures.
            _quietly(_add_xla, pool, device.memory_stats)
            yield pool


def _add_xla(pool, memory_stats):
    stats = memory_stats() or {}
    if "bytes_in_use" in stats:
        pool["allocated_bytes"] = _gauge(stats["bytes_in_use"], stats.get("peak_bytes_in_use"))
    if "pool_bytes" in stats:
        pool["reserved_bytes"] = _gauge(stats["pool_bytes"], stats.get("peak_pool_bytes"))
    # XLA uses 0 for an unknown value in both fields.
    if stats.get("bytes_limit"):
        pool["limit_bytes"] = stats["bytes_limit"]
    if stats.get("largest_free_block_bytes"):
        pool["largest_free_block"] = stats["largest_free_block_bytes"]


def _tensorflow_now():
    context = sys.modules.get("tensorflow.python.eager.context")
    context = context.context_safe() if context is not None else None
    if context is None or not context._initialized:
        return
    chosen = os.environ.get("TF_GPU_ALLOCATOR", "").lower()
    allocator = {"": "bfc", "cuda_malloc_async": "cuda_malloc_async"}.get(chosen, chosen)
    for number, _ in enumerate(context.list_logical_devices("GPU")[:_MAX_DEVICES]):
        pool = {"framework": "tensorflow", "device": number, "allocator": allocator[:20]}
        info = _quietly(context.get_memory_info, "GPU:%d" % number)
        if info:
            pool["allocated_bytes"] = _gauge(info["current"], info.get("peak"))
        yield pool


def _cupy_now():
    cupy = sys.modules.get("cupy")
    if cupy is None or getattr(cupy.__spec__, "_initializing", False):
        return
    for number in _started_devices():
        # This changes the current device of this thread only.
        with cupy.cuda.Device(number):
            # The pool that the program chose, or the default pool.
            pool = getattr(cupy.cuda.get_allocator(), "__self__", None)
            if not hasattr(pool, "total_bytes"):
                pool = cupy.get_default_memory_pool()
            used, total, limit = pool.used_bytes(), pool.total_bytes(), _quietly(pool.get_limit)
        if not total:
            continue
        kind = {"MemoryPool": "memory_pool", "MemoryAsyncPool": "cuda_malloc_async"}
        reported = {"framework": "cupy", "device": number, "allocator": kind.get(type(pool).__name__, "")}
        reported["allocated_bytes"] = _gauge(used)
        reported["reserved_bytes"] = _gauge(total)
        if limit:
            reported["limit_bytes"] = limit
        yield reported


def _started_devices():
    """Yields the devices with a CUDA context. Querying any other device would create one."""
    import ctypes

    # Uses the library only if it is loaded already (RTLD_NOLOAD).
    cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for number in range(_MAX_DEVICES):
        device, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), number):
            return
        failed = cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
        if not failed and is_active.value:
            yield number


# -- Permission to be read -------------------------------------------------------------------------------------------

_PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1
# "given", "refused" or "failed"; None if the permission is not required, that is unless Yama's ptrace_scope is 1.
_ptracer = None


def _permit_reading():
    """Permits other processes of this user to read this one (PR_SET_PTRACER), which Ubuntu denies by default.

    For the kernel, reading and tracing (PTRACE_ATTACH) are one permission. A process can permit either all processes, or
    one process with its descendants until that process exits. The default is all, because a dashboard that is started
    later could not read the process otherwise.
    """
    global _ptracer
    tracer = _wanted_ptracer(os.environ.get("GPUTOP_HOOK_PTRACER", ""))
    if tracer is None:
        _ptracer = "refused"
        return
    with open(_PTRACE_SCOPE, "rb") as file:
        if file.read(4).strip() != b"1":
            return
    _ptracer = "failed" if _set_ptracer(tracer) else "given"


def _wanted_ptracer(value):
    """Returns a PID, PR_SET_PTRACER_ANY, or None for no permission. A value that is not a PID means no permission."""
    if not value:
        return _PR_SET_PTRACER_ANY
    is_pid = value.isascii() and value.isdigit() and len(value) < 10
    return int(value) or None if is_pid else None


def _set_ptracer(tracer):
    import ctypes

    unsigned = ctypes.c_ulong
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return prctl(_PR_SET_PTRACER, unsigned(tracer), unsigned(0), unsigned(0), unsigned(0))


def _after_fork():
    global _steps_begun, _steps_done, _snapshots, _snapshot_time
    global _statistics_thread, _query_lock, _page, _reported, _dumps
    _steps_begun = _steps_done = _snapshots = _dumps = 0
    _snapshot_time = 0.0
    _statistics_thread = _query_lock = _page = _reported = None
    _spool.forget()
    if _ptracer == "given":
        _quietly(_permit_reading)


def start():
    """Starts the hook. Called once, when the process starts."""
    import atexit

    _quietly(_permit_reading)
    sys.excepthook = _chain(sys.excepthook, "program", lambda kind, value, trace: (kind, value, trace))
    _finder.awaited = {
        "threading": _when_threading,
        "multiprocessing.process": _when_multiprocessing,
        "torch.cuda": _when_torch_cuda,
        "torch.optim.optimizer": _when_optimizer,
    }
    if os.environ.get("GPUTOP_HOOK_STATISTICS") != "0":
        for name in ("jax._src.xla_bridge", "tensorflow.python.eager.context", "cupy.cuda"):
            _finder.awaited[name] = _watch_statistics
    _finder.check()
    sys.meta_path.insert(0, _finder)
    os.register_at_fork(after_in_child=lambda: _quietly(_after_fork))
    atexit.register(_at_exit)
