//! Pool maps in a recording: written, replayed, found again after a jump, and rejected if invalid.

use std::path::Path;
use std::sync::Arc;

use gputop::source::map_schedule::{MapPeriod, MapScheduler};
use gputop::source::record::Recorder;
use gputop_model::frame::Frame;
use gputop_model::pool::{Pool, PoolMap, Pools};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Play, Request, Update};
use gputop_model::reading::Missing;
use gputop_model::units::{Mono, StartTicks};
use gputop_peek::torch::Attached;

use crate::support::replay_client::{PAUSED, ReplayClient, frame, minute_of, start};
use crate::support::training_day::{self, Day};
use crate::support::training_model::Trainer;

type PoolKey = (ProcessKey, u32);

const RANKS: [u32; 2] = [0, 1];

fn pool(rank: u32) -> PoolKey {
    (training_day::key(rank * 8), 0)
}

/// Requests a map as the screen does with every frame. Returns the answer that comes before the replay's position.
fn request_map(seen: &mut ReplayClient, pool: PoolKey) -> Option<Result<Arc<PoolMap>, Missing>> {
    seen.updates.clear();
    seen.source.send(Request::Map(Some(pool)));
    seen.position(|_| true);
    newest_map_update(seen)
}

/// Returns the newest answer about maps.
fn newest_map_update(seen: &ReplayClient) -> Option<Result<Arc<PoolMap>, Missing>> {
    seen.updates.iter().rev().find_map(|update| match update {
        Update::Map(map) => Some(Ok(Arc::clone(map))),
        Update::NoMap(_, why) => Some(Err(why.clone())),
        _ => None,
    })
}

/// Returns the time half a second after this frame.
fn map_time(seq: u64) -> Mono {
    Mono(frame(seq).mono.0 + 500)
}

/// Returns a recording in which some frames are followed by a map of each rank.
fn recording(frames: u64, with_maps: impl Fn(u64) -> bool) -> (Vec<u8>, Vec<PoolMap>) {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    let mut trainers = RANKS.map(Trainer::new);
    let mut maps = Vec::new();
    for seq in 0..frames {
        recorder.frame(&frame(seq)).unwrap();
        if with_maps(seq) {
            for trainer in &mut trainers {
                let map = trainer.map(map_time(seq));
                recorder.map(&map).unwrap();
                maps.push(map);
            }
        }
    }
    (recorder.finish().unwrap(), maps)
}

/// Steps by `by` frames, to frame `to`, and returns the map.
fn step(seen: &mut ReplayClient, by: i32, to: u64) -> Option<Result<Arc<PoolMap>, Missing>> {
    seen.ask(Play::Step(by));
    seen.position(|position| position.now == frame_time(to));
    newest_map_update(seen)
}

/// Returns the time of the map that is shown after a move.
fn map_after(seen: &mut ReplayClient, play: Play) -> Option<Mono> {
    seen.go(play);
    Some(newest_map_update(seen)?.ok()?.at)
}

#[test]
fn a_map_comes_back_as_it_was_with_the_frame_behind_it() {
    let (bytes, maps) = recording(10, |seq| seq == 3);
    for (rank, map) in RANKS.into_iter().zip(&maps) {
        let mut seen = start(bytes.clone(), PAUSED);
        seen.position(|_| true);
        let why = request_map(&mut seen, pool(rank)).unwrap().unwrap_err();
        assert!(why.to_string().contains("no map of this pool up to this time"), "{why}");
        assert!(step(&mut seen, 3, 3).is_none(), "it was taken behind it");
        let read = step(&mut seen, 1, 4).unwrap().unwrap();
        assert!(*read == *map, "not the map that was written");
        assert!(map.segments.len() > 300, "{}", map.segments.len());
        assert!(step(&mut seen, 1, 5).is_none(), "once");
    }
}

