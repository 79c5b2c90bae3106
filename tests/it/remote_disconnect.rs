//! Links cut before, during and after a program's failure, over a real sshd. Each failure appears once, in the list and
//! in the local store, with the best available description.
//!
//! The next agent reports what `gputop run` stored on the remote host. A failure that only an agent can observe is
//! reported once if an agent was running, and otherwise never.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use crate::remote_incidents::RemoteHost;
use crate::run_explained::{EXPLAINED, OOM};
use crate::support::fake_machine::{Guarded, gputop, is_host, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::sshd;
use crate::support::terminal::Terminal;
use crate::support::training_day::Random;

/// Observer of the program besides the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Run,
    /// `gputop run` of a script that starts the program.
    RunOfScript,
    Nobody,
}

/// A remote program that fails on command.
struct FailingProgram {
    _child: Guarded,
    kind: Launcher,
    pid: u32,
    /// The script that starts it, or its parent process.
    parent: u32,
    go: PathBuf,
    log: PathBuf,
}

impl FailingProgram {
    /// Starts a program that writes its error message in one piece or in two.
    fn start(far: &RemoteHost, name: &str, kind: Launcher, is_whole: bool) -> Self {
        let [pid, go, log, script] =
            ["pid", "go", "log", "sh"].map(|end| far.sshd.at(&format!("{name}.{end}")));
        nix::unistd::mkfifo(&go, Mode::S_IRWXU).unwrap();
        let (first, rest) = OOM.split_at(if is_whole { OOM.len() } else { 90 });
        let text = format!(
            "echo $$ $PPID > {}\nread line < {}\nprintf %s '{first}' >&2\n{}echo '{rest}' >&2\nexit 3\n",
            pid.display(),
            go.display(),
            if is_whole { "" } else { "sleep 0.3\n" },
        );
        fs::write(&script, text).unwrap();
        let script = script.display().to_string();
        let mut command = match kind {
            Launcher::Run => gputop(["run", "--", "sh", &script]),
            Launcher::RunOfScript => {
                gputop(["run", "--", "sh", "-c", &format!("sh {script}; exit $?")])
            }
            Launcher::Nobody => {
                let mut plain = Command::new("sh");
                plain.arg(&script);
                plain
            }
        };
        command
            .env("XDG_STATE_HOME", far.state())
            .env_remove("RANK")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap());
        let child = Guarded(command.spawn().unwrap());
        let written = || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
        wait_until("the process", written);
        let pids = fs::read_to_string(&pid).unwrap();
        let mut pids = pids.split_whitespace().map(|pid| pid.parse().unwrap());
        Self {
            _child: child,
            kind,
            pid: pids.next().unwrap(),
            parent: pids.next().unwrap(),
            go,
            log,
        }
    }

    fn fail(&self) {
        fs::write(&self.go, "now\n").unwrap();
    }
}

/// A remote host whose link is cut, and a local dashboard for it.
struct CutLink<'a> {
    fake: &'a FakeNvml,
    far: RemoteHost,
    terminal: Terminal,
    number: usize,
}

impl<'a> CutLink<'a> {
    fn start(fake: &'a FakeNvml) -> Self {
        let far = RemoteHost::start(fake);
        let launch = far.sshd.dashboard().args(["far"]).size(60, 120);
        let terminal = launch.env("XDG_STATE_HOME", far.near.0.path()).start();
        Self { fake, far, terminal, number: 0 }
    }

    /// Starts programs on the remote GPU, each visible in the local dashboard.
    fn begin(&mut self, kinds: &[Launcher]) -> Vec<FailingProgram> {
        let start = |kind: &Launcher| {
            self.number += 1;
            let is_whole = self.number.is_multiple_of(2);
            FailingProgram::start(&self.far, &self.number.to_string(), *kind, is_whole)
        };
        let doomed: Vec<FailingProgram> = kinds.iter().map(start).collect();
        let mut scenario = "[[gpu]]\nsm = 31\n".to_owned();
        for one in &doomed {
            scenario += &format!("[[process]]\npid = {}\ngpu = 0\nused = \"1 GiB\"\n", one.pid);
        }
        self.fake.replace(&scenario);
        self.wait_seen(&doomed);
        doomed
    }

    /// Waits until their rows are on the screen and the current agent follows their logs.
    fn wait_seen(&self, doomed: &[FailingProgram]) {
        let all_there = |screen: &vt100::Screen| {
            let shown = screen.contents();
            let is_there = |one: &FailingProgram| shown.contains(&one.pid.to_string());
            shown.contains("live") && doomed.iter().all(is_there)
        };
        self.terminal.wait_for(all_there, "the programs");
        wait_until("their logs to be followed", || {
            let open: Vec<PathBuf> = self.agents().into_iter().flat_map(open_files).collect();
            doomed.iter().all(|one| open.contains(&one.log))
        });
    }

    fn agents(&self) -> Vec<u32> {
        let connections = self.far.sshd.connections();
        let descendants = connections.into_iter().flat_map(descendants);
        let agents = descendants.filter(|(_, line)| line.ends_with("gputop agent "));
        agents.map(|(pid, _)| pid).collect()
    }

