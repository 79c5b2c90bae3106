//! What the figures mean, in a sentence.

use super::figures::{Figures, down, gib};
use crate::model::units::Bytes;

impl Figures {
    /// What is in no tensor: idle and what the driver has free.
    pub fn unused(&self) -> Option<Bytes> {
        Some(Bytes(self.idle.0 + self.card?.free.0))
    }

    /// What this all means, as one clause: `8.93 GiB unused, yet one tensor above 3.03 fails: 5.90 is stuck in pieces`.
    pub fn headline(&self) -> String {
        let (Some(unused), Some(largest)) = (self.unused(), self.fits.largest()) else {
            return format!("{} GiB cached in no tensor", gib(self.idle));
        };
        let fits = down(largest);
        if !self.fits.is_complete() {
            return format!(
                "{} GiB unused; one tensor of {fits} fits for sure, the map tells whether more does",
                gib(unused)
            );
        }
        // Less than a tenth that cannot be had in one piece is no news.
        if largest.0.saturating_add(largest.0 / 9) >= unused.0 {
            return format!(
                "{} GiB unused, and one tensor up to {fits} fits",
                gib(unused)
            );
        }
        let why = match self.idle_parts {
            Some(parts) if parts.stuck.0 * 2 >= unused.0 - largest.0.min(unused.0) => {
                format!(": {} is stuck in pieces", gib(parts.stuck))
            }
            Some(parts) if parts.kept >= parts.waiting && parts.kept.0 > 0 => {
                format!(": {} is kept for CUDA graphs or a MemPool", gib(parts.kept))
            }
            Some(parts) if parts.waiting.0 > 0 => {
                format!(": {} waits for another stream", gib(parts.waiting))
            }
            _ => String::new(),
        };
        format!(
            "{} GiB unused, yet one tensor above {fits} fails{why}",
            gib(unused)
        )
    }
}
