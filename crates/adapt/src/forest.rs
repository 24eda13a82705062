//! Decision trees, alone or several that vote, trained elsewhere (`python -m sluicegate train`) and read from a file.
//!
//! # The file
//! JSON in lines. The first is `{`, the second `"format": "sluice-forest 1",`, the third `"crc32": "89abcdef",`: the CRC-32 (that of
//! zlib) of all the other bytes of the file. Further keys:
//!
//! | key | what |
//! |---|---|
//! | `kind` | what it decides, like `detector` |
//! | `features` | version of the features that it was made for |
//! | `inputs` | names of the inputs, in order |
//! | `classes` | names of the classes, in order |
//! | `leaves` | `shares` (if it is not given) or `numbers`: what `votes` are |
//! | `ranges` | least and largest value of each input that it was trained with; may be left out |
//! | `caution` | how many deviations between its trees a number is believed to be too high, 0 to 10; 0 if it is not given |
//! | `trained` | where it comes from; for people |
//! | `trees` | for each tree arrays with an entry for each node: `input` (-1: a leaf), `threshold`, `left`, `right`, `votes` |
//!
//! Node 0 is a tree's root. An inner node goes `left` if its input is at most `threshold`, else `right`; both come after it. A
//! leaf's `votes` are the shares of the classes among what it was trained with, or a number from -100 to 100 for each of them.
//! Inputs are numbers of 32 bits, thresholds of 64, as in scikit-learn; a forest's votes are the mean of its trees', and the first
//! class with the most of them is its answer.
//! A change of any byte is noticed, so that a damaged model never decides.

use serde::Deserialize;

/// What files say in their second line.
pub const FORMAT: &str = "sluice-forest 1";
/// Longest file that is read, in bytes.
pub const BYTES_MAX: usize = 16 << 20;
/// Most nodes of all trees.
const NODES_MAX: usize = 1 << 18;
/// Most classes.
const CLASSES_MAX: usize = 256;
/// Largest number in a leaf.
const NUMBER_MAX: f64 = 100.0;

/// Why there is no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    /// Something else.
    #[error("not a model: it does not begin with \"format\": \"sluice-forest ...\"")]
    Foreign,
    /// Of another version of the format.
    #[error(
        "a model of another version, \"{0}\"; this program reads \"{FORMAT}\"; train it anew or use the program it came with"
    )]
    Version(String),
    /// The checksum is wrong.
    #[error(
        "the model is damaged: its checksum is {found:08x}, and {stated} is stated; take a fresh copy or train it anew"
    )]
    Damaged {
        /// Of the bytes that are there.
        found: u32,
        /// What the file says.
        stated: String,
    },
    /// Longer than anything that would be read.
    #[error("{0} bytes; a model has at most {BYTES_MAX}")]
    TooLong(usize),
    /// It has its checksum, but is no model.
    #[error("not a model: {0}")]
    Invalid(String),
    /// It decides something else, or from something else.
    #[error(
        "a model for another purpose: its {what} is {found}, and {wanted} is needed; train it anew with this version"
    )]
    Other {
        /// What differs.
        what: &'static str,
        /// What the model has.
        found: String,
        /// What was asked for.
        wanted: String,
    },
}

/// What a model has to be made for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// What it decides.
    pub kind: &'a str,
    /// Version of the features.
    pub features: u32,
    /// Names of the inputs.
    pub inputs: &'a [&'a str],
    /// Names of the classes; `None`: whatever they are.
    pub classes: Option<&'a [&'a str]>,
    /// What its leaves say.
    pub leaves: Leaves,
}

/// What leaves say of the classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Leaves {
    /// Their shares, together 1.
    #[default]
    Shares,
    /// A number for each, -100 to 100.
    Numbers,
}

/// What a model says about itself.
#[derive(Clone, Debug)]
pub struct About {
    /// What it decides.
    pub kind: String,
    /// Version of the features that it was made for.
    pub features: u32,
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Where it comes from.
    pub trained: serde_json::Value,
}

#[derive(Deserialize)]
struct File {
    kind: String,
    features: u32,
    inputs: Vec<String>,
    classes: Vec<String>,
    #[serde(default)]
    leaves: Leaves,
    #[serde(default)]
    ranges: Vec<[f64; 2]>,
    #[serde(default)]
    caution: f64,
    #[serde(default)]
    trained: serde_json::Value,
    trees: Vec<FileTree>,
}

#[derive(Deserialize)]
struct FileTree {
    input: Vec<i32>,
    threshold: Vec<f64>,
    left: Vec<u32>,
    right: Vec<u32>,
    votes: Vec<Vec<f64>>,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Inner {
        input: u32,
        threshold: f64,
        left: u32,
        right: u32,
    },
    /// Where its votes begin.
    Leaf(u32),
}

