//! Checks what the compiler does not: which modules of the program use which (docs/ARCHITECTURE.md, Layers), based on
//! the paths in the sources, that files do not name each other in circles, and that no test file is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the program, and crates except for `gputop_model`, that files below `place` may use, besides those below
/// `place`.
struct Rule {
    place: &'static str,
    may: &'static [&'static str],
}

/// The first rule that matches a file applies.
const RULES: &[Rule] = &[
    // The limit on open files, of this process and its children.
    Rule { place: "open_files.rs", may: &[] },
    // Waits for children.
    Rule { place: "child_exit.rs", may: &[] },
    // The collector for hosts that only have `nvidia-smi`.
    Rule { place: "source/remote/nvidia_smi", may: &["source"] },
    // Creates and deletes the file of a recording.
    Rule { place: "source/recording_file.rs", may: &["source", "user_files"] },
    Rule { place: "source", may: &["child_exit", "open_files"] },
    // Turns collected data into a stream, and receives requests.
    Rule { place: "collect/agent", may: &["open_files", "collect", "gputop_peek"] },
    Rule { place: "collect/local.rs", may: &["collect"] },
    // Signatures decide which log text is worth sending. `gputop-explain` uses no collector.
    Rule {
        place: "collect/logs",
        may: &[
            "child_exit",
            "open_files",
            "collect",
            "gputop_peek",
            "user_files",
            "gputop_explain::scan",
            "gputop_explain::recovery",
        ],
    },
    // The table of phases decides what of a stack is sent.
    Rule { place: "collect/phases", may: &["collect", "gputop_peek", "gputop_explain::why"] },
    // Counts arrivals at collectives where the ranks are read.
    Rule { place: "collect/ranks.rs", may: &["collect", "gputop_peek", "gputop_explain::ranks"] },
    // Compares two answers of NCCL, which are too large to send.
    Rule { place: "collect/ras.rs", may: &["collect", "gputop_peek", "gputop_explain::ranks"] },
    // Builds the request for the probe's child from the host's data.
    Rule { place: "collect/probe.rs", may: &["collect", "gputop_peek", "probe", "user_files"] },
    // Replays the hook's allocation traces where they are stored.
    Rule {
        place: "collect/hook/replay_trace.rs",
        may: &["collect", "gputop_allocator", "user_files"],
    },
    // Analyzes its own allocations on a card like those of a process.
    Rule { place: "probe", may: &["gputop_allocator", "user_files"] },
    Rule { place: "collect", may: &["open_files", "gputop_peek", "user_files"] },
    // Pure: sums up the lines of a recording.
    Rule { place: "summary", may: &["gputop_allocator"] },
    // The cards are data of `gputop-explain`.
    Rule { place: "export/cards", may: &["export", "gputop_explain"] },
    // Prints snapshots.
    Rule { place: "export/snapshot", may: &["export", "gputop_allocator"] },
    // Computes the largest request that each pool can serve, and exports the waits of ranks.
    Rule { place: "export/metrics", may: &["export", "gputop_allocator", "gputop_explain::ranks"] },
    // Prints the summary of a recording.
    Rule { place: "export/summary", may: &["export", "summary"] },
    // Prints a history replayed under other settings.
    Rule { place: "export/whatif.rs", may: &["export", "gputop_allocator"] },
    // Prints the state of a host.
    Rule { place: "export/why.rs", may: &["dashboard", "export", "gputop_explain"] },
    Rule { place: "export/ranks.rs", may: &["dashboard", "export", "gputop_explain"] },
    Rule { place: "export", may: &["dashboard"] },
    // Quotes lines of the user's source files in incidents.
    Rule { place: "incident/source_lines.rs", may: &["gputop_explain", "incident", "user_files"] },
    // Judges a stream, and merges and saves the incidents.
    Rule { place: "incident", may: &["gputop_explain", "open_files", "user_files"] },
    Rule { place: "user_files.rs", may: &[] },
    Rule { place: "user_files", may: &[] },
    // Watches a command, explains its failure, and saves the incident.
    Rule {
        place: "run",
        may: &["collect", "gputop_explain", "export", "gputop_peek", "incident", "user_files"],
    },
    // The state of one host on a screen or in print, without a terminal.
    Rule { place: "dashboard", may: &["gputop_allocator", "gputop_explain", "incident"] },
    Rule {
        place: "tui",
        may: &[
            "gputop_allocator",
            "child_exit",
            "dashboard",
            // Incidents, figures and shapes look the same on the screen and in print.
            "export",
            // Draws the charts of a summary.
            "summary",
            "gputop_explain",
            "incident",
            // Saves the theme in the configuration file.
            "user_files",
        ],
    },
    Rule {
        place: "cli",
        may: &[
            "child_exit",
            "open_files",
            "gputop_allocator",
            "collect",
            "dashboard",
            "gputop_explain",
            "export",
            "gputop_peek",
            "incident",
            "probe",
            "run",
            "source",
            "summary",
            "tui",
            "user_files",
        ],
    },
    // The list of modules.
    Rule { place: "lib.rs", may: &[] },
    // Uses the crate from outside.
    Rule { place: "main.rs", may: &[] },
];

