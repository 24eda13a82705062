//! What a coordinator keeps, as a text that survives restarts.
//!
//! A first line, `sluice-coordinator 1 crc32=0123abcd bytes=N`, then so many bytes of JSON. Anything that is not exactly that is
//! refused as a whole.

use serde_json::Value;

const MAGIC: &str = "sluice-coordinator";
const VERSION: u32 = 1;
/// Longer states are none.
const BYTES_MAX: usize = 64 << 20;

/// A state that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is something else.
    #[error("it does not begin like the state of a coordinator")]
    Other,
    /// Another version of the program wrote it.
    #[error("it is of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// It is not what was written, or cannot be.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// The text of a state.
#[must_use]
pub fn to_text(state: &Value) -> String {
    let body = state.to_string();
    format!("{}\n{body}", head(&body))
}

fn head(body: &str) -> String {
    format!("{MAGIC} {VERSION} crc32={:08x} bytes={}", crc32fast::hash(body.as_bytes()), body.len())
}

/// The state of a text.
///
/// # Errors
/// See [`StateError`].
pub fn from_text(text: &[u8]) -> Result<Value, StateError> {
    if !text.starts_with(MAGIC.as_bytes()) {
        return Err(StateError::Other);
    }
    let damaged = |why: &str| StateError::Damaged(why.to_owned());
    if text.len() > BYTES_MAX {
        return Err(damaged("it is far too long"));
    }
    let text = std::str::from_utf8(text).map_err(|_| damaged("it is no text"))?;
    let (first, body) = text.split_once('\n').ok_or_else(|| damaged("it has one line"))?;
    let version = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    match version.ok_or_else(|| damaged("no version"))? {
        VERSION => {}
        other => return Err(StateError::Version(other)),
    }
    if first != head(body) {
        return Err(damaged("length or checksum are others"));
    }
    serde_json::from_str(body).map_err(|error| StateError::Damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_any_byte_damaged_or_missing_is_refused() {
        let state = serde_json::json!({"incarnation": 7, "roles": {"council": [1.5, "x"]}});
        let text = to_text(&state).into_bytes();
        assert_eq!(from_text(&text), Ok(state));
        for at in 0..text.len() {
            for bit in [0x01, 0x80] {
                let mut bad = text.clone();
                bad[at] ^= bit;
                assert!(from_text(&bad).is_err(), "byte {at}");
            }
            assert!(from_text(&text[..at]).is_err(), "cut at {at}");
        }
        let newer = String::from_utf8(text).unwrap().replacen("tor 1", "tor 2", 1);
        assert_eq!(from_text(newer.as_bytes()), Err(StateError::Version(2)));
    }
}
