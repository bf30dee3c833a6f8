//! Points in time as policy sees them: given by the caller, since this crate has no clock.

use std::fmt;

/// Nanoseconds since 1970-01-01T00:00:00Z, good until the year 2554.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// A point in time from nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A point in time from whole seconds since the Unix epoch; later than the year 2554 becomes that.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// This point and some nanoseconds more.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this point; zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// RFC 3339 in UTC with milliseconds: `2026-11-29T16:05:31.042Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.millis();
        let (days, of_day) = (millis / 86_400_000, millis % 86_400_000);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
        let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The proleptic Gregorian date of a day counted from 1970-01-01.
///
/// Years are counted from March, so that the leap day is a year's last; an era is 400 years, 146,097 days.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates_are_written_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_801_353_600, "2027-01-31T00:00:00.000Z"),
            (4_102_444_800, "2100-01-01T00:00:00.000Z"),
        ];
        for (secs, text) in cases {
            assert_eq!(Timestamp::from_secs(secs).to_string(), text);
        }
    }

    /// The calendar as a person counts it: leap years, month lengths, one day after the other.
    #[test]
    fn every_day_to_the_last_year_has_its_date() {
        let is_leap =
            |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        let mut days = 0;
        for year in 1970..2554 {
            let february = if is_leap(year) { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                for day in 1..=length {
                    assert_eq!(civil_from_days(days), (year, month, day), "{days}");
                    days += 1;
                }
            }
        }
    }

    #[test]
    fn parts_of_a_day_are_written_in_full() {
        for (millis, text) in [
            (1, "1970-01-01T00:00:00.001Z"),
            (59_999, "1970-01-01T00:00:59.999Z"),
            (3_599_000, "1970-01-01T00:59:59.000Z"),
            (3_600_000, "1970-01-01T01:00:00.000Z"),
            (45_296_789, "1970-01-01T12:34:56.789Z"),
            (86_399_999, "1970-01-01T23:59:59.999Z"),
            (86_400_000, "1970-01-02T00:00:00.000Z"),
        ] {
            let at = Timestamp::from_nanos(millis * 1_000_000 + 999_999);
            assert_eq!((at.to_string().as_str(), format!("{at:?}").as_str()), (text, text));
            assert_eq!((at.millis(), at.nanos()), (millis, millis * 1_000_000 + 999_999));
        }
    }

    #[test]
    fn spans_neither_wrap_nor_turn_negative() {
        let (one, two, last) =
            (Timestamp::from_secs(1), Timestamp::from_secs(2), Timestamp::from_secs(u64::MAX));
        assert_eq!((one.since(two), two.since(one)), (0, 1_000_000_000), "a clock that stepped back");
        assert_eq!(one.plus_nanos(1_000_000_000), two);
        assert_eq!((last.plus_nanos(1), last.nanos()), (last, u64::MAX));
    }
}
