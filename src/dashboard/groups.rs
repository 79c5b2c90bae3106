//! Lines of the process table, in groups or as a tree: one line per group with its sums, followed by the group's
//! processes unless the group is folded.
//!
//! Groups are ordered by their first process, so they follow the table's sort order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gputop_model::process::{Parent, Process, ProcessKey};
use gputop_model::units::{Bytes, Pid};

use super::rows::ProcessRow;
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::sizes::gib;
use crate::dashboard::table::Cell;

/// Maximum depth of the process tree.
const MAX_DEPTH: usize = 32;

/// Layout of the process table. One key cycles through the variants in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    #[default]
    Flat,
    Tree,
    User,
    Container,
    Job,
    Rank,
}

impl Grouping {
    pub fn next(self) -> Self {
        match self {
            Self::Flat => Self::Tree,
            Self::Tree => Self::User,
            Self::User => Self::Container,
            Self::Container => Self::Job,
            Self::Job => Self::Rank,
            Self::Rank => Self::Flat,
        }
    }

    /// Returns the footer label, such as `grouped by user`, or `None` for the flat table.
    pub fn words(self) -> Option<&'static str> {
        Some(match self {
            Self::Flat => return None,
            Self::Tree => "tree by parent",
            Self::User => "grouped by user",
            Self::Container => "grouped by container",
            Self::Job => "grouped by job",
            Self::Rank => "grouped by rank",
        })
    }

    /// Returns the title of the process's group, or `None` if the layout does not group by a property of processes.
    fn title(self, row: &ProcessRow) -> Option<String> {
        let facts = row.facts();
        let text = |text: Option<&String>, name: &str| match text {
            Some(text) => format!("{name} {text}"),
            None => format!("no {name}"),
        };
        Some(match self {
            Self::Flat | Self::Tree => return None,
            Self::User => text(facts.and_then(|f| f.user.value()), "user"),
            Self::Container => {
                facts.and_then(Process::container_text).unwrap_or_else(|| "no container".into())
            }
            Self::Job => text(facts.and_then(|f| f.job.value()), "job"),
            Self::Rank => {
                row.rank().get().map_or_else(|| "no rank".into(), |rank| format!("rank {rank}"))
            }
        })
    }
}

#[derive(Debug, Clone)]
pub enum TableRow {
    Process { row: usize, depth: usize },
    Group(Group),
}

impl TableRow {
    pub fn group(&self) -> Option<&Group> {
        match self {
            Self::Group(group) => Some(group),
            Self::Process { .. } => None,
        }
    }