    /// Cuts the link by killing its server, the agent, or the local client.
    fn cut(&self, what: usize) {
        let end = |pid: u32| {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        };
        match what {
            0 => self.far.cut(),
            1 => self.agents().into_iter().for_each(end),
            _ => descendants(self.terminal.pid())
                .into_iter()
                .filter(|(_, line)| line.contains("ssh"))
                .for_each(|(pid, _)| end(pid)),
        }
    }

    /// Returns the headlines of the locally stored incidents, by PID.
    fn stored_headlines(&self) -> BTreeMap<u32, Vec<String>> {
        let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for one in self.far.local_incidents() {
            let pid = one["fields"]["pid"].as_u64().and_then(|pid| pid.try_into().ok());
            let headline = one["headline"].as_str().unwrap().to_owned();
            all.entry(pid.unwrap()).or_default().push(headline);
        }
        all
    }

    /// Waits until each failure is stored. For `gputop run` alone, only the script is known.
    fn wait_kept<'d>(&self, doomed: impl IntoIterator<Item = &'d FailingProgram>) {
        for one in doomed {
            let what = format!("the failure of {} ({:?})", one.pid, one.kind);
            wait_until(&what, || {
                let stored_headlines = self.stored_headlines();
                let names = [one.pid, one.parent].into_iter();
                let headlines: Vec<&String> =
                    names.filter_map(|pid| stored_headlines.get(&pid)).flatten().collect();
                assert!(headlines.len() < 2, "{what}: {headlines:?}");
                headlines.first().is_some_and(|headline| *headline == EXPLAINED)
            });
        }
    }

    /// Checks that the screen and the store show the same incidents, each once.
    fn assert_each_once(&self) {
        self.terminal.send("i");
        // The latest incidents may still be missing in both.
        wait_until("the list of those that are kept", || {
            let (stored_headlines, shown) = (self.stored_headlines(), self.terminal.text());
            assert!(
                stored_headlines.values().all(|headlines| headlines.len() == 1),
                "{stored_headlines:?}"
            );
            let rows = shown.lines().filter(|line| line.contains(" fatal "));
            rows.count() == stored_headlines.len()
                && stored_headlines.keys().all(|pid| shown.contains(&pid.to_string()))
        });
        self.terminal.send("\x1b");
    }
}

fn open_files(pid: u32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let target = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    open.filter_map(target).collect()
}

/// Returns the processes below this one, with their command lines.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    // Each thread has its own list of children.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
    let children: String = lists.map(|list| list.unwrap_or_default() + " ").collect();
    let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    children
        .flat_map(|child: u32| {
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            [(child, line)].into_iter().chain(descendants(child))
        })
        .collect()
}

#[test]
fn observation_is_reported_once_across_reconnects() {
    if !sshd::is_available() || !is_host() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let mut far = CutLink::start(&fake);
    for what in 0..3 {
        let kinds = [Launcher::Nobody, Launcher::Run, Launcher::RunOfScript, Launcher::Nobody];
        let doomed = far.begin(&kinds);
        doomed[..3].iter().for_each(FailingProgram::fail);
        far.wait_kept(&doomed[..3]);
        far.cut(what);
        far.terminal.wait_text("no link");
        // One more program fails while the next agent is watching.
        far.wait_seen(&doomed[3..]);
        doomed[3].fail();
        far.wait_kept(&doomed);
    }
    far.assert_each_once();
}

#[test]
fn failure_is_reported_once_whenever_the_link_is_cut() {
    const SPAN: i64 = 2_500;
    if !sshd::is_available() || !is_host() {
        return;
    }
    let number = |name: &str, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let mut dice = Random(number("GPUTOP_TEST_SEED", 7));
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let mut far = CutLink::start(&fake);
    let mut random_delay = || Duration::from_millis(dice.between(0, SPAN).unsigned_abs());
    for round in 0..number("GPUTOP_TEST_ROUNDS", 3) {
        let kinds = [
            Launcher::Run,
            Launcher::Nobody,
            Launcher::Run,
            Launcher::RunOfScript,
            Launcher::Nobody,
        ];
        let doomed = far.begin(&kinds);
        let mut moments: Vec<(Duration, Option<&FailingProgram>)> = vec![(random_delay(), None)];
        moments.extend(doomed.iter().map(|one| (random_delay(), Some(one))));
        moments.sort_by_key(|(at, _)| *at);
        let begun = Instant::now();
        for (at, who) in moments {
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
            match who {
                Some(one) => one.fail(),
                None => far.cut(usize::try_from(round % 3).unwrap()),
            }
        }
        far.wait_kept(doomed.iter().filter(|one| one.kind != Launcher::Nobody));
        let is_live = |screen: &vt100::Screen| screen.contents().contains("live");
        far.terminal.wait_for(is_live, "the link");
        let stored_headlines = far.stored_headlines();
        assert!(
            stored_headlines.values().all(|headlines| headlines.len() == 1),
            "{stored_headlines:?}"
        );
    }
    far.assert_each_once();
}
