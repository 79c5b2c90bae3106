//! State of the process before Rust's runtime changes it: closed standard streams and an ignored SIGPIPE.
//!
//! The runtime opens `/dev/null` in place of a closed standard stream before `main`
//! (library/std/src/sys/pal/unix/mod.rs, `sanitize_standard_fds`), so `gputop once >&-` would succeed and print nothing.
//! It also ignores SIGPIPE (`reset_sigpipe`). The command of `gputop run` must inherit the original state. Only code that
//! runs before the runtime can read that state. `CHECK` is in a linker section whose functions the loader calls before
//! the runtime starts.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// One flag for each standard stream: true if it was closed.
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls the functions in these sections once, before `main`. This function makes a few system calls
// and stores flags.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static CHECK: extern "C" fn() = {
    extern "C" fn check() {
        for (fd, is_closed) in (0..).zip(&IS_CLOSED) {
            // SAFETY: fcntl with F_GETFD takes and returns integers.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            is_closed.store(flags == -1, Ordering::SeqCst);
        }
        // SAFETY: all zeros is a valid `sigaction`, which the call overwrites if it succeeds.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action);
            action.sa_sigaction
        };
        IGNORES_SIGPIPE.store(action == libc::SIG_IGN, Ordering::SeqCst);
    }
    check
};

pub(super) fn is_stdout_closed() -> bool {
    IS_CLOSED[1].load(Ordering::SeqCst)
}

/// Returns the descriptor numbers of the standard streams that were closed.
#[cfg(local)]
pub(super) fn closed_streams() -> Vec<libc::c_int> {
    let all = (0..).zip(&IS_CLOSED);
    all.filter(|(_, is_closed)| is_closed.load(Ordering::SeqCst)).map(|(fd, _)| fd).collect()
}

#[cfg(local)]
pub(super) fn ignores_sigpipe() -> bool {
    IGNORES_SIGPIPE.load(Ordering::SeqCst)
}
