"""What gputop learns inside a Python process, and from outside could not.

It only listens: it imports no framework and starts none, changes nothing that a program reads, and whatever goes
wrong in here stays in here. What there is to tell is written as a line of JSON to a file of this process in the
spool, which is made when there is a first line:

    process     who writes; the first line of every file
    oom         PyTorch's allocator ran out of memory: what it held at that instant, and where the program was
    exception   one that nobody caught, with its traceback as Python prints it
    trace       the allocation trace of the last `oom` lies ready

and, on a page of its own that is written over each second:

    statistics  what the allocators of the program's frameworks hold

How it hears of them:

    the end of `import torch.cuda`  a finder that finds nothing looks, at the imports that come after, which modules
                                    are there by now; PyTorch then calls us when the program initialises CUDA
    out of memory                   PyTorch's own observer, called after the cache was flushed and before it raises
    optimizer steps                 PyTorch's own hooks, counted and told with the events only
    exceptions                      sys.excepthook, threading.excepthook, what a multiprocessing child prints when it
                                    ends, the end of a notebook's cell

Environment: GPUTOP_HOOK=0 turns it off; GPUTOP_HOOK_PTRACER=0 lets no other process of this user read or trace this one
where Yama's ptrace_scope is 1, GPUTOP_HOOK_PTRACER=PID only that process and its descendants;
GPUTOP_HOOK_SPOOL and GPUTOP_HOOK_RUN are where and for whom `gputop run` wants it written; GPUTOP_HOOK_TRACE is the
directory for allocation traces. Of JAX, TensorFlow and CuPy, whose memory nobody reads from outside, statistics are
written each second; with GPUTOP_HOOK_STATISTICS=1 PyTorch's as well, with GPUTOP_HOOK_STATISTICS=0 none.
"""

import os
import sys
import time

VERSION = 1

# What one process writes at most; an exception, which is what ended it, still finds room.
_MOST_BYTES = 192 << 10
_MOST_BYTES_AT_THE_END = 256 << 10
# One line at most, and the longest texts in it.
_MOST_LINE = 48 << 10
_MOST_TRACEBACK = 24 << 10
_MOST_MESSAGE = 4 << 10
_MOST_PATH = 500
# Files in the spool from which on no more are made.
_MOST_FILES = 512
# Lines of one program's code that are told of a stack, and how far up they are looked for.
_MOST_FRAMES = 8
_FARTHEST_FRAME = 400
# A program that lives on running out of memory is looked into this often, and for this long in all.
_MOST_LOOKS = 64
_MOST_LOOKING = 5.0
# Longest walk over one snapshot, in seconds, and the most live blocks that one is taken of.
_LONGEST_WALK = 1.0
_MOST_BLOCKS = 1000000
# Allocation traces: events kept, bytes written of one, how many of one process.
_MOST_TRACED = 100000
_MOST_TRACE_BYTES = 64 << 20
_MOST_TRACES = 4

_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<string>", "importlib", os.sep + "torch" + os.sep)


def _quietly(work, *args):
    """Does it; what goes wrong is nobody's trouble."""
    try:
        return work(*args)
    except Exception:
        return None


def _milliseconds():
    return int(time.time() * 1000)


# -- Where it is written ---------------------------------------------------------------------------------------------


class _Spool:
    """The file of this process, from its first line on."""

    def __init__(self):
        self.pid = os.getpid()
        self.fd = None
        self.written = 0
        self.is_closed = False

    def write(self, what, data, most=_MOST_BYTES):
        if os.getpid() != self.pid:
            # Forked in a way that told nobody.
            _after_fork()
        if self.is_closed:
            return
        line = dict(data, what=what, time=_milliseconds())
        steps = _steps()
        if steps is not None:
            line["steps"] = steps
        if self.fd is None:
            self._open()
        self._put(line, most)

    def _put(self, line, most):
        import json

        data = json.dumps(line, default=str).encode("ascii", "replace") + b"\n"
        if len(data) > _MOST_LINE or self.written + len(data) > most:
            return
        self.written += len(data)
        os.write(self.fd, data)

    def _open(self):
        # Whatever comes of it, it is tried once.
        self.is_closed = True
        folder = _folder(_spool_path())
        try:
            if sum(1 for _ in os.scandir(folder)) >= _MOST_FILES:
                return
            self.fd = _create(folder, _name() + "%s.jsonl")
        finally:
            os.close(folder)
        self.is_closed = False
        self._put(_process(), _MOST_BYTES)

    def forget(self):
        """In a forked child: the file is the parent's."""
        if self.fd is not None:
            _quietly(os.close, self.fd)
        self.__init__()


