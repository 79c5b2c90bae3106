//! Data between two machines: the same updates arrive, in few bytes, and invalid input breaks nothing.
#![allow(clippy::print_stdout)]

use std::io::{BufReader, Cursor};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gputop::source::remote::serve::{IncidentRequests, serve};
use gputop::source::remote::{self, Connection, Target};
use gputop_model::event::{Event, Observation};
use gputop_model::holders::Holders;
use gputop_model::holders::summary::HolderSummary;
use gputop_model::link::Link;
use gputop_model::log::LogView;
use gputop_model::phases::PhaseWindow;
use gputop_model::pool::{FailureMap, PoolMap};
use gputop_model::probe::Probe;
use gputop_model::process::ProcessKey;
use gputop_model::process_group::{GroupArrivals, LastArrivals};
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::stream;
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::signal::{Signal, Signalled};
use gputop_model::stack::PythonStack;
use gputop_model::units::{Millis, Mono};
use proptest::prelude::*;

use crate::support::fake_hosts;
use crate::support::fake_machine::wait_until;
use crate::support::training_day::{self, Day};
use crate::support::training_model::Trainer;

/// Input for an agent, as if every frame had arrived as soon as it was sent.
const ALL_ARRIVED: &str = "{\"frames\":1000000}\n{\"later\":1}\nnot JSON\n";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns the bytes that an agent writes for these updates, in order.
pub fn encode_updates(updates: impl IntoIterator<Item = Update>) -> Vec<u8> {
    encode_with_incidents(updates, None)
}

