//! Reads the tables of a screen by their headings, as a person does: the number below USED is the memory used.

use gputop::dashboard::gpu_columns::GPU_COLUMNS;
use gputop::dashboard::process_columns::PROCESS_COLUMNS;
use vt100::Screen;

/// One line of a table, and the heading above it.
#[derive(Debug, Clone)]
pub struct Row {
    heading: Vec<char>,
    line: Vec<char>,
}

/// Left-aligned columns; all others are right-aligned.
const LEFT: &[&str] = &["USER", "COMMAND", "NOTE"];

impl Row {
    /// Returns the column's text, trimmed. A column that is empty in every row is not shown; its cells are dashes.
    pub fn cell(&self, title: &str) -> String {
        let mut titles = GPU_COLUMNS.iter().map(|column| column.title);
        let is_column = titles.any(|known| known == title)
            || PROCESS_COLUMNS.iter().any(|column| column.title == title);
        assert!(is_column, "no table has the column {title}");
        let words = words(&self.heading);
        let at = words.iter().position(|(_, word)| word == title);
        let Some(at) = at else { return "–".to_owned() };
        let begin = words[at].0;
        if LEFT.contains(&title) {
            // The last column takes the rest of the line. Any other ends where the next column's cells may begin.
            let end = match words.get(at + 1) {
                Some(_) => begin + 8,
                None => self.line.len(),
            };
            return text(&self.line, begin, end);
        }
        let cell = text(&self.line, 0, begin + title.chars().count());
        cell.rsplit(' ').next().unwrap_or_default().to_owned()
    }
}

fn text(line: &[char], begin: usize, end: usize) -> String {
    let end = end.min(line.len());
    let cell: String = line[begin.min(end)..end].iter().collect();
    cell.trim().to_owned()
}

/// Returns each word of a heading with its start column, without the sort arrow.
fn words(line: &[char]) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let letters = line.iter().enumerate();
    for (i, c) in letters.filter(|(_, c)| !" ▲▼".contains(**c)) {
        match words.last_mut() {
            Some((begin, word)) if *begin + word.chars().count() == i => word.push(*c),
            _ => words.push((i, c.to_string())),
        }
    }
    words
}

/// Returns the lines below the first heading with these titles, up to an empty line, the other table or the timeline.
fn rows_under(screen: &Screen, titles: &[&str]) -> Vec<Row> {
    let lines: Vec<Vec<char>> =
        screen.contents().lines().map(|line| line.trim_end().chars().collect()).collect();
    let is_heading = |line: &Vec<char>| {
        let words = words(line);
        titles.iter().all(|title| words.iter().any(|(_, word)| word == title))
    };
    let Some(at) = lines.iter().position(is_heading) else { return Vec::new() };
    lines[at + 1..]
        .iter()
        .take_while(|line| {
            let words = words(line);
            let has = |title: &str| words.iter().any(|(_, word)| word == title);
            let is_next = has("PID") && has("COMMAND") || has("TIMELINE");
            !(line.is_empty() || is_next || has("VRAM") && has("used"))
        })
        .map(|line| Row { heading: lines[at].clone(), line: line.clone() })
        .collect()
}

/// Returns the rows of the GPU table, including MIG instances.
pub fn gpus(screen: &Screen) -> Vec<Row> {
    rows_under(screen, &["GPU", "USED", "FREE"])
}

/// Returns the visible rows of the process table.
pub fn processes(screen: &Screen) -> Vec<Row> {
    let mut rows = rows_under(screen, &["PID", "VRAM", "COMMAND"]);
    rows.retain(|row| row.cell("PID").parse::<u32>().is_ok());
    rows
}

/// Returns the row of a GPU: `1` or, for a MIG instance, `:2`.
pub fn gpu(screen: &Screen, index: &str) -> Option<Row> {
    gpus(screen).into_iter().find(|row| row.cell("GPU") == index)
}

/// Returns the row of a process, or the first one if it is on several GPUs.
pub fn process(screen: &Screen, pid: u32) -> Option<Row> {
    processes(screen).into_iter().find(|row| row.cell("PID") == pid.to_string())
}

/// Returns true if the row of the process has these texts in these columns.
pub fn shows(screen: &Screen, pid: u32, cells: &[(&str, &str)]) -> bool {
    process(screen, pid).is_some_and(|row| has(&row, cells))
}

/// Same as [`shows`], for a GPU.
pub fn gpu_shows(screen: &Screen, index: &str, cells: &[(&str, &str)]) -> bool {
    gpu(screen, index).is_some_and(|row| has(&row, cells))
}

fn has(row: &Row, cells: &[(&str, &str)]) -> bool {
    cells.iter().all(|(title, text)| row.cell(title) == *text)
}
