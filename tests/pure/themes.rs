//! The built-in themes are readable: text and shapes stand out from the background, and colours that must not be
//! confused differ, even for people who cannot tell red from green.

use gputop::tui::palette::{PALETTES, Palette};
use gputop::tui::role::{ContrastClass, ROLES};
use gputop::tui::theme::{Role, Theme};
use jiff::tz::TimeZone;
use ratatui::style::{Color, Modifier, Style};

/// Returns the background that a theme is made for, and the terminal's text colour on it.
fn assumed(palette: Palette) -> Option<(Color, Color)> {
    let grey = |level| Color::Rgb(level, level, level);
    Some(match palette {
        Palette::Dark | Palette::ColourBlind => {
            (Color::Rgb(0x0f, 0x12, 0x16), Color::Rgb(0xd5, 0xd8, 0xdd))
        }
        Palette::Light => (grey(0xff), Color::Rgb(0x1f, 0x23, 0x28)),
        Palette::Sixteen => (grey(0x00), grey(0xe5)),
        Palette::None => return None,
    })
}

/// Linear red, green, blue, 0 to 1.
type LinearRgb = [f64; 3];

/// Converts a colour. The 16 named colours are xterm's.
fn light(colour: Color) -> LinearRgb {
    let parts: [u8; 3] = match colour {
        Color::Rgb(red, green, blue) => [red, green, blue],
        Color::Black => [0, 0, 0],
        Color::DarkGray => [0x7f, 0x7f, 0x7f],
        Color::LightRed => [0xff, 0, 0],
        Color::Yellow => [0xcd, 0xcd, 0],
        Color::LightBlue => [0x5c, 0x5c, 0xff],
        Color::Magenta => [0xcd, 0, 0xcd],
        Color::Cyan => [0, 0xcd, 0xcd],
        other => panic!("{other} is not among the colours that the themes use"),
    };
    parts.map(|part| {
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    })
}

fn luminance([red, green, blue]: LinearRgb) -> f64 {
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

/// Returns the contrast ratio of WCAG 2, from 1 to 21.
fn contrast(a: LinearRgb, b: LinearRgb) -> f64 {
    let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
    a.max(b) / a.min(b)
}

/// Converts a colour to CIE L*a*b* under D65.
fn lab(colour: LinearRgb) -> [f64; 3] {
    let [red, green, blue] = colour;
    let x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.950_47;
    let z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.088_83;
    let bend = |t: f64| {
        if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 }
    };
    let (x, y, z) = (bend(x), bend(luminance(colour)), bend(z));
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// A matrix for colour vision: Machado, Oliveira and Fernandes 2009, at severity 1.
type VisionMatrix = [[f64; 3]; 3];

const VISION_TYPES: [(&str, VisionMatrix); 3] = [
    ("most people", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
];

fn seen(colour: LinearRgb, eye: &VisionMatrix) -> LinearRgb {
    eye.map(|row| {
        let sum: f64 = row.iter().zip(colour).map(|(a, b)| a * b).sum();
        sum.clamp(0.0, 1.0)
    })
}

/// Returns the difference of two colours for an eye (CIE 1976): 2 is just noticeable, 100 is black against white.
fn colour_difference(a: LinearRgb, b: LinearRgb, eye: &VisionMatrix) -> f64 {
    let (a, b) = (lab(seen(a, eye)), lab(seen(b, eye)));
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

fn theme(palette: Palette) -> Theme {
    Theme::new(palette, false, TimeZone::UTC)
}

/// Returns the foreground and the background of a style.
fn style_colours(style: Style, (background, text): (Color, Color)) -> (LinearRgb, LinearRgb) {
    let (front, back) = (light(style.fg.unwrap_or(text)), light(style.bg.unwrap_or(background)));
    if style.add_modifier.contains(Modifier::REVERSED) { (back, front) } else { (front, back) }
}

#[track_caller]
fn assert_apart(palette: Palette, roles: &[Role], eyes: &[(&str, VisionMatrix)], least: f64) {
    let theme = theme(palette);
    let colour = |role| light(theme.style(role).fg.expect("a colour"));
    for (name, eye) in eyes {
        for (i, a) in roles.iter().enumerate() {
            for b in &roles[i + 1..] {
                let colour_difference = colour_difference(colour(*a), colour(*b), eye);
                assert!(
                    colour_difference >= least,
                    "{palette:?}, {name}: {a:?} and {b:?}: {colour_difference:.1}"
                );
            }
        }
    }
}

#[test]
fn letters_and_shapes_stand_out_from_the_background() {
    let mut wrong = Vec::new();
    for def in PALETTES {
        let Some(assumed) = assumed(def.palette) else { continue };
        let theme = theme(def.palette);
        for role in ROLES {
            let (front, back) = style_colours(theme.style(role.role), assumed);
            let (is, least) = match role.contrast {
                ContrastClass::Text => (contrast(front, back), 4.5),
                ContrastClass::Shape => (contrast(front, back), 3.0),
            };
            if is < least {
                wrong.push(format!("{}: {}: {is:.2}", def.name, role.name));
            }
            // Text in the row under the cursor keeps its colours.
            let row = theme.style(Role::Cursor).bg;
            let on_row = row.map_or(21.0, |row| contrast(front, light(row)));
            if role.contrast == ContrastClass::Text && role.role != Role::Banner && on_row < 3.0 {
                wrong.push(format!("{}: {} under the cursor: {on_row:.2}", def.name, role.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mono_theme_has_no_colour() {
    let theme = theme(Palette::None);
    for role in ROLES {
        let style = theme.style(role.role);
        assert_eq!((style.fg, style.bg), (None, None), "{}", role.name);
    }
}

const STATES: [Role; 3] = [Role::Good, Role::Warn, Role::Bad];
const MEMORY: [Role; 5] =
    [Role::Allocated, Role::Cached, Role::Active, Role::OtherVram, Role::Free];
const VRAM: [Role; 4] = [Role::Processes, Role::Unattributed, Role::Driver, Role::Free];

#[test]
fn states_and_the_parts_of_a_bar_differ() {
    for palette in [Palette::Dark, Palette::Light, Palette::ColourBlind] {
        assert_apart(palette, &STATES, &VISION_TYPES[..1], 30.0);
        assert_apart(palette, &MEMORY, &VISION_TYPES[..1], 20.0);
        assert_apart(palette, &VRAM, &VISION_TYPES[..1], 20.0);
    }
}

#[test]
fn colour_blind_theme_differs_for_every_eye() {
    assert_apart(Palette::ColourBlind, &STATES, &VISION_TYPES, 30.0);
    assert_apart(Palette::ColourBlind, &MEMORY, &VISION_TYPES, 15.0);
    assert_apart(Palette::ColourBlind, &VRAM, &VISION_TYPES, 15.0);
}

#[test]
fn the_parts_of_memory_differ_in_lightness_alone() {
    for palette in [Palette::Dark, Palette::Light, Palette::ColourBlind] {
        let theme = theme(palette);
        let lightness = |role| lab(light(theme.style(role).fg.expect("a colour")))[0];
        for (i, a) in MEMORY[..4].iter().enumerate() {
            for b in &MEMORY[i + 1..4] {
                let colour_difference = (lightness(*a) - lightness(*b)).abs();
                assert!(
                    colour_difference >= 6.0,
                    "{palette:?}: {a:?} and {b:?}: {colour_difference:.1}"
                );
            }
        }
    }
}
