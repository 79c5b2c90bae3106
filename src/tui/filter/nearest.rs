//! The known name that someone probably meant.

/// The nearest of `known`, if one is near enough: one slip in a short word, two in a longer one, or its beginning.
pub fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let near = |name: &&str| {
        let most = if word.chars().count() > 4 { 2 } else { 1 };
        name.starts_with(word) || word.starts_with(*name) || slips(word, name) <= most
    };
    known.filter(near).min_by_key(|name| slips(word, name))
}

/// How many letters must be added, left out, replaced, or swapped with the next.
fn slips(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(from != to);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && *from == b[j - 1] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_another_word_is_not() {
        let known = ["user", "vram", "unreadable", "sm"];
        let of = |word| nearest(word, known.into_iter());
        assert_eq!(of("usr"), Some("user"));
        assert_eq!(of("vrma"), Some("vram"));
        assert_eq!(of("unredable"), Some("unreadable"));
        assert_eq!(of("vr"), Some("vram"));
        assert_eq!(of("colour"), None);
    }
}