fn encode_with_incidents(
    updates: impl IntoIterator<Item = Update>,
    incidents: Option<IncidentRequests>,
) -> Vec<u8> {
    let (feed, _requests, source) = stream();
    let mut output = Vec::new();
    let feeding = async {
        for update in updates {
            feed.push(update);
            // Wait until the agent has taken the update.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        drop(feed);
    };
    let input = BufReader::new(Cursor::new(ALL_ARRIVED));
    let serving = serve(source, incidents, input, &mut output, || {});
    runtime().block_on(async { tokio::join!(feeding, serving).1 }).unwrap();
    output
}

#[test]
fn incidents_follow_the_hello() {
    let (replies, stored) = tokio::sync::mpsc::channel(1);
    replies.try_send(Update::IncidentList(Vec::new())).unwrap();
    let (asked, _requests) = std::sync::mpsc::sync_channel(1);
    let incidents = IncidentRequests { asked, replies: stored };
    let hello = Update::Hello(Arc::new(training_day::hello()));
    let frame = Update::Frame(Arc::new(Day::new().next().clone()));
    let output = encode_with_incidents([hello, frame], Some(incidents));
    let greeting = output.iter().position(|byte| *byte == b'\n').unwrap();
    let lines = zstd::decode_all(&output[greeting + 1..]).unwrap();
    let kinds: Vec<_> = String::from_utf8(lines)
        .unwrap()
        .lines()
        .map(|line| line.split('"').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["hello", "reply", "frame"]);
}

#[test]
fn every_flush_ends_with_a_newline() {
    let mut day = Day::new();
    let frames = (0..40).map(|_| Update::Frame(Arc::new(day.next().clone())));
    let pieces = fake_hosts::pieces(frames);
    let sent: Vec<_> = pieces.iter().filter(|piece| !piece.is_empty()).collect();
    assert!(sent.len() > 3);
    assert!(sent.iter().all(|piece| piece.last() == Some(&b'\n')));
}

/// Returns the updates that a local gputop reads from this file until the link is lost, and the reason for the loss.
pub fn read(file: &Path) -> (Vec<Update>, String) {
    read_times(file, 1)
}

/// Same as `read`, for a remote host that reconnects and sends everything again, until the link was lost `times` times.
fn read_times(file: &Path, times: usize) -> (Vec<Update>, String) {
    read_via(format!("cat {}", file.display()), times)
}

/// Same as `read_times`, for this command.
fn read_via(via: String, times: usize) -> (Vec<Update>, String) {
    let connection = Connection {
        target: Target::Via(via),
        interval: Millis(1_000),
        agent_arguments: String::new(),
        shared: None,
    };
    let mut source = remote::start(connection).unwrap();
    runtime().block_on(async {
        let (mut updates, mut lost) = (Vec::new(), 0);
        let mut is_up = true;
        loop {
            match source.next().await.unwrap() {
                Update::Link(Link::Lost { why, .. }) => {
                    // While the link is down, `Lost` is repeated every second.
                    lost += usize::from(std::mem::take(&mut is_up));
                    if lost == times {
                        return (updates, why);
                    }
                }
                Update::Link(_) => is_up = true,
                // A newer state of the link replaces an unread one, so the connected state may be missing.
                update => {
                    is_up = true;
                    updates.push(update);
                }
            }
        }
    })
}

pub fn read_bytes(bytes: &[u8]) -> (Vec<Update>, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    read(file.path())
}

fn key() -> ProcessKey {
    ProcessKey::new(418, 7)
}

/// Returns one update of each kind.
pub fn all_kinds() -> Vec<Update> {
    let why = || Missing::new(Reason::Denied, "of another user");
    let mut day = Day::new();
    let map = Trainer::new(0).map(Mono(90_412));
    vec![
        Update::Hello(Arc::new(training_day::hello())),
        Update::Frame(Arc::new(day.next().clone())),
        Update::Event(Event { seq: 7, ..Event::default() }),
        Update::FailureMap(Arc::new(FailureMap { since: Mono(90_000), map: map.clone() })),
        Update::Map(Arc::new(map)),
        Update::Detail(key(), Box::new(Ok(Default::default()))),
        Update::Detail(key(), Box::new(Err(why()))),
        Update::Stacks(key(), Arc::new(Ok(PythonStack::default()))),
        Update::Stacks(key(), Arc::new(Err(why()))),
        Update::Holders(key(), Arc::new(Ok(Holders::default()))),
        Update::Phases(
            key(),
            Arc::new(Ok(PhaseWindow { process: key(), ..PhaseWindow::default() })),
        ),
        Update::Phases(key(), Arc::new(Err(why()))),
        Update::Arrivals(Arc::new(vec![GroupArrivals {
            store: Some("10.0.0.1:29500".into()),
            group: "dp".into(),
            size: 2,
            ranks: vec![0, 1],
            collectives: 120,
            last: vec![LastArrivals { rank: 1, count: 118, lateness: Millis(52) }],
        }])),
        Update::HolderSummary(Arc::new(HolderSummary {
            process: key(),
            ..HolderSummary::default()
        })),
        Update::Log(Arc::new(LogView {
            process: key(),
            text: Reading::Value("step 1\nstep 2\n".into()),
            errors: vec![1],
            ..LogView::default()
        })),
        Update::Watched(key(), Ok("train.log".into())),
        Update::Watched(key(), Err(why())),
        Update::Signalled(Signalled {
            signal: Signal::Term,
            outcomes: vec![(key(), Ok(())), (key(), Err(why()))],
        }),
        Update::Probed(Arc::new(Probe::default())),
        Update::Notice("a sentence".into()),
    ]
}

#[test]
fn every_update_survives_the_wire() {
    let reported = all_kinds();
    let (received, why) = read_bytes(&encode_updates(reported.clone()));
    assert_eq!(why, "the remote command exited");
    assert_eq!(received.len(), reported.len());
    assert_same(&received, &reported);
    // Only the newest map update is sent, so this one is sent separately.
    let no_map = [Update::NoMap((key(), 3), Missing::new(Reason::Denied, "of another user"))];
    assert_same(&read_bytes(&encode_updates(no_map.clone())).0, &no_map);
    let why = Missing::new(Reason::Denied, "of another user");
    let no_holders = [Update::Holders(key(), Arc::new(Err(why)))];
    assert_same(&read_bytes(&encode_updates(no_holders.clone())).0, &no_holders);
}

#[test]
fn event_is_reported_once_across_agent_restarts() {
    let event =
        |agent: &str, seq| Update::Event(Event { agent: agent.into(), seq, ..Event::default() });
    let hello = || Update::Hello(Arc::new(training_day::hello()));
    let reported = [hello(), event("a", 3), event("a", 4), event("b", 0)];
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), encode_updates(reported.clone())).unwrap();
    let (received, _) = read_times(file.path(), 2);
    let again = reported.into_iter().chain([hello()]);
    assert_same(&received, &again.collect::<Vec<_>>());
    // A slow reader may see the start of one more connection.
    let events = received.iter().filter(|one| matches!(one, Update::Event(_)));
    assert_eq!(events.count(), 3);
}

