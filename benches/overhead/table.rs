//! Measured values with their targets.

use std::fmt;

#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
}

struct Row {
    what: String,
    unit: &'static str,
    gputop: f64,
    /// The value of the bare loop, where the loop does the same work.
    bare: Option<f64>,
    /// The maximum value that meets the target.
    target: Option<f64>,
}

impl Row {
    fn missed(&self) -> bool {
        self.target.is_some_and(|target| self.gputop > target)
    }
}

impl Table {
    pub fn add(
        &mut self,
        what: impl Into<String>,
        unit: &'static str,
        gputop: f64,
        bare: Option<f64>,
        target: Option<f64>,
    ) {
        self.rows.push(Row { what: what.into(), unit, gputop, bare, target });
    }

    pub fn missed(&self) -> bool {
        self.rows.iter().any(Row::missed)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |value: Option<f64>| value.map_or("–".to_owned(), |x| format!("{x:.2}"));
        writeln!(f, "{:<52} {:>9} {:>9} {:>9}", "", "gputop", "loop", "at most")?;
        for row in &self.rows {
            let what = format!("{} [{}]", row.what, row.unit);
            let (gputop, bare) = (figure(Some(row.gputop)), figure(row.bare));
            let target = figure(row.target);
            let verdict = match (row.target, row.missed()) {
                (None, _) => "",
                (_, true) => "  MISSED",
                (_, false) => "  met",
            };
            writeln!(f, "{what:<52} {gputop:>9} {bare:>9} {target:>9}{verdict}")?;
        }
        Ok(())
    }
}
