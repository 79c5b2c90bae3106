//! The fuzz targets: one function for each reader of text or bytes from outside.
//!
//! libFuzzer (`fuzz_targets/`) and the test on the stable toolchain (`tests/fuzz`) include this file and call the same
//! functions. A target fails by panicking, by not returning, or by using too much memory.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gputop::cli::check_config;
use gputop::collect::hook::{ReportedPools, Spool};
use gputop::dashboard::filter::Filter;
use gputop::dashboard::incidents::ListedIncident;
use gputop::export::tables;
use gputop::export::{csv, explanation, snapshot as export};
use gputop::incident::{Store, WatchResult, merge};
use gputop::source::remote::{read_agent_stream, read_nvidia_smi};
use gputop::source::replay::{Options, Recording, play};
use gputop::tui::app::App;
use gputop::tui::colours::Colours;
use gputop::tui::keymap::Keymap;
use gputop::tui::screen::Effect;
use gputop::tui::screens::SCREENS;
use gputop::tui::screens::snapshot::SnapshotScreen;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_allocator::snapshot;
use gputop_explain::live::Observer;
use gputop_explain::{Catalogue, LogReader, explain};
use gputop_model::incident::Incident;
use gputop_model::incident_record::Record;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Line, Play, Position, Request, Update};
use gputop_model::redact;
use gputop_model::remote_incident::RemoteIncident;
use gputop_model::units::{Mono, Pid, StartTicks};
use gputop_peek::memory::dump::Dump;
use gputop_peek::torch::Attached;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::Rect;

/// A fuzz target: its name and the function to call with each input.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// Every target. `fuzz_targets/` has a file for each, which `tests/fuzz` checks.
pub const TARGETS: &[Target] = &[
    target("log", log),
    target("wire", wire),
    target("snapshot", snapshot_file),
    target("recording", recording),
    target("incident", incident),
    target("dump", dump),
    target("hook", hook),
    target("nvidia_smi", nvidia_smi),
    target("redact", redaction),
    target("config", config),
    target("terminal", terminal),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Sizes of the terminal that screens are drawn for.
const SIZES: &[(u16, u16)] = &[(80, 24), (40, 6), (120, 40), (200, 60), (13, 3), (1, 1)];

/// Explains log text, as one file and in two parts, and prints the explanations.
pub fn log(data: &[u8]) {
    let catalogue = Catalogue::embedded();
    let mut incidents = explain(catalogue, "rank_3.log", data);
    assert_printable(&print(&incidents));
    incidents.iter_mut().for_each(redact::incident);
    assert_printable(&print(&incidents));
    let (first, rest) = data.split_at(data.len() / 2);
    let mut reader = LogReader::new(catalogue, "train.log");
    reader.push(first);
    reader.push(rest);
    let _ = reader.finish();
}

fn assert_printable(text: &str) {
    let is_control = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(is_control), "control character in {text:?}");
}

/// Prints incidents in every format and returns the text for a terminal.
fn print(incidents: &[Incident]) -> String {
    let style = explanation::Style { width: 72, colour: false, height: Some(24) };
    let _ = explanation::markdown(incidents, true);
    let _ = serde_json::to_string(&explanation::Document::of(incidents));
    explanation::text(incidents, explanation::Detail::All, &style)
}

/// Reads an agent's stream, compressed or as plain lines, and draws a screen.
pub fn wire(data: &[u8]) {
    let updates = read_agent_stream(&packed(data));
    show(updates, data);
}

/// Reads the output of the nvidia-smi loop and draws a screen.
pub fn nvidia_smi(data: &[u8]) {
    show(read_nvidia_smi(data), data);
}

/// Compresses plain data. Mutations of plain lines reach more code than mutations of compressed ones. The whole data is
/// compressed at once, because a stream would have a larger window than an agent may use.
pub fn packed(data: &[u8]) -> Cow<'_, [u8]> {
    if data.starts_with(ZSTD_MAGIC) {
        return data.into();
    }
    zstd::bulk::compress(data, 1).map_or(data.into(), Cow::Owned)
}

