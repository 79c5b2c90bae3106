//! Words: where they begin and end.

pub const MAX_TAGS: usize = 160;

/// Returns true for the name of an environment variable.
pub fn is_variable_name(value: &[u8]) -> bool {
    value.contains(&b'_')
        && value.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
}

pub fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) || !byte.is_ascii()
}

/// Returns the end of an unquoted value without the punctuation that follows it, and before another assignment:
/// `(token=8f2c, lr=1)`, `token=8f2c,lr=1`.
pub fn bare_end(text: &[u8], start: usize, end: usize) -> usize {
    let value = &text[start..end];
    let next = memchr::memchr_iter(b',', value).find(|comma| {
        let rest = &value[comma + 1..];
        let name = rest.iter().take_while(|b| is_name_byte(**b)).count();
        name > 0 && rest.get(name).is_some_and(|b| b"=:".contains(b))
    });
    let value = &value[..next.unwrap_or(value.len())];
    let trailing = value.iter().rev().take_while(|b| b".,:;)]}>\"'`\\".contains(b)).count();
    start + value.len() - trailing
}

pub fn skip(text: &[u8], from: usize, of: &[u8]) -> usize {
    from + text[from..].iter().take_while(|b| of.contains(b)).count()
}
