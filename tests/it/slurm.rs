//! A real Slurm on loopback: two nodes on one machine, and a job on both through which gputop connects.
#![allow(clippy::print_stdout)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::executable;
use crate::support::fake_machine::{self, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::skip::available;
use crate::support::terminal::Launch;

/// munged, slurmctld and one slurmd per node, with their own files. A process with this environment uses this Slurm.
struct Slurm {
    // Stopped in this order.
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
    home: tempfile::TempDir,
}

/// Returns true if Slurm can run here. Otherwise the test is skipped, or fails if nothing may be skipped.
fn is_available() -> bool {
    let is_available = ["slurmctld", "slurmd", "munged"]
        .iter()
        .all(|daemon| Path::new("/usr/sbin").join(daemon).exists());
    available(is_available, "Slurm or munge is not here")
}

fn free_port() -> u16 {
    let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port()
}

impl Slurm {
    fn start() -> Self {
        Self::start_with(|_| String::new())
    }

    /// Starts Slurm with more lines of configuration, which may name files that are created in its folder.
    fn start_with(more: impl FnOnce(&Path) -> String) -> Self {
        let slurm = Self {
            daemons: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            home: tempfile::tempdir().unwrap(),
        };
        let Self { folder, .. } = &slurm;
        // Anyone who has the key can act as any user, so it is used nowhere else.
        fs::write(folder.path().join("munge.key"), [7; 128]).unwrap();
        let mode = fs::Permissions::from_mode(0o400);
        fs::set_permissions(folder.path().join("munge.key"), mode).unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let (user, host) = (run("id", &["-un"]), run("uname", &["-n"]));
        let ports: Vec<u16> = std::iter::repeat_with(free_port).take(3).collect();
        let configuration = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthInfo=socket={at}/munge.sock\nSlurmctldPort={ctld}\nStateSaveLocation={at}/state\n\
             SlurmdSpoolDir={at}/spool-%n\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             MpiDefault=none\nReturnToService=2\nKillWait=1\n\
             NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={one},{two} CPUs=1 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n{more}",
            more = more(folder.path()),
            at = folder.path().display(),
            ctld = ports[0],
            one = ports[1],
            two = ports[2],
        );
        fs::write(folder.path().join("slurm.conf"), configuration).unwrap();
        slurm.with_daemons()
    }

    fn with_daemons(mut self) -> Self {
        let at = |name: &str| format!("{}", self.folder.path().join(name).display());
        let munge = [
            "--force".into(),
            "--foreground".into(),
            format!("--key-file={}", at("munge.key")),
            format!("--socket={}", at("munge.sock")),
            format!("--pid-file={}", at("munge.pid")),
            format!("--seed-file={}", at("munge.seed")),
        ];
        let daemon = |name: &str, args: &[String], log: &str| {
            let log = fs::File::create(self.folder.path().join(log)).unwrap();
            let mut command = Command::new(Path::new("/usr/sbin").join(name));
            command.args(args).env("SLURM_CONF", at("slurm.conf"));
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap());
            command.stderr(log).spawn().unwrap()
        };
        let foreground = || ["-D".to_owned()];
        let node = |name: &str| ["-D", "-N", name].map(str::to_owned);
        let munged = daemon("munged", &munge, "munged.log");
        wait_until("munged", || Path::new(&at("munge.sock")).exists());
        let daemons = vec![
            daemon("slurmd", &node("node1"), "slurmd1.log"),
            daemon("slurmd", &node("node2"), "slurmd2.log"),
            daemon("slurmctld", &foreground(), "slurmctld.log"),
            munged,
        ];
        self.daemons = daemons;
        wait_until("two idle nodes", || {
            self.run_client("sinfo", &["-h", "-o", "%D%T"]).contains("2idle")
        });
        self
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.configuration());
        command
    }

    fn run_client(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    /// Submits a waiting job on this many nodes, and returns its number.
    fn submit(&self, nodes: &str) -> String {
        let args = ["--parsable", "-o", "/dev/null", "-N", nodes, "--wrap", "sleep 600"];
        self.run_client("sbatch", &args).trim().to_owned()
    }

    fn gputop(&self, job: &str) -> Output {
        let mut command = fake_machine::gputop(["--slurm", job]);
        command.env("SLURM_CONF", self.configuration()).output().unwrap()
    }

    /// Installs gputop where the nodes find it.
    fn install(&self) {
        let folder = self.home.path().join(".local/bin");
        fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gputop"), folder.join("gputop")).unwrap();
    }

    fn dashboard(&self, fake: &FakeNvml, job: &str) -> Launch {
        Launch::gputop()
            .envs(fake.env())
            .env("SLURM_CONF", self.configuration())
            .env("HOME", self.home.path())
            .args(["--slurm", job])
            .size(40, 120)
    }

    /// Returns the number of agents that the dashboard started on the nodes.
    fn agents(&self) -> usize {
        let home = format!("HOME={}\0", self.home.path().display());
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let of_it = pids.filter(|pid| {
            let read = |name: &str| fs::read(pid.path().join(name)).unwrap_or_default();
            let is_agent = read("cmdline").split(|byte| *byte == 0).any(|word| word == b"agent");
            is_agent && String::from_utf8_lossy(&read("environ")).contains(&home)
        });
        of_it.count()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // A job's processes are not children of the daemons.
        let user = format!("--user={}", run("id", &["-un"]));
        self.run_client("scancel", &[&user]);
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && !self.run_client("squeue", &["-h"]).is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        for daemon in &mut self.daemons {
            let _ = kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM);
            let _ = daemon.wait();
        }
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn refused(output: &Output, sentence: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message, format!("gputop: {sentence}\n"));
}

