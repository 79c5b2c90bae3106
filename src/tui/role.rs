//! Roles of screen elements. Screens use roles instead of colours, and the theme assigns a style to each role.

use gputop_model::incident::Severity;

use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::memory_parts::MemoryPart;

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

/// Defines [`Role`] and [`ROLES`]. A row holds the contrast that a role needs, its variant, name and description.
macro_rules! roles {
    ($($(#[$doc:meta])* $contrast:ident $role:ident $name:literal: $help:literal;)*) => {
        /// The meaning of a screen element, which determines its style.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Role {
            $($(#[$doc])* $role,)*
        }

        /// All roles, in the order of [`Role`].
        pub const ROLES: &[RoleDef] = &[$(RoleDef {
            role: Role::$role,
            name: $name,
            contrast: ContrastClass::$contrast,
            help: $help,
        }),*];
    };
}

roles! {
    Text Text "text": "figures, names and sentences";
    /// Secondary elements: labels, units, separators.
    Text Dim "dim": "secondary elements: labels, units, separators";
    Text Title "title": "titles and headings";
    /// The row under the cursor.
    Text Cursor "cursor": "the row under the cursor";
    /// Keys in the footer.
    Text Key "key": "keys in the footer, names in the help";
    /// A warning, for example about an unusually high value.
    Text Warn "warn": "warnings";
    /// An error that needs attention.
    Text Bad "bad": "errors";
    /// A good state that is shown explicitly.
    Text Good "good": "good states";
    /// A permanent notice, for example that a recording is playing.
    Text Banner "banner": "permanent notices, for example that this is a recording";
    /// VRAM used by processes.
    Shape Processes "processes": "VRAM used by processes";
    /// VRAM not attributed to a listed process.
    Shape Unattributed "unattributed": "VRAM not attributed to a listed process";
    /// VRAM reserved by the driver.
    Shape Driver "driver": "VRAM reserved by the driver";
    /// Free VRAM.
    Shape Free "free": "free VRAM";
    /// Memory in live tensors.
    Shape Allocated "allocated": "memory in live tensors";
    /// Memory cached by an allocator but not in use by tensors.
    Shape Cached "cached": "memory cached by an allocator but not in use by tensors";
    /// Freed memory that another stream may still use.
    Shape Active "active": "freed memory that another stream may still use";
    /// VRAM of a process outside its pools.
    Shape OtherVram "other": "VRAM of a process outside its pools";
    /// The line or area of a chart.
    Shape Chart "chart": "the line or area of a chart";
    /// The area between minimum and maximum in a chart column.
    Shape ChartRange "chart_range": "the area between minimum and maximum in a chart column";
}

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
            MemoryPart::Cached => Self::Cached,
            MemoryPart::Other => Self::OtherVram,
            MemoryPart::Processes => Self::Processes,
            // Nothing is known about what either contains.
            MemoryPart::Unreadable | MemoryPart::Unattributed => Self::Unattributed,
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