/// Processes updates like a dashboard: diagnoses them, updates the app, and draws.
fn show(updates: Vec<Update>, choice: &[u8]) {
    let mut app = app();
    let mut observer = Observer::default();
    let mut stored = Vec::new();
    for update in updates {
        // The limit of every queue depends on this size.
        assert!(update.memory_size() >= size_of::<Update>());
        let revisions = match &update {
            Update::Hello(hello) => {
                observer.hello(Arc::clone(hello));
                Vec::new()
            }
            Update::Frame(frame) => observer.frame(frame),
            Update::Event(event) => observer.event(event),
            Update::FailureMap(map) => observer.failure_map(map),
            Update::HolderSummary(summary) => observer.holders(summary),
            Update::Stacks(_, stack) => match &**stack {
                Ok(stack) => observer.stack(stack),
                Err(_) => Vec::new(),
            },
            Update::RemoteIncident(remote) => {
                stored.extend(Record::from_remote(remote).as_ref().map(listed));
                Vec::new()
            }
            Update::Jump { .. } => {
                observer.forget();
                Vec::new()
            }
            _ => Vec::new(),
        };
        app.update(update);
        for revision in revisions {
            app.take_watch_result(WatchResult::Incident(Box::new(revision)));
        }
    }
    if !stored.is_empty() {
        app.host.take_stored(stored);
    }
    let _ = csv::frame(&app.host.frame);
    let _ = tables::overview(&app.host, 120, &app.ui.theme.glyphs, &app.ui.theme.zone);
    draw(&mut app, choice);
}

/// Converts a stored incident to the form that screens use.
fn listed(record: &Record) -> ListedIncident {
    ListedIncident::of_record(record.clone(), false, true)
}

fn app() -> App {
    static KEYMAP: OnceLock<Keymap> = OnceLock::new();
    let keymap = KEYMAP.get_or_init(Keymap::default);
    let theme = Theme::new(Palette::Dark, false, TimeZone::UTC);
    App::new(theme, keymap.clone(), None)
}

/// Draws the overview and one other screen. The input selects the screen and the size.
fn draw(app: &mut App, choice: &[u8]) {
    let number = hash(choice);
    let (width, height) = SIZES[number % SIZES.len()];
    let area = Rect::new(0, 0, width, height);
    let def = SCREENS[number / SIZES.len() % SCREENS.len()];
    let views = [Some(View::default()), (def.sample)(app).map(View::on_top)];
    for mut view in views.into_iter().flatten() {
        view.resize(area);
        view.follow(app);
        draw_view(&view, app, area);
    }
}

fn draw_view(view: &View, app: &App, area: Rect) {
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    for cell in buffer.content() {
        let symbol = cell.symbol();
        let is_harmful = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!symbol.contains(is_harmful), "{symbol:?} in a cell");
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 16) as usize
}

/// Reads a memory snapshot, prints it in all formats and draws its screen.
pub fn snapshot_file(data: &[u8]) {
    let Ok(snapshot) = snapshot::read(data, data.len() as u64) else {
        return;
    };
    let shown = export::AnalysedSnapshot::of("snapshot.pickle".into(), snapshot);
    let _ = export::text(&shown);
    let _ = serde_json::to_string(&export::document(&shown));
    let screen = SnapshotScreen::new(shown);
    let mut app = app();
    let mut view = View::alone(Box::new(screen));
    let area = Rect::new(0, 0, 120, 40);
    view.resize(area);
    for key in [KeyCode::Tab, KeyCode::Down, KeyCode::Enter, KeyCode::Right] {
        let _ = view.key(KeyEvent::new(key, KeyModifiers::NONE), &mut app);
        draw_view(&view, &app, area);
    }
}