/// Modules that files in a place of a crate must not name. Everything else is at the bottom of that crate, so these parts
/// stay above it. The first place that matches a file applies.
const UPPER: &[(&str, &[&str])] = &[
    ("crates/allocator/snapshot", &[]),
    ("crates/allocator", &["snapshot"]),
    ("crates/model/protocol.rs", &["redact"]),
    ("crates/model/protocol", &["redact"]),
    ("crates/model/redact", &["protocol"]),
    ("crates/model", &["protocol", "redact"]),
    ("crates/peek/nccl", &["bfc", "python", "torch"]),
    ("crates/peek/torch", &["nccl", "python"]),
    ("crates/peek/python.rs", &["bfc", "nccl", "torch"]),
    ("crates/peek/python", &["bfc", "nccl", "torch"]),
    ("crates/peek/cpython", &["bfc", "nccl", "python", "torch"]),
    ("crates/peek/bfc", &["cpython", "nccl", "python", "torch"]),
    ("crates/peek", &["bfc", "cpython", "nccl", "python", "torch"]),
];

const UNSAFE: &[&str] = &[
    "crates/peek/memory/ptrace_call.rs",
    // Runs before the standard library.
    "cli/startup_state.rs",
    "collect/exits/pidfd_info.rs",
    "collect/nvml/raw.rs",
    "open_files.rs",
    "probe/child/cuda.rs",
    "run/unsafe_calls.rs",
    // A signal handler.
    "tui/signal_actions.rs",
];

/// Words that may occur only in these places.
const RESERVED: &[(&str, &[&str])] = &[
    ("nvml_wrapper", &["collect/nvml/", "collect/driver/"]),
    ("nvml_wrapper_sys", &["collect/nvml/"]),
    ("cudarc", &["probe/child/"]),
    ("unsafe", UNSAFE),
    ("unsafe_code", UNSAFE),
    ("libloading", &[]),
    ("prometheus_client", &["export/metrics/"]),
    ("hyper_util", &["cli/serve/"]),
    // Text outputs print the state of a host without the terminal's code. The others open the dashboard, read its
    // settings, describe its keys and themes, or draw its charts.
    (
        "tui",
        &[
            "cli/config.rs",
            "cli/connect.rs",
            "cli/dashboard.rs",
            "cli/demo.rs",
            "cli/doctor/terminal.rs",
            "cli/generate/",
            "cli/replay.rs",
            "cli/settings/",
            "cli/snapshot.rs",
            "cli/summary.rs",
            "cli/whatif.rs",
            "lib.rs",
            "main.rs",
            "tui/",
        ],
    ),
];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of the packages besides the program: `crates/model`.
fn crates() -> Vec<String> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    folders.map(|entry| format!("crates/{}", entry.unwrap().file_name().display())).collect()
}

/// Returns the path of each source file of a package below its `src/`, and its text without comments. The program is the
/// package in the folder `""`.
fn sources(package: &str) -> Vec<(String, String)> {
    let src = root().join(package).join("src");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
        (name, text.lines().map(code).collect::<Vec<_>>().join("\n"))
    };
    rust_files(&src).into_iter().map(read).collect()
}

