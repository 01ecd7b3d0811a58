//! Translates `bpf/tables.h` to Rust; the header states which parts and in what form.

use std::fmt::Write;

/// Structs that are copied; the fields of others are atomics.
const COPIED: [&str; 2] = ["tw_metadata", "tw_trace_record"];
/// Keys of hash maps, which are bytes in Rust.
const KEYS: [&str; 2] = ["tw_owner_key", "tw_fragment_key"];
const PREFIXES: [(&str, &str); 4] = [
    ("tw_kind", "TW_KIND_"),
    ("tw_class", "TW_CLASS_"),
    ("tw_counter", "TW_COUNT_"),
    ("tw_sent", "TW_SENT_"),
];

/// Rust for the header.
///
/// # Errors
/// The first line that it cannot read.
pub fn translate(header: &str) -> Result<String, String> {
    let mut rust = String::new();
    let mut lines = header.lines();
    while let Some((comment, line)) = item(&mut lines) {
        let line = line.as_str();
        let done = match line.split(' ').next().unwrap_or_default() {
            "" | "#ifndef" | "#endif" | "#define" if !line.starts_with("#define TW_") => Some(()),
            "#define" => constant(&mut rust, &comment, line),
            "struct" => structure(&mut rust, &comment, line, &mut lines),
            "enum" => enumeration(&mut rust, &comment, line, &mut lines),
            _ => None,
        };
        done.ok_or_else(|| format!("cannot read \"{line}\", or what follows"))?;
    }
    Ok(rust)
}

/// The next line without its comment, with that comment or the one before it; `None` at
/// the end.
fn item<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<(String, String)> {
    let mut comment = String::new();
    loop {
        let line = lines.next()?.trim();
        let (code, mut text) = match line.split_once("/*") {
            Some((code, text)) => (code.trim(), text.to_owned()),
            None => return Some((comment, line.to_owned())),
        };
        while !text.trim_end().ends_with("*/") {
            text.push('\n');
            let line = lines.next()?.trim();
            text.push_str(line.strip_prefix("* ").unwrap_or(line));
        }
        comment = text.trim_end().trim_end_matches("*/").to_owned();
        if !code.is_empty() {
            return Some((comment, code.to_owned()));
        }
    }
}

/// A comment as a paragraph.
fn paragraph(comment: &str) -> String {
    let words: Vec<&str> = comment.split_whitespace().collect();
    words.join(" ").replace("TW_", "")
}

/// Documentation: escaped where rustdoc would see links or tags.
fn document(rust: &mut String, comment: &str) {
    let mut text = paragraph(comment);
    for character in ['[', ']', '<', '>'] {
        text = text.replace(character, &format!("\\{character}"));
    }
    let _ = writeln!(rust, "/// {text}");
}

/// `TW_NAME` as in `NAME`.
fn bare(name: &str) -> Option<&str> {
    name.strip_prefix("TW_")
}

/// `tw_some_name` or `SOME_NAME` as `SomeName`.
fn camel(name: &str) -> String {
    let words = name.trim_start_matches("tw_").split('_');
    let capital = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + &rest.to_lowercase()
    };
    words.map(capital).collect()
}

fn constant(rust: &mut String, comment: &str, line: &str) -> Option<()> {
    let mut words = line.split_whitespace().skip(1);
    let (name, value) = (bare(words.next()?)?, words.next());
    let Some(value) = value else {
        // The header's own guard.
        return Some(());
    };
    let (value, kind) = match value.strip_suffix('u') {
        Some(value) => (value, "u32"),
        None => (value, "usize"),
    };
    document(rust, comment);
    writeln!(rust, "pub const {name}: {kind} = {value};").ok()
}

fn structure<'a>(
    rust: &mut String,
    comment: &str,
    line: &str,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Option<()> {
    let name = line.split(' ').nth(1)?;
    let copied = COPIED.contains(&name);
    let mut text = String::new();
    document(&mut text, comment);
    text.push_str(if copied {
        "#[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]\n"
    } else {
        "#[derive(Debug, FromZeros)]\n"
    });
    if name == "tw_metadata" {
        text.push_str("#[derive(Default)]\n");
    }
    let _ = writeln!(text, "#[repr(C)]\npub struct {} {{", camel(name));
    loop {
        let (comment, line) = item(lines)?;
        let line = line.trim_start_matches("struct ");
        if line.starts_with('}') {
            break;
        }
        let (kind, field) = line.strip_suffix(';')?.split_once(' ')?;
        let mut kind = match kind {
            "__u8" | "__u16" | "__u32" | "__u64" if copied => kind.replace("__u", "u"),
            "__u8" | "__u16" | "__u32" | "__u64" => kind.replace("__u", "AtomicU"),
            _ => camel(kind),
        };
        let (field, dimensions) = field.split_once('[').unwrap_or((field, ""));
        for dimension in dimensions.trim_end_matches(']').rsplit("][") {
            if !dimension.is_empty() {
                kind = format!("[{kind}; {}]", dimension.replace("TW_", ""));
            }
        }
        document(&mut text, &comment);
        let _ = writeln!(text, "pub {field}: {kind},");
    }
    if !KEYS.contains(&name) {
        rust.push_str(&text);
        rust.push_str("}\n");
    }
    Some(())
}

/// As an invocation of the macro `list`.
fn enumeration<'a>(
    rust: &mut String,
    comment: &str,
    line: &str,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Option<()> {
    let name = line.split(' ').nth(1)?;
    let (_, prefix) = PREFIXES.iter().find(|(other, _)| *other == name)?;
    let (mut items, mut next, mut places) = (String::new(), 0, None);
    loop {
        let (comment, line) = item(lines)?;
        if line.starts_with('}') {
            break;
        }
        let line = line.strip_suffix(',')?;
        let (item, value) = line.split_once(" = ").unwrap_or((line, ""));
        if !value.is_empty() {
            next = value.parse().ok()?;
        }
        let Some(item) = item.strip_prefix(prefix) else {
            places = Some((bare(item)?.to_owned(), next));
            continue;
        };
        let text = paragraph(&comment);
        let (meaning, advice) = text.split_once(" -> ").unwrap_or((&text, ""));
        let lost = meaning.ends_with("(lost)");
        let meaning = meaning.trim_end_matches("(lost)").trim_end();
        document(&mut items, meaning);
        let (variant, kebab) = (camel(item), item.to_lowercase().replace('_', "-"));
        let _ = writeln!(
            items,
            "{variant} = {next}, {kebab:?}, {lost}, {meaning:?}, {advice:?};"
        );
        next += 1;
    }
    rust.push_str("list! {\n");
    document(rust, comment);
    let _ = writeln!(rust, "pub enum {} {{\n{items}}}\n}}", camel(name));
    if let Some((name, places)) = places {
        let _ = writeln!(
            rust,
            "/// Places in the table.\npub const {name}: usize = {places};"
        );
    }
    Some(())
}
