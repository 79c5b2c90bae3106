//! The libraries that contain the allocator.

use gputop_model::Allocator;
use gputop_model::reported_pool::Framework;

use crate::memory::maps::{Mapping, images};

/// A library that contains the allocator, and the classes of its objects.
#[derive(Debug)]
pub struct Library {
    /// Part of the file name.
    file: &'static str,
    /// Mangled names, as in the type_info of each class.
    pub classes: &'static [&'static str],
    pub framework: Framework,
    pub allocator: Allocator,
}

/// The class that allocates from the CUDA driver's pool.
pub const ASYNC_CLASS: &str = "N15stream_executor27GpuCudaMallocAsyncAllocatorE";

const LIBRARIES: &[Library] = &[
    // The wheels jax-cuda12-pjrt and jax-cuda13-pjrt.
    Library {
        file: "xla_cuda_plugin.so",
        classes: &["N3tsl12BFCAllocatorE", ASYNC_CLASS],
        framework: Framework::Jax,
        allocator: Allocator::XlaBfc,
    },
    // The pools of GPUs have the derived class, those of the host the base class.
    Library {
        file: "libtensorflow_framework.so",
        classes: &["N10tensorflow15GPUBFCAllocatorE", "N3tsl12BFCAllocatorE"],
        framework: Framework::Tensorflow,
        allocator: Allocator::TensorflowBfc,
    },
];

/// Returns JAX's library.
#[cfg(test)]
pub fn jax() -> &'static Library {
    &LIBRARIES[0]
}

/// Maximum number of such libraries in one process. Two are rare.
const MAX_IMAGES: usize = 4;

/// Returns the start address of each library in a process.
pub fn loaded(maps: &[Mapping]) -> Vec<(u64, &'static Library)> {
    let of_library = |library: &'static Library| {
        let bases = images(maps, |map| map.file_name().contains(library.file));
        bases.into_iter().map(move |base| (base, library))
    };
    LIBRARIES.iter().flat_map(of_library).take(MAX_IMAGES).collect()
}
