//! Sizes of memory as people write them.

use crate::model::text::quoted;
use crate::model::units::Bytes;

/// `512M`, `1.5GiB`, `0`: a number of bytes, or with a binary unit.
pub fn size_argument(text: &str) -> Result<Bytes, String> {
    let wrong = || {
        format!(
            "`{}` is no size; write 512M, 1.5GiB or a number of bytes",
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
    // More than any card will have for a long time; above it a float is no exact number of bytes.
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
    fn sizes_are_read_as_people_write_them() {
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