#[test]
fn failed_allocations_during_a_lost_link_are_reported_later() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (mut day, mut process) = (Day::new(), ProcessKey::default());
    for (number, agent, num_ooms) in [(1, "a", 3), (2, "b", 5)] {
        let mut frame = day.next().clone();
        let mut list = Vec::clone(&frame.pools.as_ref().unwrap().list);
        list[0].stats.num_ooms = num_ooms;
        process = list[0].process;
        frame.pools.as_mut().unwrap().list = Arc::new(list);
        let hello = gputop_model::host::Hello { agent: agent.into(), ..training_day::hello() };
        let reported = [Update::Hello(hello.into()), Update::Frame(frame.into())];
        std::fs::write(at(&format!("said{number}")), encode_updates(reported)).unwrap();
    }
    let (starts, message) = (at("starts"), at("said"));
    let via = format!("echo >> {starts}; exec cat {message}$(wc -l < {starts})");
    let (received, _) = read_via(via, 2);
    let events: Vec<&Event> = received
        .iter()
        .filter_map(|update| match update {
            Update::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    let [event] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(event.process, Some(process));
    let Observation::Ooms(rose) = &event.observation else {
        panic!("{event:?}");
    };
    assert_eq!((rose.before, rose.after), (3, 5));
}

/// A machine that sleeps while a remote host is connected, or during the wait for the next attempt, reconnects as soon
/// as it wakes.
#[test]
fn a_machine_that_has_slept_connects_anew_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("said"), encode_updates([Update::Hello(Arc::new(training_day::hello()))]))
        .unwrap();
    let (starts, message) = (at("starts"), at("said"));
    // The remote host answers once and hangs. After that it never answers, and the delay between attempts grows.
    let via = format!(
        "echo >> {starts}; test $(wc -l < {starts}) -eq 1 || exit 1; cat {message}; exec sleep 1000"
    );
    let connection = Connection {
        target: Target::Via(via),
        interval: Millis(1_000),
        agent_arguments: String::new(),
        shared: None,
    };
    let slept = Arc::new(AtomicU64::new(7));
    let clock = Arc::clone(&slept);
    let source =
        remote::start_with(connection, move || Duration::from_secs(clock.load(Ordering::Relaxed)));
    let mut source = source.unwrap();
    let started = || std::fs::read(at("starts")).map_or(0, |lines| lines.len());
    runtime().block_on(async {
        while !matches!(source.next().await.unwrap(), Update::Hello(_)) {}
        let since = Instant::now();
        slept.fetch_add(3_600, Ordering::Relaxed);
        wait_until("another attempt", || started() > 1);
        assert!(since.elapsed() < Duration::from_secs(5), "it was waited for");
        let announced = loop {
            if let Update::Link(Link::Lost { again_in, .. }) = source.next().await.unwrap()
                && again_in.0 > 2_900
            {
                break Duration::from_millis(again_in.0);
            }
        };
        let (before, since) = (started(), Instant::now());
        slept.fetch_add(60, Ordering::Relaxed);
        wait_until("another attempt", || started() > before);
        assert!(since.elapsed() < announced, "it was waited for");
    });
}

/// Fails at the first difference, without filling the terminal.
#[track_caller]
fn assert_same(received: &[Update], reported: &[Update]) {
    for (one, other) in received.iter().zip(reported) {
        let (one, other) = (format!("{one:?}"), format!("{other:?}"));
        assert!(one == other, "{one:.300}\n{other:.300}");
    }
}

#[test]
fn eight_gpus_and_sixty_four_processes_take_less_than_10_kilobytes_a_second() {
    let mut day = Day::new();
    let frames = 200;
    let one = encode_updates([Update::Frame(Arc::new(day.next().clone()))]).len();
    let more = (0..frames).map(|_| Update::Frame(Arc::new(day.next().clone())));
    let all = encode_updates(
        std::iter::once(Update::Hello(Arc::new(training_day::hello())))
            .chain(more.collect::<Vec<_>>()),
    );
    let each = (all.len() - one) / frames;
    println!("{one} bytes for the first frame, {each} for each that follows");
    assert!(each <= 10_000, "{each} bytes a frame");
}

