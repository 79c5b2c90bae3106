//! The table of frames and lines by which a stack's phase is recognized.

use std::sync::LazyLock;

use gputop_model::phases::Phase;
use gputop_model::stack::StackFrame;
use regex::Regex;
use serde::Deserialize;

const TEXT: &str = include_str!("../../assets/phases.toml");

static TABLE: LazyLock<PhaseTable> = LazyLock::new(|| {
    // A test checks that the table can be read. Without it, all stacks are other Python code.
    let rules: TableText = toml::from_str(TEXT).unwrap_or_default();
    PhaseTable::new(rules)
});

/// Phases that explain a copy, a write or a wait inside them.
const EXPLAINS_LINES: &[Phase] = &[
    Phase::Import,
    Phase::Compile,
    Phase::Checkpoint,
    Phase::Load,
    Phase::LoaderWait,
    Phase::LoaderInline,
    Phase::LoaderStart,
    Phase::Evaluation,
    Phase::Log,
    Phase::ChildProcess,
];
/// Phases of a program that has started, although a module is still being imported: the whole script may be a module.
const STARTED: &[Phase] =
    &[Phase::LoaderWait, Phase::LoaderInline, Phase::Backward, Phase::Optimizer, Phase::Collective];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableText {
    line: Vec<LineText>,
    frame: Vec<FrameText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineText {
    phase: Phase,
    pattern: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct FrameText {
    phase: Phase,
    outer: bool,
    files: Vec<String>,
    except: Vec<String>,
    functions: Vec<String>,
    one: String,
    several: String,
    cpu_only: bool,
    shutdown: bool,
}

/// What a rank does that other ranks wait for.
#[derive(Debug, PartialEq, Eq)]
pub struct Activity {
    /// Predicate for one rank and for several ranks.
    pub singular: String,
    pub plural: String,
    /// Phase of the rank.
    pub phase: Phase,
    /// True if the main thread waits for neither a GPU nor another rank, whatever works are pending.
    pub is_cpu_only: bool,
}

#[derive(Debug)]
struct FrameRule {
    phase: Phase,
    is_outer: bool,
    /// Parts of the path, one of which must occur. Empty for any file.
    files: Vec<String>,
    except: Vec<String>,
    functions: Vec<String>,
    activity: Option<Activity>,
    /// True for the last thing that a program does, which counts before everything inside it.
    is_shutdown: bool,
}

/// The rules that match a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameMatches(u64);

#[derive(Debug)]
pub struct PhaseTable {
    lines: Vec<(Phase, Regex)>,
    frames: Vec<FrameRule>,
}

impl PhaseTable {
    /// Returns the built-in table.
    pub fn get() -> &'static Self {
        &TABLE
    }

    pub(super) fn new(text: TableText) -> Self {
        let line = |rule: LineText| Some((rule.phase, Regex::new(&rule.pattern).ok()?));
        Self {
            lines: text.line.into_iter().filter_map(line).collect(),
            frames: text.frame.into_iter().map(FrameRule::new).collect(),
        }
    }

    /// Returns the rules that match a frame. They depend on its code only, so that callers can keep them.
    pub fn frame(&self, file: &str, function: &str) -> FrameMatches {
        // From Python 3.11 on, the name of a method includes its class.
        let function = function.rsplit('.').next().unwrap_or(function);
        let matching = self.frames.iter().take(64).enumerate();
        let matching = matching.filter(|(_, rule)| rule.matches(file, function));
        FrameMatches(matching.fold(0, |bits, (at, _)| bits | 1 << at))
    }

    /// Returns the phase of a line or expression that runs without a frame of its own.
    pub fn line(&self, text: &str) -> Option<Phase> {
        self.lines.iter().find(|(_, pattern)| pattern.is_match(text)).map(|(phase, _)| *phase)
    }

    /// Returns the phase of a stack, innermost frame first. `line` is the phase of the innermost line.
    pub fn phase(&self, frames: &[FrameMatches], line: Option<Phase>) -> Phase {
        if frames.is_empty() {
            return Phase::Native;
        }
        let all = frames.iter().fold(0, |bits, frame| bits | frame.0);
        let inner = self.first(all, false);
        let outer = frames.iter().rev().find_map(|frame| self.first(frame.0, true));
        let is_started = inner.is_some_and(|inner| STARTED.contains(&inner));
        let is_loader = matches!(inner, Some(Phase::LoaderWait | Phase::LoaderInline));
        let outer = match outer {
            Some(Phase::Import) if is_started => None,
            Some(Phase::Evaluation) if is_loader => None,
            outer => outer,
        };
        match (outer.or(inner), line) {
            (Some(phase), _) if EXPLAINS_LINES.contains(&phase) => phase,
            // GradScaler.step calls .item(), and so does an optimizer whose step counter is on the GPU.
            (Some(Phase::Collective | Phase::Optimizer), Some(Phase::Sync)) => Phase::Sync,
            (Some(phase @ (Phase::Collective | Phase::Optimizer)), _) => phase,
            (by_frame, by_line) => by_line.or(by_frame).unwrap_or(Phase::Python),
        }
    }

    /// Returns the index of the outermost frame that has a phase of its own, such as an import or a checkpoint.
    pub fn outer_frame(&self, frames: &[FrameMatches]) -> Option<usize> {
        frames.iter().rposition(|frame| self.first(frame.0, true).is_some())
    }

    /// Returns the phase of the first rule among the matching ones of a kind.
    fn first(&self, bits: u64, is_outer: bool) -> Option<Phase> {
        let rules = self.frames.iter().enumerate();
        let mut matching = rules.filter(|(at, _)| bits >> at & 1 == 1).map(|(_, rule)| rule);
        matching.find(|rule| rule.is_outer == is_outer).map(|rule| rule.phase)
    }

    /// Returns what a rank does, by its innermost known frame. Frames inside `is_wait` are left out, because they wait
    /// for the GPU or for other ranks, whatever called them.
    pub fn activity(
        &self,
        frames: &[StackFrame],
        is_wait: impl Fn(&StackFrame) -> bool,
    ) -> Option<&Activity> {
        let matching = |frame: &StackFrame| {
            let bits = self.frame(&frame.file, &frame.function).0;
            self.frames.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1)
        };
        let shutdown = frames.iter().flat_map(matching).find(|(_, rule)| rule.is_shutdown);
        let outside = frames.iter().take_while(|frame| !is_wait(frame)).flat_map(matching);
        let mut known = shutdown.into_iter().chain(outside);
        known.find_map(|(_, rule)| rule.activity.as_ref())
    }
}