#[test]
fn the_nodes_of_a_job_are_entered_through_slurm_itself() {
    if !is_available() {
        return;
    }
    let slurm = Slurm::start();
    let fake = FakeNvml::new("[[gpu]]\nsm = 71\n");
    let job = slurm.submit("2");
    wait_until("the job", || slurm.run_client("squeue", &["-h", "-o", "%T"]).contains("RUNNING"));
    // A failure is reported in one sentence.
    refused(&slurm.gputop("999"), "no Slurm job 999. `squeue --me` lists your jobs");
    let pending = slurm.submit("1");
    let message = slurm.gputop(&pending);
    let message = String::from_utf8_lossy(&message.stderr);
    assert!(
        message.starts_with(&format!("gputop: job {pending} has no nodes yet: it is pending (")),
        "{message}"
    );
    slurm.run_client("scancel", &[&pending]);

    let folder = slurm.home.path().join("recorded");
    let mut record = slurm.command(env!("CARGO_BIN_EXE_gputop"));
    slurm.install();
    record.args(["record", "--slurm", &job, "--for", "4s", "-o"]);
    record.arg(&folder).envs(fake.env()).env("HOME", slurm.home.path());
    let recorded = record.output().unwrap();
    let message = String::from_utf8_lossy(&recorded.stderr);
    assert!(message.contains(" frames from 2 of 2 hosts to "), "{message}");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);

    let terminal = slurm.dashboard(&fake, &job).start();
    let both = |screen: &vt100::Screen| {
        let text = screen.contents();
        ["node1", "node2"].iter().all(|node| {
            let mut lines = text.lines();
            lines
                .any(|line| line.contains(node) && line.contains(" live ") && line.contains(" 71 "))
        })
    };
    terminal.wait_for(both, "two nodes");
    assert_eq!(slurm.agents(), 2);
    // A frame is passed on once it is complete.
    terminal.send("\r");
    terminal.wait_text("VRAM GiB");
    fake.replace("[[gpu]]\nsm = 72\n");
    terminal.wait_text(" 72 ");
    terminal.signal(Signal::SIGKILL);
    wait_until("the agents' end", || slurm.agents() == 0);
    slurm.run_client("scancel", &[&job]);
    wait_until("the job's end", || {
        let message = slurm.gputop(&job);
        String::from_utf8_lossy(&message.stderr).contains("has ended")
    });
}

