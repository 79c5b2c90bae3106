//! Recordings are written, read back and searched, and survive damage to their files.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gputop::source::record::{RecordError, Recorder};
use gputop::source::replay::{OpenError, Options, Recording, play};
use gputop_model::event::{Event, Exit, Observation};
use gputop_model::history::{GpuMetric, History, SeriesKey};
use gputop_model::host::Hello;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Play, Request, Update};
use gputop_model::reading::Reason;
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono};
use proptest::prelude::*;

use crate::support::replay_client::{PAUSED, ReplayClient, frame, minute_of, open, start};
use crate::support::training_day::{self, Day};

fn exit(seq: u64, after_frame: u64) -> Event {
    Event {
        seq,
        mono: Mono(100_500 + after_frame * 1_000),
        observation: Observation::Exit(Box::new(Exit {
            peak_vram: Bytes::gib(seq).into(),
            ..Exit::default()
        })),
        ..Event::default()
    }
}

/// Returns a recording of `frames` seconds, with an event every 25 seconds.
fn recording(frames: u64) -> Vec<u8> {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    for seq in 0..frames {
        recorder.frame(&frame(seq)).unwrap();
        if seq % 25 == 24 {
            recorder.event(&exit(seq / 25, seq)).unwrap();
        }
    }
    recorder.finish().unwrap()
}

fn events(client: &ReplayClient) -> Vec<u64> {
    let events = client.updates.iter().filter_map(|update| match update {
        Update::Event(event) => Some(event.seq),
        _ => None,
    });
    events.collect()
}

/// Returns all frames by stepping, so that the playback speed does not matter.
fn all_frames(bytes: Vec<u8>) -> Vec<u64> {
    let Ok(recording) = open(bytes) else { return Vec::new() };
    let mut seen = ReplayClient::new(play(recording, PAUSED));
    let mut frames = Vec::new();
    let mut wanted = 1;
    loop {
        let position = seen.position(|_| true);
        if position.at_end || seen.frames().len() >= wanted {
            frames.extend(seen.frames());
            seen.ask(Play::Step(16));
            wanted = 16;
        }
        if position.at_end {
            return frames;
        }
    }
}

