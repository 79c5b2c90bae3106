//! Whether standard output was closed when gputop was started (`gputop once >&-`).
//!
//! Rust's runtime opens `/dev/null` in the place of a closed standard stream before `main` (library/std/src/sys/pal/unix/mod.rs,
//! `sanitize_standard_fds`), so printing would succeed and print nothing. Only code that runs before the runtime can tell; the
//! loader calls what is listed in the section below.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the sections are those of functions that the loader calls once, before `main`, and this is such a function: it makes
// one system call and stores one flag.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: it takes and returns numbers.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        IS_CLOSED.store(flags == -1, Ordering::SeqCst);
    }
    look
};

pub(super) fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::SeqCst)
}
