//! Formats a frame as CSV (RFC 4180), with one line for each process on each GPU. A GPU without processes has one line.
//! The headings state the units; a missing value is an empty field.

use gputop_model::gpu::{GPU_FIGURES, GpuFigure, Period, Value};
use gputop_model::{Bytes, Frame, Gpu, GpuProcess, Process, Reading};

type CsvField = fn(&CsvRow<'_>) -> String;

/// Columns that identify the time and the GPU. The columns with the GPU's measurements follow them.
const GPU_COLUMNS: &[(&str, CsvField)] = &[
    ("time_unix_ms", |r| r.frame.time.0.to_string()),
    ("gpu_index", |r| r.gpu.index.to_string()),
    ("gpu_uuid", |r| r.gpu.uuid.to_string()),
    ("gpu_name", |r| r.gpu.name.clone()),
];

const PROCESS_COLUMNS: &[(&str, CsvField)] = &[
    ("pid", |r| r.listed.map_or(String::new(), |l| l.pid.to_string())),
    ("user", |r| fact(r, |p| text(&p.user, Clone::clone))),
    ("rank", |r| fact(r, |p| text(&p.rank, u32::to_string))),
    ("process_memory_bytes", |r| r.listed.map_or(String::new(), |l| bytes(&l.vram))),
    ("process_sm_percent", |r| {
        r.listed.map_or(String::new(), |l| text(&l.sm, |v| v.0.to_string()))
    }),
    ("cpu_percent", |r| fact(r, |p| text(&p.cpu, |v| v.0.to_string()))),
    ("rss_bytes", |r| fact(r, |p| bytes(&p.rss))),
    ("command", |r| fact(r, |p| text(&p.command, Clone::clone))),
];

struct CsvRow<'a> {
    frame: &'a Frame,
    gpu: &'a Gpu,
    listed: Option<&'a GpuProcess>,
    facts: Option<&'a Process>,
}

fn text<T>(reading: &Reading<T>, show: impl FnOnce(&T) -> String) -> String {
    reading.value().map(show).unwrap_or_default()
}

fn bytes(reading: &Reading<Bytes>) -> String {
    text(reading, |b| b.0.to_string())
}

fn fact(row: &CsvRow<'_>, of: impl FnOnce(&Process) -> String) -> String {
    row.facts.map(of).unwrap_or_default()
}

/// Returns the GPU figures to export. Omits those that are read only while a screen shows them.
fn figures() -> impl Iterator<Item = &'static GpuFigure> {
    GPU_FIGURES.iter().filter(|figure| figure.period != Period::WhileShown)
}

pub fn frame(frame: &Frame) -> String {
    let name = |(name, _): &(&str, CsvField)| (*name).to_owned();
    let heading: Vec<String> = GPU_COLUMNS
        .iter()
        .map(name)
        .chain(figures().map(|figure| format!("{}{}", figure.name, figure.unit())))
        .chain(PROCESS_COLUMNS.iter().map(name))
        .collect();
    let mut out = heading.join(",") + "\n";
    for gpu in &frame.gpus {
        let list = gpu.processes.value().map_or(&[][..], Vec::as_slice);
        let mut line = |listed: Option<&GpuProcess>| {
            let facts = listed.and_then(|l| l.process).and_then(|key| frame.process(key));
            let row = CsvRow { frame, gpu, listed, facts };
            let value = |(_, value): &(&str, CsvField)| value(&row);
            let fields: Vec<String> = GPU_COLUMNS
                .iter()
                .map(value)
                .chain(figures().map(|f| f.field.read(gpu).map_or(String::new(), Value::raw)))
                .chain(PROCESS_COLUMNS.iter().map(value))
                .map(|field| quoted(&field))
                .collect();
            out.push_str(&fields.join(","));
            out.push('\n');
        };
        if list.is_empty() {
            line(None);
        }
        list.iter().for_each(|listed| line(Some(listed)));
    }
    out
}

/// Quotes a field that contains a comma, a quote or a line break. Adds an apostrophe before a formula, so that
/// spreadsheets do not evaluate it.
fn quoted(field: &str) -> String {
    let formula = field.starts_with(['=', '+', '-', '@']) && field.parse::<f64>().is_err();
    let field = if formula { format!("'{field}") } else { field.to_owned() };
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_fields_and_defuses_formulas() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
        assert_eq!(quoted("-1.5"), "-1.5");
        assert_eq!(quoted("python train.py"), "python train.py");
    }
}