#[test]
fn a_jump_shows_the_newest_map_before_it_wherever_that_is() {
    let (bytes, _) = recording(600, |seq| [5, 70, 95, 400].contains(&seq));
    let mut seen = start(bytes, PAUSED);
    seen.position(|_| true);
    assert!(request_map(&mut seen, pool(1)).unwrap().is_err());
    let mut at = |frame: u64| map_after(&mut seen, Play::To(frame_time(frame)));
    // The newest map is in the same minute, in the minute before, or several minutes before. Jumps back work as well.
    assert_eq!(at(75), Some(map_time(70)));
    assert_eq!(at(60), Some(map_time(5)));
    assert_eq!(at(119), Some(map_time(95)));
    assert_eq!(at(350), Some(map_time(95)));
    assert_eq!(at(401), Some(map_time(400)));
    assert_eq!(at(400), Some(map_time(95)));
    assert_eq!(at(599), Some(map_time(400)));
    assert_eq!(at(6), Some(map_time(5)));
    assert_eq!(at(5), None);
}

fn frame_time(seq: u64) -> Mono {
    frame(seq).mono
}

#[test]
fn a_screen_that_opens_later_gets_the_map_and_nothing_else_again() {
    let (bytes, maps) = recording(130, |seq| [5, 20, 90, 129].contains(&seq));
    let mut seen = start(bytes, PAUSED);
    seen.position(|_| true);
    seen.go(Play::To(frame_time(21)));
    for rank in RANKS {
        let map = request_map(&mut seen, pool(rank)).unwrap().unwrap();
        assert_eq!((map.at, map.process), (map_time(20), pool(rank).0));
        let others = seen.updates.iter().filter(|update| {
            matches!(update, Update::Frame(_) | Update::Jump { .. } | Update::Event(_))
        });
        assert_eq!(others.count(), 0);
        assert!(request_map(&mut seen, pool(rank)).is_none(), "said again with every frame");
    }
    assert_eq!(seen.go(Play::Step(1)), 22);
    // At the very end, where the last map follows the last frame.
    seen.source.send(Request::Map(None));
    seen.ask(Play::To(frame_time(129)));
    seen.position(|position| position.at_end);
    let last = request_map(&mut seen, pool(0)).unwrap().unwrap();
    assert!(*last == maps[6], "taken at {}", last.at.0);
}

#[test]
fn a_recording_without_maps_says_so() {
    let (bytes, _) = recording(3, |_| false);
    let mut seen = start(bytes, PAUSED);
    seen.position(|_| true);
    let why = request_map(&mut seen, pool(0)).unwrap().unwrap_err();
    assert!(why.to_string().contains("contains no maps"), "{why}");
}

#[test]
fn truncated_recording_keeps_earlier_maps() {
    let (bytes, _) = recording(130, |seq| seq % 20 == 10);
    for cut in (1..8).map(|eighth| bytes.len() * eighth / 8) {
        let mut seen = start(bytes[..cut].to_vec(), PAUSED);
        seen.position(|_| true);
        request_map(&mut seen, pool(1));
        let last = seen.go(Play::To(Mono(u64::MAX)));
        let at = map_after(&mut seen, Play::Step(-1));
        // At most the map at the cut is lost.
        let newest = (10..last.saturating_sub(1)).step_by(20).last().map(map_time);
        assert_eq!(at, newest, "cut at {cut}, frame {last}");
    }
}

