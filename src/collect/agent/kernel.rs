//! Reads host and process data from `/proc`, and hook reports from the spool. Runs on a separate thread, because
//! reading a process that is stuck in the kernel can block.

use std::sync::mpsc::{Receiver, Sender};

use gputop_model::{GpuUuid, Millis, Mono, Pid, PidNamespace};
use gputop_peek::clock::now_mono;

use crate::collect::agent::options::Options;
use crate::collect::agent::section::Section;
use crate::collect::hook::SpoolReader;
use crate::collect::host::HostReader;
use crate::collect::process::{ProcessReadout, ProcessTable};

/// Interval for reading processes while the driver's list is unchanged. With 64 processes, reading all of them on each
/// tick would take a third of gputop's CPU time. In addition, the measured CPU usage of processes fluctuates less when
/// averaged over 2 s.
const PROCESS_INTERVAL: Millis = Millis(2_000);

pub struct Kernel {
    host: HostReader,
    table: ProcessTable,
    hook: SpoolReader,
    /// Last completed read request, and the time of the read.
    done: Option<(ReadRequest, Mono)>,
}

/// Processes that the host thread must read: these PIDs or, inside a container, all processes that have these device
/// files open.
#[derive(Debug, PartialEq)]
pub struct ReadRequest {
    pub pids: Vec<Pid>,
    pub devices: Vec<(Option<u32>, GpuUuid)>,
    /// True if the host thread should also search for other processes that may hold GPU memory, because some memory is
    /// unattributed.
    pub leftovers: bool,
}

impl Kernel {
    pub fn new(options: &Options, namespace: PidNamespace) -> Self {
        Self {
            host: HostReader::default(),
            table: ProcessTable::new(
                &options.proc_root,
                options.container_files.clone(),
                namespace,
            ),
            hook: SpoolReader::new(&options.proc_root),
            done: None,
        }
    }

    pub fn run(mut self, requests: &Receiver<ReadRequest>, sections: &Sender<Section>) {
        while let Ok(mut request) = requests.recv() {
            // After a stall, serve only the newest request.
            while let Ok(newer) = requests.try_recv() {
                request = newer;
            }
            let now = now_mono();
            let readout = self.is_due(&request, now).then(|| self.read(request, now));
            let host = self.host.read(now);
            if sections.send(Section::Hook(self.hook.read())).is_err() {
                return;
            }
            if sections.send(Section::Kernel(Box::new((host, readout)))).is_err() {
                return;
            }
        }
    }

    fn is_due(&self, request: &ReadRequest, now: Mono) -> bool {
        // Allow for ticks that come slightly early.
        self.done.as_ref().is_none_or(|(done, at)| {
            done != request || now.since(*at).0 + 250 >= PROCESS_INTERVAL.0
        })
    }

    fn read(&mut self, request: ReadRequest, now: Mono) -> ProcessReadout {
        let mut readout = if request.devices.is_empty() {
            self.table.read(&request.pids, now)
        } else {
            self.table.local(&request.devices, now)
        };
        if request.leftovers {
            readout.leftovers = Some(self.table.leftovers(&request.pids, now));
        }
        self.done = Some((request, now));
        readout
    }
}
