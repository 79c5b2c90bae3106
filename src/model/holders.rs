//! Who holds the GPU memory of a process: the allocated bytes of its PyTorch allocators, by the name of the tensor that
//! holds them.
//!
//! One look reads the process once, while it runs. Every allocated block is counted in exactly one group, so the groups
//! of a look add up to [`Holders::allocated`]. Names are private data of the program. They are shown to its user, and
//! stored only if the user has asked for that.

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::units::{Bytes, Millis, Mono};

/// Maximum number of tensors listed in one group.
pub const MAX_LISTED: usize = 64;
/// Maximum number of groups. The smallest beyond it are joined into one group of their class.
pub const MAX_GROUPS: usize = 2_048;

/// The result of one look at a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holders {
    pub process: ProcessKey,
    pub at: Mono,
    /// Duration of the look.
    pub took: Millis,
    /// Bytes that the allocators of all devices have allocated: the sum of all groups.
    pub allocated: Bytes,
    pub quality: Quality,
    /// A sentence that says what could not be read, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Largest first.
    pub groups: Vec<HolderGroup>,
}

/// How far the tensors and the blocks of a look agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// The statistics of the allocator did not change during the look.
    Exact,
    /// The program allocated or freed memory during the look.
    #[default]
    #[serde(other)]
    Approximate,
}

/// Blocks with the same class and the same name, apart from numbers in it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderGroup {
    /// Device number inside the process.
    pub ordinal: u32,
    pub class: HolderClass,
    /// Name with `*` in place of indices: `model.layers.*.attn.q.weight`. Empty if the blocks have no name.
    pub name: String,
    /// Number of blocks.
    pub count: u64,
    pub bytes: Bytes,
    /// The largest tensors of the group, at most [`MAX_LISTED`].
    pub tensors: Vec<HeldTensor>,
}

/// What a block is used for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum HolderClass {
    Parameter,
    Gradient,
    OptimizerState,
    /// A buffer of a module, such as the running mean of a batch norm.
    Buffer,
    /// Saved by autograd for the backward pass. The name is that of the tensor that keeps the graph.
    SavedForBackward,
    /// A tensor that a Python variable, container or attribute refers to.
    Variable,
    /// A tensor object without a path from a root.
    Unnamed,
    /// The storage of a tensor that no Python object owns, such as the weights of a TorchScript module.
    CppStorage,
    /// A block in a private pool of CUDA graphs without a tensor.
    GraphPool,
    /// A block that is not a tensor, such as the workspace of cuBLAS.
    Workspace,
    /// A class of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One tensor, or one block without a tensor.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldTensor {
    /// Complete name: `model.layers.3.attn.q.weight`.
    pub name: String,
    /// Bytes of the block.
    pub bytes: Bytes,
    /// Address of the block on the device.
    pub address: u64,
    /// PyTorch's name of the type, such as `bfloat16`; empty if the block is not a tensor.
    pub dtype: String,
    pub shape: Vec<u64>,
    /// True if the tensor shows only a part of its storage.
    pub is_view: bool,
    /// References from a root to the tensor, root first: `__main__`, `.trainer`, `.history`, `[12]`.
    pub path: Vec<String>,
    /// Other names of the same storage, such as those of tied weights.
    pub aliases: Vec<String>,
}