/// A checked model.
#[derive(Clone, Debug)]
pub struct Forest {
    about: About,
    ranges: Vec<[f64; 2]>,
    caution: f64,
    /// First node of each tree.
    roots: Vec<u32>,
    nodes: Vec<Node>,
    votes: Vec<f64>,
}

/// The second and third line of a model's file, and its checksum.
pub(crate) fn head(text: &str) -> Option<(&str, &str, u32)> {
    let value = |line: &'_ str, key: &str| -> Option<(usize, usize)> {
        let value =
            line.trim_end().strip_prefix('"')?.strip_prefix(key)?.strip_prefix("\": \"")?.strip_suffix("\",")?;
        let start = value.as_ptr() as usize - line.as_ptr() as usize;
        Some((start, start + value.len()))
    };
    let mut lines = text.split_inclusive('\n');
    let (first, second, third) = (lines.next()?, lines.next()?, lines.next()?);
    if first != "{\n" {
        return None;
    }
    let format = value(second, "format").map(|(from, to)| &second[from..to])?;
    let stated = value(third, "crc32").map_or(third.trim(), |(from, to)| &third[from..to]);
    let before = first.len() + second.len();
    let mut checksum = text[..before].to_owned();
    checksum.push_str(&text[before + third.len()..]);
    Some((format, stated, sluice_trace::checksum(checksum.as_bytes())))
}

impl Forest {
    /// Reads a model that has to be made for this purpose.
    ///
    /// # Errors
    /// If it is damaged, of another version, or made for something else.
    pub fn parse(text: &str, purpose: &Purpose<'_>) -> Result<Forest, ForestError> {
        let file = File::read(text)?;
        file.fits(purpose)?;
        file.build()
    }

    /// Reads a model, whatever it is made for.
    ///
    /// # Errors
    /// If it is damaged, or of another version.
    pub fn parse_any(text: &str) -> Result<Forest, ForestError> {
        File::read(text)?.build()
    }

    /// The votes for each class, together 1, or the numbers. `inputs` are those of the [`Purpose`]; what is missing is 0.
    pub fn votes(&self, inputs: &[f32], votes: &mut [f64]) {
        votes.fill(0.0);
        for tree in 0..self.roots.len() {
            votes.iter_mut().zip(self.leaf(tree, inputs)).for_each(|(sum, vote)| *sum += vote);
        }
        votes.iter_mut().for_each(|vote| *vote /= self.roots.len() as f64);
    }

    /// What one of the trees says. O(depth). `tree` is below their number ([`Forest::size`]).
    #[must_use]
    pub fn leaf(&self, tree: usize, inputs: &[f32]) -> &[f64] {
        let root = self.roots[tree];
        let mut at = root;
        loop {
            match self.nodes[at as usize] {
                Node::Inner { input, threshold, left, right } => {
                    let value = f64::from(inputs.get(input as usize).copied().unwrap_or(0.0));
                    at = root + if value <= threshold { left } else { right };
                }
                Node::Leaf(first) => return &self.votes[first as usize..first as usize + self.about.classes.len()],
            }
        }
    }

    /// Whether all inputs are within what the model was trained with, as far as it says what that was.
    #[must_use]
    pub fn knows(&self, inputs: &[f32]) -> bool {
        self.ranges.iter().zip(inputs).all(|([least, most], input)| (*least..=*most).contains(&f64::from(*input)))
    }

    /// How many deviations between the trees a number is believed to be too high.
    #[must_use]
    pub fn caution(&self) -> f64 {
        self.caution
    }

    /// How many trees there are, and nodes of all of them.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.roots.len(), self.nodes.len())
    }

    /// What the model says about itself.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }
}

/// The first class with the most votes.
#[must_use]
pub fn winner(votes: &[f64]) -> usize {
    (1..votes.len()).fold(0, |best, class| if votes[class] > votes[best] { class } else { best })
}

impl File {
    fn read(text: &str) -> Result<File, ForestError> {
        if text.len() > BYTES_MAX {
            return Err(ForestError::TooLong(text.len()));
        }
        let Some((format, stated, found)) = head(text) else { return Err(ForestError::Foreign) };
        if !format.starts_with("sluice-forest ") {
            return Err(ForestError::Foreign);
        }
        if stated != format!("{found:08x}") {
            // Another version may sum up otherwise.
            return match format {
                FORMAT => Err(ForestError::Damaged { found, stated: stated.to_owned() }),
                _ => Err(ForestError::Version(format.to_owned())),
            };
        }
        if format != FORMAT {
            return Err(ForestError::Version(format.to_owned()));
        }
        serde_json::from_str(text).map_err(|error| ForestError::Invalid(error.to_string()))
    }

