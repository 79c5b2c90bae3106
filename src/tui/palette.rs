//! The built-in themes, each a file in `assets/themes`.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    Dark,
    Light,
    /// Theme for red-green colour blindness.
    ColourBlind,
    /// Theme with the terminal's own 16 colours.
    Sixteen,
    None,
}

/// Definition of a built-in theme.
#[derive(Debug)]
pub struct PaletteDef {
    pub palette: Palette,
    pub name: &'static str,
    /// Alternative names.
    pub aliases: &'static [&'static str],
    /// Theme description, a phrase without a period.
    pub help: &'static str,
    /// Text of the theme file, for [`Colours::parse`](super::colours::Colours::parse).
    pub text: &'static str,
}

pub const PALETTES: &[PaletteDef] = &[
    PaletteDef {
        palette: Palette::Dark,
        name: "dark",
        aliases: &[],
        help: "24-bit colours for a dark background",
        text: include_str!("../../assets/themes/dark.toml"),
    },
    PaletteDef {
        palette: Palette::Light,
        name: "light",
        aliases: &[],
        help: "24-bit colours for a light background",
        text: include_str!("../../assets/themes/light.toml"),
    },
    PaletteDef {
        palette: Palette::ColourBlind,
        name: "colour-blind",
        aliases: &["color-blind", "colourblind", "colorblind"],
        help: "24-bit colours for red-green colour blindness (dark)",
        text: include_str!("../../assets/themes/colour-blind.toml"),
    },
    PaletteDef {
        palette: Palette::Sixteen,
        name: "16",
        aliases: &[],
        help: "the terminal's own 16 colours",
        text: include_str!("../../assets/themes/16.toml"),
    },
    PaletteDef {
        palette: Palette::None,
        name: "mono",
        aliases: &["none"],
        help: "no colour: bold and reversed text",
        text: include_str!("../../assets/themes/mono.toml"),
    },
];

impl Palette {
    pub fn named(name: &str) -> Option<Self> {
        Some(PALETTES.iter().find(|def| def.name == name || def.aliases.contains(&name))?.palette)
    }

    pub fn def(self) -> &'static PaletteDef {
        // The search cannot fail, because a test checks that every palette is in this list.
        PALETTES.iter().find(|def| def.palette == self).unwrap_or(&PALETTES[0])
    }
}
