//! Converts tokens to a [`Script`]: options, events, times, calls.

use core::time::Duration;
use std::collections::HashMap;

use super::lexer::{self, Kind, LexError, Position, Token};
use super::{
    Action, Call, Command, Direction, Event, Expression, OptionLine, Script, When, assertion,
    packet,
};

/// Maximum depth of nesting: a script needs four.
const DEPTH_MAX: u8 = 32;

/// Why text is not a script.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{position}: {message}")]
pub struct ParseError {
    /// The position.
    pub position: Position,
    /// The expected and the actual text.
    pub message: String,
}

impl From<LexError> for ParseError {
    fn from(error: LexError) -> Self {
        Self {
            position: error.position,
            message: error.message,
        }
    }
}

/// Parses a script.
///
/// # Errors
/// For text that is not a script: the first error, and what was expected there.
pub fn parse(text: &str) -> Result<Script, ParseError> {
    let mut cursor = Cursor::new(lexer::tokens(text)?);
    let mut script = Script::default();
    while let Kind::Option(name, value) = cursor.peek().clone() {
        let position = cursor.position();
        cursor.next();
        script.options.push(OptionLine {
            position,
            name,
            value,
        });
    }
    cursor.define(&script.options)?;
    script.init = command(&mut cursor)?;
    while *cursor.peek() != Kind::End {
        if let Some(cleanup) = command(&mut cursor)? {
            script.cleanup = Some(cleanup);
            if *cursor.peek() != Kind::End {
                return Err(cursor.expected("the end of the script after its last command"));
            }
        } else {
            script.events.push(event(&mut cursor)?);
        }
    }
    if script.events.is_empty() {
        return Err(cursor.expected("an event: a time and a packet or a system call"));
    }
    Ok(script)
}

fn command(cursor: &mut Cursor) -> Result<Option<Command>, ParseError> {
    let Kind::Shell(text) = cursor.peek().clone() else {
        return Ok(None);
    };
    let position = cursor.position();
    cursor.next();
    Command::parse(&text)
        .map(Some)
        .map_err(|message| ParseError { position, message })
}

fn event(cursor: &mut Cursor) -> Result<Event, ParseError> {
    let position = cursor.position();
    let when = when(cursor)?;
    let until = match cursor.peek() {
        Kind::Ellipsis => {
            cursor.next();
            Some(time(cursor)?)
        }
        _ => None,
    };
    let action = match cursor.peek() {
        Kind::Word(_) => Action::Call(call(cursor, until)?),
        _ if until.is_some() => {
            return Err(cursor.expected("a system call after the time until which it blocks"));
        }
        Kind::Mark('<') => Action::Packet(packet::packet(cursor, Direction::Inbound)?),
        Kind::Mark('>') => Action::Packet(packet::packet(cursor, Direction::Outbound)?),
        Kind::Shell(_) => match command(cursor)? {
            Some(command) => Action::Command(command),
            None => return Err(cursor.expected("a command")),
        },
        Kind::Code(text) => {
            let (text, position) = (text.clone(), cursor.position());
            cursor.next();
            // The code begins after the two characters `%{`.
            let column = position.column.saturating_add(2);
            let tokens = lexer::code_tokens(&text, Position { column, ..position })?;
            Action::Assertions(assertion::assertions(&mut Cursor::new(tokens), &text)?)
        }
        _ => {
            return Err(
                cursor.expected("`<`, `>`, a system call, a command or `%{` after the time")
            );
        }
    };
    let outbound =
        matches!(&action, Action::Packet(packet) if packet.direction == Direction::Outbound);
    if !outbound && !matches!(when, When::Absolute(_) | When::Relative(_)) {
        return Err(ParseError {
            position,
            message: "expected one exact time: `*` and ranges are for outbound packets".into(),
        });
    }
    if let (When::Absolute(start), Some(until)) = (when, until)
        && until < start
    {
        return Err(ParseError {
            position,
            message: "the call would return before it begins".into(),
        });
    }
    Ok(Event {
        position,
        when,
        action,
    })
}

fn when(cursor: &mut Cursor) -> Result<When, ParseError> {
    let position = cursor.position();
    if cursor.mark('*') {
        return Ok(When::Any);
    }
    let relative = cursor.mark('+');
    let start = time(cursor)?;
    if !cursor.mark('~') {
        return Ok(if relative {
            When::Relative(start)
        } else {
            When::Absolute(start)
        });
    }
    if relative {
        cursor.expect('+', "`+` before the end of a relative range")?;
    }
    let end = time(cursor)?;
    if end < start {
        return Err(ParseError {
            position,
            message: "the range of time ends before it begins".into(),
        });
    }
    Ok(if relative {
        When::RelativeRange(start, end)
    } else {
        When::AbsoluteRange(start, end)
    })
}