def _folder(path):
    """The open directory: ours, private, and no link to another. It is made if it is not there."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _quietly(os.mkdir, path, 0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(fd)
        raise OSError("the spool is somebody else's")
    return fd


def _create(folder, name):
    """A new file for writing; a program that another replaced in the same process has had its own."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for again in ("", "-1", "-2", "-3"):
        try:
            return os.open(name % again, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            pass
    raise OSError("no name is free")


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
        for look in (os.lstat, os.stat):
            try:
                if look(path).st_uid not in trusted:
                    return True
            except OSError:
                pass
        if path == os.path.dirname(path):
            return False
        path = os.path.dirname(path)


def _name():
    """`RUN.PID.START`, the run being who asked for it: 0 where nobody did."""
    run = os.environ.get("GPUTOP_HOOK_RUN", "")
    if not (run and len(run) <= 40 and run.replace("-", "").isalnum()):
        run = "0"
    return "%s.%d.%d" % (run, os.getpid(), _started())


def _started():
    """When this process began, in the kernel's ticks: with the PID what tells it from all others."""
    with open("/proc/self/stat", "rb") as file:
        # The name may hold anything, so count from its closing bracket.
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


# -- Which modules are there -----------------------------------------------------------------------------------------


class _Finder:
    """First among the finders, and finds nothing: it looks which of the awaited modules are there by now.

    That costs each import of a new module one look into a small table, and puts no frame of ours into anybody's
    traceback. PyTorch imports a hundred modules after those that are awaited here.
    """

    def __init__(self):
        self.awaited = {}

    def find_spec(self, name, path=None, target=None):
        if self.awaited:
            try:
                self.look()
            except Exception:
                pass
        return None

    def look(self):
        for name in tuple(self.awaited):
            module = sys.modules.get(name)
            if module is None:
                continue
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False):
                continue
            then = self.awaited.pop(name, None)
            if then is not None:
                _quietly(then, module)


_finder = _Finder()


# -- PyTorch ---------------------------------------------------------------------------------------------------------

_begun = 0
_done = 0
_counts_steps = False
_looks = 0
_looked_for = 0.0
_has_observer = False


def _when_torch_cuda(cuda):
    # Called by PyTorch once the program initialises CUDA, at once where it has.
    cuda._lazy_call(_when_cuda_is_up)
    _watch_notebook()
    if os.environ.get("GPUTOP_HOOK_STATISTICS") == "1":
        _watch_statistics(cuda)


def _when_cuda_is_up():
    _quietly(_observe)


def _observe():
    global _has_observer
    torch = sys.modules["torch"]
    if not _has_observer:
        # Other allocators than the native one refuse; there is nothing to be observed then.
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
    global _begun
    _begun += 1


def _step_ends(*_):
    global _done
    _done += 1


def _steps():
    """Optimizer steps begun and done; None where they cannot be counted."""
    if not _counts_steps:
        return None
    frame = sys.modules.get("torch._dynamo.eval_frame")
    if frame is not None:
        # From the first `torch.compile` on PyTorch takes the hooks off its optimizers.
        try:
            if frame.TorchPatcher.patch.cache_info().currsize:
                return None
        except AttributeError:
            return None
    return {"begun": _begun, "done": _done}


