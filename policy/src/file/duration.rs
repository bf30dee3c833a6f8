//! Durations as the config writes them: `500ms`, `10s`, `5m`, `1h`, `1h30m`.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::mistake::quoted;
use super::reader::Item;

/// The units, the greatest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a duration within a range; reports anything else.
pub fn read(item: &Item<'_>, range: RangeInclusive<Duration>) -> Option<Duration> {
    let text = item.string()?;
    let Some(duration) = parse(text) else {
        item.mistake(format!("{} is no duration", quoted(text)), "write \"10s\", \"5m\" or \"1h\"");
        return None;
    };
    if !range.contains(&duration) {
        let what = format!("a duration from {} to {} is expected", show(*range.start()), show(*range.end()));
        item.mistake(what, "");
        return None;
    }
    Some(duration)
}

/// Whole numbers with their units, the greater units first, each at most once.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let (mut rest, mut total, mut last) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at_checked(letters)?;
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        if *millis >= last {
            return None;
        }
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        (rest, last) = (after, *millis);
    }
    (last != u64::MAX).then(|| Duration::from_millis(total))
}

/// A duration in the greatest unit that fits.
#[must_use]
pub fn show(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, size) =
        UNITS.iter().find(|(_, size)| millis >= *size && millis.is_multiple_of(*size)).unwrap_or(&("ms", 1));
    format!("{}{unit}", millis / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_units() {
        for (text, millis) in
            [("500ms", 500), ("10s", 10_000), ("1h", 3_600_000), ("1h30m", 5_400_000), ("1d", 86_400_000)]
        {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "10", "s", "10 s", "-1s", "1.5s", "1s1h", "1s1s", "10S", "99999999999999999999s", "1h ", "ß"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_are_shown_in_the_greatest_unit_that_fits() {
        for text in ["500ms", "10s", "1h", "90m", "1d"] {
            assert_eq!(parse(text).map(show).as_deref(), Some(text));
        }
    }
}
