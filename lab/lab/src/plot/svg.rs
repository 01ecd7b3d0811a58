//! SVG, by plotters. The output depends only on the result, to the byte.

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Look, Panel, look, panels, short};
use crate::result::{Point, ResultFile, Series};

const WIDTH: u32 = 900;
const PANEL: u32 = 400;
const TITLE: u32 = 40;
const LEGEND: u32 = 170;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a result: one panel per setting, one curve per system, whiskers from the
/// smallest to the largest run.
///
/// # Errors
/// The error of the drawing library.
pub fn svg(result: &ResultFile) -> anyhow::Result<String> {
    let quick = if result.quick { " (quick)" } else { "" };
    let title = format!("{} — {}{quick}", result.experiment, result.paper);
    chart(result, &title, None)
}

/// A shaded part of the horizontal axis, and its label.
pub(crate) struct Shaded {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) what: &'static str,
}

/// Acts as [`svg`], with another title, and a part of the axis shaded.
///
/// # Errors
/// Those of [`svg`].
pub(crate) fn chart(
    result: &ResultFile,
    title: &str,
    shaded: Option<&Shaded>,
) -> anyhow::Result<String> {
    let panels = panels(result);
    let mut text = String::new();
    {
        let height = TITLE + PANEL * (panels.len().max(1) as u32);
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&root, result, title, shaded, &panels)
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    Ok(text)
}

