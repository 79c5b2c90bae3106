//! Finds the phase of a stack, and the line of the program that stands for it.

use std::collections::HashMap;
use std::rc::Rc;

use gputop_explain::why::{FrameMatches, PhaseTable};
use gputop_model::phases::{Phase, PhasePlace};
use gputop_model::stack::{StackFrame, is_users_file};
use gputop_peek::python::{Code, SampledFrame, SourcePosition};

use super::source_lines::SourceFiles;

const MAX_KNOWN: usize = 50_000;

/// Phases that a line of the user's code begins, and that run other code of the user inside.
const OUTER: &[Phase] =
    &[Phase::Import, Phase::Compile, Phase::Checkpoint, Phase::Load, Phase::Evaluation];

/// A line or expression of a program.
#[derive(Debug, Clone)]
pub struct Place {
    pub code: Rc<Code>,
    pub position: SourcePosition,
}

/// Phases of the functions and lines of one process, looked up once for each.
#[derive(Debug)]
pub struct StackPhases {
    pub sources: SourceFiles,
    functions: HashMap<u32, Function>,
    lines: HashMap<(u32, SourcePosition), Option<Phase>>,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    matches: FrameMatches,
    is_users: bool,
}

impl StackPhases {
    pub fn new(sources: SourceFiles) -> Self {
        Self { sources, functions: HashMap::new(), lines: HashMap::new() }
    }

    /// Returns the phase of a stack, innermost frame first, and its place: the innermost line if that alone tells the
    /// phase, or else the innermost line of the user's code. In an import or checkpoint, this is the line that began it.
    pub fn of(&mut self, frames: &[SampledFrame]) -> (Phase, Option<Place>) {
        let table = PhaseTable::get();
        let functions: Vec<Function> =
            frames.iter().map(|frame| self.function(&frame.code)).collect();
        let matches: Vec<FrameMatches> = functions.iter().map(|one| one.matches).collect();
        let line = frames.first().and_then(|frame| self.line(frame));
        let phase = table.phase(&matches, line);
        let begin = if OUTER.contains(&phase) { table.outer_frame(&matches) } else { None };
        // Code that the program has generated may have no line.
        let is_users = |at: &usize| functions[*at].is_users && frames[*at].position.line > 0;
        let users = |from: usize| (from..frames.len()).find(is_users);
        let began_at = begin.and_then(users);
        let by_line = (line == Some(phase)).then_some(0);
        let place = frames.get(by_line.or(began_at).or(users(0)).unwrap_or(0));
        let place = place.map(|f| Place { code: Rc::clone(&f.code), position: f.position });
        (phase, place)
    }

    fn function(&mut self, code: &Code) -> Function {
        if self.functions.len() >= MAX_KNOWN {
            self.functions.clear();
        }
        *self.functions.entry(code.id).or_insert_with(|| Function {
            matches: PhaseTable::get().frame(&code.file, &code.function),
            is_users: is_users_file(&code.file),
        })
    }

    /// Returns the phase that the text of a line tells.
    fn line(&mut self, frame: &SampledFrame) -> Option<Phase> {
        let key = (frame.code.id, frame.position);
        if let Some(known) = self.lines.get(&key) {
            return *known;
        }
        let text = self.sources.raw(&frame.code.path, frame.position);
        let phase = text.and_then(|text| PhaseTable::get().line(text));
        if self.lines.len() >= MAX_KNOWN {
            self.lines.clear();
        }
        self.lines.insert(key, phase);
        phase
    }

    /// Returns a place as it is sent, with its text.
    pub fn described(&mut self, place: &Place, phase: Phase, count: u32) -> PhasePlace {
        let code = &place.code;
        PhasePlace {
            phase,
            count,
            function: code.function.clone(),
            file: code.file.clone(),
            line: place.position.line,
            text: self.sources.quoted(&code.path, place.position),
        }
    }
}

impl Place {
    /// Returns the place as `worker.py:12 spin`.
    pub fn label(&self) -> String {
        let frame = StackFrame {
            function: self.code.function.clone(),
            file: self.code.file.clone(),
            line: self.position.line,
        };
        frame.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gputop_model::ProcessKey;

    use super::*;

    const PYTHON: &str = "/usr/lib/python3.13/multiprocessing/";
    const LOADER: &str = "/venv/lib/python3.13/site-packages/torch/utils/data/dataloader.py";

    fn place(stack: &[(&str, &str, u32)]) -> (Phase, Option<String>) {
        let frame = |(id, (function, path, line)): (u32, &(&str, &str, u32))| SampledFrame {
            code: Rc::new(Code {
                id,
                function: (*function).into(),
                file: (*path).into(),
                path: (*path).into(),
            }),
            position: SourcePosition { line: *line, columns: None },
        };
        let frames: Vec<SampledFrame> = (0..).zip(stack).map(frame).collect();
        let sources = SourceFiles::new(Path::new("/nowhere"), ProcessKey::default());
        let (phase, place) = StackPhases::new(sources).of(&frames);
        (phase, place.map(|place| place.label()))
    }

    /// Starts of loader workers in Python 3.13, with the frames that it puts below an `__init__`.
    #[test]
    fn a_frame_without_a_file_or_line_is_not_the_place_of_a_phase() {
        let fork = format!("{PYTHON}popen_fork.py");
        let [process, context] = ["process.py", "context.py"].map(|name| format!("{PYTHON}{name}"));
        let stack = [
            ("Popen._launch", &*fork, 67),
            ("Popen.__init__", &*fork, 20),
            ("__init__", "__init__", 0),
            ("ForkContext._Popen", &*context, 282),
            ("BaseProcess.start", &*process, 121),
            ("_MultiProcessingDataLoaderIter.__init__", LOADER, 1_170),
            ("__init__", "", 3),
            ("DataLoader._get_iterator", LOADER, 424),
            ("DataLoader.__iter__", LOADER, 493),
            ("train", "/home/ana/train.py", 80),
            ("<module>", "/home/ana/train.py", 140),
        ];
        let expected = (Phase::LoaderStart, Some("train.py:80 train".to_owned()));
        assert_eq!(place(&stack), expected);
        // Without a line of the user, the innermost frame stands for the phase.
        let innermost = (Phase::LoaderStart, Some("popen_fork.py:67 Popen._launch".to_owned()));
        assert_eq!(place(&stack[..9]), innermost);
    }
}
