//! The sentence that explains the figures.

use super::figures::{Figures, down_with_unit, gib};
use crate::model::units::Bytes;

impl Figures {
    /// Returns the memory in no tensor: idle memory and what the driver has free.
    pub fn unused(&self) -> Option<Bytes> {
        Some(Bytes(self.idle.0 + self.card?.free.0))
    }

    /// Returns one sentence: `8.93 GiB is unused, but no request above 3.03 GiB fits: 5.90 GiB is fragmented`.
    pub fn headline(&self) -> String {
        let (Some(unused), Some(largest)) = (self.unused(), self.fits.largest()) else {
            return format!("{} GiB is cached in no tensor", gib(self.idle));
        };
        let fits = down_with_unit(largest);
        if !self.fits.is_complete() {
            return format!(
                "{} GiB is unused, and a request of {fits} fits; larger ones depend on the map",
                gib(unused)
            );
        }
        // A difference of less than a tenth is not worth a warning.
        if largest.0.saturating_add(largest.0 / 9) >= unused.0 {
            return format!(
                "{} GiB is unused, and a request of up to {fits} fits",
                gib(unused)
            );
        }
        let why = match self.idle_parts {
            Some(parts) if parts.stuck.0 * 2 >= unused.0 - largest.0.min(unused.0) => {
                format!(": {} GiB is fragmented", gib(parts.stuck))
            }
            Some(parts) if parts.private >= parts.waiting && parts.private.0 > 0 => {
                format!(": {} GiB is in private pools", gib(parts.private))
            }
            Some(parts) if parts.waiting.0 > 0 => {
                format!(": {} GiB waits for another stream", gib(parts.waiting))
            }
            _ => String::new(),
        };
        format!(
            "{} GiB is unused, but no request above {fits} fits{why}",
            gib(unused)
        )
    }
}
