//! Counts and prints incidents in logs that should have none.

use std::path::{Path, PathBuf};

use gputop_explain::{Catalogue, LogReader, diagnose, evidence::Measured};

use super::Figure;

/// Explains every file below `folder`.
pub fn alarms(folder: &Path) -> Vec<Figure> {
    let mut files = Vec::new();
    collect(folder, &mut files);
    let (mut bytes, mut alarms) = (0, 0);
    for file in &files {
        let Ok(text) = std::fs::read(file) else {
            continue;
        };
        bytes += text.len();
        let mut reader = LogReader::new(Catalogue::embedded(), &file.display().to_string());
        for piece in text.chunks(1 << 20) {
            reader.push(piece);
        }
        for incident in diagnose(Catalogue::embedded(), &[reader.finish()], &Measured::default()) {
            alarms += 1;
            let line = incident.log.as_ref().map_or(0, |log| log.first_line);
            let message: String = incident.quote.text.chars().take(160).collect();
            println!("{}:{line}: {} {}", file.display(), incident.id, message.replace('\n', " "));
        }
    }
    vec![Figure {
        what: format!("alarms in {} ordinary files, {} MB", files.len(), bytes / 1_000_000),
        reached: alarms.to_string(),
        wanted: "0".to_owned(),
        met: alarms == 0,
    }]
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.symlink_metadata() {
            Ok(kind) if kind.is_dir() => collect(&path, files),
            Ok(kind) if kind.is_file() && kind.len() < 1 << 30 => files.push(path),
            _ => {}
        }
    }
}
