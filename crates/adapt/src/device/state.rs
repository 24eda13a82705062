//! What was learned of a device, as a text that survives restarts.
//!
//! A first line, `sluice-device 1 crc32=0123abcd bytes=N`, then so many bytes of JSON. Anything that is not exactly that, or that says
//! what cannot be, is refused as a whole.

use super::moments::{Evidence, Moments};
use super::{Learned, Learner};

/// Version of the format.
const VERSION: u32 = 1;
const MAGIC: &str = "sluice-device";
/// Longer states are none.
pub const BYTES_MAX: usize = 1 << 20;

/// A state that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is something else.
    #[error("it does not begin like what was learned of a device")]
    Other,
    /// Another version of the program wrote it.
    #[error("it is of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

fn head(body: &str) -> String {
    format!("{MAGIC} {VERSION} crc32={:08x} bytes={}", crc32fast::hash(body.as_bytes()), body.len())
}

impl Learner {
    /// The text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let body = serde_json::to_string_pretty(&self.learned).expect("numbers and texts");
        format!("{}\n{body}", head(&body))
    }

    /// Goes on with what was learned before. Evidence of then counts for less than what comes: the device may be another one.
    ///
    /// # Errors
    /// See [`StateError`]; nothing changes then.
    pub fn remember(&mut self, text: &[u8]) -> Result<(), StateError> {
        let damaged = |why: &str| StateError::Damaged(why.to_owned());
        let text = std::str::from_utf8(text).map_err(|_| StateError::Other)?;
        let (first, body) = text.split_once('\n').ok_or(StateError::Other)?;
        let mut words = first.split(' ');
        if words.next() != Some(MAGIC) {
            return Err(StateError::Other);
        }
        let version = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| damaged("no version"))?;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        if body.len() > BYTES_MAX || first != head(body) {
            return Err(damaged("the checksum or the length is another one"));
        }
        let mut learned: Learned =
            serde_json::from_str(body).map_err(|error| StateError::Damaged(error.to_string()))?;
        let is_sound = learned.cells.iter().flatten().all(|cell| {
            let all = [cell.sequential, cell.random, cell.sequential_beside, cell.random_beside];
            all.iter().all(Moments::is_sound)
        });
        if !is_sound || ![learned.fresh, learned.cached, learned.warm].iter().all(Evidence::is_sound) {
            return Err(damaged("a figure that cannot be"));
        }
        for evidence in [&mut learned.fresh, &mut learned.cached, &mut learned.warm] {
            evidence.fade();
        }
        self.learned = learned;
        Ok(())
    }
}
