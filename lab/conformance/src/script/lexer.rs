//! Converts text to tokens.

use core::fmt;

/// A position in a script.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The kind of a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `--name` or `--name=value`; the value without its quotes.
    Option(String, Option<String>),
    /// A number as written: digits, optionally a sign and a fraction.
    Number(String),
    /// A number after `0x`.
    Hex(u64),
    /// Letters, digits and underscores, not all digits.
    Word(String),
    /// Between double quotes, escapes resolved.
    String(String),
    /// Between backticks.
    Shell(String),
    /// Between `%{` and `}%`.
    Code(String),
    /// `...`
    Ellipsis,
    /// Any other character.
    Mark(char),
    /// The end of the text.
    End,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(name, _) => write!(f, "`--{name}`"),
            Self::Number(text) | Self::Word(text) => write!(f, "`{text}`"),
            Self::Hex(value) => write!(f, "`{value:#x}`"),
            Self::String(_) => f.write_str("a string"),
            Self::Shell(_) => f.write_str("a command in backticks"),
            Self::Code(_) => f.write_str("`%{ }%`"),
            Self::Ellipsis => f.write_str("`...`"),
            Self::Mark(mark) => write!(f, "`{mark}`"),
            Self::End => f.write_str("the end of the script"),
        }
    }
}

/// A token and its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) position: Position,
    /// Its byte offset in the text.
    pub(super) offset: usize,
}

/// Why text cannot be split into tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LexError {
    pub(super) position: Position,
    pub(super) message: String,
}

/// The tokens of a script; the last is [`Kind::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, LexError> {
    let position = Position { line: 1, column: 1 };
    all(Lexer {
        rest: text,
        position,
        code: false,
    })
}

/// The tokens of the code between `%{` and `}%`, which begins at `position`. As in
/// Python, `'` quotes, `#` begins a comment and a backslash may end a line.
pub(super) fn code_tokens(text: &str, position: Position) -> Result<Vec<Token>, LexError> {
    all(Lexer {
        rest: text,
        position,
        code: true,
    })
}

