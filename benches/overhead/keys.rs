//! Measures the time from a key press to the updated screen.

use std::time::Instant;

use crate::terminal::Terminal;

const KEYS: usize = 30;

/// Opens and closes the help screen repeatedly; `words` is text on it. Returns the median and the maximum time in
/// milliseconds.
pub fn key_to_screen(terminal: &Terminal, words: &str) -> (f64, f64) {
    let shown = |screen: &vt100::Screen| screen.contents().contains(words);
    let mut times: Vec<f64> = (0..KEYS)
        .map(|_| {
            let start = Instant::now();
            terminal.send("?");
            terminal.wait_for(shown, "the help screen");
            let time = start.elapsed();
            terminal.send("\x1b");
            terminal.wait_for(|screen| !shown(screen), "the help screen to go");
            time.as_secs_f64() * 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[KEYS / 2], times[KEYS - 1])
}
