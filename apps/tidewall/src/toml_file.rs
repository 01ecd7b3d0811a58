//! Configuration files in TOML, whose errors name the line.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::units::with_form;

/// The position of a mistake in a text, and its description.
pub type Wrong = (usize, String);

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        path: PathBuf,
        error: std::io::Error,
    },
    /// A line has a mistake.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        what: String,
    },
}

/// Reads a file and parses its text with `parse`.
pub fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, Wrong>) -> Result<T, Error> {
    let path = path.to_owned();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Err(Error::Read { path, error }),
    };
    parse(&text).map_err(|(place, what)| Error::Line {
        line: line(&text, place),
        path,
        what,
    })
}

/// Deserializes a text.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        (place, with_form(error.message()))
    })
}

/// Returns the number of the line at a position.
fn line(text: &str, place: usize) -> usize {
    let before = text.bytes().take(place);
    before.filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_is_answered_with_the_form() {
        #[derive(Debug, serde::Deserialize)]
        struct Table {
            _address: std::net::SocketAddr,
        }
        let (_, what) = from_str::<Table>("_address = \"10.0.0.1\"").unwrap_err();
        assert!(what.contains("ADDRESS:PORT is wanted"), "{what}");
    }
}
