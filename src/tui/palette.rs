//! The built-in themes, each a file in `assets/themes`.

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

/// Defines [`Palette`] and [`PALETTES`]. A row holds a palette's variant, name, aliases and description. Its colours are
/// in the file of that name.
macro_rules! palettes {
    ($($(#[$doc:meta])* $palette:ident $name:literal [$($alias:literal),*]: $help:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Palette {
            $($(#[$doc])* $palette,)*
        }

        pub const PALETTES: &[PaletteDef] = &[$(PaletteDef {
            palette: Palette::$palette,
            name: $name,
            aliases: &[$($alias),*],
            help: $help,
            text: include_str!(concat!("../../assets/themes/", $name, ".toml")),
        }),*];
    };
}

palettes! {
    Dark "dark" []: "24-bit colours for a dark background";
    Light "light" []: "24-bit colours for a light background";
    /// Theme for red-green colour blindness.
    ColourBlind "colour-blind" ["color-blind", "colourblind", "colorblind"]: "24-bit colours for red-green colour blindness (dark)";
    /// Theme with the terminal's own 16 colours.
    Sixteen "16" []: "the terminal's own 16 colours";
    None "mono" ["none"]: "no colour: bold and reversed text";
}

impl Palette {
    pub fn named(name: &str) -> Option<Self> {
        Some(PALETTES.iter().find(|def| def.name == name || def.aliases.contains(&name))?.palette)
    }

    pub fn def(self) -> &'static PaletteDef {
        // The search cannot fail, because a test checks that every palette is in this list.
        PALETTES.iter().find(|def| def.palette == self).unwrap_or(&PALETTES[0])
    }
}
