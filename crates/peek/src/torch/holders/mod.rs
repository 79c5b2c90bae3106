//! Finds the holders of a running process's GPU memory. Each allocated block gets the name of the variable, parameter
//! or graph that keeps it alive.
//!
//! The target process is neither stopped nor written to. Its memory changes during a read, so every step verifies what
//! it reads, and anything that cannot be verified is left out. The blocks come from the allocator, so their sum is
//! always right; only the names may be incomplete.
//!
//! ```text
//! maps ─► cpython/interpreter.rs: _PyRuntime, version ─► tensors.rs: types of tensors
//! heaps ─► scan.rs: words that equal a type or a vtable ─► tensors.rs: tensors, verified by the pointer back
//!                                                       └► arrays.rs: arrays of JAX and CuPy
//! grad_fn ─► autograd.rs: tensors saved for backward
//! sys.modules, frames ─► names: `model.layers.3.weight`
//! allocator ─► assignment.rs: one holder for each allocated block
//! ```
//!
//! Names are the program's private data. They are neither logged nor saved.

mod array_pools;
mod arrays;
mod assignment;
mod autograd;
mod names;
mod scan;
mod tensors;
mod wanted;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use gputop_model::holders::{HolderClass, Holders, MAX_GROUPS, Quality, merge_smallest};
use gputop_model::pool::PoolMap;
use gputop_model::process::ProcessKey;
use gputop_model::units::{Millis, Pid};

use self::array_pools::ArrayPools;
use self::arrays::{Arrays, NotCounted};
use self::assignment::{BlockAssignment, Blocks, HolderCandidate};
use self::autograd::{Autograd, SavedTensor};
use self::names::{NamedPath, Names};
use self::scan::scan;
use self::tensors::{
    Classes, HeldBlock, Tensor, Tensors, Vtables, calibrate, class_family, storages_by_vote,
    vtables,
};
use self::wanted::WantedTensors;
use super::{Attached, DeviceStats, Failure};
use crate::clock::now_mono;
use crate::cpython::interpreter::{Interpreter, NoInterpreter};
use crate::cpython::limits::Options;
use crate::cpython::objects::Python;
use crate::cpython::reader::{AddressMap, Budget, Reader};
use crate::memory::heap_pages::PresentPages;
use crate::memory::live::Live;
use crate::memory::maps::Mapping;
use crate::memory::{Memory, MemoryError};
use crate::process::stat::{is_running, start_time};

/// Percentages of the time limit after which the heap scan, the search for names, and their rendering stop.
const SCAN_PERCENT: u32 = 60;
const NAMES_PERCENT: u32 = 90;
const PATHS_PERCENT: u32 = 95;
/// Percentage of the time limit for the search for the pools of JAX and CuPy.
const POOLS_PERCENT: u32 = 25;
/// The names and paths of tensors may use this fraction of the memory limit: a quarter. A path of 60 references with long
/// names needs 10 KB.
const NAMES_SHARE: usize = 4;
/// Maximum number of threads that scan the heaps. The scan copies all heaps, which takes 0.3 ms of one CPU for each MiB.
const MAX_SCAN_THREADS: usize = 4;
/// Module and name of the classes of arrays. The module of jaxlib has another name since JAX 0.6.
const ARRAY_CLASSES: &[(&str, &str)] =
    &[("jaxlib._jax", "ArrayImpl"), ("jaxlib.xla_extension", "ArrayImpl"), ("cupy", "ndarray")];
/// Libraries with their own malloc, whose allocations lack the headers of glibc's malloc.
const OTHER_MALLOCS: &[&str] = &["libjemalloc", "libtcmalloc", "libmimalloc", "libhoard"];

/// Reads the holders of a running process's GPU memory once.
///
/// # Errors
/// Fails if neither an allocator nor an array can be read, or if `cancelled` becomes true. Everything else that cannot be read is
/// described by [`Holders::limit`].
pub fn read_process(
    proc_root: &Path,
    pid: Pid,
    options: &Options,
    cancelled: &AtomicBool,
) -> Result<Holders, Failure> {
    let at = now_mono();
    let read = || read_live(proc_root, pid, options, cancelled);
    let (process, holders) = of_one_process(proc_root, pid, read)?;
    Ok(Holders { process, at, ..holders })
}

