//! Suggests corrections for mistyped names, wherever a user types a name.

use strsim::osa_distance;

/// Returns the name most similar to `word`, if any is similar enough.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.to_lowercase().chars().take(100).collect();
    // People rarely mistype the first letter, so a different first letter usually means a different word.
    let max_distance = |name: &str| {
        if name.chars().next() == word.chars().next() { name.len() / 3 + 1 } else { 1 }
    };
    names
        .into_iter()
        .map(|name| (osa_distance(&word, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= max_distance(name))
        .min()
        .map(|(_, name)| name)
}

/// Returns a hint for an unknown name: ``did you mean `theme`?``, or `expected one of dark, light` if none is similar.
pub fn instead_of<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    nearest(word, names.iter().copied()).map_or_else(
        || format!("expected one of {}", names.join(", ")),
        |name| format!("did you mean `{name}`?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_a_name_only_for_a_likely_typo() {
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
        assert_eq!(instead_of("colour", names), "expected one of interval, theme, ascii, foo");
    }
}