def _on_oom(device, requested, limit, free):
    try:
        _note_oom(device, requested, limit, free)
    except Exception:
        pass


def _note_oom(device, requested, limit, free):
    global _looks, _looked_for
    found = {"device": device, "requested_bytes": requested, "limit_bytes": limit, "free_bytes": free}
    found["thread"] = _thread_name()
    found["frames"] = _frames(sys._getframe(2))
    cuda = sys.modules["torch"].cuda
    began = time.monotonic()
    if _looks < _MOST_LOOKS and _looked_for < _MOST_LOOKING:
        _looks += 1
        try:
            found.update(_statistics(cuda.memory_stats(device)))
            found.update(_pools(cuda, device, requested))
        except Exception as error:
            found["snapshot"] = "failed: %s" % type(error).__name__
    else:
        found["snapshot"] = "skipped"
    took = time.monotonic() - began
    _looked_for += took
    found["took_ms"] = round(took * 1000, 1)
    _spool.write("oom", found)
    if os.environ.get("GPUTOP_HOOK_TRACE"):
        if _quietly(_dump_trace, "oom"):
            _spool.write("trace", {"device": device})


def _statistics(stats):
    """The allocator's figures by their standard names."""
    found = {}
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
        current = stats.get(name + ".all.current")
        if current is not None:
            # The request that failed has that name already.
            told = "requested_in_all_bytes" if name == "requested_bytes" else name
            found[told] = {"current": current, "peak": stats.get(name + ".all.peak", current)}
    segments = stats.get("segment.all.current", 0)
    found["segments"] = {"current": segments, "peak": stats.get("segment.all.peak", segments)}
    for name in ("num_ooms", "num_alloc_retries"):
        if name in stats:
            found[name] = stats[name]
    found["live_blocks"] = stats.get("active.all.current", 0)
    return found


def _pools(cuda, device, requested):
    """What each pool of the device holds, and the largest free block that the request could have had."""
    if cuda.memory_stats(device).get("active.all.current", 0) > _MOST_BLOCKS:
        return {"snapshot": "skipped"}
    stream = _quietly(lambda: cuda.current_stream(device).cuda_stream)
    # A small request asks the driver for a segment of 2 MiB, every other for more.
    wanted_pool = "small" if requested <= 2 << 20 else "large"
    pools = {}
    largest = [0, 0]
    whole = True
    until = time.monotonic() + _LONGEST_WALK
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


# -- Where the program is --------------------------------------------------------------------------------------------


def _frames(frame):
    """The innermost lines of the program's own code, the innermost first."""
    found = _own_frames(frame)
    if not found:
        # A backward pass runs in a thread that has no Python of its own.
        import threading

        main = sys._current_frames().get(threading.main_thread().ident)
        found = _own_frames(main)
    return found


def _own_frames(frame):
    own, others = [], []
    for _ in range(_FARTHEST_FRAME):
        if frame is None or len(own) >= _MOST_FRAMES:
            break
        code = frame.f_code
        if code.co_filename != __file__:
            told = {"file": code.co_filename[-_MOST_PATH:], "line": frame.f_lineno, "function": code.co_name[:200]}
            if not any(part in code.co_filename for part in _LIBRARIES):
                own.append(told)
            elif len(others) < 2:
                others.append(told)
        frame = frame.f_back
    return own or others


def _thread_name():
    threading = sys.modules.get("threading")
    if threading is None:
        return "MainThread"
    # `current_thread` would make an object for a thread that Python did not start.
    thread = threading._active.get(threading.get_ident())
    return str(thread.name)[:60] if thread is not None else "not Python's"


# -- Exceptions ------------------------------------------------------------------------------------------------------

_told = None


