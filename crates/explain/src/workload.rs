//! Recognizes workloads (which program failed) and translates remedies into that program's own flags or code.
//!
//! A workload is a file in `assets/workloads`. A card names remedies (`assets/remedies.toml`), and the workload says
//! which flag or code to use for each. A remedy is offered only if the workload names it. Platforms and schedulers
//! (ROCm, Slurm) are also workloads, and their actions are added to those of the program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

use gputop_model::incident::{Fix, FixKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::card::{CardError, FixRule, from_toml};
use super::embedded::unpacked;
use super::fields::FieldMap;
use super::signature::Pattern;
use super::{current_settings, notebook_cell, template, values, windows_shell};

/// `assets/remedies.toml` as JSON, and a line `[ID, JSON]` for each file in `assets/workloads`, sorted by ID. Compressed.
const EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/workloads.jsonl.gz"));
/// Command in cards that is replaced with the failed program's command.
pub(super) const SCRIPT: &str = "python train.py";
/// Placeholder in a fix for a value that cannot be computed from the log.
const UNKNOWN_VALUE: &str = "VALUE";

gputop_model::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        Training = "training",
        Inference = "inference",
        Library = "library",
        Server = "server",
        ImageUi = "image-ui",
        Tool = "tool",
        Driver = "driver",
        /// Hardware platform or scheduler on which a program runs.
        Platform = "platform",
        Scheduler = "scheduler",
    }
    fn name;
}

impl Kind {
    fn is_around(self) -> bool {
        matches!(self, Self::Platform | Self::Scheduler)
    }

