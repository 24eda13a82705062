//! Reaching a coordinator: addresses, tokens, and why it cannot be reached.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

/// Longer messages are none: a node's has some 500 bytes.
pub(crate) const MESSAGE_MAX: usize = 64 << 10;
/// For the connection to stand.
const CONNECT: Duration = Duration::from_secs(3);
/// Bytes of a token.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 1024;

/// Reads a token from a file: its first line.
///
/// # Errors
/// If it cannot be read, is no text, or too short to be a secret.
pub fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("the token {}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        (TOKEN_MIN..=TOKEN_MAX).contains(&token.len()) && is_plain,
        "{}: a token is a line of {TOKEN_MIN} to {TOKEN_MAX} letters, digits and signs; head -c 32 /dev/urandom | base64 makes one",
        path.display()
    );
    Ok(token.to_owned())
}

/// Where a coordinator is, and the token that it asks for.
#[derive(Clone, Debug)]
pub struct Address {
    endpoint: Endpoint,
    text: String,
    token: Option<MetadataValue<Ascii>>,
}

impl Address {
    /// `HOST:PORT`, and a token as [`read_token`] gives it.
    ///
    /// # Errors
    /// If it is no address.
    pub fn new(text: &str, token: Option<&str>) -> anyhow::Result<Address> {
        let has_port =
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        ensure!(has_port, "{text:?} is no address of a coordinator: HOST:PORT");
        let endpoint =
            Endpoint::from_shared(format!("http://{text}")).with_context(|| format!("{text:?} is no address"))?;
        let endpoint = endpoint.connect_timeout(CONNECT);
        let token = token.map(|token| format!("Bearer {token}").parse::<MetadataValue<Ascii>>()).transpose();
        let mut token = token.context("the token is no text")?;
        // Not to be seen in logs.
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Address { endpoint, text: text.to_owned(), token })
    }

    /// As it was given.
    #[must_use]
    pub fn text(&self) -> String {
        self.text.clone()
    }

    pub(crate) async fn connect(&self) -> Result<Channel, tonic::Status> {
        let cause = |error: tonic::transport::Error| {
            let mut cause: &dyn std::error::Error = &error;
            while let Some(next) = cause.source() {
                cause = next;
            }
            tonic::Status::unavailable(cause.to_string())
        };
        self.endpoint.connect().await.map_err(cause)
    }

    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }
}

/// Why it did not work, in a few words.
pub(crate) fn reason(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::Unauthenticated => "it asks for another token".to_owned(),
        tonic::Code::Unimplemented => "that is no coordinator, or one of another version".to_owned(),
        _ => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_tokens_are_looked_at() {
        assert_eq!(Address::new("127.0.0.1:24090", None).unwrap().text(), "127.0.0.1:24090");
        assert!(Address::new("[::1]:1", Some("x")).is_ok());
        for bad in ["127.0.0.1", ":1", "host:", "host:99999", "a b:1"] {
            assert!(Address::new(bad, None).is_err(), "{bad}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, is_fine) in
            [("0123456789abcdef\nrest\n", true), ("short\n", false), ("", false), ("0123456789 abcdef", false)]
        {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(read_token(file.path()).is_ok(), is_fine, "{text:?}");
        }
        let shown = format!("{:?}", Address::new("a:1", Some("0123456789abcdef")).unwrap());
        assert!(!shown.contains("0123456789"), "{shown}");
    }
}
