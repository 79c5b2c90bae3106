//! The only ptrace call without a safe wrapper: detaching a thread while delivering any signal, including real-time
//! signals.
//!
//! glibc reserves two real-time signals: 32 to cancel threads, and 33 to change the user ID of all threads. A process
//! that loses one of them hangs.
#![allow(unsafe_code)]

use nix::libc;

/// Detaches from a stopped thread and delivers the given signal to the thread, or none if 0. Ignores errors, because
/// they mean that the thread was killed in the meantime.
pub(super) fn detach(thread: i32, signal: i32) {
    let signal = usize::try_from(signal).unwrap_or_default() as *mut libc::c_void;
    let no_address = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_DETACH takes the address and the data as plain numbers. It does not access memory of this process.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, no_address, signal) };
}