/// Stands in for systemd, which cannot run here: starts the command of a unit in a session of its own.
const SYSTEMD_RUN: &str = r#"#!/bin/sh
while :; do
  case $1 in
    --unit) unit=$2; shift 2 ;;
    --property) shift 2 ;;
    --*) shift ;;
    *) break ;;
  esac
done
# Slurm kills the process group of a prolog when the prolog exits.
setsid sh -c 'echo $$ >"$UNITS/$0.pid"; exec "$@"' "$unit" "$@" >"$UNITS/$unit.log" 2>&1 </dev/null &
while [ ! -s "$UNITS/$unit.pid" ]; do sleep 0.05; done
"#;
const SYSTEMCTL: &str = r#"#!/bin/sh
pid=$(cat "$UNITS/$2.pid")
kill "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
"#;

/// Writes the prolog and the epilog from the documentation into the folder, and returns their lines of `slurm.conf`.
fn install_documented_scripts(folder: &Path, fake: &FakeNvml) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EXPORTER.md");
    let guide = fs::read_to_string(guide).unwrap();
    let bin = folder.join("bin");
    fs::create_dir(&bin).unwrap();
    let write = |name: &str, text: &str| {
        let path = bin.join(name);
        executable::write(&path, text);
        path
    };
    write("systemd-run", SYSTEMD_RUN);
    write("systemctl", SYSTEMCTL);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gputop"), bin.join("gputop")).unwrap();
    let mut environment = format!(
        "#!/bin/sh\nexport PATH={}:/usr/bin:/bin UNITS={at} HOME={at}\n",
        bin.display(),
        at = folder.display()
    );
    for (name, value) in fake.env() {
        environment += &format!("export {name}='{}'\n", value.display());
    }
    let mut lines = String::new();
    for key in ["Prolog", "Epilog"] {
        let path = format!("# /etc/slurm/{}.d/gputop.sh", key.to_lowercase());
        let mut blocks = guide.split("```sh\n");
        let script = blocks.find(|block| block.contains(&path)).unwrap();
        let (script, _) = script.split_once("```").unwrap();
        assert!(script.starts_with("#!/bin/sh\n"), "{script}");
        let script = script.replace("#!/bin/sh\n", &environment);
        let script = script.replace("/var/lib/node_exporter", &folder.display().to_string());
        let script = script.replace("--interval 10s", "--interval 500ms");
        lines += &format!("{key}={}\n", write(key, &script).display());
    }
    lines
}

#[test]
fn documented_prolog_and_epilog_export_metrics_while_a_job_runs() {
    if !is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 71\n");
    let slurm = Slurm::start_with(|folder| install_documented_scripts(folder, &fake));
    let job = slurm.submit("1");
    let file = slurm.folder.path().join(format!("gputop-{job}.prom"));
    let metrics = || fs::read_to_string(&file).unwrap_or_default();
    wait_until("metrics of the job's node", || {
        metrics().lines().any(|line| line.ends_with("} 71"))
    });
    slurm.run_client("scancel", &[&job]);
    wait_until("the removal of the file", || !file.exists());
    wait_until("idle nodes after the epilog", || {
        slurm.run_client("sinfo", &["-h", "-o", "%D%T"]).contains("2idle")
    });
}

#[test]
fn missing_slurm_or_job_number_is_explained() {
    let output = |job: &str| {
        let mut command = fake_machine::gputop(["--slurm", job]);
        command.env("PATH", "/nowhere").output().unwrap()
    };
    refused(
        &output("12"),
        "cannot find the nodes of job 12: `squeue` is not installed. Run gputop on a host with Slurm's commands, or name the nodes: \
         `gputop NODE…`",
    );
    refused(
        &output("train"),
        "--slurm `train`: not a job ID. Use a number from the first column of `squeue --me`",
    );
}
