//! Finds the line that a code object executes, and from Python 3.11 on the columns of the expression.

use std::rc::Rc;

use crate::cpython::interpreter::PythonLayout;
use crate::cpython::objects::Python;

const MAX_TABLE_BYTES: usize = 1 << 20;

/// Where a frame is in its source file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourcePosition {
    pub line: u32,
    /// First byte of the expression in the line, and the byte after it. `None` before Python 3.11, and for an expression of
    /// several lines.
    pub columns: Option<(u32, u32)>,
}

/// The table of lines of a code object.
#[derive(Debug, Clone)]
pub(super) struct LineTable {
    minor: u32,
    /// Line of the start of the function.
    first: u32,
    bytes: Rc<[u8]>,
}

impl LineTable {
    pub(super) fn read(python: &Python<'_>, code: u64) -> Option<Self> {
        let (reader, layout) = (python.reader, &python.layout);
        let first = reader.int(code.checked_add(layout.code_line)?)?;
        let table = reader.pointer(code.checked_add(layout.code_line_table)?)?;
        let bytes = python.read_bytes(table, MAX_TABLE_BYTES)?.into();
        Some(Self { minor: layout.minor, first, bytes })
    }

    /// Returns the position of an instruction.
    pub(super) fn position(&self, offset: i64) -> Option<SourcePosition> {
        let at_line =
            |line| Some(SourcePosition { line: u32::try_from(line).ok()?, columns: None });
        let first = i64::from(self.first);
        // The function has not begun.
        if offset < 0 {
            return at_line(first);
        }
        match self.minor {
            11.. => {
                let (line, columns) = find_location(&self.bytes, first, offset)?;
                Some(SourcePosition { line: u32::try_from(line).ok()?, columns })
            }
            10 => at_line(line_in_ranges(&self.bytes, first, offset)?),
            _ => at_line(line_in_increments(&self.bytes, first, offset)),
        }
    }
}

/// Returns the offset of a frame's instruction in its code. `word` and `int` read what the frame holds: a pointer, or
/// before Python 3.11 an index.
pub(super) fn instruction_offset(
    layout: &PythonLayout,
    code: u64,
    word: impl FnOnce() -> Option<u64>,
    int: impl FnOnce() -> Option<u32>,
) -> Option<i64> {
    Some(match layout.code_start {
        Some(start) => word()?.wrapping_sub(code.checked_add(start)?).cast_signed(),
        // Python 3.10 counts in code units of two bytes.
        None if layout.minor == 10 => i64::from(int()?.cast_signed()) * 2,
        None => i64::from(int()?.cast_signed()),
    })
}

/// Finds the line in `co_lnotab` of Python 3.9 and earlier: pairs of the increments of offset and line. The last line
/// extends to the end of the code.
fn line_in_increments(table: &[u8], first: i64, offset: i64) -> i64 {
    let (mut line, mut end) = (first, 0);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += i64::from(*bytes);
        if end > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// Finds the line in `co_linetable` of Python 3.10 (PEP 626): pairs of the length of a range and the increment of the
/// line. -128 means that the range has no line. Returns `None` for an offset beyond the table.
fn line_in_ranges(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut line, mut end) = (first, 0);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        end += i64::from(*bytes);
        let lines = lines.cast_signed();
        line += i64::from(if lines == i8::MIN { 0 } else { lines });
        if end > offset {
            return Some(line);
        }
    }
    None
}

/// Finds the line in `co_linetable` of Python 3.11 and later (PEP 657, `Objects/locations.md` in CPython), and the columns
/// of the expression if it is on one line. Returns `None` for an offset beyond the table. An entry begins with one byte:
/// the low three bits are the number of code units minus one, and the next four are the kind, which determines the fields
/// that follow.
fn find_location(table: &[u8], first: i64, offset: i64) -> Option<(i64, Option<(u32, u32)>)> {
    let mut bytes = table.iter().copied();
    let (mut line, mut end) = (first, 0);
    while let Some(head) = bytes.next() {
        end += i64::from((head & 7) + 1) * 2;
        let mut columns = None;
        match head >> 3 & 15 {
            // No line.
            15 => {}
            14 => {
                line += signed_number(&mut bytes);
                let lines = number(&mut bytes);
                // 0 means that there is no column.
                let [start, end] = [(); 2].map(|()| number(&mut bytes) - 1);
                let numbers = u32::try_from(start).ok().zip(u32::try_from(end).ok());
                columns = numbers.filter(|_| lines == 0);
            }
            13 => line += signed_number(&mut bytes),
            kind @ 10..=12 => {
                line += i64::from(kind - 10);
                columns = bytes.next().map(u32::from).zip(bytes.next().map(u32::from));
            }
            kind => {
                let low = bytes.next().unwrap_or_default();
                let start = u32::from(kind) << 3 | u32::from(low >> 4 & 7);
                columns = Some((start, start + u32::from(low & 15)));
            }
        }
        if end > offset {
            return Some((line, columns));
        }
    }
    None
}

