//! Reads logs from files, directories, compressed files and standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use gputop_explain::{Catalogue, LogFindings, LogReader};
use gputop_model::text::visible;

use crate::cli::decompress::{Decompressed, decompressed};
use crate::cli::progress::Progress;

const CHUNK_BYTES: usize = 1 << 20;
/// Maximum size of the errors read in a compressed log: this many bytes, and more for each compressed byte. An error in
/// the middle of a flood of errors adds nothing to the explanation.
const MIN_READ_BYTES: u64 = 8 << 20;
const READ_BYTES_PER_PACKED_BYTE: u64 = 2;
/// Maximum number of files read from a directory; more than the number of ranks in any job.
const MAX_FILES: usize = 4096;
/// Maximum depth of the search for logs in a directory. torchrun writes them three levels deep:
/// `RUN/attempt_0/3/stderr.log`.
const MAX_DEPTH: usize = 4;

/// Reads the logs at `path`. Returns the findings, and an error message for each log that could not be read.
pub fn logs(
    catalogue: &Catalogue,
    path: &Path,
    progress: &mut Progress,
) -> (Vec<LogFindings>, Vec<String>) {
    if path == Path::new("-") {
        return stdin(catalogue, progress);
    }
    let mut faults = Vec::new();
    let files = match path.metadata() {
        Ok(kind) if kind.is_dir() => files_of(path, &mut faults),
        Ok(_) => vec![path.to_owned()],
        Err(error) => {
            faults.push(message(path, &error));
            Vec::new()
        }
    };
    let mut logs = Vec::new();
    let count = files.len();
    for (number, file) in (1..).zip(files) {
        let position = if count > 1 { format!("{number} of {count}: ") } else { String::new() };
        match read_file(catalogue, &file, &position, progress) {
            Ok((findings, None)) => logs.push(findings),
            // Keep the findings that were read before the error.
            Ok((findings, Some(error))) => {
                faults.push(message(&file, &error));
                logs.push(findings);
            }
            Err(error) => faults.push(message(&file, &error)),
        }
    }
    (logs, faults)
}

fn stdin(catalogue: &Catalogue, progress: &mut Progress) -> (Vec<LogFindings>, Vec<String>) {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        crate::cli::print::say("Paste the log, then press Ctrl-D on an empty line.\n");
    }
    let mut reader = LogReader::new(catalogue, "-");
    progress.next_input("standard input", None);
    let fault = decompressed(stdin.lock())
        .and_then(|mut input| feed(&mut reader, &mut input, progress))
        .err();
    let faults = fault.map(|error| message(Path::new("standard input"), &error));
    (vec![reader.finish()], faults.into_iter().collect())
}

/// Reads a log file. Returns the findings, and the error if reading stopped early.
fn read_file(
    catalogue: &Catalogue,
    path: &Path,
    position: &str,
    progress: &mut Progress,
) -> io::Result<(LogFindings, Option<io::Error>)> {
    let file = File::open(path)?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file);
    let size = metadata.as_ref().map(std::fs::Metadata::len);
    let name = path.display().to_string();
    let mut reader = LogReader::new(catalogue, &name);
    progress.next_input(&format!("{position}{name}"), size);
    let fault =
        decompressed(file).and_then(|mut input| feed(&mut reader, &mut input, progress)).err();
    let modified = metadata.and_then(|metadata| metadata.modified().ok());
    Ok((LogFindings { modified, ..reader.finish() }, fault))
}

fn feed(
    reader: &mut LogReader<'_>,
    input: &mut Decompressed<'_>,
    progress: &mut Progress,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match input.content.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                if let Some(packed) = input.packed_bytes() {
                    reader.set_max_read_bytes(MIN_READ_BYTES + packed * READ_BYTES_PER_PACKED_BYTE);
                }
                reader.push(&chunk[..n]);
                progress.add(n);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the regular files in a directory and its subdirectories, sorted by name. Does not follow symbolic links.
fn files_of(folder: &Path, faults: &mut Vec<String>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(folder, 0, &mut files, faults);
    if files.is_empty() && faults.is_empty() {
        faults.push(format!("no file in directory {}", folder.display()));
    }
    if files.len() > MAX_FILES {
        faults.push(format!(
            "too many files in directory {}: only the first {MAX_FILES} of {} are read",
            folder.display(),
            files.len()
        ));
        files.truncate(MAX_FILES);
    }
    files
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>, faults: &mut Vec<String>) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return faults.push(message(folder, &error)),
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_by_key(|path| by_number(path));
    for path in paths {
        match path.symlink_metadata() {
            Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => {
                collect(&path, depth + 1, files, faults);
            }
            Ok(kind) if kind.is_file() => files.push(path),
            _ => {}
        }
    }
}

/// Returns a sort key for file names that puts `rank_2` before `rank_10`.
fn by_number(path: &Path) -> (String, u64, PathBuf) {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let at = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let digits: String = name[at..].chars().take_while(char::is_ascii_digit).collect();
    (name[..at].to_owned(), digits.parse().unwrap_or(0), path.to_owned())
}

fn message(path: &Path, error: &io::Error) -> String {
    use io::ErrorKind;
    let path = visible(path.display().to_string().as_bytes(), 4096);
    match error.kind() {
        ErrorKind::NotFound => format!("cannot read {path}: no such file"),
        ErrorKind::PermissionDenied => format!("cannot read {path}: permission denied"),
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
            format!(
                "cannot read all of {path}: damaged or truncated ({error}); the part before the damage was read"
            )
        }
        _ => format!("cannot read {path}: {error}"),
    }
}
