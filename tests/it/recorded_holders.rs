//! Names of tensors and arrays in a recording: recorded only at the user's request, replayed, and found again after a
//! jump.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gputop::dashboard::holders::HolderRow;
use gputop::dashboard::host_state::HostState;
use gputop::source::record::Recorder;
use gputop_model::frame::Frame;
use gputop_model::holders::{HolderClass, HolderGroup, Holders};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Play, Update};
use gputop_model::units::{Bytes, Mono};
use gputop_peek::cpython::limits::Options;
use gputop_peek::memory::dump::Dump;
use gputop_peek::torch::holders::read_recorded;

use crate::support::replay_client::{PAUSED, ReplayClient, minute_of, start};
use crate::support::training_day::{self, Day, Random};

const TRANSFORMER: &str = include_str!("../data/holders/transformer.json");
const HISTORY: &str = "trainer.history[*]";
const DUMPS: &str = "crates/peek/tests/data/holders";

/// Returns the key of the trainer on a GPU.
fn trainer(gpu: u32) -> ProcessKey {
    training_day::key(gpu * 8)
}

/// Returns a reading in which the history has grown by 60 MiB in each half minute since the start of the recording.
fn reading(process: ProcessKey, at: Mono, half_minutes: u64) -> Holders {
    let mut holders: Holders = serde_json::from_str(TRANSFORMER).unwrap();
    (holders.process, holders.at) = (process, at);
    let is_history = |group: &&mut HolderGroup| group.name == HISTORY;
    let history = holders.groups.iter_mut().find(is_history).unwrap();
    history.bytes.0 += Bytes::mib(60).0 * half_minutes;
    history.count += 4 * half_minutes;
    holders.allocated.0 += Bytes::mib(60).0 * half_minutes;
    holders
}

/// Returns a recording with one frame a second and a reading of each of the first two trainers every half minute, each of
/// which started before the frame that precedes it in the recording.
fn recording(seconds: u64) -> (Recorder<Vec<u8>>, Vec<Frame>) {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    let mut day = Day::new();
    let frames: Vec<Frame> = (0..seconds).map(|_| day.next().clone()).collect();
    for (second, frame) in (0..).zip(&frames) {
        recorder.frame(frame).unwrap();
        for gpu in (0..2).filter(|gpu| second % 30 == u64::from(*gpu)) {
            let at = Mono(frame.mono.0 - 1_000);
            recorder.holders(&reading(trainer(gpu), at, second / 30)).unwrap();
        }
    }
    (recorder, frames)
}

/// A replayed recording and the state of the dashboard that shows it.
struct Replay {
    client: ReplayClient,
    host: HostState,
    frames: Vec<Frame>,
}

impl Replay {
    fn start(bytes: Vec<u8>, frames: Vec<Frame>) -> Self {
        let mut replay = Self { client: start(bytes, PAUSED), host: HostState::new(None), frames };
        replay.client.position(|_| true);
        replay.apply();
        replay
    }

    fn apply(&mut self) {
        for update in std::mem::take(&mut self.client.updates) {
            self.host.update(update);
        }
    }

    /// Moves to this second of the recording.
    fn go_to(&mut self, second: u64) {
        let target = self.frames[usize::try_from(second).unwrap()].mono;
        self.client.ask(Play::To(target));
        let position = self.client.position(|_| true);
        assert_eq!(position.now, target);
        assert!(position.has_holders);
        self.apply();
    }

    /// Plays frame by frame up to this second.
    fn play_to(&mut self, second: u64) {
        let target = self.frames[usize::try_from(second).unwrap()].mono;
        while self.host.frame.mono < target {
            self.client.ask(Play::Step(1));
            self.client.position(|_| true);
            self.apply();
        }
    }

    fn rows(&self, gpu: u32) -> &[HolderRow] {
        self.host.holders.of(trainer(gpu)).map_or(&[], |reading| reading.rows.as_slice())
    }

