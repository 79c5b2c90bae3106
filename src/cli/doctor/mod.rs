//! `gputop doctor`: every capability on this machine: works or does not, why, and what this user can do about it.

mod exits;
mod probe;
mod requirements;
mod terminal;

use std::path::Path;
use std::time::{Duration, Instant};

use color_eyre::Result;
use serde::Serialize;

use super::settings::{ConfigPath, SettingError, Settings, SharedArgs};
use super::{print, print_json};
use crate::collect::driver::{NvmlFailure, diagnose_driver};
use crate::collect::host::hello;
use crate::collect::nvml::library::{LIBRARY_VARIABLE, Library};
use crate::collect::nvml::schedule::{Due, GROUPS};
use crate::model::host::PidNamespace;
use crate::user_files::DirectoryError;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that works here or does not.
#[derive(Debug, Clone, Serialize)]
struct Check {
    /// A noun phrase: `NVIDIA driver`.
    name: &'static str,
    works: bool,
    /// What was found, a sentence or a phrase.
    found: String,
    /// Commands or clauses, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fix: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    checks: Vec<Check>,
    schedule: Vec<Call>,
}

/// A line of the NVML schedule.
#[derive(Debug, Serialize)]
struct Call {
    name: &'static str,
    when: String,
    /// Median over the GPUs, when there is a driver to measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    microseconds: Option<u64>,
}

/// A driver that hangs must not hang the doctor.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: &Args, shared: &SharedArgs) -> Result<u8> {
    let (driver, found) = check_driver();
    let works = driver.works;
    let settings = Settings::read(shared, None);
    let report = Report {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        checks: [
            vec![
                driver,
                exits::check_xids(found.as_ref().map(|found| found.xids)),
                check_namespace(),
                requirements::check_allocators(),
                probe::check_probe(works),
                exits::check_ends(),
                exits::check_oom_killer(),
                exits::check_kernel_log(),
                requirements::check_store(),
                requirements::check_hook(),
                requirements::check_open_files(),
                requirements::check_ssh(),
            ],
            terminal::checks(settings.as_ref().ok().map(|settings| settings.mouse)),
            vec![check_configuration(shared, settings.err())],
        ]
        .concat(),
        schedule: GROUPS
            .iter()
            .map(|group| Call {
                name: group.name,
                when: when(group.due),
                microseconds: found
                    .iter()
                    .flat_map(|found| &found.costs)
                    .find(|(name, _)| *name == group.name)
                    .map(|(_, cost)| *cost),
            })
            .collect(),
    };
    if args.json {
        print_json(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else {
        print(&text(&report))?;
    }
    Ok(u8::from(!works))
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// What a driver that answers says.
struct DriverAnswer {
    words: String,
    /// Microseconds of each group of the schedule.
    costs: Vec<(&'static str, u64)>,
    /// GPUs that report their Xids, of how many.
    xids: (usize, u32),
}

/// Loads the driver on a thread, so that one that hangs is told and not waited for.
fn check_driver() -> (Check, Option<DriverAnswer>) {
    let (send, answer) = std::sync::mpsc::channel();
    let started = Instant::now();
    std::thread::spawn(move || {
        let library = Library::new(std::env::var_os(LIBRARY_VARIABLE));
        let found = library
            .acquire()
            .map_err(|e| NvmlFailure::from(&e))
            .and_then(
                |nvml| match nvml.device_count().map_err(|e| NvmlFailure::from(&e))? {
                    0 => Err(NvmlFailure::NoGpus),
                    count => {
                        let version = nvml.sys_driver_version().unwrap_or_else(|e| e.to_string());
                        let took = started.elapsed().as_millis();
                        Ok(DriverAnswer {
                            words: format!(
                                "version {version}, {count} GPUs, answered in {took} ms"
                            ),
                            costs: crate::collect::nvml::measure(&nvml),
                            xids: crate::collect::nvml::xid::supported(&nvml),
                        })
                    }
                },
            );
        let _ = send.send(found);
    });
    let name = "NVIDIA driver";
    match answer.recv_timeout(PATIENCE) {
        Ok(Ok(found)) => (
            Check {
                name,
                works: true,
                found: found.words.clone(),
                fix: Vec::new(),
            },
            Some(found),
        ),
        Ok(Err(failure)) => {
            let trouble = diagnose_driver(Path::new("/"), &failure);
            (
                Check {
                    name,
                    works: false,
                    found: trouble.reason(),
                    fix: trouble.fix(is_root()),
                },
                None,
            )
        }
        Err(_) => {
            let found = format!("has not answered for {} s", PATIENCE.as_secs());
            let fix = vec!["dmesg | grep -i -e nvrm -e xid".into()];
            (
                Check {
                    name,
                    works: false,
                    found,
                    fix,
                },
                None,
            )
        }
    }
}

fn check_namespace() -> Check {
    let name = "process names and owners";
    let (works, found, fix) = match hello().namespace {
        PidNamespace::Host => (true, "this is the host's PID namespace: the driver's PIDs are ours".into(), Vec::new()),
        PidNamespace::Container => (
            false,
            "inside a container the driver's PIDs mean other processes; local ones are found by their open device files"
                .to_owned(),
            vec!["docker run --pid=host …, or run gputop on the host".into()],
        ),
        PidNamespace::Unknown => {
            (false, "/proc/self/ns/pid could not be read, so no PID is matched".to_owned(), Vec::new())
        }
    };
    Check {
        name,
        works,
        found,
        fix,
    }
}

fn check_configuration(shared: &SharedArgs, wrong: Option<SettingError>) -> Check {
    let place = ConfigPath::find(shared.config.as_deref());
    let (works, found) = match (wrong, place) {
        (Some(wrong), _) => (false, wrong.to_string()),
        (None, Ok(place)) if place.path.exists() => (true, place.path.display().to_string()),
        (None, Err(why @ DirectoryError::OtherUser { .. })) => (false, why.to_string()),
        (None, _) => (true, "none; the defaults hold".to_owned()),
    };
    Check {
        name: "configuration",
        works,
        found,
        fix: Vec::new(),
    }
}

fn when(due: Due) -> String {
    let seconds = |ms: crate::model::units::Millis| ms.0 / 1_000;
    match due {
        Due::Tick => "each tick".into(),
        Due::MemoryChanged(ms) => format!(
            "when used memory changed, at the latest after {} s",
            seconds(ms)
        ),
        Due::Every(ms) => format!("every {} s", seconds(ms)),
        Due::Focused(ms) => format!("every {} s while the GPU's screen is open", seconds(ms)),
        Due::Once => "once".into(),
    }
}

fn text(report: &Report) -> String {
    use std::fmt::Write;
    let mut out = format!("gputop {}\n\n", report.version);
    for check in &report.checks {
        let _ = writeln!(
            out,
            "{:<4} {:<26} {}",
            if check.works { "ok" } else { "NO" },
            check.name,
            check.found
        );
        for fix in &check.fix {
            let _ = writeln!(out, "{fix}");
        }
    }
    let _ = writeln!(out, "\nNVML calls, for each GPU on a thread of its own:");
    for call in &report.schedule {
        let cost = call
            .microseconds
            .map_or("-".into(), |us| format!("{us} us"));
        let _ = writeln!(out, "{cost:>10}  {}\n            {}", call.name, call.when);
    }
    out
}
