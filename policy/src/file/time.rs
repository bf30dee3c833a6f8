//! Points in time as TOML writes them.

use toml::value::{Datetime, Offset};

use super::reader::Item;
use crate::time::Timestamp;

/// Reads an offset date-time; a local one means another moment on every machine.
pub(super) fn timestamp(item: &Item<'_>) -> Option<Timestamp> {
    let datetime = item.datetime()?;
    let read = from_datetime(datetime);
    if read.is_none() {
        item.mistake("a point in time needs a date, a time and an offset", "write 2027-01-31T00:00:00Z");
    }
    read
}

/// `None` for local times, and for moments before 1970.
fn from_datetime(datetime: &Datetime) -> Option<Timestamp> {
    let (date, time) = (datetime.date?, datetime.time?);
    let offset = match datetime.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes) * 60,
    };
    let days = days_from_civil(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let seconds =
        i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
    let seconds = u64::try_from(days * 86_400 + seconds - offset).ok()?;
    let nanos = u64::from(time.nanosecond.unwrap_or(0));
    Some(Timestamp::from_nanos(Timestamp::from_secs(seconds).nanos().saturating_add(nanos)))
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, with years counted from March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_in_time_reads_back_as_it_prints() {
        for (text, printed) in [
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
            ("2000-02-29T23:59:59.5Z", "2000-02-29T23:59:59.500Z"),
            ("2027-01-31T00:00:00Z", "2027-01-31T00:00:00.000Z"),
            ("2027-01-31T01:30:00+01:30", "2027-01-31T00:00:00.000Z"),
            ("2026-12-31T19:00:00-05:00", "2027-01-01T00:00:00.000Z"),
            ("2100-03-01T12:00:00Z", "2100-03-01T12:00:00.000Z"),
        ] {
            let read = from_datetime(&text.parse().expect(text)).map(|time| time.to_string());
            assert_eq!(read.as_deref(), Some(printed), "{text}");
        }
    }

    #[test]
    fn every_day_reads_back() {
        // To the end of 2102: past a century that has no leap day.
        for day in 0..48_577 {
            let at = Timestamp::from_secs(day * 86_400 + 45_296);
            assert_eq!(from_datetime(&at.to_string().parse().expect("a date")), Some(at), "{at}");
        }
    }

    #[test]
    fn local_times_and_days_that_do_not_exist_are_refused() {
        for text in ["2027-01-31T00:00:00", "2027-01-31", "00:00:00", "1969-12-31T23:59:59Z"] {
            assert_eq!(from_datetime(&text.parse().expect(text)), None, "{text}");
        }
        assert!("2027-02-30T00:00:00Z".parse::<Datetime>().is_err());
    }
}