    fn fits(&self, purpose: &Purpose<'_>) -> Result<(), ForestError> {
        let other = |what, found: &dyn std::fmt::Debug, wanted: &dyn std::fmt::Debug| ForestError::Other {
            what,
            found: format!("{found:?}"),
            wanted: format!("{wanted:?}"),
        };
        if self.kind != purpose.kind {
            return Err(other("kind", &self.kind, &purpose.kind));
        }
        if self.features != purpose.features {
            return Err(other("version of the features", &self.features, &purpose.features));
        }
        if self.inputs != purpose.inputs {
            return Err(other("list of inputs", &self.inputs, &purpose.inputs));
        }
        if let Some(classes) = purpose.classes.filter(|classes| self.classes != *classes) {
            return Err(other("list of classes", &self.classes, &classes));
        }
        if self.leaves != purpose.leaves {
            return Err(other("kind of leaves", &self.leaves, &purpose.leaves));
        }
        Ok(())
    }

    fn build(self) -> Result<Forest, ForestError> {
        let inputs = self.inputs.len();
        if self.classes.is_empty() || self.classes.len() > CLASSES_MAX {
            return Err(ForestError::Invalid(format!("{} classes; 1 to {CLASSES_MAX}", self.classes.len())));
        }
        let is_range = |[least, most]: &[f64; 2]| least <= most;
        if !(self.ranges.is_empty() || self.ranges.len() == inputs && self.ranges.iter().all(is_range)) {
            return Err(ForestError::Invalid("its ranges are not one for each input".to_owned()));
        }
        if !(0.0..=10.0).contains(&self.caution) {
            return Err(ForestError::Invalid(format!("its caution is {}; 0 to 10", self.caution)));
        }
        let total: usize = self.trees.iter().map(|tree| tree.input.len()).sum();
        if self.trees.is_empty() || total > NODES_MAX {
            let trees = self.trees.len();
            return Err(ForestError::Invalid(format!("{trees} trees of {total} nodes; 1 tree to {NODES_MAX} nodes")));
        }
        let mut forest = Forest {
            about: About {
                kind: self.kind,
                features: self.features,
                inputs: self.inputs,
                classes: self.classes,
                trained: self.trained,
            },
            ranges: self.ranges,
            caution: self.caution,
            roots: Vec::new(),
            nodes: Vec::with_capacity(total),
            votes: Vec::new(),
        };
        for (number, tree) in self.trees.iter().enumerate() {
            forest.roots.push(forest.nodes.len() as u32);
            tree.add(inputs, self.leaves, &mut forest)
                .map_err(|what| ForestError::Invalid(format!("tree {number}: {what}")))?;
        }
        Ok(forest)
    }
}

impl FileTree {
    fn add(&self, inputs: usize, leaves: Leaves, forest: &mut Forest) -> Result<(), String> {
        let count = self.input.len();
        if count == 0 || [self.threshold.len(), self.left.len(), self.right.len(), self.votes.len()] != [count; 4] {
            return Err("its arrays have different lengths, or none".to_owned());
        }
        for node in 0..count {
            let (left, right, threshold) = (self.left[node], self.right[node], self.threshold[node]);
            let built = match usize::try_from(self.input[node]) {
                Ok(input) if input >= inputs => return Err(format!("node {node} has no input {input}")),
                Ok(_) if !threshold.is_finite() => return Err(format!("node {node} has no threshold")),
                Ok(input) => {
                    // Children come later, so that every way ends.
                    if [left, right].iter().any(|&child| child as usize <= node || child as usize >= count) {
                        return Err(format!("node {node} has no such children"));
                    }
                    Node::Inner { input: input as u32, threshold, left, right }
                }
                Err(_) => {
                    let votes = &self.votes[node];
                    let within = |least: f64, most: f64| votes.iter().all(|vote| (least..=most).contains(vote));
                    let fits = match leaves {
                        Leaves::Shares => within(0.0, 1.0) && (votes.iter().sum::<f64>() - 1.0).abs() <= 1e-6,
                        Leaves::Numbers => within(-NUMBER_MAX, NUMBER_MAX),
                    };
                    if !fits || votes.len() != forest.about.classes.len() {
                        let what = if leaves == Leaves::Shares { "shares of" } else { "numbers for" };
                        return Err(format!("the votes of node {node} are no {what} the classes"));
                    }
                    forest.votes.extend_from_slice(votes);
                    Node::Leaf((forest.votes.len() - votes.len()) as u32)
                }
            };
            forest.nodes.push(built);
        }
        Ok(())
    }
}
