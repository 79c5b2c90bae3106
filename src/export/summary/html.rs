//! Formats the summary of a recording as one HTML file that loads no other files.

use std::fmt::Write as _;

use crate::export::summary::report::Report;

/// A chart, drawn by the same code as on the screen.
#[derive(Debug)]
pub struct Chart {
    pub title: String,
    pub svg: String,
}

/// Start of the HTML file. Its security policy makes browsers refuse all network requests.
const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'nonce-gputop'\">
<meta name=\"viewport\" content=\"width=device-width\">
<link rel=\"icon\" href=\"data:,\">
<style nonce=\"gputop\">
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2128; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #d8dee4; white-space: nowrap }
th.text, td.text { text-align: left; white-space: normal }
td.text:last-child { min-width: 14rem }
h1, h2, p { overflow-wrap: anywhere }
div { overflow-x: auto }
svg { min-width: 44rem; max-width: 100% }
@media (prefers-color-scheme: dark) { body { color: #d5d8dd; background: #16191d } th, td { border-color: #3a4048 } }
</style>
";

/// Explains how to read the GPU charts. The pool charts have legends instead.
const CHART_NOTE: &str = "In a GPU's charts, each column shows one interval: bright up to the minimum value, dark up to the maximum. \
An exclamation mark is an incident.";

pub fn html(report: &Report, charts: &[Chart]) -> String {
    let (title, sections) = report.sections();
    let title = escaped(&title);
    let mut out = format!("{HEAD}<title>{title}</title>\n<h1>{title}</h1>\n");
    for section in sections {
        if !section.title.is_empty() {
            let _ = writeln!(out, "<h2>{}</h2>", escaped(&section.title));
        }
        let class = |at: usize| if section.columns[at].is_text { " class=\"text\"" } else { "" };
        if !section.rows.is_empty() {
            out.push_str("<div><table>\n<tr>");
            for (at, column) in section.columns.iter().enumerate() {
                let _ = write!(out, "<th{}>{}</th>", class(at), column.name);
            }
            out.push_str("</tr>\n");
            for row in &section.rows {
                out.push_str("<tr>");
                for (at, cell) in row.iter().enumerate() {
                    let _ = write!(out, "<td{}>{}</td>", class(at), escaped(cell));
                }
                out.push_str("</tr>\n");
            }
            out.push_str("</table></div>\n");
        }
        for note in &section.notes {
            let _ = writeln!(out, "<p>{}</p>", escaped(note));
        }
    }
    if !charts.is_empty() {
        let _ = writeln!(out, "<h2>Charts</h2>\n<p>{CHART_NOTE}</p>");
    }
    for chart in charts {
        let title = escaped(&chart.title);
        let _ = writeln!(out, "<h3>{title}</h3>\n<div>{}</div>", chart.svg);
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
