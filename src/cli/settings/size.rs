//! Parser for memory sizes.

use crate::model::text::quoted;
use crate::model::units::Bytes;

/// Parses `512M`, `1.5GiB` or `0`: a number of bytes, or a number with a binary unit.
pub fn size_argument(text: &str) -> Result<Bytes, String> {
    let wrong = || {
        format!(
            "`{}` is not a size; use 512M, 1.5GiB or a number of bytes",
            quoted(text)
        )
    };
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        "t" | "tib" | "tb" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * (1_u64 << shift) as f64;
    // 1 PiB is more than any GPU has; above 8 PiB a float cannot represent every number of bytes.
    if bytes <= (1_u64 << 50) as f64 {
        Ok(Bytes(bytes as u64))
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512M", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2 gb", 2 << 30),
        ] {
            assert_eq!(size_argument(text), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "M", "1x", "-1", "1.2.3", "1 GiB more", "1e3", "9999T"] {
            assert!(size_argument(wrong).is_err(), "{wrong}");
        }
    }
}
