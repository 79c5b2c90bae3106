//! The kernel's side of a frame, and what the Python hook wrote, on a thread of their own: reading a process that is
//! stuck in the kernel can block.

use std::sync::mpsc::{Receiver, Sender};

use super::{Options, Section};
use crate::collect::clock::now_mono;
use crate::collect::hook::SpoolReader;
use crate::collect::host::HostReader;
use crate::collect::process::{ProcessReadout, ProcessTable};
use crate::model::host::PidNamespace;
use crate::model::units::{GpuUuid, Millis, Mono, Pid};

/// How often processes are read while the driver lists the same ones. Each tick would be a third of all the work on a
/// machine with 64 of them, and a share of CPU over two seconds is the steadier figure.
const PROCESS_PERIOD: Millis = Millis(2_000);

pub struct Kernel {
    host: HostReader,
    table: ProcessTable,
    hook: SpoolReader,
    /// The order that was last carried out in full, and when.
    done: Option<(KernelOrder, Mono)>,
}

/// What the host thread is to read: these PIDs, or inside a container whoever holds these devices open.
#[derive(Debug, PartialEq)]
pub struct KernelOrder {
    pub pids: Vec<Pid>,
    pub devices: Vec<(u32, GpuUuid)>,
    /// Memory is missing: who else may hold it is to be looked for.
    pub leftovers: bool,
}

impl Kernel {
    pub fn new(options: &Options, namespace: PidNamespace) -> Self {
        Self {
            host: HostReader::new(),
            table: ProcessTable::new(
                &options.proc_root,
                options.container_files.clone(),
                namespace,
            ),
            hook: SpoolReader::new(&options.proc_root),
            done: None,
        }
    }

    pub fn run(mut self, orders: &Receiver<KernelOrder>, sections: &Sender<Section>) {
        while let Ok(mut order) = orders.recv() {
            // After a stall only the newest order counts.
            while let Ok(newer) = orders.try_recv() {
                order = newer;
            }
            let now = now_mono();
            let readout = self.is_due(&order, now).then(|| self.read(order, now));
            let host = self.host.read(now);
            if sections.send(Section::Hook(self.hook.news())).is_err() {
                return;
            }
            if sections
                .send(Section::Kernel(Box::new((host, readout))))
                .is_err()
            {
                return;
            }
        }
    }

    fn is_due(&self, order: &KernelOrder, now: Mono) -> bool {
        // A tick may come a little early.
        self.done
            .as_ref()
            .is_none_or(|(done, at)| done != order || now.since(*at).0 + 250 >= PROCESS_PERIOD.0)
    }

    fn read(&mut self, order: KernelOrder, now: Mono) -> ProcessReadout {
        let mut readout = if order.devices.is_empty() {
            self.table.read(&order.pids, now)
        } else {
            self.table.local(&order.devices, now)
        };
        if order.leftovers {
            readout.leftovers = Some(self.table.leftovers(&order.pids, now));
        }
        self.done = Some((order, now));
        readout
    }
}
