//! Formats the summary of a recording as Markdown.

use std::fmt::Write as _;

use crate::export::summary::report::Report;

/// Formats the report as Markdown, with one table for each section.
pub fn markdown(report: &Report) -> String {
    let (title, sections) = report.sections();
    let mut out = format!("# {}\n", escaped(&title));
    for section in sections {
        if !section.title.is_empty() {
            let _ = writeln!(out, "\n## {}", escaped(&section.title));
        }
        if !section.rows.is_empty() {
            let names = section.columns.iter().map(|column| column.name.to_owned());
            let rules = section
                .columns
                .iter()
                .map(|column| if column.is_text { "---".to_owned() } else { "---:".to_owned() });
            out.push('\n');
            write_row(&mut out, names);
            write_row(&mut out, rules);
            for row in &section.rows {
                write_row(&mut out, row.iter().map(|cell| escaped(cell)));
            }
        }
        if !section.notes.is_empty() {
            out.push('\n');
        }
        for note in &section.notes {
            let _ = writeln!(out, "- {}", escaped(note));
        }
    }
    out
}

fn write_row(out: &mut String, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

/// Escapes characters that have a special meaning in Markdown, and joins all lines into one.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(' '),
            '|' | '*' | '_' | '`' | '<' | '>' | '[' | ']' | '#' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
