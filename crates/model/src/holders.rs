//! The holders of a process's GPU memory: the bytes that its PyTorch allocators have allocated, and those of the arrays of
//! JAX and CuPy, grouped by the name of the tensor or array that holds them.
//!
//! One reading scans the process once while it runs. Every allocated block is counted in exactly one group, so the
//! groups of a reading add up to [`Holders::allocated`]. Tensor names are private data of the program. They are shown
//! to its user, and stored only at the user's request.

pub mod estimate;
pub mod growth;
pub mod purpose;
mod recorded;
pub mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::units::{Bytes, Millis, Mono};

/// Time between two readings of a process's memory holders, on a screen and in a recording.
pub const READING_INTERVAL: Millis = Millis(30_000);
/// Maximum number of tensors listed per group of memory holders.
pub const MAX_LISTED: usize = 64;
/// Maximum number of groups. The smallest groups beyond the limit are merged into one group per class.
pub const MAX_GROUPS: usize = 2_048;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holders {
    pub process: ProcessKey,
    pub at: Mono,
    pub took: Millis,
    /// The sum of all groups: bytes allocated by PyTorch's allocators of all devices, and bytes of the arrays of JAX and
    /// CuPy.
    pub allocated: Bytes,
    pub quality: Quality,
    /// Sentence that says which data could not be read, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// True if the reading is incomplete because a limit was reached, so that it cannot be compared with other
    /// readings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_incomplete: bool,
    /// Groups of memory holders, largest first.
    pub groups: Vec<HolderGroup>,
}

/// Whether the tensors and blocks in a reading are known to match. They may differ if memory changed during the
/// reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// The allocator's statistics did not change while the holders were being read.
    Exact,
    /// The program allocated or freed memory while the holders were being read.
    #[default]
    #[serde(other)]
    Approximate,
}

/// Allocator blocks of the same class whose names differ only in numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderGroup {
    /// Device index as seen by the process.
    pub ordinal: u32,
    pub class: HolderClass,
    /// Tensor name with `*` in place of indices: `model.layers.*.attn.q.weight`. Empty if the blocks have no name.
    pub name: String,
    pub count: u64,
    pub bytes: Bytes,
    /// The largest tensors in the group, at most [`MAX_LISTED`].
    pub tensors: Vec<HeldTensor>,
}

crate::named! {
    /// Use of an allocated memory block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HolderClass {
        Parameter = "parameters", "parameter",
        Gradient = "gradients", "gradient",
        OptimizerState = "optimizer state", "optimizer",
        /// A module buffer, such as the running mean of a batch norm layer.
        Buffer = "module buffers", "buffer",
        /// A tensor saved by autograd for the backward pass. It is named after the tensor that keeps the graph alive.
        SavedForBackward = "saved by autograd", "autograd",
        /// A tensor referenced by a Python variable, container or attribute.
        Variable = "variables", "variable",
        /// A tensor object that cannot be reached from any root, so its name is unknown.
        Unnamed = "tensors without a name", "unnamed",
        /// An array of JAX or CuPy that cannot be reached from any root.
        UnnamedArray = "arrays without a name", "unnamed",
        /// Tensor storage not owned by any Python object, such as the weights of a TorchScript module.
        CppStorage = "C++ tensors", "C++",
        /// A block without a tensor in a private pool of CUDA graphs.
        GraphPool = "CUDA graphs", "CUDA graph",
        /// A block that is not a tensor, such as a cuBLAS workspace.
        Workspace = "blocks without a tensor", "no tensor",
        /// What a pool of JAX or CuPy has in use for something else than an array, such as a compiled program. The number of
        /// blocks is not known.
        OutsideArrays = "pool memory outside arrays", "no array",
        #[default]
        #[serde(other)]
        Unknown = "other", "other",
    }
    /// Returns the class name for sentences and legends, in the plural where one exists.
    fn name;
    /// Returns the class name for a narrow column, at most ten characters.
    fn short_name;
}

/// A tensor, or a memory block without a tensor.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldTensor {
    /// Complete tensor name: `model.layers.3.attn.q.weight`.
    pub name: String,
    pub bytes: Bytes,
    /// Device address of the memory block. For an array of JAX, the address of its buffer object in the program.
    pub address: u64,
    /// Data type name, such as `bfloat16`. Empty if the block is not a tensor.
    pub dtype: String,
    pub shape: Vec<u64>,
    /// True if the tensor covers only part of its storage.
    pub is_view: bool,
    /// References from a root to the tensor, root first: `__main__`, `.trainer`, `.history`, `[12]`.
    pub path: Vec<String>,
    /// Other names for the same storage, as with tied weights.
    pub aliases: Vec<String>,
}