    /// Returns the number of half minutes after which the newest reading of a process was taken.
    fn half_minutes(&self, gpu: u32) -> Option<u64> {
        let row = self.rows(gpu).iter().find(|row| row.key.name == HISTORY)?;
        let first = reading(trainer(gpu), Mono(0), 0);
        let first = first.groups.iter().find(|group| group.name == HISTORY).unwrap();
        Some((row.count - first.count) / 4)
    }

    fn growth_note(&self) -> Option<String> {
        let frame = &self.host.frame;
        frame.gpus.iter().find_map(|gpu| self.host.holders.growth_note(gpu, frame))
    }
}

#[test]
fn a_jump_shows_the_newest_reading_of_each_process_before_it_wherever_that_is() {
    let (recorder, frames) = recording(400);
    let mut replay = Replay::start(recorder.finish().unwrap(), frames);
    // A reading is shown with the frame behind it.
    for (second, expected) in [
        (1, [Some(0), None]),
        (2, [Some(0), Some(0)]),
        (95, [Some(3), Some(3)]),
        (91, [Some(3), Some(2)]),
        (61, [Some(2), Some(1)]),
        (399, [Some(13), Some(13)]),
        (30, [Some(0), Some(0)]),
        (0, [None, None]),
    ] {
        replay.go_to(second);
        assert_eq!([0, 1].map(|gpu| replay.half_minutes(gpu)), expected, "{second} s");
    }
}

#[test]
fn growth_after_a_jump_is_that_of_a_replay_from_the_start() {
    let (recorder, frames) = recording(380);
    let bytes = recorder.finish().unwrap();
    let mut played = Replay::start(bytes.clone(), frames.clone());
    let mut jumped = Replay::start(bytes, frames);
    for second in [40, 62, 100, 379] {
        played.play_to(second);
        jumped.go_to(379);
        jumped.go_to(second);
        for gpu in [0, 1] {
            assert_eq!(jumped.rows(gpu), played.rows(gpu), "{second} s");
        }
        assert_eq!(jumped.growth_note(), played.growth_note());
        let has_note = jumped.growth_note().is_some_and(|note| note.contains(HISTORY));
        assert_eq!(has_note, second >= 62, "{second} s: growth needs three readings");
    }
}

#[test]
fn a_truncated_recording_keeps_earlier_readings() {
    let (recorder, frames) = recording(200);
    let bytes = recorder.finish().unwrap();
    let cut = bytes[..bytes.len() * 3 / 4].to_vec();
    let mut replay = Replay::start(cut, frames);
    replay.go_to(95);
    assert_eq!(replay.half_minutes(0), Some(3));
}

#[test]
fn a_reading_of_another_version_is_limited_and_damage_is_skipped() {
    let process = serde_json::to_string(&trainer(0)).unwrap();
    let line = |groups: &str| {
        format!("{{\"holder_reading\":{{\"process\":{process},\"at\":5,\"groups\":[{groups}]}}}}\n")
    };
    let frame = |at: u64| format!("{{\"frame\":{{\"seq\":{at},\"mono\":{at}}}}}\n");
    let long = format!("{{\"name\":\"{}\",\"bytes\":7,\"new\":1}}", "x".repeat(5_000));
    let many = format!("{}{{}}", "{\"name\":\"v\"},".repeat(5_000));
    // A reply, which no recorder writes, is limited as well.
    let reply = format!(
        "{{\"reply\":{{\"holders\":{{\"process\":{process},\"is\":{{\"groups\":[{many}]}}}}}}}}\n"
    );
    let text = frame(1)
        + &line(&long)
        + &line("7")
        + &line(&many)
        + "{\"names\":[]}\n"
        + &reply
        + &frame(2);
    let mut replay = start(minute_of(&text), PAUSED);
    replay.position(|_| true);
    replay.go(Play::Step(1));
    let groups = replay.updates.iter().filter_map(|update| match update {
        Update::Holders(_, holders) => Some(holders.as_ref().as_ref().unwrap().groups.clone()),
        _ => None,
    });
    let groups: Vec<Vec<HolderGroup>> = groups.collect();
    assert_eq!((groups[0][0].name.len(), groups[0][0].bytes), (200, Bytes(7)));
    assert_eq!(groups[1..].iter().map(Vec::len).collect::<Vec<_>>(), [256, 256]);
}

