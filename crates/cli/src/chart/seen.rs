//! What people would see of a picture, for its tests: where texts and shapes are, from its SVG.

use std::collections::BTreeSet;

use plotters::style::RGBColor;

/// Least and largest x, least and largest y, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    x: [f64; 2],
    y: [f64; 2],
}

impl Place {
    fn overlaps(&self, other: &Place) -> bool {
        let apart = |one: [f64; 2], two: [f64; 2]| one[1] <= two[0] || two[1] <= one[0];
        !apart(self.x, other.x) && !apart(self.y, other.y)
    }
}

/// A picture as it is seen.
pub(crate) struct Picture {
    all: Place,
    texts: Vec<(String, Place)>,
    /// What shows data, in colours; each segment of a line apart.
    shapes: Vec<(String, Place)>,
}

impl Picture {
    /// What is in a picture that plotters has drawn.
    pub(crate) fn of(svg: &str) -> Picture {
        let document = roxmltree::Document::parse(svg).unwrap();
        let get = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
            node.attribute(name).unwrap_or_else(|| panic!("no {name}: {node:?}")).parse().unwrap()
        };
        let root = document.root_element();
        let all = Place { x: [0.0, get(&root, "width")], y: [0.0, get(&root, "height")] };
        let (mut texts, mut shapes) = (Vec::new(), Vec::new());
        for node in root.children().filter(roxmltree::Node::is_element) {
            let colour = [node.attribute("fill"), node.attribute("stroke")];
            let colour = colour.into_iter().flatten().find(|colour| *colour != "none").unwrap().to_owned();
            let coloured = BTreeSet::from([&colour[1..3], &colour[3..5], &colour[5..7]]).len() > 1;
            let mut add = |place| shapes.extend(coloured.then(|| (colour.clone(), place)));
            match node.tag_name().name() {
                "text" => texts.push(place_of_text(&node, &get)),
                "rect" => {
                    let (x, y) = (get(&node, "x"), get(&node, "y"));
                    add(Place { x: [x, x + get(&node, "width")], y: [y, y + get(&node, "height")] });
                }
                "circle" => {
                    let (x, y, r) = (get(&node, "cx"), get(&node, "cy"), get(&node, "r"));
                    add(Place { x: [x - r, x + r], y: [y - r, y + r] });
                }
                "line" => add(hull(&[(get(&node, "x1"), get(&node, "y1")), (get(&node, "x2"), get(&node, "y2"))])),
                "polyline" | "polygon" => {
                    let points = node.attribute("points").unwrap().split_whitespace().map(|point| {
                        let (x, y) = point.split_once(',').unwrap();
                        (x.parse().unwrap(), y.parse().unwrap())
                    });
                    points.collect::<Vec<(f64, f64)>>().windows(2).for_each(|two| add(hull(two)));
                }
                other => panic!("{other} is not known here"),
            }
        }
        texts.dedup();
        Picture { all, texts, shapes }
    }

    /// Nothing is cut off, no text covers another one or data.
    pub(crate) fn is_readable(&self) {
        let inside = |place: &Place| {
            place.x[0] >= 0.0 && place.x[1] <= self.all.x[1] && place.y[0] >= 0.0 && place.y[1] <= self.all.y[1]
        };
        for (at, (text, place)) in self.texts.iter().enumerate() {
            assert!(inside(place), "{text:?} is cut off: {place:?}");
            for (other, second) in &self.texts[..at] {
                assert!(!place.overlaps(second), "{text:?} covers {other:?}: {place:?}, {second:?}");
            }
            for (colour, shape) in &self.shapes {
                assert!(!place.overlaps(shape), "{text:?} covers data in {colour}: {place:?}, {shape:?}");
            }
        }
        for (colour, shape) in &self.shapes {
            assert!(inside(shape), "data in {colour} is cut off: {shape:?}");
        }
    }

    /// The legend names each of these once, each with a mark beside it, and has no data behind it.
    pub(crate) fn has_legend(&self, names: &[&str]) {
        for name in names {
            let colour = self.colour_of(name);
            let data = self.shapes.iter().filter(|(other, _)| other == colour).count();
            assert!(data > 1, "{name}: nothing else has its colour, {colour}");
        }
    }

    /// The colour of the one mark beside a name of the legend.
    pub(crate) fn colour_of(&self, name: &str) -> &str {
        let place = self.text(name);
        let around = Place { x: [place.x[0] - 22.0, place.x[1]], ..place };
        let marks: Vec<_> = self.shapes.iter().filter(|(_, shape)| touches(shape, &around)).collect();
        assert_eq!(marks.len(), 1, "{name}: {marks:?}");
        let (colour, _) = marks[0];
        colour
    }

    /// How high the shapes of a colour are, in pixels, but for a legend's.
    pub(crate) fn heights(&self, colour: RGBColor) -> Vec<f64> {
        let name = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
        let such = self.shapes.iter().filter(|(other, _)| *other == name);
        such.skip(1).map(|(_, place)| place.y[1] - place.y[0]).collect()
    }

    /// The texts, but for those of these beginnings, in the order of drawing.
    pub(crate) fn texts_but(&self, beginnings: &[&str]) -> Vec<&str> {
        let kept = |text: &&str| !beginnings.iter().any(|beginning| text.starts_with(beginning));
        self.texts.iter().map(|(text, _)| text.as_str()).filter(kept).collect()
    }

    fn text(&self, wanted: &str) -> Place {
        let found: Vec<_> = self.texts.iter().filter(|(text, _)| text == wanted).collect();
        assert_eq!(found.len(), 1, "{wanted:?} among {:?}", self.texts);
        found[0].1
    }
}