def _note_exception(kind, value, trace, where):
    global _told
    if value is None or not isinstance(value, BaseException) or _told == id(value):
        return
    if issubclass(kind, (SystemExit, GeneratorExit)):
        return
    if hasattr(sys, "ps1"):
        # At a prompt it ends nothing.
        where = "cell"
    _told = id(value)
    found = {"type": _type_name(kind), "message": _text(value, _MOST_MESSAGE), "where": where}
    place = _place(trace)
    if place is not None:
        found.update(place)
    found["thread"] = _thread_name()
    found["traceback"] = _quietly(_traceback, kind, value, trace) or ""
    _spool.write("exception", found, _MOST_BYTES_AT_THE_END)


def _type_name(kind):
    module = getattr(kind, "__module__", None)
    name = getattr(kind, "__qualname__", str(kind))
    return name if module in (None, "builtins", "__main__") else "%s.%s" % (module, name)


def _text(value, most):
    try:
        text = str(value)
    except Exception:
        return "<its text cannot be had>"
    return text if len(text) <= most else text[: most // 2] + " [...] " + text[-most // 2 :]


def _place(trace):
    """The innermost line of the program's own code, else the innermost."""
    own = last = None
    for _ in range(2000):
        if trace is None:
            break
        code = trace.tb_frame.f_code
        last = {"file": code.co_filename[-_MOST_PATH:], "line": trace.tb_lineno, "function": code.co_name[:200]}
        if not any(part in code.co_filename for part in _LIBRARIES):
            own = last
        trace = trace.tb_next
    return own or last


def _traceback(kind, value, trace):
    import traceback

    # A recursion without end has a thousand frames; the last ones are those that tell.
    text = "".join(traceback.format_exception(kind, value, trace, limit=-60))
    if len(text) > _MOST_TRACEBACK:
        text = text[: _MOST_TRACEBACK // 4] + "\n[...]\n" + text[-_MOST_TRACEBACK * 3 // 4 :]
    return text


def _chain(previous, where, arguments):
    """A hook that notes the exception and then does what the one before it does."""

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
    """Its children catch what ends them, print it, and end: the one moment to hear of it is when they print."""
    begin = process.BaseProcess._bootstrap

    # Their tracebacks begin in `begin`, so this frame is in none.
    def _bootstrap(self, *args, **kwargs):
        _quietly(_listen, begin.__code__)
        return begin(self, *args, **kwargs)

    process.BaseProcess._bootstrap = _bootstrap


def _listen(printer):
    import traceback

    print_it = traceback.print_exc

    def print_exc(*args, **kwargs):
        try:
            if sys._getframe(1).f_code is printer:
                _note_exception(*sys.exc_info(), where="multiprocessing")
        except Exception:
            pass
        return print_it(*args, **kwargs)

    traceback.print_exc = print_exc


_watches_notebook = False


def _watch_notebook():
    """A notebook shows a cell's exception itself."""
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
    # Python leaves here what ended the program, also where somebody else took the hook over.
    value = getattr(sys, "last_value", None)
    if value is not None and not hasattr(sys, "ps1") and "IPython" not in sys.modules:
        _quietly(_note_exception, type(value), value, getattr(sys, "last_traceback", None), "program")
    if os.environ.get("GPUTOP_HOOK_TRACE") and _has_observer:
        _quietly(_dump_trace, "exit")


# -- Allocation traces -----------------------------------------------------------------------------------------------


def _start_trace(torch):
    record = torch.cuda.memory._record_memory_history
    try:
        # 2.1 and later; without stacks, which would cost each allocation a walk.
        record("all", context=None, max_entries=_MOST_TRACED)
    except TypeError:
        record(True, record_context=False, trace_alloc_max_entries=_MOST_TRACED)


class _Bounded:
    """A file that takes so much and no more."""

    def __init__(self, fd):
        self.fd, self.left = fd, _MOST_TRACE_BYTES

    def write(self, data):
        data = memoryview(data)
        self.left -= data.nbytes
        if self.left < 0:
            raise OSError("the trace is too large")
        while data.nbytes:
            data = data[os.write(self.fd, data) :]


_dumps = 0


def _dump_trace(why):
    global _dumps
    import pickle

    _dumps += 1
    if _dumps > _MOST_TRACES:
        return
    folder = _folder(os.environ["GPUTOP_HOOK_TRACE"])
    try:
        name = "%s.%s.%d%%s.pickle" % (_name(), why, _dumps)
        fd = _create(folder, name)
        try:
            pickle.dump(sys.modules["torch"].cuda.memory._snapshot(), _Bounded(fd), 4)
        except BaseException:
            # Half of one is of no use.
            os.unlink(name % "", dir_fd=folder)
            raise
        finally:
            os.close(fd)
        return True
    finally:
        os.close(folder)


# -- Statistics, where nobody reads them from outside ----------------------------------------------------------------

_statistics_thread = None
# Held while a framework is asked: nobody forks then, and at the end it stays so.
_asking = None
# One page, which a reader sees as it was or as it is.
_PAGE = 4096
_page = None
_MOST_DEVICES = 16


def _watch_statistics(_):
    global _statistics_thread, _asking
    if _statistics_thread is not None:
        return
    import _thread
    import atexit

    _asking = _thread.allocate_lock()
    _statistics_thread = _thread.start_new_thread(_each_second, (_asking,))
    os.register_at_fork(before=_pause_asking, after_in_parent=_go_on_asking)
    # The framework that is there by now has said before us what it does at the end, so we come before it.
    atexit.register(_stop_asking)


_is_paused = False


def _pause_asking():
    global _is_paused
    _is_paused = _asking is not None and _asking.acquire(timeout=0.5)


def _go_on_asking():
    if _is_paused and _asking is not None:
        _asking.release()


def _stop_asking():
    global _asking, _page
    if _asking is None:
        return
    _asking.acquire(timeout=0.5)
    _asking = None
    if _page is not None:
        _quietly(lambda: os.unlink(os.readlink("/proc/self/fd/%d" % _page)))


def _each_second(asking):
    global _page
    pid = os.getpid()
    while os.getpid() == pid:
        time.sleep(1)
        with asking:
            try:
                found = _all_statistics()
                if found:
                    _page = _open_page() if _page is None else _page
                    os.pwrite(_page, _statistics_page(found), 0)
            except Exception:
                # What cannot be written once cannot be written each second.
                return


def _open_page():
    import fcntl

    folder = _folder(_spool_path())
    try:
        fd = _create(folder, _name() + "%s.now")
    finally:
        os.close(folder)
    # It is written in place.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    return fd


def _statistics_page(found):
    """As many of them as there is room for."""
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


def _all_statistics():
    """Of the frameworks that the program has imported and started."""
    found = []
    for read in (_torch_now, _jax_now, _tensorflow_now, _cupy_now):
        _quietly(found.extend, _until_it_fails(read))
    return found


def _until_it_fails(read):
    try:
        for told in read():
            yield told
    except Exception:
        pass


def _gauge(current, peak=None):
    """What is not told is left out."""
    gauge = {"current": current, "peak": peak}
    return {name: int(value) for name, value in gauge.items() if value is not None}


def _torch_now():
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if os.environ.get("GPUTOP_HOOK_STATISTICS") != "1" or cuda is None:
        return
    if not cuda.is_initialized() or cuda.get_allocator_backend() != "native":
        return
    for device in range(min(cuda.device_count(), _MOST_DEVICES)):
        stats = cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak"):
            yield dict(_statistics(stats), framework="torch", device=device)


def _jax_now():
    # Asking JAX for its devices would start it: only the backends that are there are asked.
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = list(getattr(bridge, "_backends", {}).values())
    on_gpus = [backend for backend in backends if backend.platform in ("gpu", "cuda", "rocm")]
    chosen = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
    allocator = {"": "bfc", "default": "bfc", "cuda_async": "cuda_malloc_async"}.get(chosen, chosen)
    for backend in on_gpus or backends:
        for device in backend.local_devices()[:_MOST_DEVICES]:
            number = getattr(device, "local_hardware_id", None)
            told = {"framework": "jax", "device": device.id if number is None else number}
            if on_gpus:
                told["allocator"] = allocator[:20]
            # A device without statistics is told without.
            _quietly(_add_xla, told, device.memory_stats)
            yield told


def _add_xla(told, memory_stats):
    stats = memory_stats() or {}
    if "bytes_in_use" in stats:
        told["allocated_bytes"] = _gauge(stats["bytes_in_use"], stats.get("peak_bytes_in_use"))
    if "pool_bytes" in stats:
        told["reserved_bytes"] = _gauge(stats["pool_bytes"], stats.get("peak_pool_bytes"))
    # XLA has 0 in both where it does not know.
    if stats.get("bytes_limit"):
        told["limit_bytes"] = stats["bytes_limit"]
    if stats.get("largest_free_block_bytes"):
        told["largest_free_block"] = stats["largest_free_block_bytes"]


def _tensorflow_now():
    context = sys.modules.get("tensorflow.python.eager.context")
    context = context.context_safe() if context is not None else None
    if context is None or not context._initialized:
        return
    chosen = os.environ.get("TF_GPU_ALLOCATOR", "").lower()
    allocator = {"": "bfc", "cuda_malloc_async": "cuda_malloc_async"}.get(chosen, chosen)
    for number, _ in enumerate(context.list_logical_devices("GPU")[:_MOST_DEVICES]):
        told = {"framework": "tensorflow", "device": number, "allocator": allocator[:20]}
        info = _quietly(context.get_memory_info, "GPU:%d" % number)
        if info:
            told["allocated_bytes"] = _gauge(info["current"], info.get("peak"))
        yield told


def _cupy_now():
    cupy = sys.modules.get("cupy")
    if cupy is None or getattr(cupy.__spec__, "_initializing", False):
        return
    for number in _started_devices():
        # The device of this thread, which is nobody else's.
        with cupy.cuda.Device(number):
            # What the program chose, unless it has no pool.
            pool = getattr(cupy.cuda.get_allocator(), "__self__", None)
            if not hasattr(pool, "total_bytes"):
                pool = cupy.get_default_memory_pool()
            used, total, limit = pool.used_bytes(), pool.total_bytes(), _quietly(pool.get_limit)
        if not total:
            continue
        kind = {"MemoryPool": "memory_pool", "MemoryAsyncPool": "cuda_malloc_async"}
        told = {"framework": "cupy", "device": number, "allocator": kind.get(type(pool).__name__, "")}
        told["allocated_bytes"] = _gauge(used)
        told["reserved_bytes"] = _gauge(total)
        if limit:
            told["limit_bytes"] = limit
        yield told


def _started_devices():
    """Those on which the program has a context: to ask about any other would make one."""
    import ctypes

    # Only where it is loaded already (RTLD_NOLOAD).
    cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for number in range(_MOST_DEVICES):
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
# What became of the permission. Only Yama's ptrace_scope 1 requires it.
_ptracer = None


def _permit_reading():
    """Lets other processes of this user read this one (PR_SET_PTRACER), which Ubuntu's default would deny.

    Reading and tracing (PTRACE_ATTACH) are one permission for the kernel. A process can name all others or one, with its
    descendants, and that one only until it exits. The default is therefore all: a dashboard that is started later, or
    again, could not read a process that had named the one before.
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
    """Returns a PID, PR_SET_PTRACER_ANY, or None for no permission, which anything that is not a PID means."""
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
    global _begun, _done, _looks, _looked_for, _statistics_thread, _asking, _page, _told, _dumps
    _begun = _done = _looks = _dumps = 0
    _looked_for = 0.0
    _statistics_thread = _asking = _page = _told = None
    _spool.forget()
    if _ptracer == "given":
        _quietly(_permit_reading)


def start():
    """Once, when the process starts."""
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
    _finder.look()
    sys.meta_path.insert(0, _finder)
    os.register_at_fork(after_in_child=lambda: _quietly(_after_fork))
    atexit.register(_at_exit)
