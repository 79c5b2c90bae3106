//! What somebody meant by a word that is no name: for every place where a name is typed.

/// The name nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    names
        .into_iter()
        .map(|name| (distance(&word, &name.to_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 3 + 1)
        .map(|(_, name)| name)
}

/// How an unknown name is answered: ``did you mean `theme`?`` or, where none is near, `there are dark, light`.
pub fn instead_of<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    nearest(word, names.iter().copied()).map_or_else(
        || format!("there are {}", names.join(", ")),
        |name| format!("did you mean `{name}`?"),
    )
}

/// How many letters must be added, taken away or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_another_word_finds_none() {
        let names = ["interval", "theme", "ascii"];
        for (word, meant) in [
            ("intervall", Some("interval")),
            ("Theme", Some("theme")),
            ("acsii", Some("ascii")),
            ("refresh_rate", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
        assert_eq!(instead_of("them", names), "did you mean `theme`?");
        assert_eq!(
            instead_of("colour", names),
            "there are interval, theme, ascii"
        );
    }
}
