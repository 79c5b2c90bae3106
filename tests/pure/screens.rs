//! Every screen at four sizes, drawn from recorded frames and compared line by line.

use std::sync::Arc;

use gputop::tui::app::App;
use gputop::tui::colours::Colours;
use gputop::tui::density::Density;
use gputop::tui::palette::PALETTES;
use gputop::tui::picture::text_of;
use gputop::tui::screens::SCREENS;
use gputop::tui::theme::Palette;
use gputop_model::history::{GpuMetric, SeriesKey};
use gputop_model::protocol::Update;
use gputop_model::units::Percent;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use crate::screen_sizes::screen_sizes;
use crate::support::many_processes::{Member, TestApp};
use crate::support::screen_fixture::{FOUR_GPUS, app_at, draw, openable};

const TROUBLE: &[u8] = include_bytes!("../data/recordings/trouble.gpt.zst");
const SIZES: [(u16, u16); 4] = [(40, 6), (80, 24), (120, 40), (200, 50)];

/// Name, recording, seconds into it, and whether to draw in ASCII only.
const CASES: &[(&str, &[u8], u64, bool)] = &[
    ("start", FOUR_GPUS, 0, false),
    ("training", FOUR_GPUS, 140, false),
    ("ended", FOUR_GPUS, 500, true),
    ("trouble", TROUBLE, 500, false),
];

#[test]
fn every_screen_at_every_size_from_recorded_frames() {
    for (moment, recording, seconds, ascii) in CASES {
        let app = app_at(recording, *seconds, Palette::None, *ascii, false);
        for def in openable(&app) {
            for (width, height) in SIZES {
                let name = format!("{moment}-{}-{width}x{height}", def.id);
                insta::assert_snapshot!(name, text_of(&draw(&app, def.id, width, height)));
            }
        }
    }
}

/// Without a readable allocator, charts take the place of the memory screen.
#[test]
fn a_single_gpu_fills_a_large_terminal() {
    let app = TestApp::new(1, &[Member::new(418, "ana", "python train.py", &[(0, 20)])]);
    let text = app.text(200, 50);
    assert!(text.contains("GPU 0 VRAM used") && text.contains("memory bandwidth"), "{text}");
    // The time axis of the lower charts is directly above the footer.
    assert!(text.lines().rev().nth(1).unwrap().contains("now"), "{text}");
}

#[test]
fn every_screen_is_listed() {
    let defined = |path: &std::path::Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let (_, def) = text.split_once("pub const DEF: ScreenDef = ScreenDef {")?;
        Some(def.split('"').nth(1)?.to_owned())
    };
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tui/screens");
    let mut found = Vec::new();
    let mut folders = vec![std::path::PathBuf::from(root)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(defined(&path)),
            }
        }
    }
    found.sort();
    let mut listed: Vec<_> = SCREENS.iter().map(|def| def.id.to_owned()).collect();
    listed.sort();
    assert_eq!(found, listed, "each `DEF` belongs into `SCREENS` in src/tui/screens/mod.rs");
}

#[test]
fn every_screen_can_be_drawn_at_any_size() {
    for recording in [FOUR_GPUS, TROUBLE] {
        let app = app_at(recording, 500, Palette::Dark, false, false);
        for (seed, def) in openable(&app).into_iter().enumerate() {
            for (width, height) in screen_sizes(seed as u64) {
                let buffer: Buffer = draw(&app, def.id, width, height);
                assert_eq!(buffer.area.area(), u32::from(width) * u32::from(height));
            }
        }
    }
}

#[test]
fn every_coloured_theme_draws_every_screen_with_the_same_characters() {
    for (moment, recording, seconds, ascii) in CASES {
        let mut app = app_at(recording, *seconds, Palette::None, *ascii, false);
        for def in openable(&app) {
            for (width, height) in SIZES {
                // Without colours, charts use shapes instead of solid blocks.
                app.ui.theme.colours = Colours::built_in(Palette::Dark);
                let dark = text_of(&draw(&app, def.id, width, height));
                for palette in PALETTES {
                    app.ui.theme.colours = Colours::built_in(palette.palette);
                    let buffer = draw(&app, def.id, width, height);
                    let where_ = format!("{moment} {} {width}x{height} {}", def.id, palette.name);
                    if palette.palette != Palette::None {
                        assert_eq!(text_of(&buffer), dark, "{where_}");
                    }
                    let is_coloured = buffer.content.iter().any(|cell| cell.fg != Color::Reset);
                    assert_eq!(is_coloured, palette.palette != Palette::None, "{where_}");
                }
            }
        }
    }
}