    pub fn row(&self) -> Option<usize> {
        match self {
            Self::Process { row, .. } => Some(*row),
            Self::Group(_) => None,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Group {
    /// Group title, which also identifies a folded group: `user ana`, `400 torchrun`.
    pub title: String,
    pub folded: bool,
    /// Indices of the group's process rows.
    pub rows: Vec<usize>,
    sums: Box<Sums>,
}

/// The number of processes in a group, and sums over those that run.
#[derive(Debug, Clone, Default)]
struct Sums {
    /// Number of running processes, and of exited ones.
    processes: usize,
    exited: usize,
    vram: Option<Bytes>,
    /// True if the driver reports no memory size for at least one of the processes. The sum is then a lower bound.
    is_vram_partial: bool,
    allocated: Option<Bytes>,
    reserved: Option<Bytes>,
    cached: Option<Bytes>,
    retries: Option<u64>,
    ooms: Option<u64>,
    /// SM use of all GPUs together, in percent of one GPU.
    sm: Option<f64>,
    cpu: Option<f64>,
    rss: Option<Bytes>,
}

impl Sums {
    /// Sums up process rows. A process has one row per GPU: GPU memory is added for each row, but host values are added
    /// only once per process.
    fn of<'r>(rows: impl Iterator<Item = &'r ProcessRow>) -> Self {
        let mut sums = Self::default();
        let mut seen = HashSet::new();
        for row in rows {
            let is_new = seen.insert(row.id().key);
            if row.ended().is_some() {
                sums.exited += usize::from(is_new);
                continue;
            }
            sums.processes += usize::from(is_new);
            match row.vram().get() {
                Some(vram) => add(&mut sums.vram, vram),
                None => sums.is_vram_partial = true,
            }
            sums.add_pools(row);
            if let Some(sm) = row.sm().get() {
                sums.sm = Some(sums.sm.unwrap_or(0.0) + sm.0);
            }
            if is_new {
                if let Some(cpu) = row.live_fact(|f| &f.cpu).get() {
                    sums.cpu = Some(sums.cpu.unwrap_or(0.0) + cpu.0);
                }
                if let Some(rss) = row.live_fact(|f| &f.rss).get() {
                    let sum = sums.rss.unwrap_or_default();
                    sums.rss = Some(Bytes(sum.0.saturating_add(rss.0)));
                }
            }
        }
        sums
    }

    fn add_pools(&mut self, row: &ProcessRow) {
        let sizes = [
            (&mut self.allocated, row.allocated()),
            (&mut self.reserved, row.reserved()),
            (&mut self.cached, row.cached()),
        ];
        for (sum, size) in sizes {
            size.into_iter().for_each(|size| add(sum, size));
        }
        if let Some(pool) = row.pool() {
            let count = |sum: &mut Option<u64>, more| *sum = Some(sum.unwrap_or(0) + more);
            count(&mut self.retries, pool.stats.num_alloc_retries);
            count(&mut self.ooms, pool.stats.num_ooms);
        }
    }
}

/// Adds a size after rounding it for display, so that the displayed sum equals the sum of the displayed sizes.
fn add(sum: &mut Option<Bytes>, size: Bytes) {
    let tenth = Bytes::gib(1).0 / 10;
    let printed = if size < Bytes::mib(52) {
        size.0
    } else {
        (size.0.saturating_add(tenth / 2)) / tenth * tenth
    };
    *sum = Some(Bytes(sum.unwrap_or_default().0.saturating_add(printed)));
}

impl Group {
    fn new(
        title: String,
        members: Vec<usize>,
        rows: &[ProcessRow],
        folded: &BTreeSet<String>,
    ) -> Self {
        Self {
            folded: folded.contains(&title),
            sums: Box::new(Sums::of(members.iter().map(|&row| &rows[row]))),
            rows: members,
            title,
        }
    }

    /// Returns the cell with the sum for a column, or an empty cell.
    pub fn cell(&self, title: &str) -> Cell {
        let size = |size: Option<Bytes>| size.map(gib);
        let sums = &self.sums;
        let text = match title {
            "VRAM" => {
                size(sums.vram).map(|text| if sums.is_vram_partial { text + "+" } else { text })
            }
            "ALLOC" => size(sums.allocated),
            "RESV" => size(sums.reserved),
            "CACHED" => size(sums.cached),
            "RETRY" => sums.retries.map(|n| n.to_string()),
            "OOM" => sums.ooms.map(|n| n.to_string()),
            "SM%" => sums.sm.map(|sm| format!("{sm:.0}")),
            "CPU%" => sums.cpu.map(|cpu| format!("{cpu:.0}")),
            "RSS" => sums.rss.map(Bytes::short),
            "COMMAND" => Some(self.words()),
            _ => None,
        };
        Cell::new(text.unwrap_or_default(), Emphasis::Title)
    }

    /// Returns the label of a group line: `- user ana (3)`, `- user ana (1, 3 exited)`, or `- user ana (3), 24.6 GiB cached` if
    /// its allocators cache more than a GiB.
    pub fn words(&self) -> String {
        let mark = if self.folded { '+' } else { '-' };
        let cached = self.sums.cached.filter(|cached| *cached > Bytes::gib(1));
        let cached =
            cached.map_or_else(String::new, |cached| format!(", {} GiB cached", gib(cached)));
        let exited = match self.sums.exited {
            0 => String::new(),
            exited => format!(", {exited} exited"),
        };
        format!("{mark} {} ({}{exited}){cached}", self.title, self.sums.processes)
    }
}

/// Returns the lines of the process table. Rows keep their order within a group.
pub fn lines(rows: &[ProcessRow], grouping: Grouping, folded: &BTreeSet<String>) -> Vec<TableRow> {
    match grouping {
        Grouping::Flat => (0..rows.len()).map(|row| TableRow::Process { row, depth: 0 }).collect(),
        Grouping::Tree => Tree::new(rows, folded).lines(),
        _ => grouped(rows, grouping, folded),
    }
}

fn grouped(rows: &[ProcessRow], grouping: Grouping, folded: &BTreeSet<String>) -> Vec<TableRow> {
    let mut order: Vec<String> = Vec::new();
    let mut members: HashMap<String, Vec<usize>> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        let title = grouping.title(row).unwrap_or_default();
        let list = members.entry(title.clone()).or_default();
        if list.is_empty() {
            order.push(title);
        }
        list.push(i);
    }
    let mut lines = Vec::new();
    for title in order {
        let list = members.remove(&title).unwrap_or_default();
        let group = Group::new(title, list.clone(), rows, folded);
        let is_folded = group.folded;
        lines.push(TableRow::Group(group));
        if !is_folded {
            lines.extend(list.iter().map(|&row| TableRow::Process { row, depth: 1 }));
        }
    }
    lines
}

/// Process tree, with processes below their parents. A parent without a row, such as a launcher, becomes a group if
/// several of its children have rows.
struct Tree<'r> {
    rows: &'r [ProcessRow],
    folded: &'r BTreeSet<String>,
    /// Row indices of each process, in table order.
    row_indices: HashMap<ProcessKey, Vec<usize>>,
    /// Processes whose parent has no row, in table order.
    roots: Vec<ProcessKey>,
    children: BTreeMap<Pid, Vec<ProcessKey>>,
}

