//! `gputop doctor`: checks each capability on this host. If a capability does not work, prints the reason and how to
//! fix it.

mod check;
mod exits;
mod install;
mod probe;
mod ranks;
mod requirements;
mod terminal;

use self::check::{Check, is_root};

use std::path::Path;
use std::time::{Duration, Instant};

use color_eyre::Result;
use gputop_model::Millis;
use gputop_model::host::PidNamespace;
use serde::Serialize;

use super::print::{print, print_json, width};
use super::settings::{ConfigArgs, ConfigPath, Flags, SettingError, Settings, agent_options};
use crate::collect;
use crate::collect::driver::{NvmlFailure, diagnose_driver};
use crate::collect::host::hello;
use crate::collect::nvml::library::{LIBRARY_VARIABLE, Library};
use crate::collect::nvml::measure;
use crate::collect::nvml::schedule::{Due, GROUPS};
use crate::collect::nvml::sleep::PciGpu;
use crate::export::explanation::lines::wrapped as wrapped_lines;
use crate::user_files::DirectoryError;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Check the installation only: which file runs, how it was installed, PATH, completions, man page
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    pub config: ConfigArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    checks: Vec<Check>,
    schedule: Vec<Call>,
}

/// A group of NVML calls, and how often gputop makes them.
#[derive(Debug, Serialize)]
struct Call {
    name: String,
    when: String,
    /// Median duration over all GPUs, if a driver is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    microseconds: Option<u64>,
}

/// Time after which the driver is considered hung.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(args: &Args, flags: &Flags) -> Result<u8> {
    if args.install {
        return print_report(args, &report(install::checks(), Vec::new()));
    }
    let (driver, answer) = check_driver();
    let works = driver.works;
    let schedule = GROUPS.iter().enumerate().map(|(i, group)| Call {
        name: group.contents(),
        when: when(group.due()),
        microseconds: answer.as_ref().and_then(|answer| answer.costs[i]),
    });
    let checks = [
        vec![
            driver,
            exits::check_xids(answer.as_ref().map(|answer| answer.xids)),
            check_namespace(),
            requirements::check_allocators(),
        ],
        ranks::check_ranks().into_iter().collect(),
        vec![
            probe::check_probe(answer.is_some()),
            exits::check_exits(),
            exits::check_oom_killer(),
            exits::check_kernel_log(),
            requirements::check_store(),
            requirements::check_hook(),
            requirements::check_open_files(),
            requirements::check_ssh(),
        ],
        terminal::checks(),
        vec![check_configuration(flags, Settings::read(flags).err())],
    ]
    .concat();
    print_report(args, &report(checks, schedule.collect()))?;
    Ok(u8::from(!works))
}

fn report(checks: Vec<Check>, schedule: Vec<Call>) -> Report {
    Report { schema: 1, version: env!("CARGO_PKG_VERSION"), checks, schedule }
}

fn print_report(args: &Args, report: &Report) -> Result<u8> {
    if args.json {
        print_json(report)?;
    } else {
        print(&text(report, width()))?;
    }
    Ok(0)
}

struct DriverAnswer {
    summary: String,
    /// Duration of each group of NVML calls, in microseconds.
    costs: [Option<u64>; GROUPS.len()],
    /// Number of GPUs that report Xids, and total number of GPUs.
    xids: (usize, u32),
    /// PCI addresses of the GPUs that the driver gives to this program.
    buses: Vec<String>,
}

/// Loads the driver on a thread, so that a hung driver is reported after a timeout. Does not load it while all GPUs
/// sleep, because that would wake them.
fn check_driver() -> (Check, Option<DriverAnswer>) {
    let gpus = PciGpu::list(&agent_options(Millis(1_000)).sys_root);
    if !gpus.is_empty() && gpus.iter().all(PciGpu::is_asleep) {
        let count = gpus.len();
        let found = format!(
            "not loaded, because all GPUs ({count}) are asleep; `gputop --wake` wakes them"
        );
        return (Check::new("NVIDIA driver", true, found, ""), None);
    }
    let (send, answer) = std::sync::mpsc::channel();
    let started = Instant::now();
    std::thread::spawn(move || {
        let library = Library::new(std::env::var_os(LIBRARY_VARIABLE));
        let answer =
            library.acquire().map_err(|e| NvmlFailure::from(&e)).and_then(|nvml| {
                match nvml.device_count().map_err(|e| NvmlFailure::from(&e))? {
                    0 => Err(NvmlFailure::NoGpus),
                    count => {
                        let version = nvml.sys_driver_version().unwrap_or_else(|e| e.to_string());
                        let gpus = if count == 1 { "GPU" } else { "GPUs" };
                        let took = started.elapsed().as_millis();
                        Ok(DriverAnswer {
                            summary: format!(
                                "version {version}, {count} {gpus}, answered in {took} ms"
                            ),
                            costs: GROUPS.map(|group| measure(&nvml, group)),
                            xids: crate::collect::nvml::xid::supported(&nvml),
                            buses: collect::nvml::buses(&nvml, count),
                        })
                    }
                }
            });
        let _ = send.send(answer);
    });
    let name = "NVIDIA driver";
    match answer.recv_timeout(DRIVER_TIMEOUT) {
        Ok(Ok(answer)) => match unlisted(&gpus, &answer) {
            None => (Check::new(name, true, answer.summary.clone(), ""), Some(answer)),
            Some(buses) => {
                let found = format!(
                    "{}; the PCI bus also has {buses}, which the driver does not list",
                    answer.summary
                );
                (Check::new(name, false, found, UNLISTED_FIX), Some(answer))
            }
        },
        Ok(Err(failure)) => {
            let trouble = diagnose_driver(Path::new("/"), &failure);
            let check = Check::new(name, false, trouble.reason(), "");
            let fix = trouble.fix(is_root());
            (Check { fix, ..check }, None)
        }
        Err(_) => {
            let found = format!("no answer within {} s", DRIVER_TIMEOUT.as_secs());
            (Check::new(name, false, found, "dmesg | grep -i -e nvrm -e xid"), None)
        }
    }
}

