//! A day in which the link to every host is cut once an hour, as data that the hosts send: a frame every three minutes
//! with processes and their pools, and each hour a process that the kernel kills because memory is exhausted.
//! Optionally, ten minutes follow with a frame a second, the fastest rate at which gputop watches a host on its own.
#![allow(dead_code)]

use std::sync::Arc;

use gputop_model::event::{Event, Exit, Observation, OomVerdict};
use gputop_model::host::Hello;
use gputop_model::process::Process;
use gputop_model::protocol::Update;
use gputop_model::units::{Bytes, Millis};

use super::fake_hosts;
use super::training_day::{self, Day};

/// Number of frames in an hour, and in the ten minutes after the day.
pub const AN_HOUR: u32 = 20;
pub const TEN_MINUTES: u32 = 600;

/// Returns the data that hosts send between cuts: a list of links for each of `kinds` different hosts.
pub fn links(kinds: usize, hours: usize, with_seconds: bool) -> Vec<Vec<Vec<Vec<u8>>>> {
    let written = |kind| {
        let mut telling = Telling::of(kind);
        let mut links: Vec<_> =
            (0..hours).map(|_| fake_hosts::pieces(telling.hour().into_iter())).collect();
        if with_seconds {
            links.push(fake_hosts::pieces(telling.ten_minutes().into_iter()));
        }
        links
    };
    (0..kinds).map(written).collect()
}

/// One host.
pub struct Telling {
    kind: usize,
    day: Day,
    /// Connections so far.
    count: usize,
}

impl Telling {
    pub fn of(kind: usize) -> Self {
        Self { kind, day: Day::new().with_pools(), count: 0 }
    }

    /// Returns the updates until the next cut.
    pub fn hour(&mut self) -> Vec<Update> {
        let number = u32::try_from(self.count).unwrap() % training_day::PROCESSES;
        let hello = self.hello();
        self.day.pace(3_600 / u64::from(AN_HOUR));
        let mut reported = self.reported(&hello, AN_HOUR);
        if let Some(Update::Frame(last)) = reported.last() {
            let killed = last.processes.as_ref().unwrap().list[number as usize].clone();
            reported.push(Update::Event(Event {
                boot_id: hello.boot_id,
                agent: hello.agent,
                time: last.time,
                mono: last.mono,
                process: Some(killed.key),
                observation: Observation::Exit(Box::new(end(killed))),
                ..Event::default()
            }));
        }
        reported
    }

    pub fn ten_minutes(&mut self) -> Vec<Update> {
        let hello = self.hello();
        self.day.pace(1);
        self.reported(&hello, TEN_MINUTES)
    }

    fn hello(&mut self) -> Hello {
        self.count += 1;
        Hello {
            agent: format!("{:04x}{:04x}", self.kind, self.count),
            boot_id: format!("6c1f1c9e-4b0e-4a53-9a5c-8d1d5b0e{:04x}", self.kind),
            host: format!("train-{:02}", self.kind),
            ..training_day::hello()
        }
    }

    fn reported(&mut self, hello: &Hello, frames: u32) -> Vec<Update> {
        let mut reported = vec![Update::Hello(Arc::new(hello.clone()))];
        reported.extend((0..frames).map(|_| Update::Frame(Arc::new(self.day.next().clone()))));
        reported
    }
}

/// Returns the exit of a process that the kernel's OOM killer killed.
fn end(last: Process) -> Exit {
    let line = format!(
        "Out of memory: Killed process {} ({}) total-vm:98244212kB, anon-rss:61203412kB",
        last.key.pid, last.name
    );
    Exit {
        status: 137.into(),
        signal: 9.into(),
        peak_vram: Bytes::gib(80).into(),
        noticed_after: Millis(20),
        oom: Box::new(OomVerdict { killed: true.into(), evidence: Some(line.into()) }),
        last: Some(Box::new(last)),
        ..Exit::default()
    }
}
