//! Explains why a file in /proc cannot be read, and what the user can do about it.
//!
//! If /proc is mounted with `hidepid`, another user's process appears not to exist. Without `hidepid`, the same error
//! means that the process has exited. The mount options distinguish the two cases.

use std::cell::OnceCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gputop_model::{Missing, Pid, ProcessKey, Reason};
use nix::errno::Errno;

use super::stat;

pub struct Access {
    proc_root: PathBuf,
    /// The `hidepid` mount option of /proc. It is read only on the first failure, because a host with many containers
    /// has thousands of mounts.
    hidepid: OnceCell<Option<Hidepid>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Hidepid {
    /// Value of the `hidepid` mount option, such as `2` or `invisible`.
    level: String,
    /// Group whose members can see all processes despite `hidepid`.
    group: Option<String>,
}

impl Access {
    pub fn new(proc_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned(), hidepid: OnceCell::new() }
    }

    /// Converts an I/O error to the reason why `what` is missing. `what` is a noun phrase, such as `the environment`.
    pub fn missing(&self, what: &str, error: &io::Error) -> Missing {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EACCES | Errno::EPERM) => self.denied(what),
            Some(Errno::ENOENT | Errno::ESRCH) => self.absent(),
            Some(Errno::EMFILE | Errno::ENFILE) => {
                Missing::new(Reason::Unknown, "gputop has too many open files: raise `ulimit -n`")
            }
            _ if error.kind() == io::ErrorKind::PermissionDenied => self.denied(what),
            _ if error.kind() == io::ErrorKind::NotFound => self.absent(),
            _ => Missing::new(Reason::Unknown, format!("cannot read {what}: {error}")),
        }
    }

    /// Returns an error if the PID no longer belongs to the process `key`. In that case, data read before this check
    /// may belong to another process.
    pub fn check(&self, key: ProcessKey, what: &str) -> Result<(), Missing> {
        match stat::start_time(&self.proc_root, key.pid) {
            Ok(start) if start == key.start => Ok(()),
            Ok(_) => Err(Missing::new(Reason::Gone, "the process has exited")),
            Err(error) => Err(self.missing(what, &error)),
        }
    }

    fn denied(&self, what: &str) -> Missing {
        match self.hidepid() {
            Some(hidepid) => Missing::new(Reason::Denied, hidepid.hint()),
            None => Missing::new(
                Reason::Denied,
                format!("only the process's user and root can read {what}"),
            ),
        }
    }

    fn absent(&self) -> Missing {
        match self.hidepid() {
            Some(hidepid) => Missing::new(Reason::Denied, hidepid.hint()),
            None => Missing::new(Reason::Gone, "the process has exited"),
        }
    }

    /// Returns the reason why this user cannot see the processes of others, if so.
    pub fn hides_others(&self) -> Option<String> {
        let is_hidden = stat::start_time(&self.proc_root, Pid(1)).is_err();
        self.hidepid().filter(|_| is_hidden).map(Hidepid::hint)
    }

    fn hidepid(&self) -> Option<&Hidepid> {
        self.hidepid
            .get_or_init(|| {
                let mounts = fs::read(self.proc_root.join("self/mounts")).ok()?;
                Hidepid::from_mounts(&String::from_utf8_lossy(&mounts))
            })
            .as_ref()
    }
}

impl Hidepid {
    /// Parses the `hidepid` option of /proc. If /proc is mounted several times, the last mount is the visible one.
    fn from_mounts(mounts: &str) -> Option<Self> {
        let options = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                let is_proc = fields.next() == Some("/proc") && fields.next() == Some("proc");
                is_proc.then(|| fields.next()).flatten()
            })
            .next_back()?;
        let option =
            |name: &str| options.split(',').find_map(|o| o.strip_prefix(name)?.strip_prefix('='));
        let level = option("hidepid").filter(|level| !matches!(*level, "0" | "off"))?;
        Some(Self { level: level.to_owned(), group: option("gid").map(str::to_owned) })
    }

    fn hint(&self) -> String {
        let level = &self.level;
        let cause =
            format!("/proc is mounted with hidepid={level}, which hides other users' processes");
        match &self.group {
            Some(gid) => format!("{cause}. Run as root or as a member of group {gid}"),
            None => format!("{cause}. Run as root"),
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

    fn missing_of(access: &Access, errno: Errno) -> (Reason, String) {
        let missing = access.missing("the environment", &io::Error::from(errno));
        (missing.reason, missing.to_string())
    }

    #[test]
    fn distinguishes_hidden_process_from_exited_one() {
        let (_root, plain) = access("proc /proc proc rw,nosuid 0 0\n");
        assert_eq!(
            missing_of(&plain, Errno::ENOENT),
            (Reason::Gone, "the process has exited".into())
        );
        assert_eq!(
            missing_of(&plain, Errno::EACCES),
            (Reason::Denied, "only the process's user and root can read the environment".into())
        );

        let (_root, with_hidepid) = access("proc /proc proc rw,hidepid=invisible,gid=26 0 0\n");
        let hint = "/proc is mounted with hidepid=invisible, which hides other users' processes. \
                    Run as root or as a member of group 26";
        assert_eq!(missing_of(&with_hidepid, Errno::ENOENT), (Reason::Denied, hint.into()));
        assert_eq!(missing_of(&with_hidepid, Errno::EPERM), (Reason::Denied, hint.into()));
    }

    #[test]
    fn uses_the_last_mount_of_proc() {
        let remounted = "proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(Hidepid::from_mounts(remounted), None);
        assert_eq!(Hidepid::from_mounts("proc /jail/proc proc rw,hidepid=2 0 0\n"), None);
        assert_eq!(Hidepid::from_mounts("proc /proc proc rw,hidepid=0 0 0\n"), None);
        assert!(Hidepid::from_mounts("proc /proc proc rw,hidepid=2 0 0\n").is_some());
    }
}