    /// Returns true if users write programs of this kind themselves, so that advice can be code.
    fn is_own_code(self) -> bool {
        matches!(self, Self::Training | Self::Inference | Self::Library | Self::Driver)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    #[serde(skip)]
    pub id: String,
    pub name: String,
    pub kind: Kind,
    /// Expressions that recognize the program by its output. At least one must match.
    recognize: Vec<Pattern>,
    /// Expressions for text that suggests the program without proving it. Two of them must match.
    #[serde(default)]
    hints: Vec<Pattern>,
    /// Patterns for the text of other programs. A match means that the program is not this one.
    #[serde(default)]
    unless: Vec<Pattern>,
    /// Priority among the recognized programs. The program with the lowest value is chosen. Platforms and schedulers
    /// are sorted by it.
    #[serde(default)]
    order: u32,
    /// ID of a workload whose actions also apply to this workload. A platform or scheduler replaces its base: the
    /// output of Podman also looks like that of Docker.
    #[serde(default)]
    base: Option<String>,
    #[serde(default)]
    command: Option<String>,
    /// True if users write the program themselves, although its kind suggests otherwise.
    #[serde(default)]
    own_code: bool,
    /// Expressions that match advice that is unsuitable for this program.
    #[serde(default)]
    exclude: Vec<Pattern>,
    /// Pairs of a text to replace in advice and its replacement for this program.
    #[serde(default)]
    replace: Vec<(String, String)>,
    /// True if commands in fixes have to be translated from a POSIX shell to cmd.exe.
    #[serde(default)]
    windows_shell: bool,
    /// True if the program runs in the cells of a notebook.
    #[serde(default)]
    cells: bool,
    /// Place for a server's options if this scheduler or container engine starts the server.
    #[serde(default)]
    arguments: Option<String>,
    /// Place for environment variables of that server.
    #[serde(default)]
    environment: Option<String>,
    #[serde(default)]
    pub actions: BTreeMap<String, WorkloadAction>,
}

/// A program's own flag or code for a remedy.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum WorkloadAction {
    Change(String),
    Full {
        /// Text to copy. `{value}` is replaced with the computed value.
        change: String,
        #[serde(default)]
        title: Option<String>,
        #[serde(default)]
        kind: Option<FixKind>,
        #[serde(default)]
        effect: Option<String>,
        #[serde(default)]
        choose: Option<String>,
    },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remedy {
    title: String,
    kind: FixKind,
    #[serde(default)]
    choose: Option<String>,
    /// Default text to copy, for workloads that do not define their own. `None` if the remedy is only offered by
    /// workloads that do.
    #[serde(default)]
    change: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemedyFile {
    remedy: BTreeMap<String, Remedy>,
    /// Explanations of how to choose a value for each placeholder. A placeholder is a word in capitals for a value that
    /// the log does not contain.
    placeholders: BTreeMap<String, String>,
    exclude: BTreeMap<Kind, Vec<Pattern>>,
}

impl Workload {
    /// Returns true if a program of this workload printed the text.
    fn is_program_of(&self, text: &str) -> bool {
        let has = |patterns: &[Pattern], enough| {
            patterns.iter().filter(|pattern| pattern.is_in(text)).take(enough).count() == enough
        };
        (has(&self.recognize, 1) || has(&self.hints, 2)) && !has(&self.unless, 1)
    }
}

static WORKLOADS: OnceLock<Workloads> = OnceLock::new();

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, CardError> {
    from_toml(&text.parse()?)
}

#[derive(Debug)]
pub struct Workloads {
    pub all: Vec<Workload>,
    remedies: RemedyFile,
}

impl Workloads {
    #[must_use]
    pub fn embedded() -> &'static Self {
        WORKLOADS.get_or_init(|| {
            let (workloads, errors) = Self::read();
            debug_assert!(errors.is_empty(), "{errors:?}");
            workloads
        })
    }

    /// Uses other workloads and remedies instead of the embedded ones, to try them without a build. `files` are pairs
    /// of an ID and TOML. Has no effect after the first use of the workloads.
    pub fn replace_embedded(files: &[(String, String)], remedies: &str) -> Result<(), String> {
        let mut all = Vec::new();
        for (id, text) in files {
            let workload: Workload = parsed(text).map_err(|error| format!("{id}: {error}"))?;
            all.push(Workload { id: id.clone(), ..workload });
        }
        let remedies = parsed(remedies).map_err(|error| format!("remedies: {error}"))?;
        let _ = WORKLOADS.set(Self { all, remedies });
        Ok(())
    }

    /// Parses the workloads. Returns an error for each file that does not parse.
    fn read() -> (Self, Vec<String>) {
        let mut all = Vec::new();
        let mut errors = Vec::new();
        let lines = unpacked(EMBEDDED);
        let (remedies, workloads) = lines.split_once('\n').unwrap_or_default();
        for line in workloads.lines() {
            match serde_json::from_str::<(String, Workload)>(line) {
                Ok((id, workload)) => all.push(Workload { id, ..workload }),
                Err(error) => errors.push(format!("{line}: {error}")),
            }
        }
        let remedies = serde_json::from_str(remedies);
        let remedies = remedies.unwrap_or_else(|error| {
            errors.push(format!("remedies: {error}"));
            RemedyFile::default()
        });
        (Self { all, remedies }, errors)
    }

    /// Returns true if a workload or a kind of workload has this name.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.all.iter().any(|workload| workload.id == name || workload.kind.name() == name)
    }

    #[must_use]
    pub(crate) fn has_remedy(&self, name: &str) -> bool {
        self.remedies.remedy.contains_key(name)
    }

    /// Returns the title of a remedy, for programs that do not define their own title.
    #[must_use]
    pub fn title(&self, remedy: &str) -> &str {
        self.remedies.remedy.get(remedy).map_or("", |remedy| &remedy.title)
    }

