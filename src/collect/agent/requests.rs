//! Serves requests, and refuses those that are not permitted.

use std::sync::Arc;

use gputop_model::protocol::{Request, Update};
use gputop_model::{Missing, ProcessKey, Reason, Signal, Signalled};

use crate::collect::agent::driver::DriverCommand;
use crate::collect::agent::running::Agent;
use crate::collect::agent::section::Section;
use crate::collect::process::send_signal;

impl Agent {
    pub(super) fn serve(&mut self, request: Request) {
        let permissions = &self.options.permissions;
        let permission = match request {
            Request::Signal { .. } => permissions.signals,
            Request::Probe(_) => permissions.probes,
            Request::Watch { .. } => permissions.watches,
            _ => Ok(()),
        };
        if let Err(why) = permission {
            let refused = request.refused(Missing::new(Reason::Denied, why));
            refused.into_iter().for_each(|update| self.feed.push(update));
            return;
        }
        match request {
            Request::Signal { signal, processes } => self.send_signal(signal, processes),
            Request::Focus(focus) => self.workers.set_focus(focus, &self.gpus),
            Request::Interval(interval) => {
                self.options.interval = interval;
                self.workers.set_interval(interval);
            }
            Request::Wake => {
                let _ = self.driver_commands.send(DriverCommand::Wake);
            }
            Request::Map(wanted) => {
                self.map_wanted = wanted;
                self.ask_for_map();
            }
            Request::Play(_) | Request::Connect => {}
            Request::Detail(_)
            | Request::Stacks(_)
            | Request::Holders(_)
            | Request::Phases(_)
            | Request::Arrivals(_)
            | Request::Ras(_)
            | Request::Log(_)
            | Request::Watch { .. }
            | Request::Probe(_) => {
                self.collectors.iter().any(|collector| collector.serve(&request, self));
            }
        }
    }

    fn send_signal(&self, signal: Signal, processes: Vec<ProcessKey>) {
        let send = |key| send_signal(&self.options.proc_root, key, signal);
        let outcomes = processes.into_iter().map(|key| (key, send(key)));
        self.feed.push(Update::Signalled(Signalled { signal, outcomes: outcomes.collect() }));
    }

    pub(super) fn ask_for_map(&self) {
        if let Some((process, ordinal)) = self.map_wanted {
            let sections = self.sections.clone();
            self.sampler.map(process, ordinal, move |map| {
                let update = match map {
                    Ok(map) => Update::Map(Arc::new(map)),
                    Err(why) => Update::NoMap((process, ordinal), why),
                };
                let _ = sections.send(Section::Update(update));
            });
        }
    }
}