/// Opens a recording, jumps in it, and draws it. Other input is used as the lines of a recording.
pub fn recording(data: &[u8]) {
    let bytes = if data.starts_with(b"{") {
        let hello = br#"{"hello":{}}"#;
        let mut bytes = 0x184d_2a50_u32.to_le_bytes().to_vec();
        bytes.extend(u32::try_from(hello.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(hello);
        bytes.extend_from_slice(&packed(data));
        bytes
    } else {
        data.to_vec()
    };
    let Ok(recording) = Recording::from_bytes(bytes.into()) else {
        return;
    };
    let (start, end) = recording.span();
    let options = Options { paused: true, ..Options::default() };
    let mut source = play(recording, options);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let middle = Mono(start.0 / 2 + end.0 / 2);
    let plays = [Play::Step(1), Play::To(middle), Play::Step(-3), Play::To(end), Play::Past(end)];
    let mut updates = Vec::new();
    for play in std::iter::once(None).chain(plays.map(Some)) {
        if let Some(play) = play {
            source.send(Request::Play(play));
        }
        let is_answer = |update: &Update| match play {
            Some(Play::Past(_)) => matches!(update, Update::Past { .. } | Update::Position(_)),
            _ => matches!(update, Update::Position(_)),
        };
        loop {
            let next = async { tokio::time::timeout(REPLAY_TIMEOUT, source.next()).await };
            let Ok(Some(update)) = runtime.block_on(next) else {
                // The stream was closed, or a damaged recording cannot serve this request.
                break;
            };
            let is_last = is_answer(&update);
            updates.push(update);
            if is_last {
                break;
            }
        }
    }
    updates.push(Update::Position(Position::default()));
    show(updates, data);
}

/// How long to wait for an update of a replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the root of the repository, from this crate or from the one in `fuzz`.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let above = here.parent().filter(|_| !here.join("assets").exists());
    above.unwrap_or(here).to_owned()
}

/// Returns a directory for files that a reader opens itself, one for each thread.
fn scratch() -> PathBuf {
    thread_local! {
        static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
    }
    FOLDER.with_borrow_mut(|folder| {
        let new = || {
            let memory = Path::new("/dev/shm");
            let made = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
            made.expect("a directory for scratch files")
        };
        folder.get_or_insert_with(new).path().to_owned()
    })
}

/// Writes a file that only this user can read, as gputop's readers require.
fn write(path: &Path, bytes: &[u8]) {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).expect("a scratch file");
    std::io::Write::write_all(&mut file, bytes).expect("room for a scratch file");
}

/// Lists, draws and merges a stored incident, and imports it as one of another host.
pub fn incident(data: &[u8]) {
    let folder = scratch().join("incidents");
    if !folder.exists() {
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).expect("a directory of incidents");
    }
    for old in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let _ = fs::remove_file(old.path());
    }
    write(&folder.join("01kq3v7-x2c9.json"), data);
    let store = Store::at(&folder);
    let entries = store.list().map(|listing| listing.entries);
    for entry in entries.unwrap_or_default() {
        let record = entry.record;
        assert_printable(&print(std::slice::from_ref(&record.incident)));
        let mut app = app();
        app.host.take_stored(vec![listed(&record)]);
        draw(&mut app, data);
        let _ = merge::is_same(&record, &record);
        let merged = merge::merge(record.clone(), record.clone());
        let _ = store.write(merged);
        let mut other = record;
        other.key.run = other.key.process.take();
        let _ = store.write(other);
    }
    let Ok(value) = serde_json::from_slice(data) else {
        return;
    };
    let _ =
        store.adopt(RemoteIncident { uid: "01kq3v8-x2c9".into(), is_read: true, record: value });
    let _ = store.list();
}

/// Reads the memory of a PyTorch process. If the first byte is a capital letter, it selects a recorded dump, and the
/// rest changes words in it.
pub fn dump(data: &[u8]) {
    let dumps = recorded_dumps();
    let dump = match data.split_first() {
        Some((first, edits)) if first.is_ascii_uppercase() && !dumps.is_empty() => {
            let dump = dumps[usize::from(first - b'A') % dumps.len()].clone();
            Some(edited(dump, edits))
        }
        _ => Dump::from_bytes(&packed(data)).ok(),
    };
    let Some(mut attached) = dump.and_then(|dump| Attached::attach(dump).ok()) else {
        return;
    };
    let stats = attached.stats().unwrap_or_default();
    let _ = attached.sample();
    let _ = attached.is_in_use();
    for ordinal in stats.iter().map(|stats| stats.ordinal).take(2) {
        let _ = attached.largest_free_block(ordinal);
        let _ = attached.map_and_stats(ordinal);
    }
}

/// Returns the recorded dumps, sorted by file name.
fn recorded_dumps() -> &'static [Dump] {
    static DUMPS: OnceLock<Vec<Dump>> = OnceLock::new();
    DUMPS.get_or_init(|| {
        let folder = repository().join("crates/peek/tests/data/torch");
        let mut files = BTreeMap::new();
        for version in fs::read_dir(folder).into_iter().flatten().flatten() {
            for file in fs::read_dir(version.path()).into_iter().flatten().flatten() {
                if file.file_name().to_string_lossy().ends_with(".dump.zst") {
                    files.insert(file.path(), fs::read(file.path()).unwrap_or_default());
                }
            }
        }
        let dumps = files.values().map(|bytes| Dump::from_bytes(bytes));
        dumps.filter_map(Result::ok).collect()
    })
}

