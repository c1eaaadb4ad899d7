//! Dates and times as ISO 8601 text.

const DAY_NANOS: i128 = 86_400_000_000_000;

/// The date of a day, counted from 1970-01-01.
pub(crate) fn date(days: i64) -> String {
    // Years of the calculation begin in March, so that the leap day is a year's last day. A period of
    // 400 years has 146,097 days; 719,468 of them lie between 0000-03-01 and 1970-01-01.
    let since = days + 719_468;
    let (period, day) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    // Months from March have 31, 30, 31, 30, 31 days, again and again: 153 days in five months.
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * period + year + next;
    let sign = if year < 0 { "-" } else { "" };
    format!("{sign}{:04}-{month:02}-{of_month:02}", year.abs())
}

/// A time of day, with as many decimals of a second as it has.
pub(crate) fn time(nanos: i64) -> String {
    let (seconds, rest) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    let [hours, minutes] = [seconds / 3600, seconds / 60 % 60];
    let mut text = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    if rest > 0 {
        text += format!(".{rest:09}").trim_end_matches('0');
    }
    text
}

/// An instant, counted from 1970-01-01; `utc` marks instants of a known time zone.
pub(crate) fn timestamp(nanos: i128, utc: bool) -> String {
    let (days, rest) = (nanos.div_euclid(DAY_NANOS), nanos.rem_euclid(DAY_NANOS));
    format!("{}T{}{}", date(days as i64), time(rest as i64), if utc { "Z" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days counted one by one by the rules of the calendar.
    #[test]
    fn dates_follow_the_gregorian_calendar() {
        let (mut year, mut month, mut day) = (1583i64, 1, 1);
        for days in -141_349..200_000 {
            assert_eq!(date(days), format!("{year:04}-{month:02}-{day:02}"));
            let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            let length = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        assert_eq!((date(0).as_str(), date(19_860).as_str()), ("1970-01-01", "2024-05-17"));
    }

    #[test]
    fn times_have_the_decimals_that_they_need() {
        assert_eq!(time(0), "00:00:00");
        assert_eq!(time(86_399_500_000_000), "23:59:59.5");
        assert_eq!(timestamp(-1, false), "1969-12-31T23:59:59.999999999");
        assert_eq!(
            timestamp(19_860 * DAY_NANOS + 36_000_000_000_000, true),
            "2024-05-17T10:00:00Z"
        );
    }
}
