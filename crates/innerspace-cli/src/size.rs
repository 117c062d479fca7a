//! Sizes as people write them: `16MiB`, `64 KiB`, `4096`.

use innerspace::{GIB, KIB, MIB};

/// Returns the number of bytes in `text`: a whole number and a unit, which is B if it is left out.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => KIB,
        "mib" => MIB,
        "gib" => GIB,
        _ => return Err("a size is a number and B, KiB, MiB or GiB, as in 16MiB".to_owned()),
    };
    if number.is_empty() {
        return Err("a size begins with a whole number, as in 16MiB".to_owned());
    }
    let bytes: Option<u64> = number.parse().ok();
    bytes
        .and_then(|number| number.checked_mul(unit))
        .filter(|&bytes| bytes <= i64::MAX as u64)
        .ok_or_else(|| "too large a size".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7b", 7),
            ("64KiB", 64 * KIB),
            ("16 MiB", 16 * MIB),
            ("1gib", GIB),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "MiB",
            "-1",
            "1.5GiB",
            "16MB",
            "16 M iB",
            "8 EiB",
            "9223372036854775808",
            "99999999999999999999",
            "8589934592GiB",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
