//! Sizes as the config writes them: `512B`, `64KiB`, `256MiB`, `2GiB`.

use std::ops::RangeInclusive;

use super::mistake::quoted;
use super::reader::Item;

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a size in bytes within a range; reports anything else.
pub fn read(item: &Item<'_>, range: RangeInclusive<u64>) -> Option<u64> {
    let text = item.string()?;
    let Some(size) = parse(text) else {
        item.mistake(format!("{} is no size", quoted(text)), "write \"64KiB\", \"256MiB\" or \"2GiB\"");
        return None;
    };
    if !range.contains(&size) {
        item.mistake(
            format!("a size from {} to {} is expected", show(*range.start()), show(*range.end())),
            "",
        );
        return None;
    }
    Some(size)
}

pub(super) fn parse(text: &str) -> Option<u64> {
    let (unit, size) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = text.strip_suffix(unit)?;
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| plain)?.checked_mul(*size)
}

/// A size in the greatest unit that fits.
#[must_use]
pub fn show(bytes: u64) -> String {
    let (unit, size) =
        UNITS.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size)).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in
            [("512B", 512), ("64KiB", 65_536), ("256MiB", 268_435_456), ("2GiB", 2_147_483_648)]
        {
            assert_eq!(parse(text), Some(bytes), "{text}");
            assert_eq!(show(bytes), text);
        }
        for text in ["", "B", "1", "1KB", "1 MiB", "+1MiB", "1.5GiB", "99999999999GiB"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