/// Reads a number in groups of six bits, lowest first. Another group follows if bit 6 is set. CPython's numbers have 32
/// bits; the maximum of six groups also keeps the sum of a damaged table within 64 bits.
fn number(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let mut value = 0;
    for group in 0..6 {
        let byte = bytes.next().unwrap_or_default();
        value |= i64::from(byte & 63) << (group * 6);
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

/// Reads a number whose lowest bit is the sign.
fn signed_number(bytes: &mut impl Iterator<Item = u8>) -> i64 {
    let value = number(bytes);
    if value & 1 == 1 { -(value >> 1) } else { value >> 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_in_locations(table: &[u8], first: i64, offset: i64) -> Option<i64> {
        find_location(table, first, offset).map(|(line, _)| line)
    }

    /// Tables and lines of CPython 3.8, 3.10 and 3.11 for a function that begins at line 5 and has a loop.
    #[test]
    fn finds_lines_in_the_tables_of_all_releases() {
        let increments = [0, 1, 8, 1, 14, 0xff];
        let lines = [-1, 0, 7, 8, 21, 22, 90].map(|at| line_in_increments(&increments, 5, at));
        assert_eq!(lines, [5, 6, 6, 7, 7, 6, 6]);
        let ranges = [8, 1, 4, 0x80, 10, 1, 6, 0xff];
        let lines = [0, 7, 8, 12, 21, 22, 28].map(|at| line_in_ranges(&ranges, 5, at));
        assert_eq!(lines, [Some(6), Some(6), Some(6), Some(7), Some(7), Some(6), None]);
        // One unit at line +0, two at +1, one without a line, two at -2 and one at +70.
        let locations = [
            0x80,
            0,
            0x80 | 11 << 3 | 1,
            4,
            9,
            0x80 | 15 << 3,
            0x80 | 13 << 3 | 1,
            5,
            0x80 | 14 << 3,
            0x40 | 12,
            2,
            0,
            1,
            9,
        ];
        let lines = [0, 2, 5, 6, 8, 11, 12, 14].map(|at| line_in_locations(&locations, 5, at));
        assert_eq!(lines[..4], [Some(5), Some(6), Some(6), Some(6)]);
        assert_eq!(lines[4..], [Some(4), Some(4), Some(74), None]);
    }

    #[test]
    fn damaged_tables_give_any_line_without_overflow() {
        assert_eq!(line_in_locations(&[0x80 | 14 << 3], 5, 0), Some(5));
        let mut largest = vec![0x80 | 13 << 3, 0x7e];
        largest.extend([0x7f; 6]);
        let table = largest.repeat(MAX_TABLE_BYTES / largest.len());
        assert_eq!(line_in_locations(&table, i64::from(u32::MAX), i64::MAX), None);
    }

    /// Columns as Python 3.11 compiles `    seen.append((1.0, loss.item(0.3)))`.
    #[test]
    fn finds_columns_of_expressions() {
        // A short form with columns 22 to 36, the form for the next line, and the long form with columns 4 to 200.
        let short = [0x80 | 2 << 3, 6 << 4 | 14];
        let next_line = [0x80 | 11 << 3, 4, 90];
        let long = [0x80 | 14 << 3, 2, 0, 5, 0x40 | 9, 3];
        let table: Vec<u8> = [&short[..], &next_line, &long].concat();
        let columns = [0, 2, 4].map(|at| find_location(&table, 5, at));
        let expected = [(5, (22, 36)), (6, (4, 90)), (7, (4, 200))];
        assert_eq!(columns, expected.map(|(line, columns)| Some((line, Some(columns)))));
    }
}
