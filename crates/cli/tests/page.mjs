// Runs the script of a page that `sluice report` has written, on a document of its own, and looks at what a browser would
// show: that no text is cut off or covers another one, and that colours are those of the legends.
//   node page.mjs report.html
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

// As much of a document as the page uses.
class Element {
  constructor(name) { Object.assign(this, { name, attributes: {}, style: {}, children: [] }); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...nodes) { this.children.push(...nodes); }
  prepend(...nodes) { this.children.unshift(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  addEventListener() {}
  get value() { return this.children[0].attributes.value; }
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map(child => child instanceof Element ? child.textContent : String(child)).join(""); }
  all(wanted) {
    const below = this.children.filter(child => child instanceof Element).flatMap(child => child.all(wanted));
    return wanted(this) ? [this, ...below] : below;
  }
  named(name) { return this.all(node => node.name === name); }
}

const page = readFileSync(process.argv[2], "utf8");
const [, script] = page.match(/<script>([^]*)<\/script>/);
const places = { main: new Element("main"), tip: new Element("div") };
const document = {
  getElementById: id => places[id], createElement: name => new Element(name), createElementNS: (_, name) => new Element(name),
};
runInNewContext(script, { document, innerWidth: 1280, innerHeight: 800 });
const { main } = places;

const number = (node, key) => Number(node.attributes[key]);
// Of 11 pixels, and 0.6 of that for a letter: of DejaVu Sans, a wide font, on average.
function placeOf(text) {
  const width = 6.6 * text.textContent.length, x = number(text, "x"), y = number(text, "y");
  const left = x - width * ({ middle: 0.5, end: 1 }[text.attributes["text-anchor"]] || 0);
  return { left, right: left + width, top: y - 9, bottom: y + 3, what: text.textContent };
}
const drawings = main.named("svg");
assert(drawings.length > 0, "nothing is drawn");
for (const drawing of drawings) {
  const [, , width, height] = drawing.attributes.viewBox.split(" ").map(Number);
  const texts = drawing.named("text").map(placeOf);
  texts.forEach((text, at) => {
    assert(text.left >= 0 && text.right <= width && text.top >= 0 && text.bottom <= height, `cut off: ${JSON.stringify(text)}`);
    for (const other of texts.slice(0, at)) {
      const apart = text.right <= other.left || other.right <= text.left || text.bottom <= other.top || other.bottom <= text.top;
      assert(apart || !text.what, `${text.what} covers ${other.what}`);
    }
  });
  for (const shape of drawing.all(node => ["rect", "circle"].includes(node.name))) {
    const left = shape.name === "rect" ? number(shape, "x") : number(shape, "cx");
    const right = shape.name === "rect" ? left + number(shape, "width") : left;
    assert(left >= 0 && right <= width, `outside: ${JSON.stringify(shape.attributes)}`);
    assert(shape.name === "circle" || number(shape, "height") >= 0, JSON.stringify(shape.attributes));
  }
}

// Times along an axis are few and short.
for (const drawing of drawings) {
  const times = drawing.named("text").filter(text => text.attributes["text-anchor"]).map(text => text.textContent).filter(text => / [µm]?s$/.test(text));
  assert(times.length <= 6 && times.every(text => /^\d{1,3}(\.\d)? /.test(text)), times.join(", "));
}

// Where several colours are, a legend beside has each of them as it is, and no other.
const isLegend = node => node.attributes.class === "legend";
const coloursOf = legend => legend.named("i").map(chip => chip.style.background).sort();
let legends = 0;
for (const box of main.named("div")) {
  const own = box.children.filter(child => child instanceof Element);
  const [legend] = own.filter(isLegend), drawn = own.filter(node => node.name === "svg");
  if (!legend || !drawn.length) continue;
  legends++;
  const marks = drawn.flatMap(drawing => drawing.all(node => ["rect", "circle", "path"].includes(node.name)));
  const used = marks.flatMap(({ attributes: { fill, stroke, opacity } }) => {
    assert.equal(opacity, undefined, "a colour that no legend can show");
    return [fill, stroke];
  });
  const data = [...new Set(used)].filter(colour => colour && colour !== "none" && colour !== "var(--line)");
  assert.deepEqual(coloursOf(legend), data.sort());
}
const closer = main.named("h3").filter(head => head.textContent === "A closer look").length;
assert.equal(legends, 2 * closer, "each path and each time line has a legend");

const cards = main.all(node => node.attributes.class === "card").map(card => card.textContent);
assert(cards.some(text => /^(all|\d+\/\d+(, .*)?)of the scenario's data$/.test(text)), cards.join("; "));
console.log(`${drawings.length} drawings, ${legends} with legends`);