/// Applies edits of 6 bytes: 4 bytes for the offset, 2 for the word to write. Words are small numbers, limits of the
/// range and addresses in the dump, because random ones would be rejected immediately.
fn edited(mut dump: Dump, edits: &[u8]) -> Dump {
    let ranges: Vec<(u64, usize)> =
        dump.bytes_mut().map(|(address, bytes)| (address, bytes.len())).collect();
    let total: usize = ranges.iter().map(|(_, len)| len).sum();
    for edit in edits.chunks_exact(6).take(64) {
        let at = u32::from_le_bytes([edit[0], edit[1], edit[2], edit[3]]) as usize % total.max(1);
        let number = u64::from(edit[4]);
        let (start, len) = ranges[usize::from(edit[4]) % ranges.len()];
        let word = match edit[5] {
            0 => number,
            1 => number.wrapping_neg(),
            2 => 1 << (edit[4] % 64),
            3 => i64::MAX as u64 - number,
            4 => start,
            5 => start + len as u64,
            other => start + u64::from(other) * 8,
        };
        let mut before = 0;
        for (_, bytes) in dump.bytes_mut() {
            // Pointers and counters are aligned.
            let from = (at.saturating_sub(before)) & !7;
            if at < before + bytes.len() {
                if let Some(target) = bytes.get_mut(from..from + 8) {
                    target.copy_from_slice(&word.to_le_bytes());
                }
                break;
            }
            before += bytes.len();
        }
    }
    dump
}

/// Reads the input as both files that the Python hook writes: lines of events, and a page of statistics.
pub fn hook(data: &[u8]) {
    let folder = scratch().join("hook");
    let _ = fs::create_dir(&folder);
    write(&folder.join("7-1.10.99.jsonl"), data);
    let process = ProcessKey { pid: Pid(10), start: StartTicks(99) };
    for report in Spool::at(&folder).of_run("7-1") {
        for event in report.events {
            let _ = serde_json::to_string(&event);
        }
    }
    let mut pools = ReportedPools::default();
    pools.take(data, process, Mono(1));
}

const PLANTED: &str = "hf_Q7dK2mVx9LpRt4WzYb8NcGs3HjFa6UeT1o";

/// Redacts text, arguments and variables. A token on a separate line or in a separate argument must be removed.
pub fn redaction(data: &[u8]) {
    if contains_planted(data) {
        // Between other letters the token cannot be recognized.
        return;
    }
    let text = [data, b"\nlogin with ", PLANTED.as_bytes(), b" ok\n", data].concat();
    assert_hidden(&redact::text(&text));
    let words = data.split(|byte| *byte == 0);
    let words = words.chain([PLANTED.as_bytes(), b"train.py"]);
    let arguments = redact::arguments(words);
    assert_hidden(&arguments.join(&0));
    let _ = redact::text(data);
    for line in data.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b'=');
        let (name, value) = (parts.next(), parts.next());
        let _ = redact::variable(name.unwrap_or_default(), value.unwrap_or_default());
    }
}

fn assert_hidden(shown: &[u8]) {
    assert!(!contains_planted(shown), "the planted token is shown");
}

fn contains_planted(text: &[u8]) -> bool {
    let planted = PLANTED.as_bytes();
    text.windows(planted.len()).any(|window| window == planted)
}

/// Parses the same text as settings, key bindings, a theme and a filter.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for message in
        [check_config(&text).err(), Colours::parse(&text).err().map(|error| error.to_string())]
            .into_iter()
            .flatten()
    {
        assert!(!message.contains(char::is_control), "{message:?}");
    }
    let app = &mut demo_app();
    for line in text.lines().take(4) {
        if let Ok(filter) = Filter::parse(line) {
            app.host.processes.use_filter(filter);
        }
    }
}

/// Handles the bytes that a terminal sends, and draws the screen after some of the keys.
pub fn terminal(data: &[u8]) {
    let mut app = demo_app();
    let mut view = View::default();
    let mut area = Rect::new(0, 0, 80, 24);
    view.resize(area);
    for (number, event) in terminal_events(data).into_iter().take(MAX_EVENTS).enumerate() {
        let (outcome, requests) = match event {
            Event::Key(key) => view.key(key, &mut app),
            Event::Mouse(mouse) => view.mouse(mouse, area, &mut app),
            Event::Resize(width, height) => {
                area = Rect::new(0, 0, width, height);
                view.resize(area);
                (Effect::Done, view.follow(&app))
            }
            _ => continue,
        };
        drop(requests);
        if !matches!(outcome, Effect::Done) {
            view = View::default();
            view.resize(area);
        }
        if number % 4 == 0 {
            draw_view(&view, &app, area);
        }
    }
    draw_view(&view, &app, area);
}

