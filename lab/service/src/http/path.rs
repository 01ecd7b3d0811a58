//! Maps the target of a request to the name of a file below the root.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

/// Longest path, in bytes: PATH_MAX with the final NUL and the root.
pub const PATH_MAX: usize = 4000;

/// Characters that a path segment must escape (RFC 3986 §3.3, and those with a meaning in
/// HTML).
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'\'')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Why a target names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// Not a path, a broken escape, a NUL, or a `..` segment.
    Malformed,
    /// A segment that begins with a dot: such files are never served, except
    /// `.well-known` (RFC 8615).
    Hidden,
    /// Longer than [`PATH_MAX`].
    TooLong,
}

/// Writes the path that `target` (origin form or absolute form, RFC 9112 §3.2) names into
/// `path`: decoded, relative to the root, without empty and `.` segments. Returns whether
/// it names a directory, by a final slash. Ignores a query.
///
/// A `..` is rejected, not resolved: clients resolve theirs before they ask (RFC 3986
/// §5.2.4), so one that arrives is an attack. An escaped slash counts as a slash. The
/// text of the result cannot leave the root; [`super::files`] guards against symbolic
/// links.
///
/// # Errors
/// [`PathError`].
pub fn resolve(target: &str, path: &mut Vec<u8>) -> Result<bool, PathError> {
    path.clear();
    let target = origin_form(target)?;
    let end = target.find(['?', '#']).unwrap_or(target.len());
    let raw = target.get(..end).unwrap_or_default();
    let digits = |escape: &str| escape.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !raw.split('%').skip(1).all(digits) {
        return Err(PathError::Malformed);
    }
    let decoded = Cow::from(percent_decode_str(raw));
    let mut directory = true;
    for segment in decoded.split(|&byte| byte == b'/') {
        directory = matches!(segment, b"" | b".");
        match segment {
            b"" | b"." => continue,
            b".." => return Err(PathError::Malformed),
            b".well-known" => {}
            [b'.', ..] => return Err(PathError::Hidden),
            _ if segment.contains(&0) => return Err(PathError::Malformed),
            _ => {}
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(segment);
        if path.len() > PATH_MAX {
            return Err(PathError::TooLong);
        }
    }
    Ok(directory)
}

/// Returns the path and query of a target in origin form or absolute form.
fn origin_form(target: &str) -> Result<&str, PathError> {
    if target.starts_with('/') {
        return Ok(target);
    }
    let rest = ["http://", "https://"].into_iter().find_map(|scheme| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = rest.ok_or(PathError::Malformed)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if end == 0 {
        return Err(PathError::Malformed);
    }
    Ok(rest.get(end..).unwrap_or_default())
}

/// Returns the path of a directory as a target: a slash at either end and between the
/// segments, everything unusual escaped. It begins with a single slash, so that it cannot
/// be mistaken for another host's.
pub fn location(path: &[u8]) -> String {
    let mut target = String::from("/");
    for segment in path.split(|&byte| byte == b'/').filter(|s| !s.is_empty()) {
        target.extend(percent_encode(segment, SEGMENT));
        target.push('/');
    }
    target
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resolved(target: &str) -> Result<(String, bool), PathError> {
        let mut path = b"left over".to_vec();
        let directory = resolve(target, &mut path)?;
        Ok((String::from_utf8_lossy(&path).into_owned(), directory))
    }

    #[test]
    fn targets_become_paths() {
        for (target, path, directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/", "a", true),
            ("/a/b.html?x=/../y", "a/b.html", false),
            ("//a///b", "a/b", false),
            ("/./a/./b/.", "a/b", true),
            ("/a%20b%2Fc", "a b/c", false),
            ("/%e2%82%ac", "€", false),
            ("/...", "", true),
            ("http://host/a", "a", false),
            ("HTTP://host:80", "", true),
            ("https://host?query", "", true),
            ("/.well-known/x", ".well-known/x", false),
            ("/a..b/c.", "a..b/c.", false),
        ] {
            if target == "/..." {
                assert_eq!(resolved(target), Err(PathError::Hidden));
                continue;
            }
            assert_eq!(resolved(target), Ok((path.into(), directory)), "{target}");
        }
    }

    #[test]
    fn what_could_leave_the_root_is_refused() {
        for target in [
            "/..",
            "/../etc/passwd",
            "/a/../b",
            "/%2e%2e/etc",
            "/%2E./x",
            "/a%2f..%2f..%2fetc",
            "/a%00b",
            "/%",
            "/%4",
            "/%zz",
            "*",
            "",
            "a",
            "ftp://host/a",
            "http:///a",
            "host:443",
        ] {
            assert_eq!(resolved(target), Err(PathError::Malformed), "{target}");
        }
        for target in [
            "/.git/config",
            "/a/.htpasswd",
            "/%2ehidden",
            "/.well-knowns",
        ] {
            assert_eq!(resolved(target), Err(PathError::Hidden), "{target}");
        }
        assert_eq!(
            resolved(&format!("/{}", "a/".repeat(PATH_MAX))),
            Err(PathError::TooLong)
        );
    }

    #[test]
    fn locations_are_of_this_host() {
        assert_eq!(location(b""), "/");
        assert_eq!(location(b"a b/c\"<>\r\n"), "/a%20b/c%22%3C%3E%0D%0A/");
        assert_eq!(location(b"//evil.example"), "/evil.example/");
    }

    proptest! {
        /// Whatever the target, the result has only plain segments.
        #[test]
        fn no_path_leaves_the_root(target in "(/|[.]|%2[eEfF]|%00|[a-c%?#\\\\]|http://){0,24}") {
            let mut path = Vec::new();
            if let Ok(directory) = resolve(&target, &mut path) {
                prop_assert!(!path.contains(&0));
                prop_assert!(path.first() != Some(&b'/') && path.last() != Some(&b'/'));
                prop_assert!(path.is_empty() <= directory);
                for segment in path.split(|&byte| byte == b'/').filter(|_| !path.is_empty()) {
                    prop_assert!(!segment.is_empty() && segment != b"." && segment != b"..");
                }
            }
        }

        /// A directory's location leads back to it.
        #[test]
        fn locations_resolve_to_their_path(segments in prop::collection::vec("[^/\0.][^/\0]{0,8}", 0..5)) {
            let path = segments.join("/");
            let mut again = Vec::new();
            prop_assert_eq!(resolve(&location(path.as_bytes()), &mut again), Ok(true));
            prop_assert_eq!(again, path.into_bytes());
        }
    }
}
