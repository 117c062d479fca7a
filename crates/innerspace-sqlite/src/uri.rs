//! The parameters of a URI: `file:data.db?vfs=innerspace&limit=64MiB&group=tenant`.

use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::main_file::Manner;

/// Parameters of SQLite's own, which the library or its own VFS looks at.
const OF_SQLITE: &[&str] = &[
    "vfs",
    "mode",
    "cache",
    "psow",
    "nolock",
    "immutable",
    "modeof",
    "readonly_shm",
    "8_3_names",
];

/// Parameters of this VFS.
const OWN: &[&str] = &["limit", "block", "group", "group_limit", "branch"];

/// What the URI of a database asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) limit: Option<u64>,
    pub(crate) block: Option<u64>,
    pub(crate) group: Option<String>,
    pub(crate) group_limit: Option<u64>,
    pub(crate) manner: Manner,
}

impl Wishes {
    pub(crate) fn parse(parameters: &[(String, String)]) -> Outcome<Wishes> {
        let mut wishes = Wishes::default();
        // A database that comes here because this VFS is the default may have parameters of others.
        let is_meant = |(key, _): &(String, String)| key == "vfs" || OWN.contains(&key.as_str());
        let is_meant = parameters.iter().any(is_meant);
        for (key, value) in parameters {
            match key.as_str() {
                "limit" => wishes.limit = Some(size(key, value)?),
                "block" => wishes.block = Some(size(key, value)?),
                "group" if value.is_empty() => {
                    return Err(refused("group= has no name; give one, or leave it out"));
                }
                "group" => wishes.group = Some(value.clone()),
                // Part of the file's full name.
                "branch" if !value.is_empty() => {}
                "branch" => return Err(refused("branch= has no name; give one, or leave it out")),
                "group_limit" => wishes.group_limit = Some(size(key, value)?),
                "immutable" => wishes.manner.immutable = truth(value, false),
                "readonly_shm" => wishes.manner.read_only_index = truth(value, false),
                "psow" => wishes.manner.sectors_tear = !truth(value, true),
                known if OF_SQLITE.contains(&known) || !is_meant => {}
                unknown => {
                    return Err(refused(&format!(
                        "unknown option {unknown:?}; there are limit, block, group, group_limit, branch, \
                         and SQLite's own"
                    )));
                }
            }
        }
        if wishes.group_limit.is_some() && wishes.group.is_none() {
            return Err(refused("group_limit= is for a group; name it by group="));
        }
        Ok(wishes)
    }
}

fn refused(reason: &str) -> Failure {
    Failure::new(raw::CANTOPEN, reason)
}

/// Parses a size: a number of bytes, or one followed by KiB, MiB or GiB.
fn size(key: &str, value: &str) -> Outcome<u64> {
    let digits = value.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let scale = match value[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number
        .zip(scale)
        .and_then(|(number, scale)| number.checked_mul(1 << scale));
    bytes.ok_or_else(|| {
        refused(&format!(
            "{key}={value} is no size; write a number of bytes, or one with KiB, MiB or GiB"
        ))
    })
}

/// A truth value, as SQLite reads them.
fn truth(value: &str, default: bool) -> bool {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" | "on" => true,
        "no" | "false" | "off" => false,
        number => number.parse::<i64>().map_or(default, |number| number != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Outcome<Wishes> {
        let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        Wishes::parse(&pairs.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65_536),
            ("2m", 2 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(
                parse(&[("limit", text)]).unwrap().limit,
                Some(bytes),
                "{text}"
            );
        }
        for text in ["", "MiB", "1TB", "-1", "1.5MiB", "99999999999GiB"] {
            let failure = parse(&[("limit", text)]).unwrap_err();
            assert_eq!(failure.code, raw::CANTOPEN);
            assert!(failure.reason.contains("is no size"), "{}", failure.reason);
        }
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(parse(&[("limits", "1MiB")]).is_ok(), "the VFS is not named");
        let failure = parse(&[("vfs", "innerspace"), ("limits", "1MiB")]).unwrap_err();
        assert!(failure.reason.contains("unknown option \"limits\""));
        assert!(parse(&[("group_limit", "1MiB")]).is_err());
        assert!(parse(&[("vfs", "innerspace"), ("mode", "ro"), ("psow", "0")]).is_ok());
    }
}