#[test]
fn frames_and_events_come_back_in_their_order() {
    let mut seen = start(recording(130), PAUSED);
    assert!(matches!(seen.next(), Update::Hello(hello) if *hello == training_day::hello()));
    seen.position(|_| true);
    assert_eq!(seen.frames(), [0]);
    seen.ask(Play::Step(16));
    seen.position(|p| p.now == Mono(116_000));
    seen.ask(Play::Step(9));
    seen.position(|p| p.now == Mono(125_000));
    let order: Vec<String> = seen
        .updates
        .iter()
        .filter_map(|update| match update {
            Update::Frame(frame) => Some(format!("f{}", frame.seq)),
            Update::Event(event) => Some(format!("e{}", event.seq)),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["f17", "f18", "f19", "f20", "f21", "f22", "f23", "f24", "e0", "f25"]);
    assert_eq!(all_frames(recording(130)), (0..130).collect::<Vec<_>>());
}

#[test]
fn a_realistic_frame_reads_back_as_it_was() {
    let mut day = Day::new();
    let written = day.next().clone();
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    recorder.frame(&written).unwrap();
    let mut seen = start(recorder.finish().unwrap(), PAUSED);
    seen.position(|p| p.at_end);
    let Some(Update::Frame(read)) = seen.updates.iter().find(|u| matches!(u, Update::Frame(_)))
    else {
        panic!("no frame");
    };
    assert_eq!(**read, written);
}

#[test]
fn zstdcat_yields_lines_of_json() {
    let bytes = recording(130);
    let text = zstd::stream::decode_all(bytes.as_slice()).unwrap();
    let lines: Vec<serde_json::Value> =
        serde_json::Deserializer::from_slice(&text).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(lines.len(), 135);
    assert_eq!(lines[1]["frame"]["seq"], 1);
    assert_eq!(lines[25]["event"]["observation"]["kind"], "exit");
}

#[test]
fn it_plays_at_the_recorded_pace_and_stays_at_the_end_paused() {
    // Frames 1 ms apart: played in real time, and still quick.
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    for seq in 0..50 {
        let mut frame = frame(seq);
        frame.mono = Mono(1_000 + seq);
        recorder.frame(&frame).unwrap();
    }
    let before = std::time::Instant::now();
    let mut seen = start(recorder.finish().unwrap(), Options::default());
    let end = seen.position(|p| p.at_end);
    assert!(before.elapsed() >= Duration::from_millis(40));
    assert_eq!((end.now, end.end, end.paused), (Mono(1_049), Mono(1_049), true));
    assert_eq!(seen.frames(), (0..50).collect::<Vec<_>>());
    // Resuming there starts over.
    seen.ask(Play::Pause(false));
    seen.position(|p| p.at_end);
    assert_eq!(seen.frames(), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_repeated_recording_starts_over() {
    let options = Options { repeat: true, start: Millis(0), speed: 64.0, paused: false };
    for frames in [1, 3] {
        let mut seen = start(recording(frames), options);
        let starts = |seen: &ReplayClient| seen.frames().iter().filter(|&&f| f == 0).count();
        while starts(&seen) < 3 {
            seen.next();
        }
        let jumps = seen.updates.iter().filter(|u| matches!(u, Update::Jump { .. }));
        assert_eq!(jumps.count(), 3);
    }
}

#[test]
fn steps_skips_and_times_seek_to_their_frame() {
    let mut seen = start(recording(300), PAUSED);
    seen.position(|_| true);
    assert_eq!(seen.go(Play::To(Mono(250_999))), 150);
    assert_eq!(seen.go(Play::Step(-1)), 149);
    assert_eq!(seen.go(Play::Step(-149)), 0);
    assert_eq!(seen.go(Play::Skip(60_000)), 60);
    assert_eq!(seen.go(Play::Step(-1)), 59);
    assert_eq!(seen.go(Play::Step(100)), 159);
    assert_eq!(seen.go(Play::Skip(i64::MIN)), 0);
    assert_eq!(seen.go(Play::Skip(i64::MAX)), 299);
    assert_eq!(seen.go(Play::Step(i32::MIN)), 0);
    assert_eq!(seen.go(Play::Step(i32::MAX)), 299);
    assert_eq!(seen.go(Play::To(Mono(0))), 0);
    assert_eq!(seen.go(Play::To(Mono(u64::MAX))), 299);
    assert_eq!(seen.go(Play::Start), 0);
    seen.ask(Play::Speed(f32::NAN));
    assert_eq!(seen.position(|_| true).speed.to_bits(), 1_f32.to_bits());
    seen.ask(Play::Speed(1_000.0));
    assert!(seen.position(|_| true).speed <= 64.0);
}

#[test]
fn a_skip_back_and_a_skip_forward_return_to_the_same_frame() {
    // Samples are never taken exactly one second apart.
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    for seq in 0..120 {
        let mut frame = frame(seq);
        (frame.mono, frame.interval) = (Mono(frame.mono.0 + seq * 37 % 90), Millis(1_000));
        recorder.frame(&frame).unwrap();
    }
    let mut seen = start(recorder.finish().unwrap(), PAUSED);
    seen.position(|_| true);
    let mut at = seen.go(Play::Step(60));
    for _ in 0..20 {
        seen.go(Play::Skip(-10_000));
        assert_eq!(seen.go(Play::Skip(10_000)), at);
        at = seen.go(Play::Step(1));
    }
}

#[test]
fn a_jump_fills_the_charts_and_brings_the_events_of_the_past() {
    let mut seen = start(recording(600), PAUSED);
    seen.position(|_| true);
    assert_eq!(seen.go(Play::To(Mono(100_000 + 570_000))), 570);
    assert_eq!(events(&seen), (0..22).collect::<Vec<_>>());
    assert_eq!(seen.frames(), (480..=570).collect::<Vec<_>>());
    let mut history = History::default();
    for update in &seen.updates {
        match update {
            Update::Jump { summaries, .. } => {
                assert_eq!(summaries.len(), 8);
                history = History::default();
                summaries.iter().for_each(|s| history.push_summary(s));
            }
            Update::Frame(frame) => history.push(frame),
            _ => {}
        }
    }
    let key = SeriesKey::Gpu(GpuUuid("GPU-1".into()), GpuMetric::Sm);
    let series = history.series(&key).unwrap();
    let chart = series.window(Mono(669_999), Millis(560_000), 56);
    assert!(chart.iter().all(Option::is_some), "{chart:?}");
}

#[test]
fn a_detail_is_answered_with_the_reason() {
    let mut seen = start(recording(2), PAUSED);
    seen.position(|_| true);
    seen.source.send(Request::Detail(ProcessKey::default()));
    loop {
        if let Update::Detail(_, answer) = seen.next() {
            assert_eq!(answer.unwrap_err().reason, Reason::NotRead);
            return;
        }
    }
}

/// A recording that can be read while it is written.
#[derive(Clone, Default)]
struct Growing(Arc<Mutex<Vec<u8>>>);

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn it_plays_cut_off_at_any_byte_and_loses_no_whole_frame() {
    let file = Growing::default();
    let mut recorder = Recorder::new(file.clone(), &training_day::hello()).unwrap();
    let mut whole_at = Vec::new();
    for seq in 0..130 {
        recorder.frame(&frame(seq)).unwrap();
        whole_at.push(recorder.bytes() as usize);
        assert_eq!(recorder.bytes() as usize, file.0.lock().unwrap().len());
    }
    recorder.finish().unwrap();
    let bytes = file.0.lock().unwrap().clone();
    // Every byte around the end of a frame, and some between.
    let is_near = |cut: &usize| whole_at.iter().any(|end| end.abs_diff(*cut) <= 2);
    for cut in (0..=bytes.len()).filter(|cut| cut.is_multiple_of(17) || is_near(cut)) {
        let whole = whole_at.iter().filter(|&&end| end <= cut).count() as u64;
        let frames = all_frames(bytes[..cut].to_vec());
        assert_eq!(frames, (0..whole).collect::<Vec<_>>(), "cut at {cut}");
    }
}

#[test]
fn ten_megabytes_of_garbage_cost_the_minute_they_are_in() {
    let whole = recording(300);
    let mut dice = 1_u64;
    let garbage: Vec<u8> = std::iter::repeat_with(|| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 56) as u8
    })
    .take(10 << 20)
    .collect();
    let middle = whole.len() / 2;
    let inserted = [&whole[..middle], &garbage, &whole[middle..]].concat();
    let frames = all_frames(inserted.clone());
    assert!(frames.len() >= 239, "{frames:?}");
    assert_eq!((frames[0], frames.last()), (0, Some(&299)));
    let mut seen = start(inserted, PAUSED);
    seen.position(|_| true);
    seen.ask(Play::To(Mono(u64::MAX)));
    seen.position(|_| true);
    assert_eq!(seen.last_frame(), 299);
    // Step backwards over the gap.
    while seen.go(Play::Step(-1)) > 0 {}
    let notices = seen.notices();
    assert!(notices.len() <= 1, "{notices:?}");
}

#[test]
fn damage_is_reported_once() {
    let mut bytes = recording(300);
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40].fill(0xAA);
    let mut seen = start(bytes, PAUSED);
    while !seen.position(|_| true).at_end {
        seen.source.send(Request::Play(Play::Step(16)));
    }
    assert_eq!(seen.notices().len(), 1, "{:?}", seen.notices());
    assert!(seen.notices()[0].starts_with("The recording is damaged 2:00 min after"));
}

