//! Four ranks of one launcher. Rank 3 waits for its data loader, the others for rank 3.

use std::sync::Arc;

use gputop_model::event::{Event, LogExcerpt, Observation};
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::host::Hello;
use gputop_model::incident::{DetectedBy, Severity, Verdict};
use gputop_model::incident_record::Record;
use gputop_model::process::{Parent, Process, ProcessKey};
use gputop_model::process_group::{PendingWork, ProcessGroup, RankReading, Work};
use gputop_model::stack::{PythonStack, StackFrame, StackThread};
use gputop_model::units::{Mono, Pid, UnixMillis};

use super::super::Observer;
use crate::ranks::JoinedJobs;

const START: u64 = 1_000_000;

fn key(rank: u32) -> ProcessKey {
    ProcessKey::new(400 + rank, 5_000)
}

/// Returns a frame `second` seconds after the ranks began to wait.
fn frame(second: u64, is_waiting: bool) -> Arc<Frame> {
    let process = |rank| Process {
        key: key(rank),
        rank: rank.into(),
        parent: Some(Parent { pid: Pid(390), ..Parent::default() }),
        command: "python train.py".to_owned().into(),
        ..Process::default()
    };
    let list = Arc::new((0..4).map(process).collect());
    Arc::new(Frame {
        mono: Mono(START + second * 1_000),
        time: UnixMillis(1_800_000_000_000 + (second * 1_000).cast_signed()),
        processes: Some(ProcessList { list, ..ProcessList::default() }),
        ranks: Arc::new((0..4).map(|rank| reading(rank, second, is_waiting)).collect()),
        ..Frame::default()
    })
}

fn reading(rank: u32, second: u64, is_waiting: bool) -> RankReading {
    let work = |seq| Work { seq, operation: "ALLREDUCE".into(), ..Work::default() };
    // While no rank waits, each has called one more collective at each look.
    let called = if is_waiting { 29 + u64::from(rank != 3) } else { 29 + second };
    let pending = PendingWork { work: work(30), called_ns: START * 1_000_000 };
    let is_pending = is_waiting && rank != 3;
    let frames =
        [("__next__", "/usr/lib/torch/utils/data/dataloader.py", 1_445), ("main", "train.py", 37)];
    let frames = frames.map(|(function, file, line)| StackFrame {
        function: function.into(),
        file: file.into(),
        line,
    });
    let main = StackThread { is_main: true, frames: frames.into(), ..StackThread::default() };
    let stack = PythonStack {
        process: key(rank),
        at: Mono(START + second * 1_000),
        threads: vec![main],
        ..PythonStack::default()
    };
    RankReading {
        process: key(rank),
        at: Mono(START + second * 1_000),
        store: Some("127.0.0.1:29500".into()),
        rank: Some(rank),
        world_size: Some(4),
        groups: vec![ProcessGroup {
            name: "0".into(),
            description: "default_pg".into(),
            rank,
            size: 4,
            called: called.into(),
            called_p2p: 0.into(),
            enqueued: Some(work(called)),
            completed: Some(work(if is_waiting { 29 } else { called })),
            pending: if is_pending { vec![pending] } else { Vec::new() }.into(),
            ..ProcessGroup::default()
        }]
        .into(),
        stack: (rank == 3).then(|| stack.into()),
    }
}

/// Returns an observer and the records of the first `seconds` of waiting.
fn wait(seconds: u64) -> (Observer, Vec<Record>) {
    let mut observer = Observer::default();
    observer.hello(Arc::new(Hello {
        boot_id: "boot".into(),
        host: "node1".into(),
        ..Hello::default()
    }));
    let records = (0..=seconds).flat_map(|second| observer.frame(&frame(second, true))).collect();
    (observer, records)
}

#[test]
fn a_wait_of_a_minute_is_an_incident_of_the_rank_that_holds_up_the_others() {
    let (_, records) = wait(59);
    assert_eq!(records, []);
    let (_, records) = wait(119);
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    let incident = &record.incident;
    assert_eq!(
        incident.title,
        "Rank 3 holds up 3 ranks for 60 s: it waits for its data loader (train.py:37)."
    );
    assert_eq!((incident.severity, incident.detected_by), (Severity::Note, DetectedBy::Ranks));
    assert_eq!((record.key.process, record.key.first), (Some(key(3)), Mono(START)));
    assert_eq!((incident.fields.rank, incident.fields.pid), (Some(3), Some(Pid(403))));
    let causes: Vec<_> = incident.causes.iter().map(|c| (c.id.as_str(), c.verdict)).collect();
    assert_eq!(causes, [("loader", Verdict::Likely)]);
    assert!(incident.fixes[0].change.starts_with("DataLoader("), "{:#?}", incident.fixes);
    assert_eq!(incident.quote.text, "rank 3 is in __next__ < main");
}

/// A stall is one incident, which is brought up to date less and less often.
#[test]
fn a_long_stall_is_reported_again_when_it_has_doubled() {
    let (mut observer, records) = wait(1_000);
    let titles = records.iter().map(|record| record.incident.title.as_str());
    let times: Vec<_> = titles.filter_map(|title| title.split(['s', ':']).nth(2)).collect();
    assert_eq!(records.len(), 5, "{times:?}");
    assert!(records.iter().all(|record| record.key == records[0].key));
    // The job goes on, and stalls again.
    let mut later = Vec::new();
    for second in 1_001..1_060 {
        later.extend(observer.frame(&frame(second, false)));
    }
    assert!(later.iter().all(|record| record.key == records[0].key), "{later:#?}");
}

