//! The command that reaches a node of a Slurm job.

use std::process::Command;

use crate::open_files::restore_in;

/// A Slurm node that is reached through a job step. The step sees only the job's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub job: String,
    pub node: String,
}

impl Step {
    /// Returns a command that runs the shell command `remote` in the job without allocating resources.
    pub(super) fn command(&self, remote: &str) -> Command {
        let mut command = Command::new("srun");
        // Run a single task outside MPI, not bound to a core.
        command.args(["--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--cpu-bind=none"]);
        command.args([format!("--jobid={}", self.job), format!("--nodelist={}", self.node)]);
        command.args(["sh", "-c", remote]);
        restore_in(&mut command);
        command
    }
}