/// Every recording in the repository, whichever version wrote it.
#[test]
fn the_recordings_in_the_repository_play_to_their_end() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    for entry in std::fs::read_dir(assets).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().ends_with(".gpt.zst") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let text = zstd::stream::decode_all(bytes.as_slice()).unwrap();
        let lines = text.split(|&b| b == b'\n');
        let frames = lines.filter(|line| line.starts_with(b"{\"frame\"")).count();
        assert_eq!(all_frames(bytes).len(), frames, "{}", path.display());
    }
}

#[test]
fn two_recordings_in_one_file_play_one_after_the_other() {
    let glued = [recording(70), recording(70)].concat();
    let twice: Vec<u64> = (0..70).chain(0..70).collect();
    assert_eq!(all_frames(glued), twice);
}

#[test]
fn other_files_are_refused_with_a_sentence() {
    let text = |bytes: &[u8]| open(bytes.to_vec()).unwrap_err().to_string();
    assert_eq!(text(b""), "the built-in recording is empty, so there is nothing to play");
    assert_eq!(
        text(b"\x7fELF\x02\x01\x01\0 and more"),
        "the built-in recording is not a gputop recording: it starts with 7f 45 4c 46 02 01 01 00. \
         Record one with `gputop record`"
    );
    assert!(text(b"#!/bin/sh").contains("it starts with \u{201c}#!/bin/s\u{201d}."));
    let zstd = zstd::bulk::compress(b"{}", 3).unwrap();
    assert!(text(&zstd).contains("zstd data without a gputop header"));
    let hello = Recorder::new(Vec::new(), &training_day::hello()).unwrap().finish().unwrap();
    assert!(matches!(open(hello.clone()), Err(OpenError::NoFrames(_))));
    assert!(text(&hello[..20]).contains("a damaged header"));
    assert!(matches!(Recording::open(Path::new("/nonexistent/x")), Err(OpenError::Read { .. })));
    assert!(matches!(Recording::open(Path::new("/")), Err(OpenError::Read { .. })));
}

