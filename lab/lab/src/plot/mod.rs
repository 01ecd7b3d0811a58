//! Plots of a result: SVG for people and reports, text for terminals.

mod svg;
mod terminal;

use crate::result::{ResultFile, Series};

pub use svg::svg;
pub(crate) use svg::{Shaded, chart};
pub use terminal::{claims_table, table, terminal};

/// The look of a system, the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// From the palette of Okabe and Ito, whose colours are distinct under all kinds of
    /// colour vision.
    pub(crate) colour: (u8, u8, u8),
    /// Letter on a terminal.
    pub(crate) letter: char,
    /// Tidewall's curves are solid, others dashed.
    pub(crate) dashed: bool,
}

/// Returns the look of a system.
pub(crate) fn look(system: &str) -> Look {
    let (colour, letter) = match system {
        "bare" => ((0x66, 0x66, 0x66), '='),
        "tidewall" => ((0x00, 0x72, 0xb2), 'T'),
        "soft-lrp" => ((0x00, 0x9e, 0x73), 'S'),
        "early-demux" => ((0xe6, 0x9f, 0x00), 'E'),
        "bsd" => ((0xd5, 0x5e, 0x00), 'B'),
        "linux-rps" => ((0xcc, 0x79, 0xa7), 'r'),
        "linux-timer" => ((0x56, 0xb4, 0xe9), 't'),
        "linux-busy" => ((0x00, 0x00, 0x00), 'b'),
        "linux-suspend" => ((0x99, 0x99, 0x99), 'u'),
        // Policies, which are never drawn together with architectures.
        "rhip" => ((0xd5, 0x5e, 0x00), 'R'),
        "adaptive" => ((0x00, 0x72, 0xb2), 'A'),
        "napi" => ((0xe6, 0x9f, 0x00), 'N'),
        "on-off" => ((0xb0, 0xa0, 0x10), 'O'),
        "aic" => ((0x00, 0x9e, 0x73), 'C'),
        "qapolling" => ((0x88, 0x55, 0xaa), 'Q'),
        "model" => ((0x00, 0x00, 0x00), 'M'),
        "linux-cubic" => ((0xd5, 0x5e, 0x00), 'C'),
        "linux-cubic-twice" => ((0xe6, 0x9f, 0x00), '2'),
        // Ways of waiting, which are drawn together with none of these.
        "selector" => ((0x00, 0x72, 0xb2), 'S'),
        "select" => ((0x00, 0x9e, 0x73), 'N'),
        "epoll" => ((0x88, 0x55, 0xaa), 'E'),
        "select+linear-allocator" => ((0xe6, 0x9f, 0x00), 'L'),
        "classical-select+linear-allocator" => ((0xd5, 0x5e, 0x00), 'C'),
        "linux-epoll" => ((0x00, 0x00, 0x00), 'e'),
        "linux-select" => ((0xcc, 0x79, 0xa7), 's'),
        "squid" => ((0x56, 0xb4, 0xe9), 'q'),
        "nginx" => ((0xb0, 0xa0, 0x10), 'n'),
        "interrupt" => ((0x99, 0x99, 0x99), 'I'),
        // Names on the demonstration's page, for readers without previous knowledge.
        "Tidewall" => ((0x00, 0x72, 0xb2), 'T'),
        "Linux" => ((0xd5, 0x5e, 0x00), 'L'),
        "Linux, tuned" => ((0xe6, 0x9f, 0x00), 'l'),
        _ => ((0x77, 0x77, 0x77), 'o'),
    };
    Look {
        colour,
        letter,
        dashed: system.starts_with("linux") || matches!(system, "squid" | "nginx" | "bare"),
    }
}

/// Curves that share a panel.
#[derive(Debug)]
pub(crate) struct Panel<'a> {
    /// The setting of all of them, if any.
    pub(crate) setting: Option<&'a str>,
    /// The vertical axis.
    pub(crate) y: &'a str,
    pub(crate) series: Vec<&'a Series>,
    /// The paper's points, in the plain panel.
    pub(crate) reference: Vec<&'a Series>,
}

