//! The parts that things on the screen play: screens ask for one of these, never for a colour, and a theme gives each
//! its look.

/// What a piece of the screen means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Text,
    /// Labels, units, rules: there, but not in the way.
    Dim,
    /// A title or a heading.
    Title,
    /// The row under the cursor.
    Cursor,
    /// Keys in the footer.
    Key,
    /// Something a person should look at.
    Warn,
    /// Something a person must look at.
    Bad,
    /// All is well, said explicitly.
    Good,
    /// A permanent notice: this is a recording.
    Banner,
    /// VRAM held by processes.
    Processes,
    /// VRAM that is used by nobody who is listed.
    Unattributed,
    /// VRAM kept by the driver.
    Driver,
    /// VRAM that is free.
    Free,
    /// Memory in live tensors.
    Allocated,
    /// Cached by an allocator, in no tensor.
    Idle,
    /// Freed, but another stream may still use it.
    Active,
    /// What a process holds beside its pools.
    OtherVram,
    /// The line or area of a chart.
    Chart,
    /// Between the minimum and the maximum of a chart's column.
    ChartRange,
}

/// What it takes to be made out, which a test holds each built-in theme to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// Read letter by letter.
    Text,
    /// Seen as a bar or a line.
    Shape,
}

#[derive(Debug)]
pub struct RoleDef {
    pub role: Role,
    /// Its name in a theme.
    pub name: &'static str,
    pub made: Made,
    /// What has this look, as a noun without a period: `the row under the cursor`.
    pub help: &'static str,
}

const fn text(role: Role, name: &'static str, help: &'static str) -> RoleDef {
    RoleDef {
        role,
        name,
        made: Made::Text,
        help,
    }
}

const fn shape(role: Role, name: &'static str, help: &'static str) -> RoleDef {
    RoleDef {
        made: Made::Shape,
        ..text(role, name, help)
    }
}

/// In the order of [`Role`].
pub const ROLES: &[RoleDef] = &[
    text(Role::Text, "text", "figures, names, sentences"),
    text(
        Role::Dim,
        "dim",
        "labels, units, rules: there, but not in the way",
    ),
    text(Role::Title, "title", "titles and headings"),
    text(Role::Cursor, "cursor", "the row under the cursor"),
    text(Role::Key, "key", "keys in the footer, names in the help"),
    text(Role::Warn, "warn", "what a person should look at"),
    text(Role::Bad, "bad", "what a person must look at"),
    text(Role::Good, "good", "all is well, said explicitly"),
    text(
        Role::Banner,
        "banner",
        "a permanent notice: this is a recording",
    ),
    shape(Role::Processes, "processes", "VRAM held by processes"),
    shape(
        Role::Unattributed,
        "unattributed",
        "VRAM used by nobody who is listed",
    ),
    shape(Role::Driver, "driver", "VRAM kept by the driver"),
    shape(Role::Free, "free", "VRAM that is free"),
    shape(Role::Allocated, "allocated", "memory in live tensors"),
    shape(
        Role::Idle,
        "idle",
        "memory cached by an allocator, in no tensor",
    ),
    shape(
        Role::Active,
        "active",
        "memory freed that another stream may still use",
    ),
    shape(
        Role::OtherVram,
        "other",
        "what a process holds beside its pools",
    ),
    shape(Role::Chart, "chart", "the line or area of a chart"),
    shape(
        Role::ChartRange,
        "chart_range",
        "from the minimum to the maximum of a chart's column",
    ),
];

impl Role {
    pub fn def(self) -> &'static RoleDef {
        &ROLES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_stands_at_its_place_in_the_list() {
        for (at, def) in ROLES.iter().enumerate() {
            assert_eq!(def.role as usize, at, "{}", def.name);
        }
        assert_eq!(Role::ChartRange as usize, ROLES.len() - 1);
    }
}