/// Seconds, with at most nine digits of fraction.
fn time(cursor: &mut Cursor) -> Result<Duration, ParseError> {
    const WHAT: &str = "a time in seconds";
    let Kind::Number(text) = cursor.peek() else {
        return Err(cursor.expected(WHAT));
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = if whole.is_empty() { "0" } else { whole };
    // Four months: longer than any timer here runs.
    let whole: Option<u64> = whole.parse().ok().filter(|whole| *whole <= 10_000_000);
    let nanoseconds: Option<u32> = (fraction.len() <= 9)
        .then(|| format!("{fraction:0<9}").parse().ok())
        .flatten();
    let (Some(whole), Some(nanoseconds)) = (whole, nanoseconds) else {
        return Err(cursor.expected(WHAT));
    };
    cursor.next();
    Ok(Duration::new(whole, nanoseconds))
}

fn call(cursor: &mut Cursor, until: Option<Duration>) -> Result<Call, ParseError> {
    let name = cursor.word("the name of a system call")?;
    cursor.expect('(', "`(` after the name of a system call")?;
    let arguments = Expression::list(cursor, ')')?;
    cursor.expect('=', "`=` and what the call returns")?;
    let result = Expression::result(cursor)?;
    let errno = match cursor.peek().clone() {
        Kind::Word(name) => {
            cursor.next();
            Some(name)
        }
        _ => None,
    };
    // The text of strerror is for the reader.
    if cursor.mark('(') {
        while !cursor.mark(')') {
            if *cursor.peek() == Kind::End {
                return Err(cursor.expected("`)` after the note"));
            }
            cursor.next();
        }
    }
    Ok(Call {
        name,
        arguments,
        result,
        errno,
        until,
    })
}

/// Tokens and the current position in them.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    at: usize,
    depth: u8,
}

impl Cursor {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
        }
    }

    /// Inserts the values of `--define=NAME=VALUE` in place of the names.
    fn define(&mut self, options: &[OptionLine]) -> Result<(), ParseError> {
        let mut values = HashMap::new();
        for option in options.iter().filter(|option| option.name == "define") {
            let value = option.value.as_deref().unwrap_or_default();
            let Some((name, value)) = value.split_once('=') else {
                return Err(ParseError {
                    position: option.position,
                    message: "expected --define=NAME=VALUE".into(),
                });
            };
            let kind = match lexer::tokens(value).as_deref() {
                Ok([Token { kind, .. }, _])
                    if matches!(kind, Kind::Number(_) | Kind::Hex(_) | Kind::Word(_)) =>
                {
                    kind.clone()
                }
                _ => Kind::String(value.to_owned()),
            };
            values.insert(name.to_owned(), kind);
        }
        for token in &mut self.tokens {
            if let Kind::Word(word) = &token.kind
                && let Some(value) = values.get(word)
            {
                token.kind = value.clone();
            }
        }
        Ok(())
    }

    pub(super) fn peek(&self) -> &Kind {
        self.tokens
            .get(self.at)
            .map_or(&Kind::End, |token| &token.kind)
    }

    pub(super) fn peek_second(&self) -> &Kind {
        self.tokens
            .get(self.at + 1)
            .map_or(&Kind::End, |token| &token.kind)
    }

    pub(super) fn position(&self) -> Position {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(Position { line: 1, column: 1 }, |token| token.position)
    }

    /// Byte offset of the next token in the text.
    pub(super) fn offset(&self) -> usize {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(0, |token| token.offset)
    }

    pub(super) fn next(&mut self) {
        if self.at < self.tokens.len() {
            self.at += 1;
        }
    }

    /// Consumes this mark if it is next.
    pub(super) fn mark(&mut self, mark: char) -> bool {
        let found = *self.peek() == Kind::Mark(mark);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect(&mut self, mark: char, what: &str) -> Result<(), ParseError> {
        if self.mark(mark) {
            Ok(())
        } else {
            Err(self.expected(what))
        }
    }

    /// Consumes this word if it is next.
    pub(super) fn keyword(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Kind::Word(found) if found == word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn word(&mut self, what: &str) -> Result<String, ParseError> {
        let Kind::Word(word) = self.peek().clone() else {
            return Err(self.expected(what));
        };
        self.next();
        Ok(word)
    }

    /// A whole number that fits `T`.
    pub(super) fn integer<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T, ParseError> {
        let value = match self.peek() {
            Kind::Number(text) => text.parse::<i64>().ok(),
            Kind::Hex(value) => i64::try_from(*value).ok(),
            _ => None,
        };
        let Some(value) = value.and_then(|value| T::try_from(value).ok()) else {
            return Err(self.expected(what));
        };
        self.next();
        Ok(value)
    }

    /// Runs `inner` one level deeper; too much depth is an error, not a stack overflow.
    pub(super) fn nested<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        if self.depth >= DEPTH_MAX {
            return Err(self.fail(format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    pub(super) fn expected(&self, what: &str) -> ParseError {
        self.fail(format!("expected {what}, found {}", self.peek()))
    }

    pub(super) fn fail(&self, message: impl Into<String>) -> ParseError {
        ParseError {
            position: self.position(),
            message: message.into(),
        }
    }
}
