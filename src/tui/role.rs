//! Roles of screen elements. Screens use roles instead of colours, and the theme assigns a style to each role.

use gputop_model::incident::Severity;

use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::memory_parts::MemoryPart;

/// The meaning of a screen element, which determines its style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Text,
    /// Secondary elements: labels, units, separators.
    Dim,
    Title,
    /// The row under the cursor.
    Cursor,
    /// Keys in the footer.
    Key,
    /// A warning, for example about an unusually high value.
    Warn,
    /// An error that needs attention.
    Bad,
    /// A good state that is shown explicitly.
    Good,
    /// A permanent notice, for example that a recording is playing.
    Banner,
    /// VRAM used by processes.
    Processes,
    /// VRAM not attributed to a listed process.
    Unattributed,
    /// VRAM reserved by the driver.
    Driver,
    /// Free VRAM.
    Free,
    /// Memory in live tensors.
    Allocated,
    /// Memory cached by an allocator but not in use by tensors.
    Idle,
    /// Freed memory that another stream may still use.
    Active,
    /// VRAM of a process outside its pools.
    OtherVram,
    /// The line or area of a chart.
    Chart,
    /// The area between minimum and maximum in a chart column.
    ChartRange,
}

/// Contrast required by a role. A test checks it for every built-in theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContrastClass {
    /// Text that must be legible.
    Text,
    /// A bar or a line.
    Shape,
}

#[derive(Debug)]
pub struct RoleDef {
    pub role: Role,
    /// Role name in a theme.
    pub name: &'static str,
    pub contrast: ContrastClass,
    /// Role description, a noun phrase without a period: `the row under the cursor`.
    pub help: &'static str,
}

const fn text(role: Role, name: &'static str, help: &'static str) -> RoleDef {
    RoleDef { role, name, contrast: ContrastClass::Text, help }
}

const fn shape(role: Role, name: &'static str, help: &'static str) -> RoleDef {
    RoleDef { contrast: ContrastClass::Shape, ..text(role, name, help) }
}

/// All roles, in the order of [`Role`].
pub const ROLES: &[RoleDef] = &[
    text(Role::Text, "text", "figures, names and sentences"),
    text(Role::Dim, "dim", "secondary elements: labels, units, separators"),
    text(Role::Title, "title", "titles and headings"),
    text(Role::Cursor, "cursor", "the row under the cursor"),
    text(Role::Key, "key", "keys in the footer, names in the help"),
    text(Role::Warn, "warn", "warnings"),
    text(Role::Bad, "bad", "errors"),
    text(Role::Good, "good", "good states"),
    text(Role::Banner, "banner", "permanent notices, for example that this is a recording"),
    shape(Role::Processes, "processes", "VRAM used by processes"),
    shape(Role::Unattributed, "unattributed", "VRAM not attributed to a listed process"),
    shape(Role::Driver, "driver", "VRAM reserved by the driver"),
    shape(Role::Free, "free", "free VRAM"),
    shape(Role::Allocated, "allocated", "memory in live tensors"),
    shape(Role::Idle, "idle", "memory cached by an allocator but not in use by tensors"),
    shape(Role::Active, "active", "freed memory that another stream may still use"),
    shape(Role::OtherVram, "other", "VRAM of a process outside its pools"),
    shape(Role::Chart, "chart", "the line or area of a chart"),
    shape(
        Role::ChartRange,
        "chart_range",
        "the area between minimum and maximum in a chart column",
    ),
];

impl Role {
    /// Returns the role of an incident's text.
    #[must_use]
    pub fn of_severity(severity: Severity) -> Self {
        Emphasis::of_severity(severity).into()
    }

    pub fn def(self) -> &'static RoleDef {
        &ROLES[self as usize]
    }
}

impl From<Emphasis> for Role {
    fn from(emphasis: Emphasis) -> Self {
        match emphasis {
            Emphasis::Normal => Self::Text,
            Emphasis::Dim => Self::Dim,
            Emphasis::Title => Self::Title,
            Emphasis::Mark => Self::Key,
            Emphasis::Good => Self::Good,
            Emphasis::Warn => Self::Warn,
            Emphasis::Bad => Self::Bad,
        }
    }
}

impl From<MemoryPart> for Role {
    fn from(part: MemoryPart) -> Self {
        match part {
            MemoryPart::Allocated => Self::Allocated,
            MemoryPart::Idle => Self::Idle,
            MemoryPart::Other => Self::OtherVram,
            MemoryPart::Unreadable | MemoryPart::Processes => Self::Processes,
            MemoryPart::Unattributed => Self::Unattributed,
            MemoryPart::Driver => Self::Driver,
            MemoryPart::Free => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_listed_in_order() {
        for (at, def) in ROLES.iter().enumerate() {
            assert_eq!(def.role as usize, at, "{}", def.name);
        }
        assert_eq!(Role::ChartRange as usize, ROLES.len() - 1);
    }
}
