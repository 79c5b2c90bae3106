use super::*;

const fn column(title: &'static str, width: u16, align: Align, priority: u8) -> Column<()> {
    Column { title, width, align, priority, cell: |(), _| Cell::text(""), sort: None, help: "" }
}

#[test]
fn omits_columns_by_priority_and_fills_the_rest() {
    let columns = [
        column("A", 3, Align::Right, 0),
        column("B", 5, Align::Right, 2),
        column("C", 4, Align::Rest, 1),
    ];
    let wide: Vec<_> = place(&columns, &ColumnChoice::default(), 0, 20)
        .iter()
        .map(|p| (p.column, p.x, p.width))
        .collect();
    assert_eq!(wide, [(0, 0, 3), (1, 4, 5), (2, 10, 10)]);
    let narrow: Vec<_> = place(&columns, &ColumnChoice::default(), 0, 10)
        .iter()
        .map(|p| (p.column, p.x, p.width))
        .collect();
    assert_eq!(narrow, [(0, 0, 3), (2, 4, 6)]);
    assert_eq!(place(&columns, &ColumnChoice::default(), 0, 2), []);
}

#[test]
fn the_sort_column_is_shown_although_hidden_or_less_important() {
    let columns = [
        column("A", 3, Align::Right, 0),
        column("B", 5, Align::Right, 9),
        column("C", 4, Align::Rest, 1),
        column("D", 4, Align::Right, 2),
    ];
    let mut hidden = Hidden::default();
    let shown = |hidden, sorted, width| -> Vec<usize> {
        let choice = ColumnChoice { hidden, sorted, ..ColumnChoice::default() };
        let placed = place(&columns, &choice, 1, width);
        placed.iter().map(|place| place.column).collect()
    };
    assert_eq!(shown(hidden, None, 15), [0, 2, 3]);
    assert_eq!(shown(hidden, Some(1), 15), [0, 1, 2]);
    // The flexible column needs 6 columns before an optional column is shown, and the cursor needs 1.
    let width_of =
        |hidden| min_width(&columns, &ColumnChoice { hidden, ..ColumnChoice::default() }, 1);
    assert_eq!(width_of(hidden), 1 + 3 + 1 + 6 + 1 + 4 + 1 + 5);
    hidden.hide(1);
    assert_eq!(shown(hidden, None, 80), [0, 2, 3]);
    assert_eq!(shown(hidden, Some(1), 80), [0, 1, 2, 3]);
    assert_eq!(width_of(hidden), 22);
}

#[test]
fn sorts_missing_values_last_in_both_directions() {
    let order = |inverted| {
        let mut keys =
            vec![SortKey::Missing, SortKey::Number(1.0), SortKey::Number(3.0), SortKey::Missing];
        keys.sort_by(|a, b| a.compare(b, First::Largest, inverted));
        keys
    };
    use SortKey::{Missing, Number};
    assert_eq!(order(false), [Number(3.0), Number(1.0), Missing, Missing]);
    assert_eq!(order(true), [Number(1.0), Number(3.0), Missing, Missing]);
}
