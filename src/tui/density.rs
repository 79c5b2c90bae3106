//! How much room is given to what is not a row of a table.

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Density {
    #[default]
    Normal,
    /// The overview is its tables: no line of the host, no charts, no blank line.
    Compact,
}

/// Each with its name in the configuration.
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
