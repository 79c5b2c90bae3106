//! Why a file under /proc could not be read, told so that the user can act on it.
//!
//! With `hidepid` on the mount of /proc, another user's process looks as if it did not exist; without it the same
//! error means that the process has ended. The mount options tell the two apart.

use std::cell::OnceCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::model::reading::{Missing, Reason};

pub struct Access {
    proc_root: PathBuf,
    /// Asked at the first failure only: a host full of containers has thousands of mounts.
    hidepid: OnceCell<Option<Hidepid>>,
}

/// How /proc hides the processes of other users.
#[derive(Debug, Clone, PartialEq)]
struct Hidepid {
    /// As the mount option spells it: `2`, `invisible`.
    level: String,
    /// The group that may see all the same.
    group: Option<String>,
}

impl Access {
    pub fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            hidepid: OnceCell::new(),
        }
    }

    /// `what` is a noun phrase: `the environment`.
    pub fn missing(&self, what: &str, error: &io::Error) -> Missing {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EACCES | Errno::EPERM) => self.denied(what),
            Some(Errno::ENOENT | Errno::ESRCH) => self.absent(),
            Some(Errno::EMFILE | Errno::ENFILE) => Missing::new(
                Reason::Unknown,
                "too many open files in gputop: raise `ulimit -n`",
            ),
            _ if error.kind() == io::ErrorKind::PermissionDenied => self.denied(what),
            _ if error.kind() == io::ErrorKind::NotFound => self.absent(),
            _ => Missing::new(
                Reason::Unknown,
                format!("{what} could not be read: {error}"),
            ),
        }
    }

    fn denied(&self, what: &str) -> Missing {
        match self.hidepid() {
            Some(hidepid) => Missing::new(Reason::Denied, hidepid.hint()),
            None => Missing::new(
                Reason::Denied,
                format!("{what} can be read by the process's own user and by root"),
            ),
        }
    }

    fn absent(&self) -> Missing {
        match self.hidepid() {
            Some(hidepid) => Missing::new(Reason::Denied, hidepid.hint()),
            None => Missing::new(Reason::Gone, "the process has ended"),
        }
    }

    fn hidepid(&self) -> Option<&Hidepid> {
        self.hidepid
            .get_or_init(|| {
                let mounts = fs::read_to_string(self.proc_root.join("self/mounts")).ok()?;
                Hidepid::of_mounts(&mounts)
            })
            .as_ref()
    }
}

impl Hidepid {
    /// Of /proc itself; when it is mounted twice, the last one is what is seen.
    fn of_mounts(mounts: &str) -> Option<Self> {
        let options = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                let is_proc = fields.next() == Some("/proc") && fields.next() == Some("proc");
                is_proc.then(|| fields.next()).flatten()
            })
            .next_back()?;
        let option = |name: &str| {
            options
                .split(',')
                .find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
        };
        let level = option("hidepid").filter(|level| !matches!(*level, "0" | "off"))?;
        Some(Self {
            level: level.to_owned(),
            group: option("gid").map(str::to_owned),
        })
    }

    fn hint(&self) -> String {
        let level = &self.level;
        let hidden =
            format!("/proc is mounted with hidepid={level}, which hides other users' processes");
        match &self.group {
            Some(gid) => format!("{hidden}: seen by root and by members of group {gid}"),
            None => format!("{hidden}: seen by root"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(mounts: &str) -> (tempfile::TempDir, Access) {
        let root = tempfile::tempdir().expect("tempdir");
        fs::create_dir(root.path().join("self")).expect("self");
        fs::write(root.path().join("self/mounts"), mounts).expect("mounts");
        let access = Access::new(root.path());
        (root, access)
    }

    fn told(access: &Access, errno: Errno) -> (Reason, String) {
        let missing = access.missing("the environment", &io::Error::from(errno));
        (missing.reason, missing.to_string())
    }

    #[test]
    fn a_hidden_process_is_not_taken_for_one_that_ended() {
        let (_root, plain) = access("proc /proc proc rw,nosuid 0 0\n");
        assert_eq!(
            told(&plain, Errno::ENOENT),
            (Reason::Gone, "the process has ended".into())
        );
        assert_eq!(
            told(&plain, Errno::EACCES),
            (
                Reason::Denied,
                "the environment can be read by the process's own user and by root".into()
            )
        );

        let (_root, hiding) = access("proc /proc proc rw,hidepid=invisible,gid=26 0 0\n");
        let hint = "/proc is mounted with hidepid=invisible, which hides other users' processes: \
                    seen by root and by members of group 26";
        assert_eq!(told(&hiding, Errno::ENOENT), (Reason::Denied, hint.into()));
        assert_eq!(told(&hiding, Errno::EPERM), (Reason::Denied, hint.into()));
    }

    #[test]
    fn the_last_mount_over_proc_counts() {
        let remounted = "proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(Hidepid::of_mounts(remounted), None);
        assert_eq!(
            Hidepid::of_mounts("proc /jail/proc proc rw,hidepid=2 0 0\n"),
            None
        );
        assert_eq!(
            Hidepid::of_mounts("proc /proc proc rw,hidepid=0 0 0\n"),
            None
        );
        assert!(Hidepid::of_mounts("proc /proc proc rw,hidepid=2 0 0\n").is_some());
    }
}
