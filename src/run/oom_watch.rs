//! Determines whether the kernel's OOM killer killed the command of `gputop run`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gputop_model::Pid;
use gputop_model::event::OomVerdict;
use gputop_peek::clock::now_mono;

use crate::collect::exits::oom::{OomCounterPaths, OomKiller};
use crate::collect::kernel_log::{KernelLine, KernelLog};

/// Maximum time to wait for the kernel log line about a kill, which the kernel writes after it has sent the signal.
const LINE_TIMEOUT: Duration = Duration::from_millis(80);
/// Maximum number of reads of the kernel log, about 1000 lines each. The kernel's buffer rarely holds more lines.
const MAX_READS: usize = 64;
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// The OOM killer's counters and the end of the kernel log, as they were before the command started.
pub struct OomWatch {
    killer: OomKiller,
    log: Option<KernelLog>,
    /// OOM kill counter of gputop's cgroup, which the command inherits.
    group: Option<Arc<Path>>,
}

impl OomWatch {
    pub fn start(paths: OomCounterPaths, kernel_log: &Path) -> Self {
        let opened = KernelLog::open(kernel_log);
        let mut killer = OomKiller::new(paths, opened.as_ref().map(drop).map_err(Clone::clone));
        let group = killer.watch(Pid(std::process::id()));
        Self { killer, log: opened.ok(), group }
    }

    /// Returns the verdict for a command that was killed by SIGKILL. `pids` lists the command's processes as far as
    /// they are known.
    pub(super) fn verdict(&mut self, pids: &[Pid]) -> OomVerdict {
        let started = Instant::now();
        self.read_log();
        let is_awaited = |killer: &mut OomKiller| {
            let mut pids = pids.iter();
            pids.len() > 0 && pids.all(|pid| killer.is_line_awaited(*pid, now_mono()))
        };
        while started.elapsed() < LINE_TIMEOUT && is_awaited(&mut self.killer) {
            std::thread::sleep(READ_INTERVAL);
            self.read_log();
        }
        let mut verdict = OomVerdict::default();
        for pid in pids {
            verdict = self.killer.verdict(*pid, self.group.as_ref(), true, now_mono());
            if verdict.killed.get() == Some(true) {
                break;
            }
        }
        verdict
    }

    fn read_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        let killer = &mut self.killer;
        for _ in 0..MAX_READS {
            let read = log.read(|line| {
                if let KernelLine::OomKill(kill) = line {
                    killer.note(kill, now_mono());
                }
            });
            match read {
                Ok(true) => return,
                // More lines are available.
                Ok(false) => {}
                Err(why) => {
                    killer.lose_log(why);
                    self.log = None;
                    return;
                }
            }
        }
    }
}
