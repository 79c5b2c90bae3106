//! Signal actions of the dashboard: restores the terminal when a signal kills gputop, and stops gputop on Ctrl-Z.
//!
//! A signal handler is needed, because no ordinary Rust code runs after a signal such as an abort (out of memory, a
//! double panic), a fault (a stack overflow), or one sent by `kill -USR1`. The signal handler makes only calls allowed
//! by signal-safety(7): `write` of a constant, `tcsetattr` with saved terminal modes, `sigaction` and `raise`.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, raise, sigaction};
use nix::unistd::Pid;

/// One more than the largest number of a signal, including real-time signals.
const SIGNALS: usize = 65;

/// Signals that do not terminate the process by default, that cannot be caught, or that the event loop handles. Every
/// other signal terminates the process by default, including all real-time signals.
const NOT_FATAL: &[libc::c_int] = &[
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGTERM,
    #[cfg(target_os = "macos")]
    libc::SIGINFO,
    #[cfg(target_os = "macos")]
    libc::SIGIO,
];

/// Faults, which recur if the signal handler returns.
const FAULTS: [libc::c_int; 4] = [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV];

/// The same escape sequences that `terminal::restore` writes: mouse reports off, synchronized update off, main screen,
/// cursor visible.
const RESTORE: &[u8] = b"\x1b[?1006l\x1b[?1000l\x1b[?2026l\x1b[?1049l\x1b[?25h";

/// Terminal modes saved while the dashboard owns the screen, or null at other times.
static MODES: AtomicPtr<libc::termios> = AtomicPtr::new(ptr::null_mut());

/// Previous signal actions, by signal number. For SIGSEGV and SIGBUS these include the standard library's handlers,
/// which report a stack overflow.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

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
        for (signal, before) in (0..).zip(&BEFORE).skip(1) {
            if !NOT_FATAL.contains(&signal) {
                install(signal, before);
            }
        }
    });
}

/// Discards the saved modes after the terminal is restored.
pub(super) fn disarm() {
    MODES.store(ptr::null_mut(), Ordering::SeqCst);
}

/// Installs the signal handler, unless the signal is ignored. The C library rejects the numbers that it uses itself.
fn install(signal: libc::c_int, before: &AtomicPtr<libc::sigaction>) {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = restore;
    // SAFETY: all zeros is a valid `sigaction`; the relevant fields are set below, and the pointers refer to local
    // values or are null.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        // Use the standard library's alternate stack, because the thread's own stack may have overflowed.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut old: libc::sigaction = std::mem::zeroed();
        let is_read = libc::sigaction(signal, ptr::null(), &raw mut old) == 0;
        if is_read && old.sa_sigaction != libc::SIG_IGN {
            before.store(Box::into_raw(Box::new(old)), Ordering::SeqCst);
            libc::sigaction(signal, &raw const action, ptr::null_mut());
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
    let before = usize::try_from(signal).ok().and_then(|signal| BEFORE.get(signal));
    let before = before.map_or(ptr::null_mut(), |before| before.load(Ordering::SeqCst));
    // SAFETY: the kernel passes a valid `info`; `before` is null, or was written once and is never freed; all zeros is a
    // `sigaction` with the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        // Let a fault recur when this handler returns, which invokes the previous handler. Other signals do not recur
        // and must be raised again.
        let is_fault = FAULTS.contains(&signal) && !info.is_null() && (*info).si_code > 0;
        let next =
            if is_fault && !before.is_null() { before.cast_const() } else { &raw const default };
        libc::sigaction(signal, next, ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

/// The processes that [`stop`] stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopTarget {
    /// gputop only, after a SIGTSTP that the sender may have sent to others too.
    Process,
    /// gputop's process group, as for Ctrl-Z in a program that leaves this key to the kernel. Otherwise a script that
    /// waits for gputop would keep its shell from noticing the stop.
    Group,
}

/// Returns true if gputop was started with SIGTSTP ignored. Must be called before a handler is installed.
pub(super) fn ignores_stops() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid `sigaction`, which the call overwrites if it succeeds.
    unsafe {
        libc::sigaction(libc::SIGTSTP, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Stops until a shell continues gputop. Returns immediately if no shell could do that (`ssh -t HOST gputop`), because
/// the kernel then ignores SIGTSTP. It would not ignore SIGSTOP.
pub(super) fn stop(target: StopTarget) -> nix::Result<()> {
    let action = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the first two actions run no code of gputop, and the last one was in place before.
    unsafe {
        // Ignored here, because a signal to the group may stop gputop late. `raise` stops it before it returns.
        let before = sigaction(Signal::SIGTSTP, &action(SigHandler::SigIgn))?;
        if target == StopTarget::Group {
            let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        }
        sigaction(Signal::SIGTSTP, &action(SigHandler::SigDfl))?;
        let _ = raise(Signal::SIGTSTP);
        sigaction(Signal::SIGTSTP, &before)?;
    }
    Ok(())
}