impl Holders {
    /// Returns the allocated bytes per class, largest first.
    pub fn classes(&self) -> Vec<(HolderClass, Bytes)> {
        let mut classes: Vec<(HolderClass, Bytes)> = Vec::new();
        for group in &self.groups {
            match classes.iter_mut().find(|(class, _)| *class == group.class) {
                Some((_, bytes)) => bytes.0 = bytes.0.saturating_add(group.bytes.0),
                None => classes.push((group.class, group.bytes)),
            }
        }
        classes.sort_unstable_by_key(|(class, bytes)| (std::cmp::Reverse(*bytes), *class));
        classes
    }

    pub fn percent(&self, bytes: Bytes) -> f64 {
        match self.allocated.0 {
            0 => 0.0,
            all => bytes.0 as f64 * 100.0 / all as f64,
        }
    }

    /// Returns the tensor at a block address, and its group. Returns `None` if the tensor is not listed, such as a
    /// small tensor in a large group.
    pub fn owner(&self, ordinal: u32, block: u64) -> Option<(&HolderGroup, &HeldTensor)> {
        let groups = self.groups.iter().filter(|group| group.ordinal == ordinal);
        groups
            .flat_map(|group| group.tensors.iter().map(move |tensor| (group, tensor)))
            .find(|(_, tensor)| tensor.address == block)
    }

    /// Removes tensors until the list takes at most `max_bytes`, or only the largest tensor of each group is left.
    /// Tensors of small groups are removed first.
    pub fn limit_tensors(&mut self, max_bytes: usize) {
        let first = |group: &HolderGroup| group.tensors.first().map_or(0, HeldTensor::memory);
        let mut used: usize = self.groups.iter().map(first).sum();
        for group in &mut self.groups {
            let mut kept = group.tensors.len().min(1);
            for tensor in group.tensors.iter().skip(1) {
                used += tensor.memory();
                if used > max_bytes {
                    break;
                }
                kept += 1;
            }
            group.tensors.truncate(kept);
        }
    }
}

/// Sorts groups by size. If there are more than `max`, merges the smallest ones into one group per device and class.
pub fn merge_smallest(mut groups: Vec<HolderGroup>, max: usize) -> Vec<HolderGroup> {
    let by_size = |a: &HolderGroup, b: &HolderGroup| {
        b.bytes.cmp(&a.bytes).then_with(|| (a.class, &a.name).cmp(&(b.class, &b.name)))
    };
    groups.sort_by(by_size);
    if groups.len() <= max {
        return groups;
    }
    let classes: BTreeSet<(u32, HolderClass)> =
        groups.iter().map(|group| (group.ordinal, group.class)).collect();
    let rest = groups.split_off(max.saturating_sub(classes.len()));
    let mut joined: BTreeMap<(u32, HolderClass), HolderGroup> = BTreeMap::new();
    for group in rest {
        let into = joined.entry((group.ordinal, group.class)).or_insert_with(|| HolderGroup {
            ordinal: group.ordinal,
            class: group.class,
            ..HolderGroup::default()
        });
        into.count = into.count.saturating_add(group.count);
        into.bytes.0 = into.bytes.0.saturating_add(group.bytes.0);
        into.tensors.extend(group.tensors);
        keep_largest(&mut into.tensors);
    }
    groups.extend(joined.into_values());
    groups.sort_by(by_size);
    groups
}

/// Sorts tensors by size, and removes the smallest ones beyond [`MAX_LISTED`].
pub fn keep_largest(tensors: &mut Vec<HeldTensor>) {
    tensors.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    tensors.truncate(MAX_LISTED);
}

/// Parts of the names of data types in which weights are stored after quantization.
const QUANTIZED_TYPES: &[&str] = &["int", "float8", "float4"];

impl HolderGroup {
    pub fn key(&self) -> GroupKey {
        GroupKey { ordinal: self.ordinal, class: self.class, name: self.name.clone() }
    }