    /// Explains how to choose a value for each placeholder in `change` that `explained` does not mention: `WORD:
    /// choice`.
    fn choices<'a>(
        &'a self,
        change: &str,
        explained: &str,
    ) -> impl Iterator<Item = String> + use<'a> {
        let words = |text: &str| -> BTreeSet<String> {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.map(str::to_owned).collect()
        };
        let open = &words(change) - &words(explained);
        open.into_iter()
            .filter_map(|word| Some(format!("{word}: {}", self.placeholders().get(&word)?)))
    }

    /// Returns the placeholders that fixes may contain, each with an explanation of how to choose its value.
    #[must_use]
    pub(crate) fn placeholders(&self) -> &BTreeMap<String, String> {
        &self.remedies.placeholders
    }

    /// Returns the workloads that name a remedy, each with its text to copy.
    pub fn actions<'a>(&'a self, remedy: &'a str) -> impl Iterator<Item = (&'a Workload, &'a str)> {
        self.all
            .iter()
            .filter_map(move |workload| Some((workload, workload.actions.get(remedy)?.change())))
    }

    fn get(&self, id: &str) -> Option<&Workload> {
        self.all.iter().find(|workload| workload.id == id)
    }

    /// Recognizes the program from the text around an error. `start` is the start of the program's log, used if the
    /// text shows nothing specific.
    #[must_use]
    pub fn recognize<'a>(&'a self, text: &str, start: &'a str) -> Setting<'a> {
        let mut found = self.recognized(text);
        let program = |found: &[&'a Workload]| {
            found.iter().filter(|w| !w.kind.is_around()).min_by_key(|w| w.order).copied()
        };
        let mut best = program(&found);
        let at_start = self.recognized(start);
        let is_specific = |w: &&Workload| w.order < GENERIC_ORDER;
        if best.as_ref().is_none_or(|w| !is_specific(w)) {
            best = program(&at_start).filter(is_specific).or(best);
        }
        for workload in at_start {
            if !found.iter().any(|known| known.id == workload.id) {
                found.push(workload);
            }
        }
        found.retain(|w| w.kind.is_around());
        let bases: Vec<&str> = found.iter().filter_map(|w| w.base.as_deref()).collect();
        found.retain(|w| !bases.contains(&w.id.as_str()));
        found.sort_by_key(|w| w.order);
        Setting { workloads: self, program: best, around: found, text: text.to_owned(), start }
    }

    /// Like [`Self::recognize`], but if the log shows nothing specific, returns `usual`, the workload that usually
    /// prints such errors. An unknown program without any sign of Python is a native program.
    #[must_use]
    pub(crate) fn recognize_or<'a>(
        &'a self,
        text: &str,
        start: &'a str,
        usual: Option<&String>,
    ) -> Setting<'a> {
        let mut setting = self.recognize(text, start);
        if setting.program.is_none_or(|w| w.order >= GENERIC_ORDER) {
            let mut around = setting.around.iter();
            let variant = around.find(|w| w.base.is_some() && w.base.as_ref() == usual).copied();
            let usual = variant.or_else(|| usual.and_then(|id| self.get(id)));
            setting.program = usual.or(setting.program);
        }
        if setting.program.is_none() && !shows_python(&[text, start].join("\n")) {
            setting.program = self.get("native");
        }
        setting
    }

    fn recognized(&self, text: &str) -> Vec<&Workload> {
        self.all.iter().filter(|workload| workload.is_program_of(text)).collect()
    }
}

/// Returns true if the text may come from a Python program. Nothing is known about the program of an empty text.
fn shows_python(text: &str) -> bool {
    static SIGNS: LazyLock<Pattern> = LazyLock::new(|| {
        Pattern::new(concat!(
            r"(?i:python|\.py\b|\.ipynb\b|traceback|\bpip3?\b|conda\b|(?:site|dist)-packages|torch|\bpt_|\bray::)",
            r"|\b(?:bitsandbytes|triton|xformers|DataLoader|ProcessGroup\w+)\b|\bc10\b|^>>> ",
            r"|^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning)\b",
            r"|\b(?:Runtime|Value|Type|Key|Index|Attribute|Import|Assertion|Memory|OutOfMemory|NotImplemented)Error: ",
            // torch adds this to NCCL's errors.
            r"|This usually reflects "
        ))
    });
    text.trim().is_empty() || SIGNS.is_in(text)
}

/// Minimum `order` of generic programs, which are recognized by text that occurs in most logs.
const GENERIC_ORDER: u32 = 80;