impl FrameRule {
    fn new(text: FrameText) -> Self {
        let activity = (!text.one.is_empty()).then_some(Activity {
            singular: text.one,
            plural: text.several,
            phase: text.phase,
            is_cpu_only: text.cpu_only,
        });
        Self {
            phase: text.phase,
            is_outer: text.outer,
            files: text.files,
            except: text.except,
            functions: text.functions,
            activity,
            is_shutdown: text.shutdown,
        }
    }

    fn matches(&self, file: &str, function: &str) -> bool {
        let is_in = |parts: &[String]| parts.iter().any(|part| file.contains(&**part));
        let is_function = self.functions.is_empty()
            || self.functions.iter().any(|pattern| is_name(pattern, function));
        is_function && (self.files.is_empty() || is_in(&self.files)) && !is_in(&self.except)
    }
}

/// Compares a name with a pattern that may have a `*` at its start and end.
fn is_name(pattern: &str, name: &str) -> bool {
    let (start, end) = (pattern.strip_prefix('*'), pattern.strip_suffix('*'));
    match (start, end) {
        (Some(text), Some(_)) => name.contains(text.trim_end_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_the_table_can_be_used() {
        let text: TableText = toml::from_str(TEXT).expect("the table");
        assert!(text.frame.len() <= 64, "a rule is a bit of a word");
        for rule in &text.frame {
            assert_ne!(rule.phase, Phase::Unknown, "{rule:?}");
            assert!(!rule.files.is_empty() || !rule.functions.is_empty(), "{rule:?}");
            assert_eq!(rule.one.is_empty(), rule.several.is_empty(), "{rule:?}");
            assert!(rule.activity_is_named(), "{rule:?}");
        }
        for rule in &text.line {
            assert_ne!(rule.phase, Phase::Unknown, "{rule:?}");
            Regex::new(&rule.pattern).expect("a pattern");
        }
        assert_eq!(PhaseTable::get().lines.len(), text.line.len());
    }

    impl FrameText {
        /// Without a predicate, the other keys of a rank's activity have no effect.
        fn activity_is_named(&self) -> bool {
            !self.one.is_empty() || !self.cpu_only && !self.shutdown
        }
    }

    #[test]
    fn patterns_of_names_match_at_their_open_ends() {
        let cases = [
            ("save", "save", true),
            ("save", "_save", false),
            ("save*", "save_file", true),
            ("*save", "_save", true),
            ("*write*", "_write_files_from_queue", true),
            ("*step*", "update", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(is_name(pattern, name), expected, "{pattern} {name}");
        }
    }
}