#[test]
fn paused_display_shows_no_later_data() {
    let mut app = app_at(FOUR_GPUS, 140, Palette::None, false, true);
    let shown = |app: &App| {
        let texts = openable(app).into_iter().map(|def| text_of(&draw(app, def.id, 200, 60)));
        texts.collect::<Vec<_>>()
    };
    app.host.set_paused(true);
    let held = shown(&app);
    let mut frame = (*app.host.frame).clone();
    // The first frame is in the same second as the paused one. The last frames push that second out of the finest
    // buckets.
    for step in [300, 500].into_iter().chain([1_000; 1_000]) {
        frame.mono.0 += step;
        for gpu in &mut frame.gpus {
            gpu.at = frame.mono;
            gpu.sm = Percent(100.0).into();
            gpu.power = gpu.board.power_cap_default.clone();
        }
        app.update(Update::Frame(Arc::new(frame.clone())));
        if frame.mono.0 % 100_000 < step {
            assert!(shown(&app) == held, "it moved");
        }
    }
    assert_eq!(shown(&app), held);
    app.host.set_paused(false);
    assert_eq!(app.host.frame.mono, frame.mono);
    let gpu = &frame.gpus[0];
    let series = app.host.history.series(&SeriesKey::Gpu(gpu.uuid.clone(), GpuMetric::Sm));
    assert_eq!(series.and_then(|series| series.last()), Some((frame.mono, 100.0)));
}

#[test]
fn a_compact_overview_is_its_tables() {
    let mut app = app_at(TROUBLE, 500, Palette::None, false, false);
    let shown = |app: &App, height| text_of(&draw(app, "overview", 120, height));
    let heading = |text: &str| text.lines().position(|line| line.contains("COMMAND"));
    let (normal, tall) = (shown(&app, 30), shown(&app, 60));
    assert!(tall.contains("TIMELINE"), "{tall}");
    app.ui.density = Density::Compact;
    let (compact, tall) = (shown(&app, 30), shown(&app, 60));
    assert!(!tall.contains("TIMELINE"), "{tall}");
    // The line of totals goes to the process table.
    assert_eq!(heading(&compact).map(|y| y + 1), heading(&normal), "{compact}\n{normal}");
}

/// The command line of one process in the recording. Text of other programs is not converted to ASCII.
const UNCONVERTED_TEXT: &str = "数据集训练";

#[test]
fn in_ascii_the_program_draws_only_ascii() {
    for recording in [FOUR_GPUS, TROUBLE] {
        let app = app_at(recording, 500, Palette::None, true, false);
        for def in openable(&app) {
            for (width, height) in SIZES {
                let text = text_of(&draw(&app, def.id, width, height));
                let own = text.replace(|c| UNCONVERTED_TEXT.contains(c), "");
                assert!(own.is_ascii(), "{} at {width}x{height}:\n{text}", def.id);
            }
        }
    }
}

/// Reversed, the used and the free part of the bar would change places.
#[test]
fn the_memory_bar_under_the_cursor_is_not_reversed() {
    for palette in [Palette::Sixteen, Palette::None] {
        let app = app_at(FOUR_GPUS, 140, palette, false, false);
        let buffer = draw(&app, "overview", 120, 40);
        let row = (0..40).find(|y| buffer[(0, *y)].symbol() == "▸").expect("a cursor");
        let is_reversed = |x: u16| buffer[(x, row)].modifier.contains(Modifier::REVERSED);
        let free = (0..120).find(|x| buffer[(*x, row)].symbol() == "·").expect("free memory");
        assert!(is_reversed(2), "{palette:?}: the number of the GPU");
        assert!(!is_reversed(5) && !is_reversed(free), "{palette:?}: the bar");
    }
}

#[test]
fn without_colour_nothing_is_coloured() {
    let app = app_at(TROUBLE, 500, Palette::None, false, false);
    for def in openable(&app) {
        let buffer = draw(&app, def.id, 120, 40);
        for cell in &buffer.content {
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
        }
    }
}