/// Returns the part of a frame that is of one host: rank 3 of the second one, whose clock differs, and the others of the
/// first.
fn of_host(host: usize, second: u64) -> Arc<Frame> {
    let mut frame = Arc::unwrap_or_clone(frame(second, true));
    let after = OTHER_CLOCK * host as u64;
    let list = frame.processes.iter().flat_map(|processes| &*processes.list);
    let list = list.filter(|process| (process.key == key(3)) == (host == 1)).cloned();
    frame.processes =
        Some(ProcessList { list: Arc::new(list.collect()), ..ProcessList::default() });
    let ranks = frame.ranks.iter().filter(|read| (read.process == key(3)) == (host == 1)).cloned();
    let shifted = ranks.map(|mut read| {
        read.at.0 += after;
        read.store = Some("10.0.0.1:29500".into());
        if let Some(stack) = &mut read.stack {
            Arc::make_mut(stack).at.0 += after;
        }
        read
    });
    frame.ranks = Arc::new(shifted.collect());
    frame.mono.0 += after;
    Arc::new(frame)
}

const OTHER_CLOCK: u64 = 90_000_000;

/// Returns the observers of two hosts, with the records of each in the first `seconds` of waiting.
fn wait_on_two_hosts(seconds: u64) -> [(Observer, Vec<Record>); 2] {
    let jobs = JoinedJobs::default();
    let observe = |host: &str, boot: &str| {
        let mut observer = Observer::of_host_among(jobs.clone());
        let (host, boot_id) = (host.into(), boot.into());
        observer.hello(Arc::new(Hello { boot_id, host, ..Hello::default() }));
        (observer, Vec::new())
    };
    let mut hosts = [observe("node1", "boot"), observe("node2", "other boot")];
    for second in 0..seconds {
        for (host, (observer, records)) in hosts.iter_mut().enumerate() {
            records.extend(observer.frame(&of_host(host, second)));
        }
    }
    hosts
}

/// Returns a line of a rank's log, `second` seconds after the ranks began to wait.
fn logged(rank: u32, second: u64, text: &str) -> Event {
    let excerpt = LogExcerpt { text: text.into(), ..LogExcerpt::default() };
    Event {
        boot_id: "boot".into(),
        mono: Mono(START + second * 1_000),
        process: Some(key(rank)),
        observation: Observation::Log(Box::new(excerpt)),
        ..Event::default()
    }
}

const TIMEOUT: &str = "[rank0]:[E1104 09:41:20.118372655 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=30, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n";

#[test]
fn a_stall_across_hosts_is_an_incident_of_the_host_whose_rank_holds_up_the_others() {
    let [(_, first), (_, second)] = wait_on_two_hosts(119);
    assert_eq!(first, []);
    let [record] = &second[..] else { panic!("{} records", second.len()) };
    assert_eq!(
        record.incident.title,
        "Rank 3 on node2 holds up 3 ranks for 60 s: it waits for its data loader (train.py:37)."
    );
    assert_eq!(record.key.process, Some(key(3)));
    let began = record.key.first.0.abs_diff(START + OTHER_CLOCK);
    assert!(began <= 2_000, "{began} ms from the time at which the ranks began to wait");
}

#[test]
fn a_timeout_on_another_host_is_explained_by_the_stall() {
    let [(mut observer, before), _] = wait_on_two_hosts(600);
    assert_eq!(before, []);
    assert_eq!(observer.event(&logged(0, 600, "epoch 3, loss 0.25\n")), []);
    let records = observer.event(&logged(0, 600, TIMEOUT));
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    let incident = &record.incident;
    assert_eq!((incident.id.as_str(), incident.severity), (super::CARD, Severity::Fatal));
    let title = "Rank 3 on node2 holds up 3 ranks for ";
    assert!(incident.title.starts_with(title), "{}", incident.title);
    let then: Vec<_> = incident.secondary.iter().map(|one| one.headline.as_str()).collect();
    assert_eq!(then, ["COLLECTIVE TIMEOUT"]);
    // The process that failed is on this host, unlike rank 3.
    assert_eq!((incident.fields.pid, incident.fields.rank), (Some(Pid(400)), None));
    // The other ranks of this host belong to the same incident.
    let others = observer.event(&logged(2, 602, &TIMEOUT.replace("ank 0", "ank 2")));
    assert!(others.iter().all(|other| other.key == record.key), "{others:#?}");
    // Once the ranks no longer wait, a timeout is an incident of its own.
    let [(mut observer, _), _] = wait_on_two_hosts(100);
    let [record] = &observer.event(&logged(0, 600, TIMEOUT))[..] else { panic!("one record") };
    assert_ne!(record.incident.id, super::CARD);
}

#[test]
fn the_timeout_that_follows_names_the_rank_that_the_others_waited_for() {
    let (mut observer, before) = wait(600);
    let records = observer.event(&logged(0, 600, TIMEOUT));
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!(record.key, before[0].key);
    let incident = &record.incident;
    assert_eq!((incident.id.as_str(), incident.severity), (super::CARD, Severity::Fatal));
    assert!(incident.title.contains("it waits for its data loader"), "{}", incident.title);
    let then: Vec<_> = incident.secondary.iter().map(|one| one.headline.as_str()).collect();
    assert_eq!(then, ["COLLECTIVE TIMEOUT"]);
}