impl WorkloadAction {
    /// Returns the text to copy, with a placeholder for the computed value.
    #[must_use]
    pub fn change(&self) -> &str {
        match self {
            Self::Change(change) | Self::Full { change, .. } => change,
        }
    }
}

/// The failed program, with its platform and scheduler.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    workloads: &'a Workloads,
    program: Option<&'a Workload>,
    around: Vec<&'a Workload>,
    text: String,
    start: &'a str,
}

impl<'a> Setting<'a> {
    /// Creates the setting for a log that identifies only `workload`.
    #[cfg(test)]
    pub(super) fn of(workload: &'a Workload) -> Self {
        let (around, program) = if workload.kind.is_around() {
            (vec![workload], None)
        } else {
            (Vec::new(), Some(workload))
        };
        Self { workloads: Workloads::embedded(), program, around, text: String::new(), start: "" }
    }

    fn all(&self) -> impl Iterator<Item = &'a Workload> {
        self.program.into_iter().chain(self.around.clone())
    }

    /// Returns the workloads on which the program is based, nearest first.
    fn bases(&self) -> impl Iterator<Item = &'a Workload> + use<'a> {
        const MAX_BASES: usize = 4;
        let workloads = self.workloads;
        let base = move |w: &&'a Workload| w.base.as_ref().and_then(|id| workloads.get(id));
        std::iter::successors(self.program.as_ref().and_then(base), base).take(MAX_BASES)
    }

    /// Returns the name of the program if it is a server.
    #[must_use]
    pub fn server(&self) -> Option<&'a str> {
        self.program.filter(|w| w.kind == Kind::Server).map(|w| w.name.as_str())
    }

    /// Returns the name of the program if its users do not write it themselves.
    #[must_use]
    pub(crate) fn foreign_program(&self) -> Option<&'a str> {
        self.program.filter(|_| !self.is_own_code()).map(|w| w.name.as_str())
    }

    /// Returns true if users write the program themselves, or if the program is unknown.
    fn is_own_code(&self) -> bool {
        self.program.is_none_or(|w| w.kind.is_own_code() || w.own_code)
    }

    /// Returns the command to show in fixes if the failed program's log does not name a script.
    #[must_use]
    pub(crate) fn usual_command(&self) -> &'static str {
        match self.program.map(|w| w.kind) {
            Some(Kind::Inference | Kind::Library | Kind::Driver) => "python YOUR_SCRIPT.py",
            _ => SCRIPT,
        }
    }

    /// Returns true if a rule applies to this program. `only` lists kinds and workloads to which the rule applies, or
    /// with a leading `!`, does not apply. If it names programs and platforms, one of each must apply: `["jax",
    /// "conda"]` is JAX in a conda environment. An empty list means all programs.
    #[must_use]
    pub(crate) fn is_for(&self, only: &[String]) -> bool {
        let unknown = self.program.is_none().then_some("training");
        let names = self.all().flat_map(|w| [w.id.as_str(), w.kind.name()]);
        let bases = self.bases().map(|w| w.id.as_str());
        let bases = bases.chain(self.around.iter().filter_map(|w| w.base.as_deref()));
        let names: Vec<&str> = names.chain(bases).chain(unknown).collect();
        let (excluded, included): (Vec<&str>, Vec<&str>) =
            only.iter().map(String::as_str).partition(|one| one.starts_with('!'));
        let is_excluded = excluded.iter().any(|one| names.contains(&&one[1..]));
        let is_around = |id: &&str| self.workloads.get(id).is_some_and(|w| w.kind.is_around());
        let (around, programs): (Vec<&str>, Vec<&str>) = included.into_iter().partition(is_around);
        let applies =
            |group: &[&str]| group.is_empty() || group.iter().any(|one| names.contains(one));
        applies(&around) && applies(&programs) && !is_excluded
    }

    /// Returns true if the program's platform or scheduler has its own action for the rule's remedy.
    #[must_use]
    pub(crate) fn is_of_surroundings(&self, rule: &FixRule) -> bool {
        let remedy = rule.remedy.as_ref();
        remedy.is_some_and(|name| self.around.iter().any(|w| w.actions.contains_key(name)))
    }

    /// Adapts a sentence of a card to the program. Returns `None` if the sentence makes no sense for that program.
    #[must_use]
    pub(crate) fn adapted(&self, text: &str) -> Option<String> {
        let of_kind = self.program.map(|w| w.kind);
        let of_kind = of_kind.and_then(|kind| self.workloads.remedies.exclude.get(&kind));
        let mut excluded = of_kind.into_iter().flatten().chain(self.all().flat_map(|w| &w.exclude));
        let mut adapted = text.to_owned();
        // A scheduler or platform starts any program, so it has no command of its own.
        let has_command = self.program.is_none_or(|w| !w.kind.is_around() || w.command.is_some());
        if !self.is_own_code() && has_command && text.contains(SCRIPT) {
            let command = self.program.and_then(|w| w.command.as_ref())?;
            adapted = adapted.replace(SCRIPT, command);
        }
        for (from, to) in self.all().flat_map(|w| &w.replace) {
            adapted = adapted.replace(from.as_str(), to);
        }
        let is_excluded = excluded.any(|pattern| pattern.is_in(&adapted));
        (!is_excluded).then_some(adapted)
    }

    /// Builds the fix for a card's rule, or `None` if the rule does not apply to this program.
    #[must_use]
    pub fn fix(&self, rule: &FixRule, found: &FieldMap) -> Option<Fix> {
        if !self.is_for(&rule.only) {
            return None;
        }
        let fix = match &rule.remedy {
            Some(remedy) => self.remedy(remedy, rule, found)?,
            None => {
                if rule.kind == FixKind::Code && !self.is_own_code() {
                    return None;
                }
                let change = self.adapted(&template::fill(&rule.change, found)?)?;
                Fix {
                    title: self.adapted(&template::fill(&rule.title, found)?)?,
                    change,
                    kind: rule.kind,
                    ..Fix::default()
                }
            }
        };
        // Variables of PyTorch are removed for other programs, which may leave only the command itself.
        if self.program.is_some_and(|w| w.command.as_ref() == Some(&fix.change)) {
            return None;
        }
        let fix =
            if self.around.iter().any(|w| w.cells) { notebook_cell::translated(fix) } else { fix };
        let fix = if self.around.iter().any(|w| w.windows_shell) {
            windows_shell::translated(fix)?
        } else {
            fix
        };
        let own = rule.effect.as_ref();
        let own = own.and_then(|effect| self.adapted(&template::fill(effect, found)?));
        let warning = warning(&fix.change).map(str::to_owned);
        let mut effects: Vec<String> = [warning, own, fix.effect].into_iter().flatten().collect();
        let explained = effects.join("; ");
        let choices = self.workloads.choices(&fix.change, &explained);
        effects.extend(choices.filter_map(|choice| self.adapted(&choice)));
        Some(Fix {
            for_cause: rule.r#for.clone(),
            effect: (!effects.is_empty()).then(|| effects.join("; ")),
            ..fix
        })
    }

    /// Returns true if the log shows that the program already runs with the options or variables of a fix.
    #[must_use]
    pub fn is_in_use(&self, change: &str) -> bool {
        let command = self.program.and_then(|w| w.command.as_deref());
        let own = command.map_or_else(|| change.to_owned(), |c| change.replacen(c, "", 1));
        current_settings::are_shown(&own, &[&self.text, self.start])
    }

    /// Returns the options or variables in `change`, and where to add them, if a container starts the server and the
    /// log does not show the server's own command.
    fn in_container(&self, change: &str) -> Option<(String, &'a str)> {
        let container = self.around.iter().find(|w| w.arguments.is_some())?;
        let command = self.program.filter(|w| w.kind == Kind::Server)?.command.as_deref()?;
        let name = command.strip_prefix("python -m ").unwrap_or(command);
        let name = name.split(" -").next()?.trim_end_matches(" MODEL");
        if self.text.contains(name) || self.start.contains(name) {
            return None;
        }
        if let Some(options) = change.strip_prefix(command) {
            let place = container.arguments.as_deref()?;
            return options.starts_with(" --").then(|| (options.trim_start().to_owned(), place));
        }
        let variables = change.strip_suffix(command)?.trim_end();
        Some((variables.to_owned(), container.environment.as_deref()?))
    }

    /// Returns the fix for a remedy: the action that the recognized program, platform or scheduler defines for it, with
    /// the computed value filled in.
    fn remedy(&self, name: &str, rule: &FixRule, found: &FieldMap) -> Option<Fix> {
        let remedy = self.workloads.remedies.remedy.get(name)?;
        let bases = self.bases();
        // If the program is unknown, use the actions for PyTorch, which is the most common program.
        let unknown = self.program.is_none().then(|| self.workloads.get("pytorch"));
        let mut workloads = self.all().chain(bases).chain(unknown.flatten());
        let (change, title, kind, effect, choose) =
            match workloads.find_map(|w| w.actions.get(name)) {
                None => (remedy.change.as_ref()?, None, None, None, None),
                Some(WorkloadAction::Change(change)) => (change, None, None, None, None),
                Some(WorkloadAction::Full { change, title, kind, effect, choose }) => {
                    (change, title.as_ref(), *kind, effect.as_ref(), choose.as_ref())
                }
            };
        let (mut change, mut effects) = (change.clone(), Vec::new());
        if change.contains("{value}") {
            let value = rule.value.as_ref();
            let value = value.and_then(|name| values::value(name, found, &self.text, self.start));
            match value {
                Some(value) => {
                    change = change.replace("{value}", &value.text);
                    effects.push(format!("{} = {}", value.text, value.formula));
                }
                None => {
                    change = change.replace("{value}", UNKNOWN_VALUE);
                    let choose = choose.or(remedy.choose.as_ref())?;
                    effects.push(format!("{UNKNOWN_VALUE}: {choose}"));
                }
            }
        }
        effects.extend(effect.cloned());
        if let Some((settings, place)) = self.in_container(&change) {
            change = settings;
            effects.push(place.to_owned());
        }
        let title = title.unwrap_or(&remedy.title);
        Some(Fix {
            title: if rule.title.is_empty() {
                title.clone()
            } else {
                template::fill(&rule.title, found)?
            },
            change: self.adapted(&template::fill(&change, found)?)?,
            kind: kind.unwrap_or(remedy.kind),
            effect: (!effects.is_empty()).then(|| effects.join("; ")),
            ..Fix::default()
        })
    }
}

