//! Formats the output of `gputop whatif`: an allocation history replayed with several allocator settings, as a table
//! and as JSON. The dashboard shows the same data.

use std::fmt::Write as _;

use gputop_allocator::rules::TorchVersion;
use gputop_allocator::whatif::WhatifResult;
use gputop_model::{Bytes, Reading};
use serde::{Serialize, Serializer};

#[derive(Debug, Serialize)]
pub struct Document {
    pub schema: u32,
    /// File name of the snapshot, or PID of the process, safe to print.
    pub source: String,
    pub devices: Vec<Device>,
}

/// Allocation history of one device, replayed with each setting.
#[derive(Debug, Serialize)]
pub struct Device {
    pub ordinal: u32,
    pub recording: Recording,
    /// PyTorch version whose allocator rules are used, or `None` for the newest known version.
    #[serde(serialize_with = "torch")]
    pub torch: Option<TorchVersion>,
    #[serde(rename = "card_bytes")]
    pub card: Reading<Bytes>,
    #[serde(rename = "outside_bytes")]
    pub outside: Reading<Bytes>,
    #[serde(rename = "want_bytes", skip_serializing_if = "Option::is_none")]
    pub want: Option<Bytes>,
    pub settings: Vec<Played>,
}

#[derive(Debug, Serialize)]
pub struct Recording {
    pub operations: usize,
    /// Number of blocks that were already live before the first operation; for a running process, all blocks.
    pub blocks_before: usize,
    /// True if the amount of memory cached before the recording is unknown.
    pub begins_late: bool,
    /// Peak reserved memory of the recorded program or, for a running process, the memory reserved now.
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Option<Bytes>,
}

#[derive(Debug, Serialize)]
pub struct Played {
    /// Name of the setting: `present`, `default` or empty.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'static str,
    pub conf: String,
    #[serde(flatten)]
    pub outlook: WhatifResult,
    /// Largest request in bytes that would succeed at the end of the replay, if the GPU's memory size is known.
    #[serde(rename = "fits_bytes")]
    pub fits: Option<Bytes>,
    /// True if a request of the size given by the user would succeed at the end of the replay.
    #[serde(rename = "wanted_fits", skip_serializing_if = "Option::is_none")]
    pub wanted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_effect: Option<&'static str>,
}

fn torch<S: Serializer>(torch: &Option<TorchVersion>, to: S) -> Result<S::Ok, S::Error> {
    match torch {
        Some((major, minor)) => to.collect_str(&format_args!("{major}.{minor}")),
        None => to.serialize_none(),
    }
}

impl Document {
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.source);
        for device in &self.devices {
            device.write(&mut text);
        }
        text
    }
}

impl Device {
    fn write(&self, text: &mut String) {
        let _ = writeln!(text, "\ndevice {}  {}", self.ordinal, self.circumstances());
        let _ = writeln!(text, "{}", self.recording.words());
        let _ = writeln!(
            text,
            "\n{:>10} {:>11} {:>10} {:>10} {:>7} {:>7}  SETTING",
            "RESERVED", "= ALLOCATED", "+ CACHED", "FITS", "RETRIES", "OOM AT"
        );
        for played in &self.settings {
            let _ = writeln!(text, "{}", played.row(self.want));
        }
        if let Some(verdict) = self.verdict() {
            let _ = writeln!(text, "\n{verdict}");
        }
    }

    /// Describes the conditions of the replay: `torch 2.8, GPU memory 80.00 GiB, 1.20 GiB of it outside the allocator`.
    pub fn circumstances(&self) -> String {
        let torch = match self.torch {
            Some((major, minor)) => format!("torch {major}.{minor}"),
            None => "newest known torch".to_owned(),
        };
        match (&self.card, self.outside.get()) {
            (Reading::Value(card), None | Some(Bytes(0))) => {
                format!("{torch}, {card} available to the allocator")
            }
            (Reading::Value(card), Some(outside)) => {
                format!("{torch}, GPU memory {card}, {outside} of it outside the allocator")
            }
            (Reading::Missing(why), _) => {
                format!("{torch}, no memory limit (set one with --card SIZE): {why}")
            }
        }
    }

    /// Compares the best setting with the present one, or with the default.
    pub fn verdict(&self) -> Option<String> {
        let first = self.settings.first()?;
        let order = |played: &&Played| (!played.outlook.fits(), played.outlook.peak_reserved);
        let best = self.settings.iter().min_by_key(order)?;
        let (now, then) = (first.outlook.peak_reserved, best.outlook.peak_reserved);
        let name = best.title();
        if first.outlook.fits() {
            return (then < now).then(|| format!("{name}: peak reserved {then} instead of {now}"));
        }
        if best.outlook.fits() {
            return Some(format!("{name}: fits, with a peak of {then} reserved"));
        }
        Some("no setting fits".to_owned())
    }
}

impl Recording {
    /// Describes the recorded history: `292 operations; recorded peak 388.00 MiB reserved`.
    pub fn words(&self) -> String {
        let plural = |n: usize, what: &str| {
            let s = if n == 1 { "" } else { "s" };
            format!("{n} {what}{s}")
        };
        if self.operations == 0 {
            let reserved = self.peak_reserved.unwrap_or_default();
            return format!(
                "{}, replayed as requests; {reserved} reserved now",
                plural(self.blocks_before, "live block")
            );
        }
        let mut words = plural(self.operations, "operation");
        if self.blocks_before > 0 {
            let _ = write!(words, " after {}", plural(self.blocks_before, "block"));
        }
        if let Some(peak) = self.peak_reserved {
            let _ = write!(words, "; recorded peak {peak} reserved");
        }
        if self.begins_late {
            words.push_str("; memory cached before the recording is unknown");
        }
        words
    }
}

impl Played {
    /// Formats the setting's name and value: `present: max_split_size_mb:128`.
    pub fn title(&self) -> String {
        match (self.name, self.conf.as_str()) {
            ("", conf) => conf.to_owned(),
            (name, "") => name.to_owned(),
            (name, conf) => format!("{name}: {conf}"),
        }
    }

    /// Returns the largest request that would succeed at the end, if the replay reached the end.
    pub fn fits(&self) -> Option<Bytes> {
        self.fits.filter(|_| self.outlook.fits())
    }

    fn row(&self, want: Option<Bytes>) -> String {
        let outlook = &self.outlook;
        let fits = self.fits();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let mut row = format!(
            "{:>10} {:>11} {:>10} {:>10} {:>7} {:>7}  {}",
            outlook.peak_reserved.to_string(),
            outlook.allocated_at_peak().to_string(),
            outlook.cached_at_peak.to_string(),
            or_dash(fits.map(|fits| fits.to_string())),
            outlook.num_alloc_retries,
            or_dash(outlook.oom.map(|oom| oom.operation.to_string())),
            self.title()
        );
        let remarks = self.remarks(want);
        if !remarks.is_empty() {
            let _ = write!(row, " ({})", remarks.join("; "));
        }
        row
    }

    /// Returns remarks to print after the figures: the size of the failed request, and whether `want` fits.
    pub fn remarks(&self, want: Option<Bytes>) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(oom) = self.outlook.oom {
            let too = if oom.recorded { ", as recorded" } else { "" };
            remarks.push(format!("{} requested{too}", oom.requested));
        }
        if let (Some(want), Some(fits)) = (want, self.wanted.filter(|_| self.outlook.fits())) {
            let verb = if fits { "fits" } else { "does not fit" };
            remarks.push(format!("{want} more {verb}"));
        }
        remarks.extend(self.no_effect.map(str::to_owned));
        remarks
    }
}
