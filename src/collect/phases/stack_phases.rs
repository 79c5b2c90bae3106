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
        let users = |from: usize| functions.iter().skip(from).position(|f| f.is_users);
        let began_at = begin.and_then(|begin| Some(begin + users(begin)?));
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
