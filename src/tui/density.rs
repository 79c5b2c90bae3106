//! Density of the overview: with or without charts.

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Density {
    #[default]
    Normal,
    /// Tables only: no host line, charts or blank lines.
    Compact,
}

/// All densities, with their names in the configuration.
pub const DENSITIES: &[(&str, Density)] =
    &[("normal", Density::Normal), ("compact", Density::Compact)];

impl Density {
    pub fn is_compact(self) -> bool {
        self == Self::Compact
    }

    pub fn other(self) -> Self {
        match self {
            Self::Normal => Self::Compact,
            Self::Compact => Self::Normal,
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let (_, density) = DENSITIES.iter().find(|(known, _)| *known == name)?;
        Some(*density)
    }
}
