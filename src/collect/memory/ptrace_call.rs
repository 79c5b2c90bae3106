//! The one call of ptrace that has no safe wrapper: letting a thread go with any signal, also a real-time one.
//!
//! glibc uses two of those for itself (32 and 33, to cancel threads and to change the user of all of them); a process
//! that loses one hangs.
#![allow(unsafe_code)]

use nix::libc;

/// Lets go of a thread that stands, which then takes this signal; 0 is none. One that was killed meanwhile needs none.
pub(super) fn detach(thread: i32, signal: i32) {
    let signal = usize::try_from(signal).unwrap_or_default() as *mut libc::c_void;
    let nowhere = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_DETACH takes the address and the data as plain numbers and reads or writes no memory of ours.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, nowhere, signal) };
}
