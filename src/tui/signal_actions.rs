//! Restores the terminal when a fatal signal kills gputop: an abort (out of memory, a double panic), a fault (a stack
//! overflow), or `kill`. A signal handler is needed, because no ordinary Rust code runs after such a signal.
//!
//! The signal handler makes only calls allowed by signal-safety(7): `write` of a constant, `tcsetattr` with saved
//! terminal modes, `sigaction` and `raise`.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;

/// Signals whose default action terminates the process with a core dump.
const FATAL: [libc::c_int; 8] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGQUIT,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// The same escape sequences that `terminal::restore` writes: mouse reports off, synchronized update off, main screen,
/// cursor visible.
const RESTORE: &[u8] = b"\x1b[?1006l\x1b[?1000l\x1b[?2026l\x1b[?1049l\x1b[?25h";

/// Terminal modes saved while the dashboard owns the screen, or null at other times.
static MODES: AtomicPtr<libc::termios> = AtomicPtr::new(ptr::null_mut());

/// Previous signal actions, in the order of [`FATAL`]. For SIGSEGV and SIGBUS these include the standard library's
/// handlers, which report a stack overflow.
static BEFORE: [AtomicPtr<libc::sigaction>; FATAL.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FATAL.len()];

/// Saves the terminal modes, so that a fatal signal can restore them. Must be called before raw mode is entered.
pub(super) fn arm() {
    static INSTALLED: Once = Once::new();
    // SAFETY: Rust's runtime reopens standard output before `main` if it is closed, and gputop never closes it.
    let stdout = unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) };
    if let Ok(modes) = nix::sys::termios::tcgetattr(stdout) {
        // Leak the previous copy of the modes, because a handler may be reading it. This leaks one copy per suspension.
        let modes = Box::into_raw(Box::new(libc::termios::from(modes)));
        MODES.store(modes, Ordering::SeqCst);
    }
    INSTALLED.call_once(|| {
        for (signal, before) in FATAL.into_iter().zip(&BEFORE) {
            install(signal, before);
        }
    });
}

/// Discards the saved modes after the terminal is restored.
pub(super) fn disarm() {
    MODES.store(ptr::null_mut(), Ordering::SeqCst);
}

fn install(signal: libc::c_int, before: &AtomicPtr<libc::sigaction>) {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = restore;
    // SAFETY: all zeros is a valid `sigaction`; the relevant fields are set below, and both pointers refer to local values.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        // Use the standard library's alternate stack, because the thread's own stack may have overflowed.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, &raw const action, &raw mut old) == 0 {
            before.store(Box::into_raw(Box::new(old)), Ordering::SeqCst);
        }
    }
}

extern "C" fn restore(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    let modes = MODES.swap(ptr::null_mut(), Ordering::SeqCst);
    if !modes.is_null() {
        // SAFETY: the bytes are a constant; the modes were written once, before the pointer was stored, and are never
        // freed.
        unsafe {
            libc::write(libc::STDOUT_FILENO, RESTORE.as_ptr().cast(), RESTORE.len());
            libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSANOW, modes);
        }
    }
    let at = FATAL.iter().position(|fatal| *fatal == signal);
    let before = at.map_or(ptr::null_mut(), |at| BEFORE[at].load(Ordering::SeqCst));
    // SAFETY: the kernel passes a valid `info`; `before` is null, or was written once and is never freed; all zeros is a
    // `sigaction` with the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        // Let a fault recur when this handler returns, which invokes the previous handler. A signal from `kill` does
        // not recur and must be raised again.
        let is_fault = !info.is_null() && (*info).si_code > 0;
        let next = match is_fault && !before.is_null() {
            true => before.cast_const(),
            false => &raw const default,
        };
        libc::sigaction(signal, next, ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}