/// Returns a warning if the command affects more than the failed program.
#[must_use]
pub fn warning(change: &str) -> Option<&'static str> {
    const MACHINE: &str = "WARNING: kills every program on this machine";
    const GPU: &str = "WARNING: kills every program on the GPU";
    const DRIVER: &str = "WARNING: changes the driver for the whole machine";
    const PROCESS: &str = "WARNING: kills a process; first check whose process it is";
    const SERVICE: &str = "WARNING: affects every program that uses this service";
    const SESSION: &str = "WARNING: ends the graphical session of this machine";
    const COMMANDS: &[(&str, &str)] = &[
        ("poweroff", MACHINE),
        ("shutdown", MACHINE),
        ("reboot", MACHINE),
        ("gpu-reset", GPU),
        ("modprobe", DRIVER),
        ("rmmod", DRIVER),
        ("dkms autoinstall", DRIVER),
        ("dkms install", DRIVER),
        ("apt install", DRIVER),
        ("ubuntu-drivers install", DRIVER),
        ("apt remove", DRIVER),
        ("nvidia-open", DRIVER),
        ("kill -9", PROCESS),
        ("kill PID", PROCESS),
        ("pkill", PROCESS),
        ("systemctl restart", SERVICE),
        ("systemctl isolate", SESSION),
        ("docker restart", SERVICE),
    ];
    COMMANDS.iter().find(|(part, _)| change.contains(part)).map(|(_, warning)| *warning)
}

#[cfg(test)]
mod tests;