fn all(mut lexer: Lexer<'_>) -> Result<Vec<Token>, LexError> {
    let mut tokens = Vec::new();
    let length = lexer.rest.len();
    loop {
        lexer.skip_blank()?;
        let position = lexer.position;
        let offset = length - lexer.rest.len();
        let kind = lexer.token()?;
        let last = kind == Kind::End;
        tokens.push(Token {
            kind,
            position,
            offset,
        });
        if last {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    position: Position,
    code: bool,
}

impl<'a> Lexer<'a> {
    fn error(position: Position, message: impl Into<String>) -> LexError {
        LexError {
            position,
            message: message.into(),
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let char = chars.next()?;
        self.rest = chars.as_str();
        if char == '\n' {
            self.position.line = self.position.line.saturating_add(1);
            self.position.column = 1;
        } else {
            self.position.column = self.position.column.saturating_add(1);
        }
        Some(char)
    }

    /// Consumes `prefix` if the text continues with it.
    fn take(&mut self, prefix: &str) -> bool {
        let found = self.rest.starts_with(prefix);
        if found {
            for _ in prefix.chars() {
                self.next();
            }
        }
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let start = self.rest;
        while self.peek().is_some_and(&wanted) {
            self.next();
        }
        start
            .get(..start.len() - self.rest.len())
            .unwrap_or_default()
    }

    /// Everything before `end`, which is consumed too.
    fn until(&mut self, end: &str, what: &str) -> Result<&'a str, LexError> {
        let position = self.position;
        let start = self.rest;
        while !self.rest.is_empty() {
            let length = start.len() - self.rest.len();
            if self.take(end) {
                return Ok(start.get(..length).unwrap_or_default());
            }
            self.next();
        }
        Err(Self::error(
            position,
            format!("expected {what}, found the end of the script"),
        ))
    }

    fn skip_blank(&mut self) -> Result<(), LexError> {
        loop {
            self.take_while(char::is_whitespace);
            if self.code {
                if self.take("#") {
                    self.take_while(|char| char != '\n');
                } else if !self.take("\\") {
                    return Ok(());
                }
            } else if self.take("//") {
                self.take_while(|char| char != '\n');
            } else if self.take("/*") {
                self.until("*/", "`*/`, the end of the comment")?;
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Kind, LexError> {
        let Some(first) = self.peek() else {
            return Ok(Kind::End);
        };
        if self.take("...") {
            return Ok(Kind::Ellipsis);
        }
        if self.take("%{") {
            return Ok(Kind::Code(self.until("}%", "`}%`")?.to_owned()));
        }
        if !self.code && self.rest.starts_with("--") {
            return self.option();
        }
        match first {
            '"' => {
                self.next();
                Ok(Kind::String(self.string('"')?))
            }
            '\'' if self.code => {
                self.next();
                Ok(Kind::String(self.string('\'')?))
            }
            '`' => {
                self.next();
                Ok(Kind::Shell(self.until("`", "a backtick")?.to_owned()))
            }
            '-' if self.code => {
                self.next();
                Ok(Kind::Mark('-'))
            }
            '-' | '.' | '0'..='9' => Ok(self.number()),
            _ if is_word(first) => Ok(self.word()),
            _ => {
                self.next();
                Ok(Kind::Mark(first))
            }
        }
    }

    fn option(&mut self) -> Result<Kind, LexError> {
        let position = self.position;
        self.take("--");
        let name = self.take_while(is_word).to_owned();
        if name.is_empty() {
            return Err(Self::error(
                position,
                "expected the name of an option after `--`",
            ));
        }
        if !self.take("=") {
            return Ok(Kind::Option(name, None));
        }
        let mut value = String::new();
        // Quotes may be in the middle: --define=NAME="a b".
        while let Some(char) = self.peek() {
            if char.is_whitespace() {
                break;
            }
            self.next();
            if char == '"' {
                value.push_str(&self.string('"')?);
            } else {
                value.push(char);
            }
        }
        Ok(Kind::Option(name, Some(value)))
    }

    /// Everything before `end`, which is consumed too.
    fn string(&mut self, end: char) -> Result<String, LexError> {
        let position = self.position;
        let mut text = String::new();
        while let Some(char) = self.next() {
            if char == end {
                return Ok(text);
            }
            if char != '\\' {
                text.push(char);
                continue;
            }
            match self.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some('0') => text.push('\0'),
                Some('x') => {
                    let digits = self
                        .rest
                        .get(..2)
                        .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    let Some(byte) = digits else {
                        return Err(Self::error(
                            self.position,
                            "expected two hexadecimal digits after `\\x`",
                        ));
                    };
                    self.next();
                    self.next();
                    text.push(char::from(byte));
                }
                Some(other) => text.push(other),
                None => break,
            }
        }
        Err(Self::error(
            position,
            format!("expected `{end}`, found the end of the script"),
        ))
    }

    /// A number, or the mark with which it could have begun.
    fn number(&mut self) -> Kind {
        let digit = |text: &str, at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let signed = self.rest.starts_with('-');
        let at = usize::from(signed);
        let fraction = self
            .rest
            .get(at..)
            .is_some_and(|rest| rest.starts_with('.'));
        if !(digit(self.rest, at) || fraction && digit(self.rest, at + 1)) {
            return self.next().map_or(Kind::End, Kind::Mark);
        }
        let mut text = String::new();
        if signed {
            self.next();
            text.push('-');
        } else if digit(self.rest, 0) {
            // `0x1f`, or a word that begins with a digit, such as a cookie.
            let run = self.rest.len() - self.rest.trim_start_matches(is_word).len();
            let run = self.rest.get(..run).unwrap_or_default();
            if !run.bytes().all(|byte| byte.is_ascii_digit()) {
                return self.word();
            }
        }
        text.push_str(self.take_while(|char| char.is_ascii_digit()));
        if self.rest.starts_with('.') && digit(self.rest, 1) {
            self.next();
            text.push('.');
            text.push_str(self.take_while(|char| char.is_ascii_digit()));
        }
        Kind::Number(text)
    }

    fn word(&mut self) -> Kind {
        let text = self.take_while(is_word);
        let hex = text
            .strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        hex.map_or_else(|| Kind::Word(text.to_owned()), Kind::Hex)
    }
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let mut kinds: Vec<_> = tokens(text)
            .unwrap()
            .into_iter()
            .map(|token| token.kind)
            .collect();
        assert_eq!(kinds.pop(), Some(Kind::End));
        kinds
    }

    fn number(text: &str) -> Kind {
        Kind::Number(text.into())
    }

    #[test]
    fn times_and_ellipses_part_where_they_should() {
        assert_eq!(
            kinds("+.1...0.200"),
            [
                Kind::Mark('+'),
                number(".1"),
                Kind::Ellipsis,
                number("0.200")
            ]
        );
        assert_eq!(
            kinds("+0...10"),
            [Kind::Mark('+'), number("0"), Kind::Ellipsis, number("10")]
        );
        assert_eq!(
            kinds("0.1~.25"),
            [number("0.1"), Kind::Mark('~'), number(".25")]
        );
    }

    #[test]
    fn flags_are_words_and_marks() {
        assert_eq!(
            kinds("P. 1:1001(1000)")[..3],
            [Kind::Word("P".into()), Kind::Mark('.'), number("1")]
        );
        assert_eq!(kinds(". 1"), [Kind::Mark('.'), number("1")]);
        assert_eq!(kinds("- 1"), [Kind::Mark('-'), number("1")]);
        assert_eq!(kinds("-1"), [number("-1")]);
        assert_eq!(kinds("S.5"), [Kind::Word("S".into()), number(".5")]);
    }

    #[test]
    fn words_may_begin_with_a_digit() {
        assert_eq!(kinds("12ab"), [Kind::Word("12ab".into())]);
        assert_eq!(kinds("0x1F"), [Kind::Hex(31)]);
        assert_eq!(kinds("0xzz"), [Kind::Word("0xzz".into())]);
    }

    #[test]
    fn options_carry_their_values() {
        assert_eq!(
            kinds("--mss=1000 --strict_segments --define=CC=\"a b\""),
            [
                Kind::Option("mss".into(), Some("1000".into())),
                Kind::Option("strict_segments".into(), None),
                Kind::Option("define".into(), Some("CC=a b".into())),
            ]
        );
    }

    #[test]
    fn comments_strings_shell_and_code() {
        assert_eq!(
            kinds("// x\n/* y\n * z */ \"a\\n\\x41\" `ls\n-l` %{ a }% b"),
            [
                Kind::String("a\nA".into()),
                Kind::Shell("ls\n-l".into()),
                Kind::Code(" a ".into()),
                Kind::Word("b".into()),
            ]
        );
    }

    #[test]
    fn positions_count_lines_and_characters() {
        let tokens = tokens("é a\n  b").unwrap();
        let places: Vec<_> = tokens.iter().map(|token| token.position).collect();
        assert_eq!(places[1], Position { line: 1, column: 3 });
        assert_eq!(places[2], Position { line: 2, column: 3 });
    }

    #[test]
    fn what_is_not_closed_is_said() {
        for text in ["/* x", "\"x", "`x", "%{ x", "--", "\"\\x4\""] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }
}
