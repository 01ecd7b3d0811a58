//! Arguments and results of system calls.

use core::fmt;

use super::lexer::Kind;
use super::parser::{Cursor, ParseError};

/// An argument or a result as written. The runner knows the meaning of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression {
    /// `...`: the runner fills it in, or ignores it.
    Ellipsis,
    /// A number, decimal or after `0x`.
    Integer(i64),
    /// A constant: `SOL_SOCKET`.
    Word(String),
    /// `"cubic"`; with an ellipsis after it, only the beginning.
    Text(String, bool),
    /// `O_RDWR|O_NONBLOCK`
    Or(Vec<Expression>),
    /// `events=EPOLLIN`, `msg_iov(1)=[…]`
    Assign {
        /// Name of the field.
        name: String,
        /// In parentheses after the name.
        arguments: Vec<Expression>,
        /// After the equals sign.
        value: Box<Expression>,
    },
    /// `htons(8080)`
    Call {
        /// Name of the function.
        name: String,
        /// In the parentheses.
        arguments: Vec<Expression>,
    },
    /// `[1, 2]`: the target of a pointer.
    List(Vec<Expression>),
    /// `{…}`: a structure.
    Structure(Vec<Expression>),
}

impl Expression {
    /// Expressions and commas up to `end`, which is consumed too.
    pub(super) fn list(cursor: &mut Cursor, end: char) -> Result<Vec<Self>, ParseError> {
        let mut list = Vec::new();
        if cursor.mark(end) {
            return Ok(list);
        }
        loop {
            list.push(Self::any(cursor)?);
            if cursor.mark(end) {
                return Ok(list);
            }
            cursor.expect(',', &format!("`,` or `{end}`"))?;
        }
    }

    fn any(cursor: &mut Cursor) -> Result<Self, ParseError> {
        cursor.nested(|cursor| {
            let first = Self::unit(cursor, true)?;
            Self::or(cursor, first, true)
        })
    }

    /// The result of a call: a word before a parenthesis is an errno or a flag with a
    /// note after it, not a function.
    pub(super) fn result(cursor: &mut Cursor) -> Result<Self, ParseError> {
        let first = Self::unit(cursor, false)?;
        Self::or(cursor, first, false)
    }

    fn or(cursor: &mut Cursor, first: Self, calls: bool) -> Result<Self, ParseError> {
        if *cursor.peek() != Kind::Mark('|') {
            return Ok(first);
        }
        let mut all = vec![first];
        while cursor.mark('|') {
            all.push(Self::unit(cursor, calls)?);
        }
        Ok(Self::Or(all))
    }

    fn unit(cursor: &mut Cursor, calls: bool) -> Result<Self, ParseError> {
        const WHAT: &str = "a number, a constant, a string, `...`, `[` or `{`";
        match cursor.peek().clone() {
            Kind::Ellipsis => {
                cursor.next();
                Ok(Self::Ellipsis)
            }
            Kind::Number(_) | Kind::Hex(_) => cursor.integer("a whole number").map(Self::Integer),
            Kind::String(mut text) => {
                cursor.next();
                while let Kind::String(more) = cursor.peek() {
                    text.push_str(more);
                    cursor.next();
                }
                let open = *cursor.peek() == Kind::Ellipsis;
                if open {
                    cursor.next();
                }
                Ok(Self::Text(text, open))
            }
            Kind::Mark('[') => {
                cursor.next();
                Self::list(cursor, ']').map(Self::List)
            }
            Kind::Mark('{') => {
                cursor.next();
                Self::list(cursor, '}').map(Self::Structure)
            }
            Kind::Word(name) => {
                cursor.next();
                if !calls {
                    return Ok(Self::Word(name));
                }
                let called = cursor.mark('(');
                let arguments = if called {
                    Self::list(cursor, ')')?
                } else {
                    Vec::new()
                };
                Ok(if cursor.mark('=') {
                    let value = Box::new(Self::any(cursor)?);
                    Self::Assign {
                        name,
                        arguments,
                        value,
                    }
                } else if called {
                    Self::Call { name, arguments }
                } else {
                    Self::Word(name)
                })
            }
            _ => Err(cursor.expected(WHAT)),
        }
    }
}

fn separated(f: &mut fmt::Formatter<'_>, list: &[Expression], by: &str) -> fmt::Result {
    for (index, item) in list.iter().enumerate() {
        let by = if index == 0 { "" } else { by };
        write!(f, "{by}{item}")?;
    }
    Ok(())
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ellipsis => f.write_str("..."),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Word(word) => f.write_str(word),
            Self::Text(text, open) => {
                f.write_str("\"")?;
                for char in text.chars() {
                    match char {
                        '"' | '\\' => write!(f, "\\{char}")?,
                        '\n' => f.write_str("\\n")?,
                        _ => write!(f, "{char}")?,
                    }
                }
                f.write_str(if *open { "\"..." } else { "\"" })
            }
            Self::Or(all) => separated(f, all, "|"),
            Self::Assign {
                name,
                arguments,
                value,
            } => {
                f.write_str(name)?;
                if !arguments.is_empty() {
                    f.write_str("(")?;
                    separated(f, arguments, ", ")?;
                    f.write_str(")")?;
                }
                write!(f, "={value}")
            }
            Self::Call { name, arguments } => {
                write!(f, "{name}(")?;
                separated(f, arguments, ", ")?;
                f.write_str(")")
            }
            Self::List(list) => {
                f.write_str("[")?;
                separated(f, list, ", ")?;
                f.write_str("]")
            }
            Self::Structure(list) => {
                f.write_str("{")?;
                separated(f, list, ", ")?;
                f.write_str("}")
            }
        }
    }
}
