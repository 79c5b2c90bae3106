use gputop_model::{Frame, Hello, UnixMillis};

use super::*;
use crate::source::record::Recorder;

const DAY: i64 = 1_795_000_000_000;

/// Returns a recording from a host that booted at `boot`, with one frame for each of these seconds of the day.
fn recording(boot: i64, seconds: std::ops::Range<u64>) -> (String, Recording) {
    let mut recorder = Recorder::new(Vec::new(), &Hello::default()).expect("records");
    for second in seconds {
        let wall = DAY + i64::try_from(second).expect("small") * 1_000;
        let frame = Frame {
            seq: second,
            time: UnixMillis(wall),
            mono: Mono(u64::try_from(wall - boot).expect("after its boot")),
            interval: Millis(1_000),
            ..Frame::default()
        };
        recorder.frame(&frame).expect("records");
    }
    let bytes = recorder.finish().expect("records");
    ("a".into(), Recording::from_bytes(bytes.into()).expect("opens"))
}

/// Two hosts with different boot times. The second recording starts ten seconds later and is longer.
struct TwoHosts {
    list: Source,
    hosts: Vec<Source>,
    shown: [Option<u64>; 2],
    links: [Option<Link>; 2],
    /// `None` until the host list has received its first position, which is sent after the first frames.
    position: Option<Position>,
}

impl TwoHosts {
    fn start(paused: bool) -> Self {
        let options = Options { paused, ..Options::default() };
        let recordings = vec![recording(DAY - 5_000_000, 0..60), recording(DAY - 777, 10..120)];
        let (list, hosts) = play_all(recordings, options).expect("plays");
        Self { list, hosts, shown: [None; 2], links: [None, None], position: None }
    }

    /// Reads updates until the condition holds.
    fn until(&mut self, wanted: impl Fn(&Self) -> bool, what: &str) {
        let started = Instant::now();
        while !wanted(self) {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "timed out waiting for: {what}; {:?} {:?} {:?}",
                self.shown,
                self.links,
                self.position
            );
            while let Some(update) = self.list.try_next() {
                if let Update::Position(position) = update {
                    self.position = Some(position);
                }
            }
            for (at, host) in self.hosts.iter_mut().enumerate() {
                while let Some(update) = host.try_next() {
                    match update {
                        Update::Frame(frame) => self.shown[at] = Some(frame.seq),
                        Update::Jump { .. } => self.shown[at] = None,
                        Update::Link(link) => self.links[at] = Some(link),
                        _ => {}
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_shown(&mut self, seconds: u64, shown: [Option<u64>; 2]) {
        let is_it = |two: &Self| {
            two.shown == shown
                && two.position.as_ref().is_some_and(|at| at.now == Mono(seconds * 1_000))
        };
        self.until(is_it, &format!("{shown:?} at {seconds}"));
    }

    /// Waits for the link state, which may arrive later than the frames.
    fn until_link(&mut self, host: usize, link: Link) {
        let is_it = |two: &Self| two.links[host].as_ref() == Some(&link);
        self.until(is_it, &format!("{link:?} of {host}"));
    }

    fn send(&self, member: Option<usize>, play: Play) {
        let source = member.map_or(&self.list, |at| &self.hosts[at]);
        source.send(Request::Play(play));
    }
}

#[test]
fn a_move_from_any_reader_moves_all_to_the_same_wall_time() {
    let mut two = TwoHosts::start(true);
    two.until_shown(0, [Some(0), None]);
    let begins_in = Millis(10_000);
    two.until_link(1, Link::Later { begins_in });
    assert_eq!(two.position.as_ref().map(|at| at.end), Some(Mono(119_000)));
    two.send(None, Play::Skip(30_000));
    two.until_shown(30, [Some(30), Some(30)]);
    two.send(Some(1), Play::Skip(-10_000));
    two.until_shown(20, [Some(20), Some(20)]);
    // The requested time is on the clock of the second host.
    two.send(Some(1), Play::To(Mono(777 + 45_000)));
    two.until_shown(45, [Some(45), Some(45)]);
    two.send(Some(0), Play::Step(1));
    two.until(|two| two.shown[0] == Some(46), "a step of the first host");
    two.send(Some(0), Play::Step(-2));
    two.until_shown(44, [Some(44), Some(44)]);
    // The first recording has ended. Its last frame stays on screen, together with the frame's age.
    two.send(None, Play::Skip(56_000));
    two.until_shown(100, [Some(59), Some(100)]);
    let since = Millis(41_000);
    two.until_link(0, Link::Silent { since });
    two.send(None, Play::Start);
    two.until_shown(0, [Some(0), None]);
    two.until_link(0, Link::Up);
}

#[test]
fn plays_all_until_the_longest_ends_and_starts_over() {
    let mut two = TwoHosts::start(false);
    two.send(None, Play::Speed(64.0));
    two.until(|two| two.shown == [Some(30), Some(30)] || two.shown[0] > Some(30), "both");
    let has_ended = |two: &TwoHosts| two.position.as_ref().is_some_and(|at| at.at_end && at.paused);
    two.until(has_ended, "the end");
    assert_eq!(two.shown, [Some(59), Some(119)]);
    two.send(Some(0), Play::Pause(false));
    two.until(|two| two.shown[0] < Some(30), "the start again");
}

#[test]
fn the_thread_ends_when_no_reader_is_left() {
    let two = TwoHosts::start(false);
    let (alive, ended) = mpsc::channel::<()>();
    let TwoHosts { list, hosts, .. } = two;
    let (feed, requests, _) = stream();
    let group = Group::new(
        vec![Member::new(recording(0, 0..9).1, feed, 0)],
        stream().0,
        Options::default(),
    );
    let (asked, all) = mpsc::channel();
    forward_requests(Some(0), requests, asked);
    drop((list, hosts));
    spawn(move || {
        group.run(&all);
        drop(alive);
    });
    assert!(ended.recv_timeout(Duration::from_secs(20)).is_err());
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}
