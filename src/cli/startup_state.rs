//! Detects whether standard output was closed when gputop started (`gputop once >&-`).
//!
//! Rust's runtime opens `/dev/null` in place of a closed standard stream before `main`
//! (library/std/src/sys/pal/unix/mod.rs, `sanitize_standard_fds`), so printing would succeed and print nothing. Only
//! code that runs before the runtime can detect this. `CHECK` is in a linker section whose functions the loader calls
//! before the runtime starts.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls the functions in these sections once, before `main`. This function makes one system call and
// stores one flag.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static CHECK: extern "C" fn() = {
    extern "C" fn check() {
        // SAFETY: fcntl with F_GETFD takes and returns integers.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        IS_CLOSED.store(flags == -1, Ordering::SeqCst);
    }
    check
};

pub(super) fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::SeqCst)
}
