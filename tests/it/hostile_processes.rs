//! Programs that falsify their own structures of CPython and PyTorch. Reading them takes bounded time and memory, and
//! every name is escaped.
//!
//! Each program is a real Python with the memory of a PyTorch process, and overwrites its own objects with `ctypes`.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use gputop_model::pool::BlockState;
use gputop_peek::memory::dump::Dump;
use gputop_peek::torch::Attached;

use crate::support::fake_machine::{Guarded, gputop, wait_until};
use crate::support::python;
use crate::support::python_target::PythonTarget;
use crate::torch_live::dump_path;

/// Memory of one reading. The limit of the reading itself is 64 MiB.
const MAX_RESIDENT_KIB: u64 = 256 << 10;
/// A reading stops after 2 s. A debug build on a busy machine needs more for what follows, but not this much.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Tools of the programs: fake C++ objects and tensors, and a word at an address.
const TOOLS: &str = r#"
import gc, threading, types
gc.disable()
libc.mmap.restype = ctypes.c_void_p

def memory(length):
    # Private and anonymous, and therefore a heap in the eyes of a reader.
    return libc.mmap(None, length, 3, 0x22, -1, 0)

def put(address, *values):
    for value in values:
        ctypes.c_uint64.from_address(address).value = value % 2**64
        address += 8

def word(address):
    return ctypes.c_uint64.from_address(address).value

def cxx_class(name):
    at = memory(4096)
    ctypes.memmove(at + 1024, name + b'\0', len(name) + 1)
    put(at + 512, 0, at + 1024)       # type_info: vtable, name
    put(at, 0, at + 512)              # vtable: offset to top, type_info
    return at + 16

class TensorBase: pass
class Tensor(TensorBase): pass
torch = types.ModuleType('torch')
torch.Tensor = Tensor
sys.modules['torch'] = torch
impl_class, storage_class = cxx_class(b'N3c1010TensorImplE'), cxx_class(b'N3c1011StorageImplE')

def tensors(count):
    # Each has a Python object, a TensorImpl of 26 words and a StorageImpl of 9 words.
    at = memory(count * 512)
    found = []
    for index in range(count):
        data, size = BLOCKS[index % len(BLOCKS)]
        python, impl, storage = at, at + 64, at + 320
        put(python, 1, id(Tensor), impl, 0, 0)
        put(impl, impl_class, 1, storage, 0, 0, 0, python, 1, 128)
        put(impl + 18 * 8, 0, 128, 6)
        put(storage, storage_class, 1, data, 0, 0, 0, size)
        found.append(python)
        at += 512
    return found

def list_of(addresses):
    items = [None] * len(addresses)
    put(word(id(items) + 24), *addresses)
    return items
"#;