fn is_in(file: &str, place: &str) -> bool {
    file == place || file.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the paths after every `crate::`, up to `depth` names: `source::Update`. Groups in braces are expanded.
fn named(code: &str, depth: usize) -> Vec<String> {
    code.split("crate::").skip(1).flat_map(|rest| expand("", rest, depth)).collect()
}

fn expand(before: &str, rest: &str, depth: usize) -> Vec<String> {
    if let Some(group) = rest.strip_prefix('{') {
        let items = items(group).into_iter();
        return items.flat_map(|item| expand(before, item, depth)).collect();
    }
    let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
    let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
    let path = [before, name].join(if before.is_empty() { "" } else { "::" });
    match rest.strip_prefix("::") {
        Some(rest) if depth > 1 => expand(&path, rest, depth - 1),
        _ => vec![path],
    }
}

/// Returns the items of a group: the text between its commas, up to its closing brace.
fn items(group: &str) -> Vec<&str> {
    let (mut items, mut begin, mut open) = (Vec::new(), 0, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => open += 1,
            '}' if open > 0 => open -= 1,
            ',' | '}' if open == 0 => {
                items.push(group[begin..i].trim());
                begin = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

#[test]
fn use_groups_are_parsed_like_the_compiler() {
    let code = "use crate::model::{gpu::Gpu, frame};\nuse crate::{cli, source::{Play, local}};\n\
                fn f() -> crate::tui::app::App {}";
    assert_eq!(
        named(code, 2),
        ["model::gpu", "model::frame", "cli", "source::Play", "source::local", "tui::app"]
    );
}

#[test]
fn every_layer_uses_only_allowed_modules() {
    let mut wrong = Vec::new();
    let is_below = |path: &str, place: &str| {
        path == place || path.strip_prefix(place).is_some_and(|rest| rest.starts_with("::"))
    };
    let crates: Vec<String> =
        crates().iter().map(|name| name.replace("crates/", "gputop_")).collect();
    for (file, mut code) in sources("") {
        for name in crates.iter().filter(|name| *name != "gputop_model") {
            code = code.replace(&format!("{name}::"), &format!("crate::{name}::"));
        }
        let Some(rule) = RULES.iter().find(|rule| is_in(&file, rule.place)) else {
            wrong.push(format!("src/{file} is in no layer"));
            continue;
        };
        for path in named(&code, 2) {
            let own = is_below(&path, rule.place);
            if !own && !rule.may.iter().any(|may| is_below(&path, may)) {
                wrong.push(format!("src/{file} names crate::{path}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_bottom_of_a_crate_does_not_name_its_upper_parts() {
    let mut wrong = Vec::new();
    for package in crates() {
        for (file, code) in sources(&package).into_iter().filter(|(file, _)| file != "lib.rs") {
            let path = format!("{package}/{file}");
            let upper = UPPER.iter().find(|(place, _)| is_in(&path, place));
            let upper = upper.map_or(&[][..], |(_, upper)| upper);
            let names = named(&absolute(&file, &code, &[]), 1);
            let wrong_names = names.iter().filter(|name| upper.contains(&name.as_str()));
            wrong.extend(wrong_names.map(|name| format!("{path} names crate::{name}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Maximum number of files that name each other in a circle: a file and a part of it.
const MAX_CIRCLE: usize = 2;

/// Returns the path of a file's module below `crate`.
fn module(file: &str) -> String {
    file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// Returns the path of the module around a module.
fn parent(path: &str) -> &str {
    path.rsplit_once("::").map_or("", |(parent, _)| parent)
}

/// Returns the code without unit tests, with every path to a module of this crate written from `crate` on.
fn absolute(file: &str, code: &str, modules: &[String]) -> String {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let here = module(file);
    // Skip the paths of visibilities, such as `pub(in crate::collect)`.
    let code = code.replace("(in crate::", "(in ").replace("(in super::", "(in ");
    let mut code = format!(" {code}");
    for path in modules.iter().filter(|path| parent(path) == here) {
        let name = path.rsplit("::").next().unwrap_or_default();
        for before in [" ", "(", "&", "!", "<", "[", "|"] {
            let child = format!("{before}{name}::");
            code = code.replace(&child, &format!("{before}crate::{path}::"));
        }
    }
    let above = parent(&here);
    code.replace("super::super::", &format!("crate::{}::", parent(above)))
        .replace("super::", &format!("crate::{above}::"))
        .replace("self::", &format!("crate::{here}::"))
        .replace("crate::::", "crate::")
}

/// Returns the index of the module in which a path ends: the longest part of the path that is a module.
fn find(path: &str, modules: &[String]) -> Option<usize> {
    let found = modules.binary_search_by(|module| module.as_str().cmp(path)).ok();
    found.or_else(|| find(path.rsplit_once("::")?.0, modules))
}

/// Returns the groups of files of a package that name each other in circles.
fn circles(package: &str) -> BTreeSet<Vec<String>> {
    let mut sources = sources(package);
    sources
        .retain(|(file, _)| !file.ends_with("tests.rs") && file != "lib.rs" && file != "main.rs");
    sources.sort_by_key(|(file, _)| module(file));
    let modules: Vec<String> = sources.iter().map(|(file, _)| module(file)).collect();
    let named: Vec<BTreeSet<usize>> = sources
        .iter()
        .map(|(file, code)| {
            let paths = named(&absolute(file, code, &modules), usize::MAX);
            paths.iter().filter_map(|path| find(path, &modules)).collect()
        })
        .collect();
    let reach = |from: usize| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(named[at].iter().filter(|next| reached.insert(**next)));
        }
        reached
    };
    let reached: Vec<BTreeSet<usize>> = (0..modules.len()).map(reach).collect();
    (0..modules.len())
        .map(|at| {
            let circle = reached[at].iter().filter(|other| reached[**other].contains(&at));
            circle.map(|at| format!("{package}/{}", sources[*at].0)).collect::<Vec<_>>()
        })
        .filter(|circle| circle.len() > MAX_CIRCLE)
        .collect()
}

#[test]
fn files_do_not_name_each_other_in_circles() {
    let packages = crates().into_iter().chain([String::new()]);
    let circles: Vec<_> = packages.flat_map(|package| circles(&package)).collect();
    assert!(circles.is_empty(), "these files name each other in circles: {circles:#?}");
}

#[test]
fn driver_crates_and_unsafe_code_stay_in_listed_files() {
    let mut wrong = Vec::new();
    for package in crates().into_iter().chain([String::new()]) {
        for (file, code) in sources(&package) {
            let path = Path::new(&package).join(file).display().to_string();
            let words: Vec<&str> = code.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
            for (word, places) in RESERVED {
                let is_allowed = places.iter().any(|place| path.starts_with(place));
                if !is_allowed && words.contains(word) {
                    wrong.push(format!("{path} says {word}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_test_file_is_forgotten() {
    let of_crates = crates().into_iter().map(|package| format!("{package}/tests/pure"));
    for binary in of_crates.chain(["tests/pure", "tests/it"].map(str::to_owned)) {
        let folder = root().join(&binary);
        let main = fs::read_to_string(folder.join("main.rs")).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_topic = match path.extension() {
                Some(extension) => extension == "rs",
                None => path.join("mod.rs").exists(),
            };
            let name = path.file_stem().unwrap().to_str().unwrap();
            if is_topic && name != "main" {
                let declared = main.lines().any(|line| line == format!("mod {name};"));
                assert!(declared, "{binary}/main.rs does not declare the module {name}");
            }
        }
    }
}

/// Tests that start a process belong into `tests/it`.
#[test]
fn pure_tests_start_no_process() {
    let of_crates = crates().into_iter().map(|package| root().join(package).join("tests/pure"));
    let folders = of_crates.chain([root().join("tests/pure")]);
    let mut files: Vec<PathBuf> = folders.flat_map(|folder| rust_files(&folder)).collect();
    // In parts, because this file is one of those that are searched.
    let words = [["std::", "process"].concat(), ["Command", "::"].concat()];
    while let Some(path) = files.pop() {
        let text = fs::read_to_string(&path).unwrap();
        let word = words.iter().find(|word| text.contains(word.as_str()));
        assert_eq!(word, None, "{} may start a process", path.display());
        // Files of other folders that this one includes.
        files.extend(text.lines().filter_map(|line| {
            let name = line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]")?;
            Some(path.with_file_name(name))
        }));
    }
}
