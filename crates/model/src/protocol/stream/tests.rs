use super::*;
use crate::event::{Event, LogExcerpt, Observation};
use crate::frame::Frame;
use crate::gpu::Gpu;
use crate::units::Mono;

fn frame(seq: u64) -> Update {
    Update::Frame(Arc::new(Frame { seq, ..Frame::default() }))
}

#[tokio::test]
async fn a_slow_reader_loses_old_frames_but_no_event() {
    let (feed, _requests, mut source) = stream();
    for seq in 0..1_000 {
        feed.push(frame(seq));
        feed.push(Update::Event(Event { seq, ..Event::default() }));
    }
    drop(feed);
    let (mut frames, mut events) = (Vec::new(), 0);
    while let Some(update) = source.next().await {
        match update {
            Update::Frame(frame) => frames.push(frame.seq),
            Update::Event(event) => {
                assert_eq!(event.seq, events);
                events += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, 1_000);
    assert_eq!(frames, (1_000 - MAX_FRAMES as u64..1_000).collect::<Vec<_>>());
}

#[test]
fn keeps_only_the_allowed_number_of_frames() {
    let (feed, _requests, mut source) = stream();
    source.set_limits(3, backlog::MAX_BYTES);
    (0..9).for_each(|seq| feed.push(frame(seq)));
    let waiting = std::iter::from_fn(|| source.try_next());
    let numbers: Vec<u64> = waiting
        .filter_map(|update| match update {
            Update::Frame(frame) => Some(frame.seq),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [6, 7, 8]);
}

fn jump() -> Update {
    Update::Jump { from: Mono(0), summaries: Vec::new() }
}

#[test]
fn a_jump_discards_unread_states_but_no_event() {
    let (feed, _requests, mut source) = stream();
    for seq in 0..100 {
        feed.push(jump());
        feed.push(frame(seq));
        feed.push(Update::Event(Event::default()));
    }
    let waiting: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
    let events = waiting.iter().filter(|u| matches!(u, Update::Event(_)));
    assert_eq!((waiting.len(), events.count()), (102, 100));
    assert!(matches!(&waiting[100], Update::Frame(f) if f.seq == 99));
}

fn large_event() -> Update {
    let excerpt = LogExcerpt { text: "x".repeat(1 << 20), ..LogExcerpt::default() };
    let observation = Observation::Log(Box::new(excerpt));
    Update::Event(Event { observation, ..Event::default() })
}

#[test]
fn a_waiting_feed_continues_when_the_reader_reads_or_is_dropped() {
    let (feed, _requests, mut source) = stream();
    let count = backlog::MAX_BYTES >> 20;
    (0..count).for_each(|_| feed.push(large_event()));
    let (pushed, read) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        for _ in 0..2 {
            feed.wait_for_room();
            feed.push(large_event());
            let _ = pushed.send(());
        }
    });
    assert!(read.try_recv().is_err());
    source.try_next();
    assert_eq!(read.recv(), Ok(()));
    assert_eq!(source.shared.queue().updates.len(), count);
    drop(source);
    assert_eq!(read.recv(), Ok(()));
    assert!(writer.join().is_ok());
}

#[test]
fn large_frames_of_a_collector_replace_unread_ones() {
    let (feed, _requests, mut source) = stream();
    source.set_limits(MAX_FRAMES, 100_000);
    for seq in 0..1_000 {
        let gpu = Gpu { name: "x".repeat(10_000), ..Gpu::default() };
        feed.push(Update::Frame(Arc::new(Frame { seq, gpus: vec![gpu], ..Frame::default() })));
    }
    let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
    assert!((1..12).contains(&unread.len()), "{} frames", unread.len());
    assert!(matches!(unread.last(), Some(Update::Frame(frame)) if frame.seq == 999));
}

#[test]
fn updates_of_a_collector_replace_unread_frames_first_then_events() {
    let (feed, _requests, mut source) = stream();
    feed.drop_when_full();
    feed.push(Update::Hello(Arc::default()));
    let count = 3 * (backlog::MAX_BYTES as u64 >> 20);
    for seq in 0..count {
        feed.push(frame(seq));
        let Update::Event(event) = large_event() else { unreachable!() };
        feed.push(Update::Event(Event { seq, ..event }));
        feed.push(Update::Notice(seq.to_string()));
    }
    let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
    let events: Vec<u64> = unread
        .iter()
        .filter_map(|update| match update {
            Update::Event(event) => Some(event.seq),
            _ => None,
        })
        .collect();
    let lost = count - events.len() as u64;
    assert!(lost > 0 && !events.is_empty());
    assert!(!unread.iter().any(|update| matches!(update, Update::Frame(_))));
    assert_eq!(events, (lost..count).collect::<Vec<_>>());
    assert!(matches!(unread[0], Update::Hello(_)));
    let Update::Notice(notice) = &unread[1] else { panic!("{:?}", unread[1]) };
    assert_eq!(notice, &format!("{lost} events were dropped, because they were not read in time"));
    let notices = unread.iter().skip(2).filter_map(|update| match update {
        Update::Notice(notice) => notice.parse::<u64>().ok(),
        _ => None,
    });
    assert!(notices.eq(0..count));
}

#[test]
fn dropped_replies_are_reported() {
    let (feed, _requests, mut source) = stream();
    feed.drop_when_full();
    (0..2).for_each(|_| feed.push(large_event()));
    let count = 3 * (backlog::MAX_BYTES >> 20);
    (0..count).for_each(|_| feed.push(Update::Notice("x".repeat(1 << 20))));
    let Some(Update::Notice(notice)) = source.try_next() else { panic!("no notice") };
    let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
    assert!(unread.iter().all(|update| matches!(update, Update::Notice(_))));
    let lost = count - unread.len();
    let expected =
        format!("2 events and {lost} replies were dropped, because they were not read in time");
    assert_eq!(notice, expected);
}

#[tokio::test]
async fn requests_reach_the_source_until_it_ends() {
    let (feed, requests, source) = stream();
    source.send(Request::Focus(None));
    assert_eq!(requests.recv(), Ok(Request::Focus(None)));
    drop((feed, requests));
    source.send(Request::Focus(None));
}