/// Returns the result of `read` and the process that it belongs to. Fails if the PID was reused in the meantime.
fn of_one_process<T>(
    proc_root: &Path,
    pid: Pid,
    read: impl FnOnce() -> Result<T, Failure>,
) -> Result<(ProcessKey, T), Failure> {
    let start = start_time(proc_root, pid);
    let result = read()?;
    let process = start.map(|start| ProcessKey { pid, start }).ok();
    let running = process.filter(|process| is_running(proc_root, *process));
    running.map(|process| (process, result)).ok_or(Failure::Memory(MemoryError::Gone))
}

fn read_live(
    proc_root: &Path,
    pid: Pid,
    options: &Options,
    cancelled: &AtomicBool,
) -> Result<Holders, Failure> {
    let started = Instant::now();
    let mut attached = match Attached::open(proc_root, pid) {
        Ok(attached) if attached.is_forked_copy(proc_root, pid) => return Err(Failure::Forked),
        Ok(attached) => Some(attached),
        Err(failure) => without_allocator(failure)?,
    };
    let live = Live::new(proc_root, pid);
    let array_pools = ArrayPools::find(&live, options.time_limit * POOLS_PERCENT / 100);
    if attached.is_none() && array_pools.are_forked_copies(proc_root, pid) {
        return Err(Failure::Forked);
    }
    let target = Target {
        memory: &live,
        heaps: &live,
        present: PresentPages::open(proc_root, pid),
        is_cached: true,
        scan_threads: thread::available_parallelism().map_or(1, usize::from).min(MAX_SCAN_THREADS),
    };
    let clock = || started.elapsed();
    let budget = Budget::new(options, &clock, cancelled);
    read_target(attached.as_mut(), array_pools, &target, &budget)
}

/// Returns the failure to find PyTorch's allocator, unless the process may have arrays without one.
fn without_allocator<T>(failure: Failure) -> Result<Option<T>, Failure> {
    match failure {
        Failure::NotTorch | Failure::NotInitialised => Ok(None),
        failure => Err(failure),
    }
}

/// Reads holders from recorded memory, for tests: `heaps` is scanned, and all other reads use `memory` without a cache.
/// `clock` returns the time since the start.
pub fn read_recorded(
    memory: &dyn Memory,
    heaps: &(dyn Memory + Sync),
    options: &Options,
    clock: &dyn Fn() -> Duration,
    cancelled: &AtomicBool,
) -> Result<Holders, Failure> {
    let present = PresentPages::all();
    let target = Target { memory, heaps, present, is_cached: false, scan_threads: 1 };
    let budget = Budget::new(options, clock, cancelled);
    let mut attached = Attached::attach(memory).map(Some).or_else(without_allocator)?;
    read_target(attached.as_mut(), ArrayPools::default(), &target, &budget)
}

/// Memory of the target process: `heaps` is used for the scan, and `memory` for all other reads.
struct Target<'a> {
    memory: &'a dyn Memory,
    heaps: &'a (dyn Memory + Sync),
    present: PresentPages,
    is_cached: bool,
    scan_threads: usize,
}

/// The blocks of PyTorch on all devices at one instant, with the allocator statistics for the same instant.
#[derive(Default)]
struct AllocatedBlocks {
    maps: Vec<PoolMap>,
    stats: Vec<DeviceStats>,
}

impl AllocatedBlocks {
    fn read(attached: Option<&mut Attached<impl Memory>>) -> Result<Self, Failure> {
        let Some(attached) = attached else { return Ok(Self::default()) };
        let used = attached.stats_of_all()?;
        let used = used.iter().filter(|stats| stats.reserved_bytes.all.current > 0);
        let ordinals: Vec<u32> = used.map(|stats| stats.ordinal).collect();
        let mut pools = Self { maps: Vec::new(), stats: Vec::new() };
        for ordinal in ordinals {
            let (map, stats) = attached.map_and_stats(ordinal)?;
            pools.maps.push(map);
            pools.stats.push(stats);
        }
        Ok(pools)
    }

