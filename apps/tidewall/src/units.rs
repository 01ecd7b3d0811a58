//! Quantities as people write and read them.

use std::net::AddrParseError;
use std::str::FromStr;
use std::time::Duration;

/// Parses a duration: `10s`, `1.5s`, `200ms`, `20us`, `20µs`, `2m`, `1h`. A bare number
/// is in seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    in_units(text, 1.0)
}

/// Acts as [`duration`], but a bare number is in microseconds.
pub fn microseconds(text: &str) -> Result<Duration, String> {
    in_units(text, 1e-6)
}

/// Parses an address, with a port if the type has one.
pub fn address<T: FromStr<Err = AddrParseError>>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|error: AddrParseError| with_form(&error.to_string()))
}

/// Returns the standard library's error for an address, with the expected form.
pub fn with_form(message: &str) -> String {
    let form = match message {
        message if message.contains("invalid socket address syntax") => {
            ": ADDRESS:PORT is wanted, such as 10.0.0.1:80; names are not looked up"
        }
        message if message.contains("invalid IP address syntax") => {
            ": an address is wanted, such as 10.0.0.1; names are not looked up"
        }
        _ => "",
    };
    format!("{message}{form}")
}

fn in_units(text: &str, bare: f64) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .parse()
        .map_err(|_| "not a duration such as 10s, 200ms or 20us".to_owned())?;
    let unit = match unit.trim() {
        "" => bare,
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other => {
            return Err(format!(
                "no unit of time is called {other:?}: ns, us, ms, s, m or h"
            ));
        }
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| "a duration out of range".to_owned())
}

/// A rate in packets per second; `None` is as fast as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub Option<u64>);

/// Parses a rate: `300000`, `300,000`, `300k`, `1.2M`, or `max`.
pub fn rate(text: &str) -> Result<Rate, String> {
    if text.eq_ignore_ascii_case("max") {
        return Ok(Rate(None));
    }
    let plain: String = text.chars().filter(|c| !matches!(c, ',' | '_')).collect();
    let (number, factor) = match plain.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => match plain.strip_suffix('M') {
            Some(number) => (number, 1e6),
            None => (plain.as_str(), 1.0),
        },
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "not a rate such as 300000, 300k, 1.2M or max".to_owned())?;
    let rate = (number * factor).round();
    if (1.0..=1e9).contains(&rate) {
        Ok(Rate(Some(rate as u64)))
    } else {
        Err("a rate is 1 to 1,000,000,000 packets/s, or max".to_owned())
    }
}

/// Formats 1234567 as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate per second: whole from 10 on, one decimal below, `-` for zero.
pub fn per_second(rate: f64) -> String {
    if !rate.is_finite() || rate <= 0.0 {
        "-".to_owned()
    } else if rate < 9.95 {
        format!("{rate:.1}")
    } else {
        count(rate.round() as u64)
    }
}

/// Formats nanoseconds in a suitable unit.
pub fn nanoseconds(time: f64) -> String {
    match time {
        t if t < 1e3 => format!("{t:.0} ns"),
        t if t < 1e6 => format!("{:.1} µs", t / 1e3),
        t if t < 1e9 => format!("{:.2} ms", t / 1e6),
        t => format!("{:.2} s", t / 1e9),
    }
}

/// Formats nanoseconds in a suitable unit, without needless decimals: `0`, `1.5 µs`, `50
/// µs`, `1 ms`.
pub fn trimmed(time: u64) -> String {
    let (unit, name) = match time {
        0 => return "0".to_owned(),
        1..1_000 => (1.0, "ns"),
        1_000..1_000_000 => (1e3, "µs"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let number = format!("{:.1}", time as f64 / unit);
    format!("{} {name}", number.trim_end_matches(".0"))
}

/// Formats bytes in a suitable unit: `512 B`, `1.5 MiB`.
pub fn bytes(number: u64) -> String {
    let (unit, name) = match number {
        0..0x400 => return format!("{number} B"),
        0x400..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    format!("{:.1} {name}", number as f64 / f64::from(1u32 << unit))
}

/// Formats a lifetime in a suitable unit.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        for (text, nanoseconds) in [
            ("10s", 10_000_000_000),
            ("10", 10_000_000_000),
            ("1.5s", 1_500_000_000),
            ("200ms", 200_000_000),
            ("20us", 20_000),
            ("20µs", 20_000),
            ("2m", 120_000_000_000),
        ] {
            assert_eq!(
                duration(text).map(|d| d.as_nanos()),
                Ok(nanoseconds),
                "{text}"
            );
        }
        assert_eq!(microseconds("20"), Ok(Duration::from_micros(20)));
        for text in ["", "s", "-1s", "10 parsecs", "1e9s", "1.2.3"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, expected) in [
            ("max", None),
            ("300000", Some(300_000)),
            ("300,000", Some(300_000)),
            ("300k", Some(300_000)),
            ("1.2M", Some(1_200_000)),
        ] {
            assert_eq!(rate(text), Ok(Rate(expected)), "{text}");
        }
        for text in ["", "0", "-5", "fast", "1e300", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(per_second(0.0), "-");
        assert_eq!(per_second(3.25), "3.2");
        assert_eq!(per_second(9.99), "10");
        assert_eq!(per_second(1234.4), "1,234");
        assert_eq!(per_second(f64::NAN), "-");
        assert_eq!(nanoseconds(12_340.0), "12.3 µs");
        for (time, text) in [
            (0, "0"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (50_000, "50 µs"),
            (1_000_000, "1 ms"),
            (2_000_000_000, "2 s"),
        ] {
            assert_eq!(trimmed(time), text);
        }
        assert_eq!(age(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(age(Duration::from_secs(3700)), "1 h 1 min");
    }
}