/// Plotters' errors, whose types name the backend.
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(
    root: &Area<'_>,
    result: &ResultFile,
    title: &str,
    shaded: Option<&Shaded>,
    panels: &[Panel<'_>],
) -> Drawn {
    root.fill(&WHITE)?;
    root.draw(&Text::new(
        title.to_owned(),
        (20, 12),
        ("sans-serif", 18).into_font().color(&BLACK),
    ))?;
    let (_, body) = root.split_vertically(TITLE);
    if panels.is_empty() {
        let style = ("sans-serif", 16).into_font().color(&BLACK);
        body.draw(&Text::new("nothing was measured", (20, 20), style))?;
    }
    for (area, panel) in body
        .split_evenly((panels.len().max(1), 1))
        .iter()
        .zip(panels)
    {
        let (chart, legend) = area.split_horizontally(WIDTH - LEGEND);
        if panel.is_bars() {
            bars(&chart, panel)?;
        } else {
            curves(&chart, result, panel, shaded)?;
        }
        names(&legend, panel)?;
    }
    root.present()?;
    Ok(())
}

/// How heights are drawn.
#[derive(Clone, Copy)]
struct Scale {
    logarithmic: bool,
}

impl Scale {
    fn place(self, y: f64) -> f64 {
        if self.logarithmic {
            y.max(f64::MIN_POSITIVE).log10()
        } else {
            y
        }
    }

    fn label(self, place: f64) -> String {
        short(if self.logarithmic {
            10f64.powf(place)
        } else {
            place
        })
    }
}

fn curves(
    area: &Area<'_>,
    result: &ResultFile,
    panel: &Panel<'_>,
    shaded: Option<&Shaded>,
) -> Drawn {
    let scale = Scale {
        logarithmic: panel.is_logarithmic(),
    };
    let (right, top) = panel.extent();
    let low = panel
        .series
        .iter()
        .flat_map(|series| &series.points)
        .map(|point| scale.place(point.low.min(point.y)))
        .fold(f64::MAX, f64::min);
    let bottom = if scale.logarithmic { low.floor() } else { 0.0 };
    let top = if scale.logarithmic {
        scale.place(top).ceil()
    } else {
        top * 1.08
    };
    let mut chart = ChartBuilder::on(area)
        .caption(panel.setting.unwrap_or_default(), ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..right * 1.04, bottom..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .x_desc(result.axes.x.clone())
        .y_desc(panel.y)
        .x_label_formatter(&|x| match result.capacity_on_axis() {
            Some(bare) => format!("{} ({:.2})", short(*x), x / bare.packets),
            None => short(*x),
        })
        .y_label_formatter(&|y| scale.label(*y))
        .label_style(("sans-serif", 13))
        .draw()?;
    if let Some(Shaded { from, to, what }) = shaded {
        let fill = RGBColor(0xd5, 0x5e, 0x00).mix(0.12).filled();
        chart.draw_series([Rectangle::new([(*from, bottom), (*to, top)], fill)])?;
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        let place = (from + (to - from) * 0.03, top * 0.99);
        chart.draw_series([Text::new(*what, place, style)])?;
    }
    // The paper's points first, under everything else.
    for series in &panel.reference {
        let style = colour(look(&series.system));
        chart.draw_series(
            series
                .points
                .iter()
                .filter(|point| point.x <= right * 1.04 && point.y <= top)
                .map(|point| {
                    TriangleMarker::new((point.x, scale.place(point.y)), 7, style.stroke_width(1))
                }),
        )?;
    }
    for series in &panel.series {
        let look = look(&series.system);
        let style = colour(look).stroke_width(2);
        let line = series
            .points
            .iter()
            .map(|point| (point.x, scale.place(point.y)));
        if look.dashed {
            chart.draw_series(DashedLineSeries::new(line, 6, 4, style))?;
        } else {
            chart.draw_series(LineSeries::new(line, style))?;
        }
        chart.draw_series(series.points.iter().map(|point| {
            let ends =
                [point.low, point.high].map(|y| (point.x, scale.place(y).clamp(bottom, top)));
            PathElement::new(ends.to_vec(), colour(look).stroke_width(1))
        }))?;
        chart.draw_series(
            series.points.iter().map(|point| {
                Circle::new((point.x, scale.place(point.y)), 3, colour(look).filled())
            }),
        )?;
    }
    Ok(())
}

/// Draws one bar per system, for a setting with a single load.
fn bars(area: &Area<'_>, panel: &Panel<'_>) -> Drawn {
    let rows: Vec<(&Series, &Point)> = panel
        .series
        .iter()
        .filter_map(|series| Some((*series, series.points.first()?)))
        .collect();
    let (_, top) = panel.extent();
    let mut chart = ChartBuilder::on(area)
        .caption(panel.setting.unwrap_or_default(), ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..rows.len() as f64, 0f64..top * 1.12)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .y_desc(panel.y)
        .y_label_formatter(&|y| short(*y))
        .label_style(("sans-serif", 13))
        .draw()?;
    for (number, (series, point)) in rows.iter().enumerate() {
        let left = number as f64;
        let look = look(&series.system);
        let fill = if look.dashed {
            colour(look).mix(0.55)
        } else {
            colour(look).to_rgba()
        };
        chart.draw_series([Rectangle::new(
            [(left + 0.2, 0.0), (left + 0.8, point.y)],
            fill.filled(),
        )])?;
        let ends = vec![(left + 0.5, point.low), (left + 0.5, point.high)];
        chart.draw_series([PathElement::new(ends, BLACK.stroke_width(1))])?;
        let style = ("sans-serif", 12).into_font().color(&BLACK);
        chart.draw_series([Text::new(
            short(point.y),
            (left + 0.55, point.high + top * 0.06),
            style,
        )])?;
    }
    Ok(())
}

/// Draws the legend.
fn names(area: &Area<'_>, panel: &Panel<'_>) -> Drawn {
    let style = ("sans-serif", 13).into_font().color(&BLACK);
    let mut y = 48;
    for series in &panel.series {
        let look = look(&series.system);
        // A dash is enough to mark a dashed curve at this size.
        let parts: &[(i32, i32)] = if look.dashed {
            &[(4, 12), (18, 26)]
        } else {
            &[(4, 26)]
        };
        for &(from, to) in parts {
            area.draw(&PathElement::new(
                vec![(from, y + 6), (to, y + 6)],
                colour(look).stroke_width(2),
            ))?;
        }
        area.draw(&Circle::new((15, y + 6), 3, colour(look).filled()))?;
        area.draw(&Text::new(series.system.clone(), (34, y), style.clone()))?;
        y += 20;
    }
    if let Some(reference) = panel.reference.first() {
        area.draw(&TriangleMarker::new((15, y + 8), 7, BLACK.stroke_width(1)))?;
        let text = reference
            .setting
            .clone()
            .unwrap_or_else(|| "the paper's".to_owned());
        area.draw(&Text::new(text, (34, y), style))?;
    }
    Ok(())
}

fn colour(look: Look) -> RGBColor {
    let (red, green, blue) = look.colour;
    RGBColor(red, green, blue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{curve, sample};

    /// Checks that tags are closed in order and attributes are quoted; returns the number
    /// of elements.
    fn well_formed(text: &str) -> usize {
        let mut open: Vec<String> = Vec::new();
        let mut elements = 0;
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            assert!(
                !rest[..start].contains('>'),
                "a lone > before {}",
                &rest[start..]
            );
            let end = start + rest[start..].find('>').expect("an open tag");
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            if tag.starts_with('?') || tag.starts_with('!') {
                continue;
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name.trim()), "</{name}>");
                continue;
            }
            elements += 1;
            if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap().to_owned());
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
        elements
    }

    #[test]
    fn plots_are_well_formed_and_the_same_each_time() {
        let result = sample();
        let drawn = svg(&result).unwrap();
        assert!(well_formed(&drawn) > 50);
        assert!(drawn.starts_with("<svg"));
        assert_eq!(drawn, svg(&result).unwrap());
        for name in [
            "tidewall",
            "linux-rps",
            "offered packets/s",
            "200 multiplications",
        ] {
            assert!(drawn.contains(name), "{name}");
        }
    }

    #[test]
    fn loads_are_labelled_with_their_share_where_they_are_loads() {
        let mut result = sample();
        assert!(!svg(&result).unwrap().contains("1M ("));
        result.bare = Some(crate::capacity::tests::MILLION);
        assert!(svg(&result).unwrap().contains("1M (1.00)"));
        result.axes.x = "bytes".into();
        assert!(!svg(&result).unwrap().contains("1M ("));
    }

    #[test]
    fn odd_results_are_drawn_too() {
        let mut result = sample();
        result.series.clear();
        assert!(svg(&result).unwrap().contains("nothing was measured"));
        result.series = vec![curve("x<y & z", Some("a <b>"), &[(0.0, 0.0), (0.0, 0.0)])];
        let drawn = svg(&result).unwrap();
        well_formed(&drawn);
        result.axes.y = "µs".into();
        result.series = vec![curve("bsd", None, &[(1.0, 5.0), (2.0, 50_000.0)])];
        assert!(panels(&result)[0].is_logarithmic());
        assert!(
            svg(&result).unwrap().contains("10k"),
            "decades are labelled"
        );
    }
}