const UNLISTED_FIX: &str =
    "sudo dmesg | grep -i -e nvrm -e nvidia    (or this job may not use that GPU)";

/// Returns the addresses of GPUs on the PCI bus that the driver does not list, if there are any. In a container, and if a
/// GPU of the driver has no address, that is unknown.
fn unlisted(on_bus: &[PciGpu], answer: &DriverAnswer) -> Option<String> {
    let is_known = answer.buses.len() == answer.xids.1 as usize;
    if !is_known || hello().namespace != PidNamespace::Host {
        return None;
    }
    let unlisted = on_bus.iter().filter(|gpu| !answer.buses.contains(&gpu.bus));
    let buses: Vec<&str> = unlisted.map(|gpu| &*gpu.bus).collect();
    (!buses.is_empty()).then(|| buses.join(", "))
}

fn check_namespace() -> Check {
    let name = "process names and owners";
    if let Some(why) = collect::process::hides_others(Path::new("/proc")) {
        let fix =
            "sudo mount -o remount,hidepid=invisible,gid=GROUP /proc    (GROUP: a group of yours)";
        return Check::new(name, false, why, fix);
    }
    let (works, found, fix) = match hello().namespace {
        PidNamespace::Host => {
            (true, "in the host's PID namespace, so PIDs reported by the driver are valid", "")
        }
        PidNamespace::Container => (
            false,
            "in a container, where PIDs reported by the driver are not valid; local processes are found by their open device files",
            "docker run --pid=host …, or run gputop on the host",
        ),
        PidNamespace::Unknown => (
            false,
            "cannot read /proc/self/ns/pid, so PIDs reported by the driver are not used",
            "",
        ),
    };
    Check::new(name, works, found, fix)
}

fn check_configuration(flags: &Flags, error: Option<SettingError>) -> Check {
    let config = ConfigPath::find(flags.config.as_deref());
    let (works, found) = match (error, config) {
        (Some(error), _) => (false, error.to_string()),
        (None, Ok(config)) if config.path.exists() => (true, config.path.display().to_string()),
        (None, Err(why @ DirectoryError::OtherUser { .. })) => (false, why.to_string()),
        (None, _) => (true, "no file; the defaults apply".to_owned()),
    };
    Check::new("configuration", works, found, "")
}

fn when(due: Due) -> String {
    let seconds = |ms: gputop_model::units::Millis| ms.0 / 1_000;
    match due {
        Due::Tick => "every sample".into(),
        Due::MemoryChanged(ms) => {
            format!("when used memory changes, and at least every {} s", seconds(ms))
        }
        Due::Every(ms) => format!("every {} s", seconds(ms)),
        Due::Focused(ms) => format!("every {} s while the GPU's screen is open", seconds(ms)),
        Due::Once => "once".into(),
    }
}

/// Width of the names of checks, with the word before them.
const INDENT: usize = 32;

/// Formats the report. Findings are wrapped to `width` columns; commands are not.
fn text(report: &Report, width: usize) -> String {
    use std::fmt::Write;
    let wrapped = |text: &str, indent: usize| {
        let lines = wrapped_lines(text, width.saturating_sub(indent).max(20));
        lines.join(&format!("\n{:indent$}", ""))
    };
    let mut out = format!("gputop {}\n\n", report.version);
    for check in &report.checks {
        let _ = writeln!(
            out,
            "{:<4} {:<26} {}",
            if check.works { "ok" } else { "NO" },
            check.name,
            wrapped(&check.found, INDENT)
        );
        for fix in &check.fix {
            let _ = writeln!(out, "{fix}");
        }
    }
    if report.schedule.is_empty() {
        return out;
    }
    let _ = writeln!(out, "\nNVML calls for each GPU, on one thread per GPU:");
    for call in &report.schedule {
        let cost = call.microseconds.map_or("-".into(), |us| format!("{us} us"));
        let name = wrapped(&call.name, 12);
        let _ = writeln!(out, "{cost:>10}  {name}\n            {}", call.when);
    }
    out
}
