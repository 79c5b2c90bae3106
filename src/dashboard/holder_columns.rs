//! The columns of the table of memory holders.

use gputop_model::units::Bytes;
use jiff::tz::TimeZone;

use super::holders::HolderRow;
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::sizes::percent_words;
use crate::dashboard::table::{Cell, Column, First, Hidden, SortKey};

const DEVICE: &str = "DEV";
const GROWTH: &str = "MiB/min";
const CHANGE: &str = "CHANGE";

/// The columns of the table of holder groups.
pub const HOLDER_COLUMNS: &[Column<HolderRow>] = &[
    Column::right(
        "MiB",
        9,
        0,
        |row: &HolderRow, _| Cell::text(mib(row.bytes)),
        "Total size of the blocks.",
    )
    .sorted(First::Largest, |row| SortKey::Number(row.bytes.0 as f64)),
    Column::right(
        "SHARE",
        5,
        2,
        |row: &HolderRow, _| Cell::text(percent_words(row.percent)),
        "Share of the allocated bytes.",
    ),
    Column::right(GROWTH, 7, 4, growth, "Growth rate of a group that grew in every reading.")
        .sorted(First::Largest, |row| SortKey::whole(rate(row).map(|rate| rate.0))),
    Column::right(CHANGE, 8, 6, change, "Change in MiB since the previous reading.")
        .sorted(First::Largest, |row| {
            SortKey::number(row.growth.map(|growth| growth.bytes as f64))
        }),
    Column::right(
        "COUNT",
        6,
        5,
        |row: &HolderRow, _| match row.count {
            0 => Cell::text("–"),
            count => Cell::text(count.to_string()),
        },
        "Number of blocks.",
    )
    .sorted(First::Largest, |row| SortKey::whole(Some(row.count))),
    Column::left("CLASS", 10, 3, class, "What the memory is used for.")
        .sorted(First::Smallest, |row| SortKey::Number(f64::from(row.key.class as u8))),
    Column::left(
        "DTYPE",
        8,
        10,
        |row: &HolderRow, _| Cell::text(row.dtype.clone()),
        "Type of the tensors.",
    ),
    Column::left(
        "SHAPE",
        13,
        8,
        |row: &HolderRow, _| Cell::text(row.shape.clone()),
        "Shape of the tensors.",
    ),
    Column::right(
        DEVICE,
        3,
        7,
        |row: &HolderRow, _| Cell::text(row.key.ordinal.to_string()),
        "Device index as seen by the process.",
    ),
    Column::rest("NAME", 36, 1, name, "Chain of Python names that leads to the tensors.")
        .shortened_in_middle()
        .sorted(First::Smallest, |row| SortKey::text(Some(&row.key.name))),
];

/// Formats a size in MiB with one decimal. A size that would be printed as 0.0 is given in a smaller unit.
fn mib(size: Bytes) -> String {
    match size.0 as f64 / Bytes::mib(1).0 as f64 {
        mib if mib < 0.05 && size.0 > 0 => size.short(),
        mib => format!("{mib:.1}"),
    }
}

fn rate(row: &HolderRow) -> Option<Bytes> {
    Some(row.growth?.rate?.bytes_per_minute)
}

fn growth(row: &HolderRow, _: &TimeZone) -> Cell {
    let rate = rate(row).and_then(|rate| i64::try_from(rate.0).ok());
    Cell::new(rate.map_or_else(String::new, signed_mib), Emphasis::Warn)
}

fn change(row: &HolderRow, _: &TimeZone) -> Cell {
    Cell::text(row.growth.map_or_else(String::new, |growth| signed_mib(growth.bytes)))
}

/// Formats a change in MiB: `+120.0`, or `+17057` if it is large. Returns an empty string for 0.
fn signed_mib(bytes: i64) -> String {
    let size = Bytes(bytes.unsigned_abs());
    let text = if size >= Bytes::mib(1_000) {
        format!("{:.0}", size.0 as f64 / Bytes::mib(1).0 as f64)
    } else {
        mib(size)
    };
    match bytes.signum() {
        0 => String::new(),
        1 => format!("+{text}"),
        _ => format!("-{text}"),
    }
}

fn class(row: &HolderRow, _: &TimeZone) -> Cell {
    Cell::text(row.key.class.short_name())
}

fn name(row: &HolderRow, _: &TimeZone) -> Cell {
    match row.key.name.as_str() {
        "" => Cell::new(row.key.class.name(), Emphasis::Dim),
        name if rate(row).is_some() => Cell::new(name, Emphasis::Warn),
        name => Cell::text(optimizer_state(name).unwrap_or_else(|| name.to_owned())),
    }
}

/// Shortens `optimizer.state[model.layers.*.weight]['exp_avg']` to `exp_avg of model.layers.*.weight`.
fn optimizer_state(name: &str) -> Option<String> {
    let (_, state) = name.split_once(".state[")?;
    let (parameter, name) = state.strip_suffix("']")?.rsplit_once("]['")?;
    Some(format!("{name} of {parameter}"))
}

/// Hides the device column if there is only one device, and the growth columns if the growth is unknown.
pub fn hidden<'r>(rows: impl Iterator<Item = &'r HolderRow> + Clone) -> Hidden {
    let first = rows.clone().next().map(|row| row.key.ordinal);
    let unneeded = [
        (DEVICE, rows.clone().all(|row| Some(row.key.ordinal) == first)),
        (GROWTH, rows.clone().all(|row| rate(row).is_none())),
        (CHANGE, rows.clone().all(|row| row.growth.is_none())),
    ];
    let mut hidden = Hidden::default();
    for (title, _) in unneeded.iter().filter(|(_, is_unneeded)| *is_unneeded) {
        let at = HOLDER_COLUMNS.iter().position(|column| column.title == *title);
        at.into_iter().for_each(|at| hidden.hide(at));
    }
    hidden
}