const MAX_EVENTS: usize = 64;

/// Returns an app with frames of the demo recording.
fn demo_app() -> App {
    static LINES: OnceLock<Vec<Update>> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let bytes = fs::read(repository().join("assets/demo.gpt.zst")).unwrap_or_default();
        let text = zstd::decode_all(&bytes[..]).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').take(60);
        lines.filter_map(|line| Line::read(line).ok()?.update().ok()?).collect()
    });
    let mut app = app();
    let frames = lines.iter().filter(|line| matches!(line, Update::Frame(_)));
    let others = lines.iter().filter(|line| matches!(line, Update::Event(_) | Update::Map(_)));
    for update in frames.take(2).chain(others) {
        app.update(update.clone());
    }
    app
}

/// Parses the bytes that a terminal sends. crossterm's own parser is not public, so this handles the sequences that
/// gputop reacts to. `ESC [ 8 ; HEIGHT ; WIDTH t` represents a resize.
fn terminal_events(data: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(data);
    let mut rest = text.as_ref();
    let mut events = Vec::new();
    while let Some(first) = rest.chars().next() {
        if let Some((event, after)) = rest.strip_prefix("\x1b[").and_then(control_sequence) {
            events.extend(event);
            rest = after;
            continue;
        }
        rest = &rest[first.len_utf8()..];
        let (code, modifiers) = match first {
            '\x1b' => (KeyCode::Esc, KeyModifiers::NONE),
            '\r' => (KeyCode::Enter, KeyModifiers::NONE),
            '\t' => (KeyCode::Tab, KeyModifiers::NONE),
            '\x7f' => (KeyCode::Backspace, KeyModifiers::NONE),
            '\0' => (KeyCode::Char(' '), KeyModifiers::CONTROL),
            c @ '\x01'..='\x1a' => {
                let letter = char::from(c as u8 - 1 + b'a');
                (KeyCode::Char(letter), KeyModifiers::CONTROL)
            }
            c if c.is_uppercase() => (KeyCode::Char(c), KeyModifiers::SHIFT),
            c => (KeyCode::Char(c), KeyModifiers::NONE),
        };
        events.push(Event::Key(KeyEvent::new(code, modifiers)));
    }
    events
}

/// Parses a sequence after `ESC [`. Returns its event and the remaining text.
fn control_sequence(text: &str) -> Option<(Option<Event>, &str)> {
    let is_final = |c: char| ('@'..='~').contains(&c);
    let end = text.find(is_final)?;
    let (parameters, after) = (&text[..end], &text[end + 1..]);
    let last = text.as_bytes()[end];
    let numbers: Vec<u16> = parameters
        .trim_start_matches('<')
        .split(';')
        .map(|number| number.parse().unwrap_or(1))
        .collect();
    let key = |code| Some(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    let number = |at: usize| numbers.get(at).copied().unwrap_or(1);
    let event = match last {
        b'A' => key(KeyCode::Up),
        b'B' => key(KeyCode::Down),
        b'C' => key(KeyCode::Right),
        b'D' => key(KeyCode::Left),
        b'F' => key(KeyCode::End),
        b'H' => key(KeyCode::Home),
        b'Z' => key(KeyCode::BackTab),
        b'~' => match number(0) {
            1 => key(KeyCode::Home),
            3 => key(KeyCode::Delete),
            5 => key(KeyCode::PageUp),
            6 => key(KeyCode::PageDown),
            n @ 11..=24 => key(KeyCode::F((n - 10) as u8)),
            _ => None,
        },
        b't' => Some(Event::Resize(number(2) % 300, number(1) % 100)),
        b'M' | b'm' if parameters.starts_with('<') => Some(Event::Mouse(MouseEvent {
            kind: match number(0) {
                64 => MouseEventKind::ScrollUp,
                65 => MouseEventKind::ScrollDown,
                _ if last == b'm' => MouseEventKind::Up(MouseButton::Left),
                32.. => MouseEventKind::Drag(MouseButton::Left),
                _ => MouseEventKind::Down(MouseButton::Left),
            },
            column: number(1).saturating_sub(1),
            row: number(2).saturating_sub(1),
            modifiers: KeyModifiers::NONE,
        })),
        _ => None,
    };
    Some((event, after))
}