/// A line has no width, and still touches.
fn touches(shape: &Place, place: &Place) -> bool {
    let wide = |span: [f64; 2]| [span[0] - 0.5, span[1] + 0.5];
    Place { x: wide(shape.x), y: wide(shape.y) }.overlaps(place)
}

fn hull(points: &[(f64, f64)]) -> Place {
    let of = |coordinates: Vec<f64>| {
        [coordinates.iter().copied().fold(f64::MAX, f64::min), coordinates.iter().copied().fold(f64::MIN, f64::max)]
    };
    Place { x: of(points.iter().map(|point| point.0).collect()), y: of(points.iter().map(|point| point.1).collect()) }
}

/// A text, and about where it is: letters of DejaVu Sans, a wide font, are 0.6 of its size on average.
fn place_of_text(
    node: &roxmltree::Node<'_, '_>,
    get: &dyn Fn(&roxmltree::Node<'_, '_>, &str) -> f64,
) -> (String, Place) {
    let text = node.text().unwrap().trim_matches('\n').to_owned();
    let (size, x, y) = (get(node, "font-size"), get(node, "x"), get(node, "y"));
    let width = text.chars().count() as f64 * 0.6 * size;
    let left = match node.attribute("text-anchor").unwrap() {
        "start" => 0.0,
        "middle" => -width / 2.0,
        _ => -width,
    };
    // Of the base line: plotters says "0.76em" for text below its place, "0.5ex" for text at it, "-0.5ex" for text above.
    let base = match node.attribute("dy").unwrap() {
        "0.76em" => 0.76 * size,
        "0.5ex" => 0.25 * size,
        _ => -0.25 * size,
    };
    let (across, along) = ([left, left + width], [base - 0.76 * size, base + 0.24 * size]);
    let place = match node.attribute("transform") {
        None => Place { x: across.map(|of| x + of), y: along.map(|of| y + of) },
        // A quarter to the left: what went right goes up.
        Some(turned) if turned.starts_with("rotate(270") => {
            Place { x: along.map(|of| x + of), y: [y - across[1], y - across[0]] }
        }
        Some(turned) => panic!("{turned} is not known here"),
    };
    (text, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(inside: &str) -> Picture {
        Picture::of(&format!("<svg width=\"200\" height=\"100\" viewBox=\"0 0 200 100\">{inside}</svg>"))
    }

    fn text(x: u32, y: u32, what: &str) -> String {
        format!(
            "<text x=\"{x}\" y=\"{y}\" dy=\"0.5ex\" text-anchor=\"start\" font-size=\"10\" fill=\"#000000\">{what}</text>"
        )
    }

    fn bar(x: u32, y: u32) -> String {
        format!("<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"12\" fill=\"#0072B2\" stroke=\"none\"/>")
    }

    #[test]
    fn a_good_picture_is_readable() {
        let good = picture(&format!("{}{}{}", text(30, 10, "reads"), bar(10, 4), bar(10, 60)));
        good.is_readable();
        good.has_legend(&["reads"]);
        assert_eq!(good.heights(RGBColor(0, 114, 178)), [12.0]);
    }

    #[test]
    #[should_panic(expected = "is cut off")]
    fn a_text_that_goes_out_is_found() {
        picture(&text(180, 10, "a long text")).is_readable();
    }

    #[test]
    #[should_panic(expected = "covers data")]
    fn a_text_over_data_is_found() {
        picture(&(text(30, 10, "reads") + &bar(40, 4))).is_readable();
    }

    #[test]
    #[should_panic(expected = "covers \"reads\"")]
    fn a_text_over_another_is_found() {
        picture(&(text(30, 10, "reads") + &text(40, 12, "writes"))).is_readable();
    }

    #[test]
    #[should_panic(expected = "reads: [")]
    fn data_behind_a_legend_is_found() {
        picture(&(text(30, 10, "reads") + &bar(10, 4) + &bar(12, 8))).has_legend(&["reads"]);
    }
}