impl<'r> Tree<'r> {
    fn new(rows: &'r [ProcessRow], folded: &'r BTreeSet<String>) -> Self {
        let mut tree = Self {
            rows,
            folded,
            row_indices: HashMap::new(),
            roots: Vec::new(),
            children: BTreeMap::new(),
        };
        let mut order = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let key = row.id().key;
            let list = tree.row_indices.entry(key).or_default();
            if list.is_empty() {
                order.push(key);
            }
            list.push(i);
        }
        let living = order.iter().filter(|key| tree.row(**key).ended().is_none());
        let pids: HashSet<Pid> = living.map(|key| key.pid).collect();
        for key in order {
            match tree.parent(key) {
                Some(parent) if pids.contains(&parent.pid) && parent.pid != key.pid => {
                    tree.children.entry(parent.pid).or_default().push(key);
                }
                _ => tree.roots.push(key),
            }
        }
        tree
    }

    fn row(&self, key: ProcessKey) -> &'r ProcessRow {
        &self.rows[self.row_indices[&key][0]]
    }

    fn parent(&self, key: ProcessKey) -> Option<&'r Parent> {
        let row = self.row(key);
        row.facts()?.parent.as_ref().filter(|_| row.ended().is_none())
    }

    fn lines(mut self) -> Vec<TableRow> {
        let roots = std::mem::take(&mut self.roots);
        let mut by_launcher: HashMap<Pid, Vec<ProcessKey>> = HashMap::new();
        for key in &roots {
            if let Some(parent) = self.parent(*key) {
                by_launcher.entry(parent.pid).or_default().push(*key);
            }
        }
        let mut lines = Vec::new();
        for key in roots {
            let launcher = self.parent(key);
            let siblings = launcher.and_then(|parent| by_launcher.get_mut(&parent.pid));
            match siblings.map(std::mem::take) {
                // Skip this process, because it was already listed together with its first sibling.
                Some(siblings) if siblings.is_empty() => {}
                Some(siblings) if siblings.len() > 1 => {
                    self.push_launched(launcher, &siblings, &mut lines);
                }
                _ => self.push(key, 0, &mut lines),
            }
        }
        // List the remaining processes, which form cycles because of reused PIDs.
        while let Some((_, children)) = self.children.pop_first() {
            children.iter().for_each(|key| self.push(*key, 0, &mut lines));
        }
        lines
    }

    fn push_launched(
        &mut self,
        launcher: Option<&Parent>,
        children: &[ProcessKey],
        lines: &mut Vec<TableRow>,
    ) {
        let title =
            launcher.map_or_else(String::new, |parent| format!("{} {}", parent.pid, parent.name));
        let mut below = Vec::new();
        children.iter().for_each(|key| self.push(*key, 1, &mut below));
        let members = below.iter().filter_map(TableRow::row).collect();
        let group = Group::new(title.trim_end().to_owned(), members, self.rows, self.folded);
        let folded = group.folded;
        lines.push(TableRow::Group(group));
        if !folded {
            lines.extend(below);
        }
    }

    fn push(&mut self, key: ProcessKey, depth: usize, lines: &mut Vec<TableRow>) {
        let rows = self.row_indices[&key].iter();
        lines.extend(rows.map(|&row| TableRow::Process { row, depth }));
        // List deeper processes as roots. Real trees are shallower, and a forged tree must not overflow the stack.
        if depth >= MAX_DEPTH {
            return;
        }
        // Remove the process before visiting its children, so that a cycle is followed only once.
        for child in self.children.remove(&key.pid).unwrap_or_default() {
            self.push(child, depth + 1, lines);
        }
    }
}