impl Panel<'_> {
    /// Returns true if there is only one load, so that a curve would be a dot.
    pub(crate) fn is_bars(&self) -> bool {
        self.series.iter().all(|series| series.points.len() <= 1)
    }

    /// Returns whether the axis is logarithmic: for times that span more than two
    /// decades.
    pub(crate) fn is_logarithmic(&self) -> bool {
        let all = || {
            self.series
                .iter()
                .flat_map(|series| &series.points)
                .map(|point| point.y)
        };
        let (low, high) = all().fold((f64::MAX, 0f64), |(low, high), y| (low.min(y), high.max(y)));
        self.y.contains("µs") && low > 0.0 && high > 100.0 * low
    }

    /// Returns the largest coordinates, never zero.
    pub(crate) fn extent(&self) -> (f64, f64) {
        let points = || {
            self.series
                .iter()
                .flat_map(|series| series.points.iter().map(|p| (p.x, p.high.max(p.y))))
        };
        let (x, y) = points().fold((0f64, 0f64), |(x, y), point| {
            (x.max(point.0), y.max(point.1))
        });
        (if x > 0.0 { x } else { 1.0 }, if y > 0.0 { y } else { 1.0 })
    }
}

/// Returns the panels of a result: one for each setting, in their order, without those in
/// which nothing was measured.
pub(crate) fn panels(result: &ResultFile) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for series in result
        .series
        .iter()
        .filter(|series| !series.points.is_empty())
    {
        let setting = series.setting.as_deref();
        match panels.iter_mut().find(|panel| panel.setting == setting) {
            Some(panel) => panel.series.push(series),
            None => panels.push(Panel {
                setting,
                y: series.y.as_deref().unwrap_or(&result.axes.y),
                series: vec![series],
                reference: match setting {
                    None => result.reference.iter().collect(),
                    Some(_) => Vec::new(),
                },
            }),
        }
    }
    panels
}

/// Formats a number in few characters: 1234567 as `1.23M`.
pub(crate) fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 999_500.0 {
        trim(format!("{:.2}", value / 1e6)) + "M"
    } else if magnitude >= 9_995.0 {
        trim(format!("{:.0}", value / 1e3)) + "k"
    } else if magnitude >= 1_000.0 {
        trim(format!("{:.1}", value / 1e3)) + "k"
    } else if magnitude >= 100.0 || magnitude == 0.0 {
        format!("{value:.0}")
    } else if magnitude >= 0.995 {
        trim(format!("{value:.1}"))
    } else {
        trim(format!("{value:.3}"))
    }
}

/// Formats a figure for comparison with a bound: more digits than [`short`].
pub(crate) fn precise(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 100.0 {
        format!("{value:.0}")
    } else {
        trim(format!("{value:.3}"))
    }
}

/// Removes zeros at the end of a fraction.
fn trim(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.0123, "0.012"),
            (9.46, "9.5"),
            (114.0, "114"),
            (5_500.0, "5.5k"),
            (12_345.0, "12k"),
            (999_999.0, "1M"),
            (1_333_333.0, "1.33M"),
            (10.0, "10"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn figures_show_which_side_of_a_bound_they_are_on() {
        assert_eq!(precise(1.0089), "1.009");
        assert_eq!(precise(2.49), "2.49");
        assert_eq!(precise(1.0), "1");
        assert_eq!(precise(371_234.5), "371234");
    }

    #[test]
    fn a_panel_for_each_setting() {
        let mut result = sample();
        result.series.push(Series {
            system: "bsd".into(),
            ..Series::default()
        });
        let panels = panels(&result);
        assert_eq!(panels.len(), 2);
        assert_eq!(panels[0].series.len(), 2, "what has no point is not drawn");
        assert_eq!((panels[0].setting, panels[0].reference.len()), (None, 1));
        assert!(panels[1].is_bars() && !panels[0].is_bars());
        assert!(!panels[0].is_logarithmic(), "rates are linear");
        assert_eq!(panels[0].extent().0, 1.5e6);
    }

    #[test]
    fn systems_look_different() {
        let names = [
            "bare",
            "tidewall",
            "soft-lrp",
            "early-demux",
            "bsd",
            "linux-rps",
            "linux-timer",
            "linux-busy",
            "linux-plain",
        ];
        for (number, a) in names.iter().enumerate() {
            for b in &names[number + 1..] {
                assert_ne!(look(a).colour, look(b).colour, "{a} {b}");
                assert_ne!(look(a).letter, look(b).letter, "{a} {b}");
            }
        }
    }
}
