//! A line of a log without the prefixes of loggers.

/// A log line as its program printed it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogLine {
    /// Line number in the log file, counted from 1.
    pub number: u64,
    pub text: String,
    /// Process or rank that wrote the line, from the line's prefix. Empty if unknown.
    pub writer: String,
    /// Host that wrote the line, from the prefix of a syslog. Empty if unknown.
    pub host: String,
    pub rank: Option<u32>,
    /// Time in the line's prefix, as written.
    pub time: Option<String>,
    /// Width of the line in the log including prefixes, in characters.
    pub width: usize,
    /// True if the line ends with exactly one space. If the line was wrapped there, the space belongs between it and
    /// the next line.
    pub cut_at_blank: bool,
    /// True if the line is padded with spaces or ends with the border of a box. Such a line was not wrapped.
    pub is_padded: bool,
    /// Number of lines after this one that were dropped because they differed only in numbers. A failing GPU kernel
    /// prints a line for each thread.
    pub repeats: u32,
    /// Line number of the last dropped repetition.
    pub last: u64,
    /// True if the program logged the line as a warning, after which it continues.
    pub is_warning: bool,
    /// True for source code in a traceback, which is not program output.
    pub is_code: bool,
}

impl LogLine {
    /// Returns the seconds since the start of the month for a time of a syslog, such as `Nov 20 12:00:00`.
    #[must_use]
    pub fn seconds(&self) -> Option<u32> {
        let (_, rest) = self.time.as_ref()?.split_once(' ')?;
        let (day, clock) = rest.trim_start().split_once(' ')?;
        let clock =
            clock.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u32>().ok()?))?;
        Some(day.parse::<u32>().ok()? * 86_400 + clock)
    }
}