    fn addresses(&self) -> BTreeSet<u64> {
        let blocks =
            self.maps.iter().flat_map(|map| &map.segments).flat_map(|segment| &segment.blocks);
        blocks.map(|block| block.address).collect()
    }
}

fn read_target(
    mut attached: Option<&mut Attached<impl Memory>>,
    mut array_pools: ArrayPools,
    target: &Target<'_>,
    budget: &Budget<'_>,
) -> Result<Holders, Failure> {
    let before = AllocatedBlocks::read(attached.as_deref_mut())?;
    let maps = target.memory.maps()?;
    let cache = if target.is_cached { budget.options.memory_limit * 3 / 8 } else { 0 };
    let reader = Reader::new(target.memory, &maps, cache, budget);
    let classes = Classes::new(&reader);
    let scanned = scan_heaps(target, &reader, &maps);
    let has_glibc_malloc = has_glibc_malloc(&maps);
    let python = scanned.interpreter.as_ref().map(|found| Python::new(&reader, found.layout));
    let tensors = python
        .as_ref()
        .and_then(|python| PythonTensors::decode(&scanned, &classes, python, has_glibc_malloc));
    let has_arrays = tensors.as_ref().is_some_and(|tensors| !tensors.arrays.is_empty());
    if attached.is_none() && !has_arrays {
        return Err(Failure::NoHolders);
    }
    if let Some(why) = array_pools.failure.as_ref().filter(|_| has_arrays) {
        budget.limits.add(format!("Pool memory outside arrays is not listed: {why}."));
    }
    // Include a tensor only if it has the same storage before and after the blocks are read. If the storage differs,
    // the memory now belongs to a different tensor.
    let pools = AllocatedBlocks::read(attached.as_deref_mut())?;
    reader.forget();
    let tensors = tensors.map(PythonTensors::verified);
    let in_use = array_pools.in_use(target.memory);
    let mut arrays = tensors.as_ref().map_or_else(Vec::new, PythonTensors::array_blocks);
    array_pools::correct_ordinal(&in_use, &mut arrays);
    let mut assignment = BlockAssignment::new(Blocks::new(&pools.maps, &arrays));
    if let Some(tensors) = &tensors {
        tensors.assign_python(has_glibc_malloc, &mut assignment);
    }
    match tensors.as_ref().filter(|tensors| tensors.tensors.layout.is_some()) {
        Some(tensors) => assign_cpp(&scanned, &tensors.tensors, &mut assignment),
        None => assign_storages(&scanned, &classes, &mut assignment),
    }
    if budget.is_cancelled() {
        return Err(Failure::Cancelled);
    }
    let after = attached.map_or(Ok(Vec::new()), Attached::stats)?;
    reader.forget();
    let is_exact = array_pools.in_use(target.memory) == in_use
        && tensors.is_none_or(|tensors| tensors.has_unchanged_arrays())
        && pools.maps.iter().all(|map| map.exact)
        && pools.stats == before.stats
        && pools.stats.iter().all(|stats| after.contains(stats));
    let addresses = before.addresses();
    // If the scan was incomplete, do not classify any block as a workspace, because a tensor that the scan missed may
    // use the block.
    let is_workspace = |address| !scanned.is_incomplete && addresses.contains(&address);
    let (mut groups, mut allocated) = assignment.into_groups(is_workspace);
    for rest in array_pools::rest(&in_use, &arrays, &budget.limits) {
        allocated.0 = allocated.0.saturating_add(rest.bytes.0);
        groups.push(rest);
    }
    Ok(Holders {
        took: Millis(u64::try_from(budget.elapsed().as_millis()).unwrap_or(u64::MAX)),
        allocated,
        quality: if is_exact { Quality::Exact } else { Quality::Approximate },
        limit: budget.limits.text(),
        is_incomplete: budget.limits.is_incomplete(),
        groups: merge_smallest(groups, MAX_GROUPS),
        ..Holders::default()
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WordMeaning {
    TensorType,
    ArrayType,
    StorageVtable,
    ImplVtable,
}

/// Possible tensors and storages found by the heap scan.
#[derive(Debug, Default)]
struct HeapCandidates {
    interpreter: Option<Interpreter>,
    /// Addresses of Python objects whose type is a tensor type.
    objects: Vec<u64>,
    /// Addresses of Python objects whose type is a class of arrays.
    arrays: Vec<u64>,
    storages: Vec<u64>,
    implementations: Vec<u64>,
    /// True if the scan stopped before the end of the heaps.
    is_incomplete: bool,
}

fn scan_heaps(target: &Target<'_>, reader: &Reader<'_>, maps: &[Mapping]) -> HeapCandidates {
    let (budget, limits) = (reader.budget, &reader.budget.limits);
    let mut wanted: AddressMap<WordMeaning> = AddressMap::default();
    let Vtables { storages, implementations } = vtables(reader, maps);
    wanted.extend(storages.into_iter().map(|at| (at, WordMeaning::StorageVtable)));
    wanted.extend(implementations.into_iter().map(|at| (at, WordMeaning::ImplVtable)));
    // Only the sizes of C++ objects on x86_64 are known.
    let located = Interpreter::locate(reader, maps).and_then(|interpreter| {
        interpreter.is_x86_64.then_some(interpreter).ok_or(NoInterpreter::UnknownMachine)
    });
    let interpreter = match located {
        Ok(interpreter) => Some(interpreter),
        Err(why) => {
            limits.add(format!("Variable names are not available: {why}."));
            None
        }
    };
    if let Some(interpreter) = &interpreter {
        let python = Python::new(reader, interpreter.layout);
        for class in ARRAY_CLASSES {
            let types = class_family(&python, interpreter, *class);
            wanted.extend(types.into_iter().map(|at| (at, WordMeaning::ArrayType)));
        }
        let has_arrays = wanted.values().any(|meaning| *meaning == WordMeaning::ArrayType);
        let types = class_family(&python, interpreter, ("torch", "Tensor"));
        if types.is_empty() && !has_arrays {
            limits.add(
                "Variable names are not available: torch.Tensor was not found in the interpreter.",
            );
        }
        wanted.extend(types.into_iter().map(|at| (at, WordMeaning::TensorType)));
    }
    let (present, threads) = (&target.present, target.scan_threads);
    let hits = scan(target.heaps, maps, present, &wanted, budget, SCAN_PERCENT, threads);
    if hits.is_incomplete {
        let limit = if hits.found.len() >= budget.options.maximums.candidates {
            "maximum number of candidates"
        } else {
            "time limit"
        };
        limits.add_end(format!(
            "The {limit} ended the search for tensors, so some tensors are missing."
        ));
    }
    let mut scanned = HeapCandidates {
        interpreter,
        is_incomplete: hits.is_incomplete,
        ..HeapCandidates::default()
    };
    for (address, meaning) in hits.found {
        match meaning {
            // The second word of a Python object is its type.
            WordMeaning::TensorType => scanned.objects.extend(address.checked_sub(8)),
            WordMeaning::ArrayType => scanned.arrays.extend(address.checked_sub(8)),
            WordMeaning::StorageVtable => scanned.storages.push(address),
            WordMeaning::ImplVtable => scanned.implementations.push(address),
        }
    }
    scanned.objects.sort_unstable();
    scanned.arrays.sort_unstable();
    scanned
}

/// Returns true if the program uses glibc's malloc, which stores the size in front of each allocation.
fn has_glibc_malloc(maps: &[Mapping]) -> bool {
    !maps.iter().any(|map| {
        let name = map.file_name();
        OTHER_MALLOCS.iter().any(|malloc| name.starts_with(malloc))
    })
}

/// Assigns the blocks to tensor storages if the program's tensors cannot be read.
fn assign_storages(
    scanned: &HeapCandidates,
    classes: &Classes<'_>,
    assignment: &mut BlockAssignment,
) {
    let is_block = |address| assignment.blocks().index_of(address).is_some();
    for storage in storages_by_vote(classes, &scanned.storages, is_block) {
        assignment.add(cpp_candidate(Tensor::of_storage(&storage)));
    }
    if !scanned.objects.is_empty() {
        let limits = &classes.reader.budget.limits;
        limits
            .add("Variable names are not available: this build of PyTorch has an unknown layout.");
    }
}

struct PythonTensors<'a> {
    tensors: Tensors<'a>,
    python: &'a Python<'a>,
    interpreter: &'a Interpreter,
    /// Tensors with a Python object, and arrays.
    objects: Vec<Tensor>,
    /// Blocks of each array, by the address of its Python object.
    arrays: AddressMap<Vec<HeldBlock>>,
    /// Gradients and saved tensors, by TensorImpl address.
    others: AddressMap<Tensor>,
    /// Address of each saved TensorImpl, and of the Python tensor whose graph reached the TensorImpl first.
    graph_roots: Vec<(u64, u64)>,
}

impl<'a> PythonTensors<'a> {
    /// Decodes the candidates found by the scan. Returns `None` if the layout of tensors could not be determined, and
    /// there are no arrays.
    fn decode(
        scanned: &'a HeapCandidates,
        classes: &'a Classes<'a>,
        python: &'a Python<'a>,
        has_glibc_malloc: bool,
    ) -> Option<Self> {
        let interpreter = scanned.interpreter.as_ref()?;
        let layout = calibrate(classes, &scanned.objects);
        let tensors = Tensors { arrays: Arrays::new(python, classes), classes, layout };
        let mut objects: Vec<Tensor> = Vec::new();
        let budget = classes.reader.budget;
        let max = budget.options.maximums.tensors;
        for &object in &scanned.objects {
            if objects.len() >= max {
                budget.limits.add_end(format!("Only {max} tensors were read."));
                break;
            }
            if let Some(mut tensor) = tensors.of_object(object) {
                let class = python.type_of(object);
                tensor.is_parameter = class.is_some_and(|class| class.name == "Parameter");
                objects.push(tensor);
            }
        }
        let arrays = decode_arrays(&scanned.arrays, &tensors.arrays, budget, &mut objects);
        if layout.is_none() && arrays.is_empty() {
            return None;
        }
        let mut tensors = Self {
            tensors,
            python,
            interpreter,
            objects,
            arrays,
            others: AddressMap::default(),
            graph_roots: Vec::new(),
        };
        let mut others: Vec<u64> = tensors.objects.iter().map(|tensor| tensor.gradient).collect();
        if has_glibc_malloc {
            let (saved, _) = tensors.walk(&tensors.roots());
            others.extend(saved.iter().map(|saved| saved.implementation));
            let root =
                |saved: &SavedTensor| tensors.objects.get(saved.root).map(|root| root.object);
            let graph_roots =
                saved.iter().filter_map(|saved| Some((saved.implementation, root(saved)?)));
            tensors.graph_roots = graph_roots.collect();
        }
        for implementation in others {
            if !tensors.others.contains_key(&implementation)
                && let Some(tensor) = tensors.tensors.of_impl(implementation)
            {
                tensors.others.insert(implementation, tensor);
            }
        }
        Some(tensors)
    }

    /// Removes tensors that no longer exist or now have another storage.
    fn verified(mut self) -> Self {
        let tensors = &self.tensors;
        let is_same =
            |tensor: &Tensor, now: Option<Tensor>| now.is_some_and(|now| now.is_same(tensor));
        self.objects.retain(|tensor| is_same(tensor, tensors.of_object(tensor.object)));
        self.others.retain(|&at, tensor| is_same(tensor, tensors.of_impl(at)));
        self
    }

    /// Returns the blocks of the arrays, each once. Several arrays may have the same block.
    fn array_blocks(&self) -> Vec<HeldBlock> {
        let arrays = self.objects.iter().filter_map(|tensor| self.arrays.get(&tensor.object));
        let blocks = arrays.flatten().filter(|block| block.bytes > 0);
        let blocks: BTreeMap<u64, HeldBlock> =
            blocks.map(|block| (block.address, *block)).collect();
        blocks.into_values().collect()
    }

    /// Returns true if the arrays that were found first still exist.
    fn has_unchanged_arrays(&self) -> bool {
        let is_array = |tensor: &&Tensor| self.arrays.contains_key(&tensor.object);
        let arrays = self.objects.iter().filter(is_array);
        let now = |tensor: &Tensor| self.tensors.of_object(tensor.object);
        let is_same = |tensor: &&Tensor| now(tensor).is_some_and(|now| now.is_same(tensor));
        arrays.filter(is_same).count() == self.arrays.len()
    }

    /// Makes an object a candidate for the holder of its memory. An array may have a block on each GPU.
    fn assign(&self, candidate: HolderCandidate, assignment: &mut BlockAssignment) {
        let Some(blocks) = self.arrays.get(&candidate.tensor.object) else {
            return assignment.add(candidate);
        };
        for block in blocks {
            let tensor = Tensor { data: block.address, ..candidate.tensor.clone() };
            assignment.add(HolderCandidate { tensor, ..candidate.clone() });
        }
    }

    fn roots(&self) -> Vec<usize> {
        let indices = 0..self.objects.len();
        indices.filter(|&index| self.objects[index].grad_fn != 0).collect()
    }

    fn walk(&self, order: &[usize]) -> (Vec<SavedTensor>, bool) {
        let roots = order.iter().map(|&index| (index, &self.objects[index]));
        Autograd::walk(self.tensors.classes, self.python, roots)
    }

    fn assign_python(&self, has_glibc_malloc: bool, assignment: &mut BlockAssignment) {
        let budget = self.tensors.classes.reader.budget;
        let limits = &budget.limits;
        let names = self.search(assignment);
        self.tensors.classes.reader.forget();
        self.assign_named(&names, assignment);
        let mut roots = self.roots();
        if has_glibc_malloc {
            // Start the walk at the tensors with the best names, so that each node gets the best name that reaches it.
            roots.sort_by_key(|&index| names[index].as_ref().map_or(u32::MAX, |path| path.cost));
            let (saved, is_complete) = self.walk(&roots);
            if !is_complete {
                limits.add_end(
                    "Some tensors saved by autograd are not attributed: the graphs are too large.",
                );
            }
            self.assign_saved(&saved, &names, assignment);
        } else if !roots.is_empty() {
            limits.add(
                "Tensors saved by autograd are not attributed: the program does not use glibc malloc.",
            );
        }
        // Report that the time limit was exceeded. From then on, all reads fail, including those that check the tensors
        // already named.
        if budget.is_beyond(100) {
            limits.add_end("The time limit stopped the read, so some names are missing.");
        }
        for tensor in &self.objects {
            let is_array = self.arrays.contains_key(&tensor.object);
            let unnamed = HolderCandidate {
                class: if is_array { HolderClass::UnnamedArray } else { HolderClass::Unnamed },
                tensor: tensor.clone(),
                ..HolderCandidate::default()
            };
            self.assign(unnamed, assignment);
        }
    }

    /// Searches for the names of all tensors, except intermediate results that only the graph keeps alive.
    fn search(&self, assignment: &BlockAssignment) -> Vec<Option<NamedPath>> {
        let reader = self.tensors.classes.reader;
        let (budget, blocks) = (reader.budget, assignment.blocks());
        let graphs = self.graph_bytes(blocks);
        let mut wanted = WantedTensors::default();
        for tensor in &self.objects {
            let bytes = blocks.size_at(tensor.data);
            let is_intermediate =
                self.others.contains_key(&tensor.implementation) && !tensor.is_parameter;
            if (bytes.is_some() || tensor.grad_fn != 0) && !is_intermediate {
                let graph_bytes = graphs.get(&tensor.object).copied().unwrap_or(0);
                wanted.insert(tensor, bytes.unwrap_or(0), graph_bytes);
            }
        }
        let max_bytes = budget.options.memory_limit * 3 / 8;
        let mut names = Names::new(self.python, &self.tensors, max_bytes);
        // Bypass the cache, which would return tensors that the program has freed since they were cached.
        let uncached = reader.uncached();
        let classes = Classes::new(&uncached);
        let python = Python::new(&uncached, self.python.layout);
        let arrays = Arrays::new(&python, &classes);
        let current = Tensors { arrays, classes: &classes, layout: self.tensors.layout };
        let is_alive = |tensor: &Tensor| {
            let now = current.of_object(tensor.object);
            now.is_some_and(|now| now.is_same(tensor))
        };
        let limit = names.search(self.interpreter, &mut wanted, is_alive, NAMES_PERCENT);
        if let Some(limit) = limit {
            let count = wanted.len();
            budget.limits.add_end(format!(
                "The {limit} limit ended the search for names: {count} tensors remain unnamed."
            ));
        }
        self.paths(&names, blocks)
    }

    /// Returns the names that were found, for the largest blocks first until they exceed the memory limit.
    fn paths(&self, names: &Names<'_>, blocks: &Blocks) -> Vec<Option<NamedPath>> {
        let budget = self.tensors.classes.reader.budget;
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        order.sort_by_key(|&index| Reverse(blocks.size_at(self.objects[index].data)));
        let mut paths = vec![None; self.objects.len()];
        let mut memory = 0;
        for (done, index) in order.into_iter().enumerate() {
            if budget.is_beyond(PATHS_PERCENT) {
                break;
            }
            if memory > budget.options.memory_limit / NAMES_SHARE {
                let count = self.objects.len() - done;
                budget.limits.add_end(format!(
                    "The memory limit ended the search for names: {count} tensors remain unnamed."
                ));
                break;
            }
            let path = names.path_of(self.objects[index].object);
            memory += path.as_ref().map_or(0, NamedPath::memory);
            paths[index] = path;
        }
        paths
    }

    /// Returns the bytes that each tensor's graph keeps alive, by tensor address. Bytes shared by several graphs are
    /// counted only for the first one.
    fn graph_bytes(&self, blocks: &Blocks) -> AddressMap<u64> {
        let mut graphs: AddressMap<u64> = AddressMap::default();
        let mut counted: AddressMap<()> = AddressMap::default();
        for (implementation, root) in &self.graph_roots {
            if let Some(tensor) = self.others.get(implementation)
                && let Some(bytes) = blocks.size_at(tensor.data)
                && counted.insert(tensor.data, ()).is_none()
            {
                *graphs.entry(*root).or_default() += bytes;
            }
        }
        graphs
    }

    fn assign_named(&self, names: &[Option<NamedPath>], assignment: &mut BlockAssignment) {
        for (tensor, path) in self.objects.iter().zip(names) {
            let Some(path) = path else { continue };
            // Read the tensor again: the search takes a long time, so another tensor may now be at the same address.
            let now = self.tensors.of_object(tensor.object);
            if !now.is_some_and(|now| now.is_same(tensor)) {
                continue;
            }
            let named = HolderCandidate {
                class: path.class,
                name: path.name.clone(),
                path: path.path.clone(),
                cost: path.cost,
                tensor: tensor.clone(),
                aliases: path.aliases.clone(),
            };
            self.assign(named, assignment);
            // Name the gradient here, because a gradient gets a Python object only when Python code accesses it.
            if let Some(gradient) = self.others.get(&tensor.gradient) {
                let mut steps = path.path.clone();
                steps.push(".grad".to_owned());
                assignment.add(HolderCandidate {
                    class: HolderClass::Gradient,
                    name: format!("{}.grad", path.name),
                    path: steps,
                    cost: path.cost,
                    tensor: gradient.clone(),
                    aliases: Vec::new(),
                });
            }
        }
    }

    fn assign_saved(
        &self,
        saved: &[SavedTensor],
        names: &[Option<NamedPath>],
        assignment: &mut BlockAssignment,
    ) {
        let max_memory = self.tensors.classes.reader.budget.options.memory_limit / NAMES_SHARE;
        let mut memory = 0;
        for SavedTensor { implementation, node, root } in saved {
            let Some(tensor) = self.others.get(implementation).cloned() else { continue };
            // Each of them has a copy of the root's path.
            let root = names.get(*root).and_then(Option::as_ref).filter(|_| memory < max_memory);
            memory += root.map_or(0, NamedPath::memory);
            let mut path = root.map(|root| root.path.clone()).unwrap_or_default();
            path.push(format!("saved by {node}"));
            assignment.add(HolderCandidate {
                class: HolderClass::SavedForBackward,
                name: root.map(|root| root.name.clone()).unwrap_or_default(),
                path,
                cost: root.map_or(u32::MAX, |root| root.cost),
                tensor,
                aliases: Vec::new(),
            });
        }
    }
}

/// Decodes the candidates for arrays, and adds them to `objects`. Returns the blocks of each.
fn decode_arrays(
    candidates: &[u64],
    decoder: &Arrays<'_>,
    budget: &Budget<'_>,
    objects: &mut Vec<Tensor>,
) -> AddressMap<Vec<HeldBlock>> {
    let max = budget.options.maximums.tensors;
    let mut arrays = AddressMap::default();
    let mut not_counted: BTreeMap<NotCounted, usize> = BTreeMap::new();
    let mut blocks = objects.len();
    for &object in candidates {
        if blocks >= max {
            budget.limits.add_end(format!("Only {max} tensors were read."));
            break;
        }
        if budget.is_beyond(NAMES_PERCENT) {
            budget.limits.add_end("The time limit ended the reading of arrays.");
            break;
        }
        match decoder.read(object) {
            Some(Ok(array)) => {
                blocks += array.blocks.len().max(1);
                objects.push(array.tensor);
                arrays.insert(object, array.blocks);
            }
            Some(Err(why)) => *not_counted.entry(why).or_default() += 1,
            None => {}
        }
    }
    for (why, count) in not_counted {
        let are = if count == 1 { "array is" } else { "arrays are" };
        if let Some(reason) = why.reason() {
            budget.limits.add(format!("{count} {are} not listed: {reason}."));
        }
    }
    arrays
}

fn cpp_candidate(tensor: Tensor) -> HolderCandidate {
    HolderCandidate { class: HolderClass::CppStorage, tensor, ..HolderCandidate::default() }
}

/// Assigns the remaining blocks to tensors and storages without a Python object.
fn assign_cpp(scanned: &HeapCandidates, tensors: &Tensors<'_>, assignment: &mut BlockAssignment) {
    for &implementation in &scanned.implementations {
        if let Some(tensor) = tensors.of_impl(implementation)
            && tensor.data != 0
            && !assignment.is_assigned(tensor.data)
        {
            assignment.add(cpp_candidate(tensor));
        }
    }
    for &storage in &scanned.storages {
        if let Some(storage) = tensors.storage(storage)
            && !assignment.is_assigned(storage.data)
        {
            assignment.add(cpp_candidate(Tensor::of_storage(&storage)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_reading_during_which_the_pid_is_reused_is_of_no_process() {
        let root = tempfile::tempdir().expect("a folder");
        let own = fs::read_to_string("/proc/self/stat").expect("a stat file");
        let (name, values) = own.rsplit_once(") ").expect("a name");
        let start_at = |start: u64| {
            let mut values: Vec<&str> = values.split(' ').collect();
            let start = start.to_string();
            values[19] = &start;
            let folder = root.path().join("7");
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("stat"), format!("{name}) {}", values.join(" "))).expect("saved");
        };
        start_at(100);
        let read = |next| {
            of_one_process(root.path(), Pid(7), || {
                start_at(next);
                Ok(())
            })
        };
        assert_eq!(read(100), Ok((ProcessKey::new(7, 100), ())));
        assert_eq!(read(200), Err(Failure::Memory(MemoryError::Gone)));
    }
}
