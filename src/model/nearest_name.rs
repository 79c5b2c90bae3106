//! What somebody meant by a word that is no name: for every place where a name is typed.

/// The name nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(100).collect();
    // People rarely slip on the first letter: with another one it is another word.
    let most = |name: &str| {
        if name.chars().next() == word.chars().next() {
            name.len() / 3 + 1
        } else {
            1
        }
    };
    names
        .into_iter()
        .map(|name| (distance(&word, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= most(name))
        .min()
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

/// How many letters must be added, taken away, changed or swapped with their neighbour to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        (before, above) = (above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_another_word_finds_none() {
        let names = ["interval", "theme", "ascii", "foo"];
        for (word, meant) in [
            ("intervall", Some("interval")),
            ("Theme", Some("theme")),
            ("acsii", Some("ascii")),
            ("refresh_rate", None),
            ("mono", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
        assert_eq!(instead_of("them", names), "did you mean `theme`?");
        assert_eq!(
            instead_of("colour", names),
            "there are interval, theme, ascii, foo"
        );
    }
}