#[test]
fn invalid_map_is_damage_and_the_previous_map_stays() {
    let fine = r#""segments":[{"address":512,"size":512,"blocks":[{"size":512}]}]"#;
    let of = |rest: &str| {
        let process = serde_json::to_string(&pool(0).0).unwrap();
        format!("{{\"map\":{{\"process\":{process},\"at\":1,{rest}}}}}\n")
    };
    let frame = |at: u64| format!("{{\"frame\":{{\"seq\":{at},\"mono\":{at}}}}}\n");
    let many = r#"{"size":1},"#.repeat(500_000);
    for hostile in [
        r#""segments":7"#.to_owned(),
        r#""segments":[{"address":18446744073709551615,"size":2,"blocks":[{"size":2}]}]"#.into(),
        r#""segments":[{"address":512,"size":512,"blocks":[]}]"#.into(),
        format!(r#""segments":[{{"address":1,"size":500001,"blocks":[{many}{{"size":1}}]}}]"#),
    ] {
        let text = frame(1) + &of(fine) + &frame(2) + &of(&hostile) + &frame(3);
        let mut seen = start(minute_of(&text), PAUSED);
        seen.position(|_| true);
        // A map is not checked until it is requested.
        seen.ask(Play::Step(2));
        seen.position(|p| p.at_end);
        assert_eq!(seen.notices().len(), 0);
        let map = request_map(&mut seen, pool(0)).unwrap().unwrap();
        assert_eq!(map.segments[0].blocks[0].address, 512);
        assert_eq!(seen.notices().len(), 1, "{}", &hostile[..40.min(hostile.len())]);
    }
}

#[test]
fn zstdcat_yields_maps_as_lines_that_say_what_they_hold() {
    let (bytes, maps) = recording(2, |seq| seq == 0);
    let text = zstd::stream::decode_all(bytes.as_slice()).unwrap();
    let line = text.split(|&b| b == b'\n').nth(1).unwrap();
    let line: serde_json::Value = serde_json::from_slice(line).unwrap();
    let map = &line["map"];
    assert_eq!(map["process"]["pid"], maps[0].process.pid.0);
    assert_eq!(map["segments"][0]["pool"], "large");
    assert_eq!(map["segments"][0]["blocks"][0]["state"], "allocated");
}

/// Records the map of a process with a dump's memory, as `gputop allocator` reads it.
#[cfg(target_os = "linux")]
#[test]
fn the_map_of_a_live_process_plays_as_it_was_read() {
    use crate::support::torch_target::Target;
    let dump = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crates/peek/tests/data/torch/2.6.0/mixed.dump.zst");
    let target = Target::start(&dump);
    let mut attached = Attached::open(Path::new("/proc"), target.pid()).unwrap();
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    let process = ProcessKey { pid: target.pid(), start: StartTicks(1) };
    recorder.frame(&frame(0)).unwrap();
    let maps = [0, 1].map(|ordinal| PoolMap {
        process,
        at: map_time(0),
        ..attached.map(ordinal).unwrap()
    });
    for map in &maps {
        recorder.map(map).unwrap();
    }
    recorder.frame(&frame(1)).unwrap();
    let mut seen = start(recorder.finish().unwrap(), PAUSED);
    seen.position(|_| true);
    seen.go(Play::Step(1));
    for map in maps {
        assert!(map.exact && !map.segments.is_empty());
        let read = request_map(&mut seen, (process, map.ordinal)).unwrap().unwrap();
        assert!(*read == map, "not the map that was read");
    }
}

/// Ten minutes with everything that a day contains. `cargo bench --bench recording` runs the whole day.
#[test]
fn the_maps_of_eight_trainers_leave_a_day_below_100_megabytes() {
    let mut rounds = MapScheduler::new(MapPeriod::default());
    let mut trainers: Vec<Trainer> = (0..training_day::GPUS).map(Trainer::new).collect();
    let (mut day, mut bytes, mut count) = (Day::new(), 0, 0);
    for _ in 0..600 {
        let frame = with_pools(day.next(), &trainers);
        let mut request = rounds.frame(&frame);
        while let Some(Request::Map(Some((process, _)))) = request {
            let trainer = trainers.iter_mut().find(|t| t.process() == process);
            let map = trainer.unwrap().map(frame.mono);
            assert!(rounds.takes(&map));
            // Each map is in a minute of its own, which takes more space than sharing a minute.
            let mut recorder = Recorder::new(std::io::sink(), &training_day::hello()).unwrap();
            let before = recorder.bytes();
            recorder.map(&map).unwrap();
            rounds.wrote(recorder.bytes() - before);
            (bytes, count) = (bytes + recorder.bytes() - before, count + 1);
            request = Some(rounds.ask_next());
        }
    }
    assert_eq!(count, 80, "each minute, as long as there is space");
    assert!(bytes / count < 10_000, "{} bytes a map", bytes / count);
}

fn with_pools(frame: &Frame, trainers: &[Trainer]) -> Frame {
    let pool = |trainer: &Trainer| Pool { process: trainer.process(), ..Pool::default() };
    Frame {
        mono: frame.mono,
        pools: Some(Pools {
            list: Arc::new(trainers.iter().map(pool).collect()),
            ..Pools::default()
        }),
        ..Frame::default()
    }
}

#[cfg(target_os = "linux")]
mod by_command {
    use std::path::Path;

    use gputop_model::pool::PoolMap;
    use gputop_model::protocol::Update;

    use crate::commands::{self, recorded};
    use crate::support::fake_machine::{Guarded, INTERVAL, command, is_host, wait_until};
    use crate::support::fake_nvml::FakeNvml;
    use crate::support::terminal::Launch;
    use crate::support::torch_target::Target;

    fn maps(file: &Path) -> Vec<PoolMap> {
        let maps = recorded(file).into_iter().filter_map(|update| match update {
            Update::Map(map) => Some(PoolMap::clone(&map)),
            Update::FailureMap(failed) => Some(failed.map.clone()),
            _ => None,
        });
        maps.collect()
    }

    /// A process with the allocator of the dump, on the GPU of a fake machine.
    fn machine() -> (Target, FakeNvml) {
        let dump = "crates/peek/tests/data/torch/2.6.0/mixed.dump.zst";
        let target = Target::start(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dump));
        let process = format!("[[process]]\npid = {}\ngpu = 0\nused = \"9 GiB\"\n", target.pid());
        let fake = FakeNvml::new(&format!("[[gpu]]\n{process}"));
        (target, fake)
    }

    fn record(fake: &FakeNvml, file: &Path, maps: &[&str]) -> Guarded {
        let mut record = command(fake, ["record", "-i", INTERVAL, "-o"]);
        record.arg(file).args(maps).stderr(std::process::Stdio::null());
        Guarded(record.spawn().unwrap())
    }

    #[test]
    fn record_writes_the_maps_and_the_memory_screen_of_its_replay_shows_them() {
        if !is_host() {
            return;
        }
        let (target, fake) = machine();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("maps.gpt.zst");
        let mut recorder = record(&fake, &file, &["--maps", "1s"]);
        // The dump uses two devices, and each round requests both.
        wait_until("two rounds", || maps(&file).len() >= 4);
        recorder.0.kill().unwrap();
        recorder.0.wait().unwrap();
        let ordinals: Vec<u32> = maps(&file).iter().map(|map| map.ordinal).take(4).collect();
        assert_eq!(ordinals, [0, 1, 0, 1]);
        assert!(maps(&file).iter().all(|map| map.process.pid == target.pid()));

        let replay = |file: &Path| {
            let replay = Launch::gputop().args(["replay", "--speed", "64"]).args([file]);
            let terminal = replay.size(40, 120).start();
            terminal.wait_text("at end");
            terminal.send("M");
            terminal
        };
        let terminal = replay(&file);
        terminal.wait_text("MAP  cell");
        terminal.wait_text("FREE BLOCKS");
        terminal.wait_text("exact, read ");
        terminal.send("q");

        let without = folder.path().join("without.gpt.zst");
        let mut recorder = record(&fake, &without, &["--maps", "off"]);
        let frames = || commands::frames(&without).len();
        wait_until("eight frames", || frames() >= 8);
        recorder.0.kill().unwrap();
        assert_eq!(maps(&without), []);
        replay(&without).wait_text("the recording contains no maps");
    }
}
