//! Allow-list of environment variables that help diagnose a GPU program and contain no secrets.

use super::free_text::text;
use super::{name, value};
use crate::process::Variable;
use crate::text::visible;

const MAX_NAME_CHARS: usize = 256;
const MAX_VALUE_CHARS: usize = 4096;

/// Prefixes of variables whose values are shown.
#[rustfmt::skip]
const PREFIXES: &[&str] = &[
    "ACCELERATE_", "CUBLAS_", "CUBLASLT_", "CUDA_", "CUDNN_", "DEEPSPEED_", "FI_", "FSDP_", "GLOO_", "GOMP_",
    "HIP_", "HSA_", "JAX_", "KMP_", "MKL_", "NCCL_", "NUMBA_", "NVIDIA_", "NVSHMEM_", "NVTE_", "OMP_",
    "OMPI_COMM_WORLD_", "OPENBLAS_", "PYTORCH_", "ROCR_", "SLURM_CPUS_", "SLURM_GPUS", "SLURM_JOB",
    "SLURM_MEM_", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_", "TF_", "TORCH", "TRITON_",
    "UCX_", "VLLM_", "XLA_",
];

/// Variables whose values are shown.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "CONDA_DEFAULT_ENV", "CONDA_PREFIX", "GROUP_RANK", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "LSB_JOBID", "MASTER_ADDR", "MASTER_PORT", "MALLOC_CONF", "NODE_RANK", "PATH",
    "PBS_JOBID", "PYTHONPATH", "RANK", "SLURM_LOCALID", "SLURM_PROCID", "TOKENIZERS_PARALLELISM",
    "VIRTUAL_ENV", "WORLD_SIZE",
];

/// Prefixes of Terraform variables: `TF_TOKEN_app_terraform_io`. Like TensorFlow variables, they begin with `TF_`, but
/// they may contain secrets.
const SECRET_PREFIXES: &[&str] = &["TF_TOKEN_", "TF_VAR_"];

/// Returns a variable for display. The value is omitted unless the name is on the allow-list and not sensitive. Shown
/// values are redacted.
pub fn variable(variable: &[u8], value: &[u8]) -> Variable {
    let shown = is_allowed(variable) && !value::hides(name::sensitivity(variable), value);
    Variable {
        name: visible(variable, MAX_NAME_CHARS),
        value: shown.then(|| visible(&text(value), MAX_VALUE_CHARS)),
    }
}

fn is_allowed(name: &[u8]) -> bool {
    let begins =
        |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    (begins(PREFIXES) && !begins(SECRET_PREFIXES))
        || NAMES.iter().any(|allowed| name == allowed.as_bytes())
}
