//! Programs that have loaded CUDA's driver, as gputop sees it: a shell with the fake driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::fake_machine::Guarded;

/// Returns the path of the fake driver that cargo built beside gputop.
pub fn library() -> PathBuf {
    let gputop = Path::new(env!("CARGO_BIN_EXE_gputop"));
    let library = gputop.with_file_name("examples/libfake_cuda.so");
    assert!(
        library.exists(),
        "{} is not there: `cargo test` builds it, `cargo test --test it` does not; \
         run `cargo build --example fake_cuda` once",
        library.display()
    );
    library
}

/// Copies the fake driver under the name of the real one.
pub fn driver_in(folder: &Path) -> PathBuf {
    let driver = folder.join("libcuda.so.1");
    fs::copy(library(), &driver).unwrap();
    driver
}

/// Starts a shell script with a pipe as its standard input. `say` changes the command: its environment, its output.
pub fn shell(script: &str, args: &[&str], say: impl FnOnce(&mut Command)) -> Guarded {
    let mut command = Command::new("sh");
    command.args(["-c", script]).args(args).stdin(Stdio::piped()).stdout(Stdio::null());
    say(&mut command);
    Guarded(command.spawn().unwrap())
}
