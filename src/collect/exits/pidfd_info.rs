//! The one system call of this folder that no crate wraps: what a pidfd tells of a process that has ended.
//!
//! `ioctl(pidfd, PIDFD_GET_INFO, &info)` exists since Linux 6.13 and tells the wait status (`PIDFD_INFO_EXIT`) since
//! 6.15, to whoever holds the descriptor, once the parent has collected the process (`include/uapi/linux/pidfd.h`,
//! `fs/pidfs.c`). Measured on 6.18: a zombie's mask comes back without the bit; from the moment of POLLHUP it is
//! there, for another user's process too.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// `struct pidfd_info` in its first published size, which every later kernel takes: 64 bytes.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

const EXIT: u64 = 1 << 3;

nix::ioctl_readwrite!(get_info, 0xff, 11, PidfdInfo);

/// The wait status, as `waitpid(2)` gives it to the parent; none while it is not collected yet, and from kernels that
/// do not tell.
pub fn wait_status(pidfd: impl AsFd) -> Option<i32> {
    let mut info = PidfdInfo {
        mask: EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most the 64 bytes that the
    // request number names, all of them plain integers.
    unsafe { get_info(pidfd.as_fd().as_raw_fd(), &raw mut info) }.ok()?;
    (info.mask & EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_is_as_large_as_the_kernel_takes_it_for() {
        assert_eq!(size_of::<PidfdInfo>(), 64);
    }
}