    /// Returns the purpose that the names or types of the tensors indicate, such as `KV cache`. Weights of a type that
    /// cannot be trained are quantized.
    fn purpose(&self) -> Option<&'static str> {
        let is_small =
            |tensor: &HeldTensor| QUANTIZED_TYPES.iter().any(|t| tensor.dtype.contains(t));
        let is_quantized =
            self.class == HolderClass::Parameter && self.tensors.first().is_some_and(is_small);
        purpose::purpose(&self.name).or(is_quantized.then_some(purpose::QUANTIZED))
    }

    /// Returns the group's class, and its purpose if one is known: `variables, KV cache`.
    pub fn class_words(&self) -> String {
        match self.purpose() {
            Some(purpose) => format!("{}, {purpose}", self.class.name()),
            None => self.class.name().into(),
        }
    }

    /// Returns the value that all listed tensors have in common, or `None` if their values differ.
    pub fn common<T: PartialEq>(&self, value: impl Fn(&HeldTensor) -> T) -> Option<T> {
        let first = value(self.tensors.first()?);
        self.tensors.iter().skip(1).all(|tensor| value(tensor) == first).then_some(first)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupKey {
    pub ordinal: u32,
    pub class: HolderClass,
    pub name: String,
}

impl HeldTensor {
    /// Returns the approximate memory taken by the tensor's list entry.
    fn memory(&self) -> usize {
        let texts = self.path.iter().chain(&self.aliases);
        let texts = texts.map(|text| size_of::<String>() + text.len());
        size_of::<Self>()
            + self.name.len()
            + self.dtype.len()
            + self.shape.len() * size_of::<u64>()
            + texts.sum::<usize>()
    }

    /// Returns the tensor's shape as `4096x1024`, or an empty string for a block without a tensor.
    pub fn shape_text(&self) -> String {
        if self.shape.is_empty() {
            let scalar = if self.dtype.is_empty() { "" } else { "scalar" };
            return scalar.into();
        }
        self.shape.iter().map(u64::to_string).collect::<Vec<String>>().join("x")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(address: u64, path: usize) -> HeldTensor {
        HeldTensor { address, path: vec!["x".repeat(100); path], ..HeldTensor::default() }
    }

    #[test]
    fn weights_of_a_type_that_cannot_be_trained_are_quantized() {
        for (class, dtype, words) in [
            (HolderClass::Parameter, "uint8", "parameters, quantized tensor"),
            (HolderClass::Parameter, "float8_e4m3fn", "parameters, quantized tensor"),
            (HolderClass::Parameter, "bfloat16", "parameters"),
            (HolderClass::Variable, "int64", "variables"),
        ] {
            let tensor = HeldTensor { dtype: dtype.into(), ..HeldTensor::default() };
            let group = HolderGroup { class, tensors: vec![tensor], ..HolderGroup::default() };
            assert_eq!(group.class_words(), words, "{dtype}");
        }
    }

    #[test]
    fn limiting_the_list_keeps_the_largest_tensor_of_each_group() {
        let group = |first| HolderGroup {
            tensors: (first..first + 10).map(|at| tensor(at, 5)).collect(),
            ..HolderGroup::default()
        };
        let whole = Holders { groups: vec![group(100), group(200)], ..Holders::default() };
        let counts = |max_bytes| {
            let mut holders = whole.clone();
            holders.limit_tensors(max_bytes);
            let counts = holders.groups.iter().map(|group| group.tensors.len());
            (counts.collect::<Vec<_>>(), holders)
        };
        assert_eq!(counts(usize::MAX / 2).0, [10, 10]);
        let one = tensor(0, 5).memory();
        let (kept, holders) = counts(one * 5);
        assert_eq!(kept, [4, 1]);
        assert_eq!(holders.owner(0, 200).map(|(_, tensor)| tensor.address), Some(200));
        assert_eq!(holders.owner(1, 200), None);
        assert_eq!(counts(0).0, [1, 1]);
    }

    #[test]
    fn classes_add_up_and_come_largest_first() {
        let group =
            |class, bytes| HolderGroup { class, bytes: Bytes(bytes), ..HolderGroup::default() };
        let holders = Holders {
            allocated: Bytes(200),
            groups: vec![
                group(HolderClass::Parameter, 60),
                group(HolderClass::Variable, 50),
                group(HolderClass::Variable, 90),
            ],
            ..Holders::default()
        };
        let expected = [(HolderClass::Variable, Bytes(140)), (HolderClass::Parameter, Bytes(60))];
        assert_eq!(holders.classes(), expected);
        assert_eq!(holders.percent(Bytes(140)), 70.0);
        assert_eq!(Holders::default().percent(Bytes(1)), 0.0);
    }
}