/// Returns a reading of a dump.
fn read(folder: &Path) -> Holders {
    let dump = Dump::from_bytes(&std::fs::read(folder.join("dump.zst")).unwrap()).unwrap();
    let options = Options { time_limit: Duration::from_secs(120), ..Options::default() };
    let never = AtomicBool::new(false);
    read_recorded(&dump, &dump, &options, &|| Duration::ZERO, &never).unwrap()
}

#[test]
fn names_of_arrays_are_replayed() {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    let mut day = Day::new();
    let frames: Vec<Frame> = (0..3).map(|_| day.next().clone()).collect();
    let arrays = read(Path::new("crates/peek/tests/data/arrays/cupy-14.2.0"));
    let arrays = Holders { process: trainer(0), at: frames[0].mono, ..arrays };
    recorder.frame(&frames[0]).unwrap();
    recorder.holders(&arrays).unwrap();
    frames[1..].iter().for_each(|frame| recorder.frame(frame).unwrap());
    let mut replay = Replay::start(recorder.finish().unwrap(), frames);
    replay.go_to(2);
    assert_eq!(replay.host.missing_holders(trainer(0)), None);
    let row = |row: &HolderRow| (row.key.name.clone(), row.count, row.dtype.clone(), row.bytes);
    let rows: Vec<_> = replay.rows(0).iter().map(row).collect();
    for (name, count, dtype, bytes) in
        [("weights['dense']", 1, "float32", 32_768), ("solver.parts[*]", 2, "mixed", 1_024)]
    {
        let expected = (name.to_owned(), count, dtype.to_owned(), Bytes(bytes));
        assert!(rows.contains(&expected), "{name}: {rows:?}");
    }
}

/// Reads every dump of a program, and records each reading twice, as within a minute.
#[test]
fn a_reading_of_a_program_takes_few_bytes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(DUMPS);
    for program in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let holders = read(&program);
        let (name, groups) = (program.file_name().unwrap(), holders.groups.len());
        let bytes = bytes_of([&holders, &holders]);
        let is_small = bytes[0] < 20 * groups as u64 + 400 && bytes[1] < 50;
        assert!(is_small, "{name:?}: {groups} groups, {bytes:?} bytes");
    }
    let first: Holders = serde_json::from_str(TRANSFORMER).unwrap();
    let bytes = bytes_of([&first, &reading(first.process, Mono(first.at.0 + 30_000), 1)]);
    assert!(bytes[0] < 1_000 && bytes[1] < 100, "{bytes:?}");
}

/// Records a minute of a training run on eight GPUs. Activations and variables change from reading to reading.
#[test]
fn the_names_of_eight_trainers_add_less_than_8_megabytes_to_a_day() {
    let mut holders = read(&Path::new(DUMPS).join("python3.12-torch2.8.0"));
    let mut recorder = Recorder::new(std::io::sink(), &training_day::hello()).unwrap();
    let (before, mut random) = (recorder.bytes(), Random(7));
    for (half_minute, gpu) in [0, 1].into_iter().flat_map(|half| (0..8).map(move |gpu| (half, gpu)))
    {
        (holders.process, holders.at) = (trainer(gpu), Mono(half_minute * 30_000));
        let is_changing = |group: &&mut HolderGroup| {
            matches!(group.class, HolderClass::SavedForBackward | HolderClass::Variable)
        };
        for group in holders.groups.iter_mut().filter(is_changing) {
            group.count = random.between(1, 200).cast_unsigned();
            group.bytes = Bytes(random.between(1, 16_000_000).cast_unsigned() * 512);
            group.tensors[0].bytes = group.bytes;
        }
        recorder.holders(&holders).unwrap();
    }
    let bytes = recorder.bytes() - before;
    assert!(bytes * 60 * 24 < 8_000_000, "{bytes} bytes a minute");
}