/// A name, its program, and a name that the reading must contain.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("tensors with names", "found = list_of(tensors(4))", "found["),
    // Each of 10,000 tensors has a path of 60 long names.
    (
        "long paths",
        r"
found = tensors(10_000)
found = [list_of(found[n:n + 1_000]) for n in range(0, 10_000, 1_000)]
for n in range(55):
    found = {f'{n:03}' + '\u6f22' * 115: found}
",
        "漢",
    ),
    (
        "a million modules",
        r"
found = list_of(tensors(4))
for n in range(1_000_000):
    sys.modules[f'{n:0100}'] = sys
missing = list_of(tensors(1))
",
        "",
    ),
    // Every list has the same million items, which are in the cache of the reader.
    (
        "lists with the same items",
        r"
found = list_of(tensors(4))
empty = {}
items = memory(8 << 20)
ctypes.memmove(items, id(empty).to_bytes(8, 'little') * (1 << 20), 8 << 20)
lists = []
for n in range(1_000):
    lists.append([None])
    put(id(lists[-1]) + 16, 1 << 20, items)
    put(id(lists[-1]) + 16, 1 << 20)
    put(id(lists[-1]) + 24, items)
wanted = tensors(8)
",
        "",
    ),
    (
        "absurd lengths and addresses",
        r"
found = list_of(tensors(4))
closed = libc.mmap(None, 1 << 20, 0, 0x22, -1, 0)
sparse = libc.mmap(None, 1 << 40, 3, 0x4022, -1, 0)
for n, at in enumerate([0, 1, 8, closed, sparse, 2**64 - 8, 2**63, word(id(found) + 24)]):
    for length in [2**63 - 1, 2**62, -1, 2**64 - 1]:
        one = [None]
        globals()[f'list{n}_{length}'] = one
        put(id(one) + 16, length, at)
        fake = memory(4096)
        put(fake, 1, id(dict), length, 0, at, at)
        globals()[f'other{n}_{length}'] = list_of([fake])
",
        "found[",
    ),
    (
        "cycles",
        r"
found = list_of(tensors(4))
loop = []
loop.append(loop)
ring = {}
for n in range(100_000):
    ring = {'next': ring, 'list': loop}
class Node: pass
node = Node()
node.self = node
deep = []
for n in range(1_000_000):
    deep = [deep]
",
        "found[",
    ),
    (
        "names that control a terminal",
        r"
found = {}
for n, name in enumerate(['\x1b]0;title\x07', '\x9b31m', '\u202e', '\udcff', '\r\n', 'x' * 100_000_000, '\U0010ffff']):
    found[name] = list_of(tensors(1))
globals()['\x1b[31mred'] = list_of(tensors(1))
class Named: pass
named = Named()
setattr(named, '\x1b[2J', list_of(tensors(1)))
class Key: pass
Key.__name__ = '\x1b[31mKey'
named.keys = {Key(): list_of(tensors(1))}
",
        "^[",
    ),
];

/// Returns Python code that lists the address and size of allocated blocks.
fn blocks() -> String {
    let dump = Dump::from_bytes(&fs::read(dump_path()).unwrap());
    let map = Attached::attach(dump.unwrap()).unwrap().map(0).unwrap();
    let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
    let allocated = blocks.filter(|block| block.state == BlockState::Allocated);
    let listed = allocated
        .map(|block| format!("({}, {}), ", block.address, block.requested.unwrap_or(block.size).0));
    format!("BLOCKS = [{}]\n", listed.collect::<String>())
}

struct Reading {
    text: String,
    took: Duration,
    /// Peak of the reader's resident memory.
    resident_kib: u64,
}

impl Reading {
    #[track_caller]
    fn of(target: &PythonTarget) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let text = File::create(&path).unwrap();
        let mut command = gputop(["memory", "--json", &target.pid().0.to_string()]);
        command.stdout(text.try_clone().unwrap()).stderr(text);
        let started = Instant::now();
        let mut child = Guarded(command.spawn().unwrap());
        let mut resident_kib = 0;
        let mut code = None;
        wait_until("the reading", || {
            let status = fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok());
            resident_kib = resident_kib.max(peak.unwrap_or_default());
            code = child.0.try_wait().unwrap();
            code.is_some()
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(code.and_then(|code| code.code()), Some(0), "{text}");
        Self { text, took: started.elapsed(), resident_kib }
    }
}

#[test]
fn readings_are_bounded_and_escaped() {
    let Some(python) = python::all().first() else { return };
    let blocks = blocks();
    for (what, program, name) in PROGRAMS {
        let code = format!("{TOOLS}{blocks}{program}");
        let target = PythonTarget::with(python, &dump_path(), &code);
        // On a busy machine, a reading may end before it has found a name.
        let has_name = (0..5).any(|_| {
            let Reading { text, took, resident_kib } = Reading::of(&target);
            assert!(took < MAX_TIME, "{what}: {took:?}");
            assert!(resident_kib < MAX_RESIDENT_KIB, "{what}: {resident_kib} KiB");
            // JSON would write a raw control character as `\u001b`.
            let is_raw = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.contains(is_raw) && !text.contains("\\u00"), "{what}");
            text.contains(name)
        });
        assert!(has_name, "{what}");
    }
}