/// A new map every second, of a process with ten thousand blocks.
#[test]
fn a_large_map_that_is_open_takes_less_than_60_kilobytes_a_second() {
    let mut trainers: Vec<Trainer> = (0..7).map(Trainer::new).collect();
    let mut map = |second: u64| {
        let maps = trainers.iter_mut().map(|trainer| trainer.map(Mono(second * 1_000)));
        let segments = maps.flat_map(|map| map.segments).collect();
        PoolMap {
            process: key(),
            at: Mono(second * 1_000),
            exact: true,
            segments,
            ..PoolMap::default()
        }
    };
    let blocks: usize = map(0).segments.iter().map(|segment| segment.blocks.len()).sum();
    let maps: Vec<Update> = (0..20).map(|second| Update::Map(Arc::new(map(second)))).collect();
    let one = encode_updates(maps.iter().take(1).cloned()).len();
    let each = (encode_updates(maps.clone()).len() - one) / (maps.len() - 1);
    println!("{blocks} blocks: {each} bytes a map");
    assert!(blocks >= 10_000, "{blocks}");
    assert!(each <= 60_000, "{each} bytes a map of {blocks} blocks");
}

#[test]
fn remote_control_characters_are_escaped() {
    let mut day = Day::new();
    let mut frame = day.next().clone();
    frame.gpus[0].name = "H200\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}".into();
    let (received, _) = read_bytes(&encode_updates([Update::Frame(Arc::new(frame))]));
    let [Update::Frame(frame)] = received.as_slice() else {
        panic!("{received:?}");
    };
    assert_eq!(frame.gpus[0].name, r"H200^[]0;owned^G\u{9b}2J\u{202e}");
}

#[test]
fn truncated_stream_delivers_complete_lines() {
    let reported = all_kinds();
    let bytes = encode_updates(reported.clone());
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        let (received, why) = read_bytes(&bytes[..cut]);
        assert!(received.len() <= reported.len(), "{why}");
        assert_same(&received, &reported);
    }
}

#[test]
fn endless_line_is_refused_without_memory() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    let window = zstd::zstd_safe::CParameter::WindowLog(18);
    encoder.set_parameter(window).unwrap();
    std::io::Write::write_all(&mut encoder, b"{\"reply\":{\"notice\":\"").unwrap();
    std::io::copy(&mut std::io::Read::take(std::io::repeat(b'y'), 100 << 20), &mut encoder)
        .unwrap();
    let greeting = gputop::source::remote::greeting::greeting();
    let bytes = [greeting.as_bytes(), &encoder.finish().unwrap()].concat();
    assert!(bytes.len() < 1 << 20);
    let (received, why) = read_bytes(&bytes);
    assert!(received.is_empty());
    assert_eq!(why, "a received line is longer than 16 MiB");
}

#[test]
fn a_window_that_is_larger_than_agreed_is_refused() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    let window = zstd::zstd_safe::CParameter::WindowLog(27);
    encoder.set_parameter(window).unwrap();
    std::io::copy(&mut std::io::Read::take(std::io::repeat(b'\n'), 1 << 20), &mut encoder).unwrap();
    let greeting = gputop::source::remote::greeting::greeting();
    let (_, why) = read_bytes(&[greeting.as_bytes(), &encoder.finish().unwrap()].concat());
    assert!(why.starts_with("the received data is damaged"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any input, in the stream or instead of it, ends with a reason.
    #[test]
    fn random_bytes_break_nothing(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        is_packed in any::<bool>(),
        is_inside in any::<bool>(),
    ) {
        let greeting = gputop::source::remote::greeting::greeting();
        let bytes = if is_packed {
            let packed = zstd::stream::encode_all(noise.as_slice(), 1).unwrap();
            [greeting.as_bytes(), &packed].concat()
        } else if is_inside {
            let mut bytes = encode_updates(all_kinds().into_iter().take(1));
            let at = at.index(bytes.len());
            bytes.splice(at..at, noise);
            bytes
        } else {
            noise
        };
        let (_, why) = read_bytes(&bytes);
        prop_assert!(!why.is_empty());
    }
}
