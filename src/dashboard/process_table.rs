//! The table of processes: all rows, and those that remain after the user's filter, sort order and grouping.

use std::collections::BTreeSet;

use super::filter::{Filter, FilterError};
use super::groups::{self, Grouping, TableRow};
use super::process_columns::{PROCESS_COLUMNS, still_empty};
use super::rows::{ProcessRow, RowId};
use super::table::{ColumnChoice, Hidden};
use super::tags::Tags;

#[derive(Default)]
pub struct ProcessTable {
    /// All processes on all GPUs, in the default order.
    pub all_rows: Vec<ProcessRow>,
    /// The rows of the process table, filtered and sorted.
    pub rows: Vec<ProcessRow>,
    /// Lines of the process table: grouped, as a tree, or flat.
    pub lines: Vec<TableRow>,
    pub grouping: Grouping,
    /// Titles of the folded groups.
    folded: BTreeSet<String>,
    /// Process table columns hidden by the user.
    pub hidden_columns: Hidden,
    /// Columns in which no process has had a value. `None` before the first rows.
    empty_columns: Option<Hidden>,
    /// Number of rows hidden by the filter.
    pub hidden: usize,
    pub filter: Filter,
    pub tags: Tags,
    /// Index of the process table's sort column, or `None` for the default order.
    pub sort: Option<usize>,
    pub inverted: bool,
    /// User ID of gputop on the host, which `user:me` stands for.
    uid: Option<u32>,
}

impl ProcessTable {
    /// Replaces all rows. `uid` is the user ID of gputop on the host.
    pub fn set_rows(&mut self, rows: Vec<ProcessRow>, uid: Option<u32>) {
        (self.all_rows, self.uid) = (rows, uid);
        self.empty_columns = Some(still_empty(self.empty_columns, &self.all_rows));
        self.tags.follow(&self.all_rows);
        self.all_rows.sort_by_cached_key(ProcessRow::default_order);
        self.arrange();
    }

    /// Drops all rows while the table is not shown, but keeps its settings.
    pub fn clear_rows(&mut self) {
        (self.all_rows, self.rows, self.lines) = Default::default();
    }

    /// Filters, sorts and groups the rows.
    fn arrange(&mut self) {
        let mut rows = self.all_rows.clone();
        if !self.filter.is_empty() {
            rows.retain(|row| self.filter.matches(row, self.uid));
        }
        self.hidden = self.all_rows.len() - rows.len();
        rows = self.sorted(rows);
        self.lines = groups::lines(&rows, self.grouping, &self.folded);
        self.rows = rows;
    }

    /// Applies the filter that the user is typing. While its text is invalid, the previous filter stays active.
    pub fn set_filter(&mut self, text: &str) -> Result<(), FilterError> {
        let parsed = Filter::parse(text);
        let error = parsed.as_ref().err().cloned();
        self.filter = match parsed {
            Ok(filter) => filter,
            Err(error) => std::mem::take(&mut self.filter).without(&error),
        };
        self.arrange();
        error.map_or(Ok(()), Err)
    }

    /// Applies a parsed filter. An empty filter shows all processes.
    pub fn use_filter(&mut self, filter: Filter) {
        self.filter = filter;
        self.arrange();
    }

    pub fn set_sort(&mut self, sort: Option<usize>, inverted: bool) {
        (self.sort, self.inverted) = (sort, inverted);
        self.arrange();
    }

    pub fn set_grouping(&mut self, grouping: Grouping) {
        self.grouping = grouping;
        self.arrange();
    }

    pub fn fold(&mut self, title: &str) {
        if !self.folded.remove(title) {
            self.folded.insert(title.to_owned());
        }
        self.arrange();
    }

    /// Returns the process row of a table line, or `None` for a group.
    pub fn row_of_line(&self, line: usize) -> Option<&ProcessRow> {
        self.rows.get(self.lines.get(line)?.row()?)
    }

    /// Returns true if the values of the sort column decrease from top to bottom.
    pub fn descends(&self) -> bool {
        let sort = self.sort.and_then(|column| PROCESS_COLUMNS.get(column)?.sort.as_ref());
        sort.is_some_and(|sort| sort.first.descends(self.inverted))
    }

    /// Returns the columns to show, which depend neither on the rows nor on tags, groups and the filter.
    pub fn columns(&self) -> ColumnChoice {
        let hidden = self.hidden_columns.or(self.empty_columns());
        ColumnChoice { sorted: self.sort, hidden, ..ColumnChoice::default() }
    }

    /// Returns the optional columns in which no process has had a value.
    pub fn empty_columns(&self) -> Hidden {
        self.empty_columns.unwrap_or_default()
    }

    fn sorted(&self, rows: Vec<ProcessRow>) -> Vec<ProcessRow> {
        let Some(sort) = self.sort.and_then(|i| PROCESS_COLUMNS.get(i)?.sort.as_ref()) else {
            return rows;
        };
        let mut keyed: Vec<_> = rows.into_iter().map(|row| ((sort.key)(&row), row)).collect();
        // Keep exited processes at the bottom in every sort order, because their values are not current.
        keyed.sort_by(|(a, x), (b, y)| {
            let ended = x.ended().is_some().cmp(&y.ended().is_some());
            ended.then_with(|| a.compare(b, sort.first, self.inverted))
        });
        keyed.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns the listed process nearest to a process that the filter hides. Returns `None` if that process is not in the
    /// frame.
    pub fn nearest_listed(&self, hidden: &RowId) -> Option<RowId> {
        if !self.all_rows.iter().any(|row| row.id() == *hidden) {
            return None;
        }
        let all = self.sorted(self.all_rows.clone());
        let at = all.iter().position(|row| row.id() == *hidden)?;
        let listed = all.iter().enumerate().filter(|(_, row)| self.filter.matches(row, self.uid));
        listed.min_by_key(|(other, _)| other.abs_diff(at)).map(|(_, row)| row.id())
    }
}
