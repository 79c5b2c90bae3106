//! The ranks of groups as `torch.distributed` has them in Python: torch before 2.4 has them nowhere else.
//!
//! ```text
//! sys.modules["torch.distributed.distributed_c10d"]
//!   ._pg_names        {group: "1"}
//!   ._pg_group_ranks  {group: {rank in the job: rank in the group}}
//! ```

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::cpython::interpreter::Interpreter;
use crate::cpython::limits::Options;
use crate::cpython::objects::Python;
use crate::cpython::reader::{Budget, Reader};
use crate::memory::Memory;
use crate::memory::maps::Mapping;

const MODULE: &str = "torch.distributed.distributed_c10d";
/// Offset of the dictionary in a module.
const MODULE_DICT: u64 = 16;
const MAX_INTERPRETERS: usize = 4;
const TIME_LIMIT: Duration = Duration::from_millis(200);
const MAX_CACHED_BYTES: usize = 4 << 20;

/// Ranks in the job of the ranks of each group, by the name of the group. Empty if they cannot be read.
pub fn members_by_name(memory: &dyn Memory, maps: &[Mapping]) -> HashMap<String, Vec<u32>> {
    let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
    let clock = || start.elapsed();
    let options = Options { time_limit: TIME_LIMIT, ..Options::default() };
    let budget = Budget::new(&options, &clock, &cancelled);
    let reader = Reader::new(memory, maps, MAX_CACHED_BYTES, &budget);
    let Ok(interpreter) = Interpreter::locate(&reader, maps) else { return HashMap::new() };
    let python = Python::new(&reader, interpreter.layout);
    let (states, _) = python.interpreters(interpreter.head, MAX_INTERPRETERS);
    let found = states.into_iter().find_map(|state| {
        let modules = reader.pointer(state.wrapping_add(interpreter.layout.modules))?;
        let module = python.value_of(modules, MODULE)?;
        read_module(&python, reader.pointer(module.wrapping_add(MODULE_DICT))?)
    });
    found.unwrap_or_default()
}

fn read_module(python: &Python<'_>, module: u64) -> Option<HashMap<String, Vec<u32>>> {
    let names = entries(python, python.value_of(module, "_pg_names")?)?;
    let ranks = entries(python, python.value_of(module, "_pg_group_ranks")?)?;
    let ranks: HashMap<u64, u64> = ranks.into_iter().collect();
    let members = |(group, name): (u64, u64)| {
        let members = members(python, *ranks.get(&group)?)?;
        Some((python.text(name)?.to_string(), members))
    };
    Some(names.into_iter().filter_map(members).collect())
}

/// Returns the ranks in the job in the order of the ranks in the group, which must be 0, 1, 2 and so on.
fn members(python: &Python<'_>, dict: u64) -> Option<Vec<u32>> {
    let entries = entries(python, dict)?.into_iter();
    let rank = |object| u32::try_from(python.int(object)?).ok();
    let mut ranks: Vec<(u32, u32)> = entries
        .map(|(member, in_group)| Some((rank(in_group)?, rank(member)?)))
        .collect::<Option<_>>()?;
    ranks.sort_unstable();
    let is_whole = (0..).zip(&ranks).all(|(expected, (in_group, _))| expected == *in_group);
    is_whole.then(|| ranks.into_iter().map(|(_, member)| member).collect())
}

fn entries(python: &Python<'_>, dict: u64) -> Option<Vec<(u64, u64)>> {
    let mut entries = Vec::new();
    python.dict_entries(dict, &mut |key, value| {
        entries.push((key, value));
        true
    })?;
    Some(entries)
}