#[test]
fn a_newer_recording_plays_unless_it_says_that_it_cannot() {
    let mut hello = Hello { schema: 99, version: "7.0.0".into(), ..training_day::hello() };
    let mut recorder = Recorder::new(Vec::new(), &hello).unwrap();
    recorder.frame(&frame(0)).unwrap();
    let mut seen = start(recorder.finish().unwrap(), PAUSED);
    seen.position(|_| true);
    assert!(seen.notices()[0].contains("newer gputop (7.0.0)"));
    hello.requires.push("telepathy".into());
    let mut recorder = Recorder::new(Vec::new(), &hello).unwrap();
    recorder.frame(&frame(0)).unwrap();
    let error = open(recorder.finish().unwrap()).unwrap_err();
    assert!(error.to_string().contains("\"telepathy\", which this version does not support"));
}

#[test]
fn lines_of_a_later_version_and_of_other_hosts_are_passed_over() {
    let text = "{\"frame\":{\"seq\":1,\"mono\":1,\"weather\":{}}}\n{\"telegram\":{}}\n{broken\n\
                {\"from\":3,\"frame\":{\"seq\":2,\"mono\":2}}\n{\"event\":{\"observation\":{\"kind\":\"ray\"}}}\n\
                {\"frame\":{\"seq\":3,\"mono\":3}}\n";
    let mut seen = start(minute_of(text), PAUSED);
    seen.position(|_| true);
    seen.source.send(Request::Play(Play::Step(1)));
    seen.position(|p| p.at_end);
    assert_eq!(seen.frames(), [1, 3]);
    assert_eq!((events(&seen).len(), seen.notices().len()), (1, 1));
}

#[test]
fn a_flood_of_events_between_two_frames_arrives_whole() {
    let frame = |seq: u64| format!("{{\"frame\":{{\"seq\":{seq},\"mono\":{seq}}}}}\n");
    let lines = "{\"event\":{}}\n".repeat(10_000);
    let mut seen = start(minute_of(&(frame(1) + &lines + &frame(2))), PAUSED);
    seen.position(|_| true);
    seen.source.send(Request::Play(Play::Step(1)));
    seen.position(|p| p.at_end);
    assert_eq!(seen.frames(), [1, 2]);
    assert_eq!(events(&seen).len(), 10_000);
}

#[test]
fn a_small_file_that_unpacks_to_a_giant_is_refused() {
    let bomb = " ".repeat(1 << 20).repeat(200);
    assert!(matches!(open(minute_of(&bomb)), Err(OpenError::NoFrames(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn flipped_bytes_lose_only_their_minute(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = recording(130);
        for (place, value) in flips {
            *place.get_mut(&mut bytes) = value;
        }
        // Checks only that it ends, without a panic.
        all_frames(bytes);
    }
}

#[test]
fn a_file_that_exists_is_overwritten_only_when_asked_and_never_if_foreign() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gpt.zst");
    let hello = training_day::hello();
    Recorder::create(&path, &hello).unwrap().finish().unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = Recorder::create(&path, &hello).err();
    assert!(matches!(again, Some(RecordError::IsRecording(_))));
    Recorder::overwrite(&path, &hello).unwrap();
    std::fs::write(&path, "my thesis").unwrap();
    let foreign = Recorder::overwrite(&path, &hello).err();
    assert!(matches!(foreign, Some(RecordError::IsForeign(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"my thesis");
    let nowhere = Recorder::create(Path::new("/nonexistent/x"), &hello).err().unwrap();
    assert!(nowhere.to_string().contains("Choose a writable folder"));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let full = Recorder::new(full, &training_day::hello()).err().unwrap();
    assert!(matches!(full, RecordError::DiskFull(_)));
}

/// `cargo bench --bench recording` runs the whole day. Ten minutes contain one checkpoint pause, as often as in the
/// day.
#[test]
fn a_day_of_eight_gpus_and_sixty_four_processes_fits_into_100_megabytes() {
    let seconds = 600;
    let mut recorder = Recorder::new(std::io::sink(), &training_day::hello()).unwrap();
    let mut day = Day::new();
    for _ in 0..seconds {
        recorder.frame(day.next()).unwrap();
    }
    let bytes_a_day = recorder.bytes() * 86_400 / seconds;
    assert!(bytes_a_day <= 100_000_000, "{bytes_a_day} bytes");
}