/// Returns the number of bytes that each of two readings adds to a recording.
fn bytes_of(readings: [&Holders; 2]) -> [u64; 2] {
    let mut recorder = Recorder::new(std::io::sink(), &training_day::hello()).unwrap();
    readings.map(|holders| {
        let before = recorder.bytes();
        recorder.holders(holders).unwrap();
        recorder.bytes() - before
    })
}

#[cfg(target_os = "linux")]
mod by_command {
    use std::io::Read;
    use std::path::Path;
    use std::process::Stdio;

    use gputop_model::protocol::Update;

    use super::{DUMPS, recording};
    use crate::commands::{self, recorded};
    use crate::support::fake_machine::{Guarded, INTERVAL, command, is_host, wait_until};
    use crate::support::fake_nvml::FakeNvml;
    use crate::support::terminal::{Launch, Terminal};
    use crate::support::torch_target::Target;

    fn replay(file: &Path) -> Terminal {
        let replay = Launch::gputop().args(["replay", "--speed", "64"]).args([file]);
        let terminal = replay.size(40, 160).start();
        terminal.wait_text("at end");
        terminal
    }

    /// Returns the text of an unfinished recording.
    fn text_of(file: &Path) -> String {
        let mut text = Vec::new();
        let file = std::fs::File::open(file).unwrap();
        let _ = zstd::stream::read::Decoder::new(file).unwrap().read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn has_names(file: &Path) -> bool {
        recorded(file).iter().any(|update| matches!(update, Update::Holders(..)))
    }

    #[test]
    fn names_are_recorded_only_at_the_users_request() {
        if !is_host() {
            return;
        }
        let dump = Path::new(env!("CARGO_MANIFEST_DIR")).join(DUMPS);
        let target = Target::start(&dump.join("python3.12-torch2.8.0/dump.zst"));
        let process = format!("[[process]]\npid = {}\ngpu = 0\nused = \"9 GiB\"\n", target.pid());
        let fake = FakeNvml::new(&format!("[[gpu]]\n{process}"));
        let folder = tempfile::tempdir().unwrap();
        let record = |file: &Path, names: &str| {
            let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
            record.arg(file).env("GPUTOP_RECORD_NAMES", names).stderr(Stdio::null());
            Guarded(record.spawn().unwrap())
        };
        let with = folder.path().join("with.gpt.zst");
        let mut recorder = record(&with, "true");
        wait_until("a reading", || has_names(&with));
        let frames = commands::frames(&with).len();
        wait_until("more frames", || commands::frames(&with).len() > frames + 2);
        recorder.0.kill().unwrap();
        recorder.0.wait().unwrap();
        let terminal = replay(&with);
        terminal.wait_text("o tensors");
        terminal.send("o");
        terminal.wait_text("HOLDERS  ");
        terminal.wait_text("model.");
        terminal.send("\n");
        terminal.wait_text("recordings contain no single tensors");

        let without = folder.path().join("without.gpt.zst");
        let mut recorder = record(&without, "false");
        wait_until("frames", || commands::frames(&without).len() > frames + 4);
        recorder.0.kill().unwrap();
        recorder.0.wait().unwrap();
        assert!(!has_names(&without));
        assert!(text_of(&with).contains("model.") && text_of(&without).contains("\"frame\""));
        assert!(!text_of(&without).contains("model."));
        let terminal = replay(&without);
        terminal.send("o");
        terminal
            .wait_text("this recording has no names of tensors: record with record_names = true");
    }

    #[test]
    fn the_screen_of_holders_goes_back_in_time_with_the_recording() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("names.gpt.zst");
        std::fs::write(&file, recording(100).0.finish().unwrap()).unwrap();
        let terminal = replay(&file);
        terminal.wait_text("grows: ");
        terminal.send("o");
        terminal.wait_text("growing 120 MiB a minute");
        terminal.send("\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D");
        let is_earlier = |screen: &vt100::Screen| {
            let text = screen.contents();
            text.contains("trainer.history[*]") && !text.contains("a minute")
        };
        terminal.wait_for(is_earlier, "an earlier reading");
        terminal.send("\x1b[H");
        terminal.wait_text("This recording has no names of the process's tensors up to this time");
    }
}
