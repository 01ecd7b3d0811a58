//! `%{ assert tcpi_snd_cwnd == 10, "why" }%`: conditions on a connection's values. The
//! operators are Python's, on integers (`/` rounds down).

use super::lexer::{Kind, Position};
use super::parser::{Cursor, ParseError};

/// One `assert`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    /// Its position.
    pub position: Position,
    /// The condition, which must not be zero.
    pub condition: Term,
    /// The condition as written.
    pub text: String,
    /// The message if it is zero, as written.
    pub message: Option<String>,
}

/// A part of a condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// A number.
    Integer(i64),
    /// `tcpi_rtt`, `TCP_CA_Open` …
    Name(String),
    /// A message.
    Text(String),
    /// `not`, `-`
    Unary(Operator, Box<Term>),
    /// `a + b`
    Binary(Operator, Box<Term>, Box<Term>),
    /// `a <= b < c`: as in Python, every neighbouring pair must hold.
    Compare(Box<Term>, Vec<(Operator, Term)>),
    /// `abs(x)`, `min(a, b)`, `max(a, b)`
    Call(String, Vec<Term>),
}

/// An operator of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is Python's operator of that name")]
pub enum Operator {
    Or,
    And,
    Not,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    BitOr,
    BitAnd,
    Plus,
    Minus,
    Times,
    Divide,
    Remainder,
}

/// Why a condition has no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvaluationError {
    /// An unknown name.
    #[error("`{0}` is not known here")]
    Unknown(String),
    /// Division by zero, or a number beyond 128 bits.
    #[error("division by zero or a number too large")]
    Arithmetic,
    /// A text instead of a number, or wrong arguments of a function.
    #[error("a number was expected")]
    Kind,
}

/// The statements of one `%{ }%` with content `code`.
pub(super) fn assertions(cursor: &mut Cursor, code: &str) -> Result<Vec<Assertion>, ParseError> {
    let written = |from: usize, to: usize| {
        let text = code.get(from..to).unwrap_or_default();
        text.trim_end_matches(|char: char| char.is_whitespace() || char == '\\')
            .to_owned()
    };
    let mut all = Vec::new();
    loop {
        while cursor.mark(';') {}
        if *cursor.peek() == Kind::End {
            break;
        }
        let position = cursor.position();
        if !cursor.keyword("assert") {
            return Err(cursor.expected("`assert` (there is no Python here)"));
        }
        let from = cursor.offset();
        let condition = Term::parse(cursor, 0)?;
        let text = written(from, cursor.offset());
        let mut message = None;
        if cursor.mark(',') {
            let from = cursor.offset();
            message = Some(match Term::parse(cursor, 0)? {
                Term::Text(text) => text,
                _ => written(from, cursor.offset()),
            });
        }
        all.push(Assertion {
            position,
            condition,
            text,
            message,
        });
        if *cursor.peek() != Kind::End
            && *cursor.peek() != Kind::Mark(';')
            && !matches!(cursor.peek(), Kind::Word(word) if word == "assert")
        {
            return Err(cursor.expected("an operator, `,`, `;` or `}%`"));
        }
    }
    if all.is_empty() {
        return Err(cursor.expected("`assert` and a condition"));
    }
    Ok(all)
}

/// The precedence of a comparison: between `not` and `|`.
const COMPARISON: u8 = 3;

impl Term {
    /// Parses operators of precedence `level` or higher.
    fn parse(cursor: &mut Cursor, level: u8) -> Result<Self, ParseError> {
        cursor.nested(|cursor| {
            if level <= 2 && cursor.keyword("not") {
                let inner = Self::parse(cursor, 2)?;
                let term = Self::Unary(Operator::Not, Box::new(inner));
                return Self::continued(cursor, level, term);
            }
            let first = Self::unit(cursor)?;
            Self::continued(cursor, level, first)
        })
    }

    fn continued(cursor: &mut Cursor, level: u8, mut left: Self) -> Result<Self, ParseError> {
        while let Some((operator, binds, tokens)) = next_operator(cursor) {
            if binds < level {
                break;
            }
            for _ in 0..tokens {
                cursor.next();
            }
            let right = Self::parse(cursor, binds + 1)?;
            left = match left {
                Self::Compare(first, mut rest) if binds == COMPARISON => {
                    rest.push((operator, right));
                    Self::Compare(first, rest)
                }
                left if binds == COMPARISON => {
                    Self::Compare(Box::new(left), vec![(operator, right)])
                }
                left => Self::Binary(operator, Box::new(left), Box::new(right)),
            };
        }
        Ok(left)
    }

    fn unit(cursor: &mut Cursor) -> Result<Self, ParseError> {
        match cursor.peek().clone() {
            Kind::Number(_) | Kind::Hex(_) => cursor.integer("a whole number").map(Self::Integer),
            Kind::String(text) => {
                cursor.next();
                Ok(Self::Text(text))
            }
            Kind::Mark('-') => {
                cursor.next();
                let inner = cursor.nested(Self::unit)?;
                Ok(Self::Unary(Operator::Minus, Box::new(inner)))
            }
            Kind::Mark('(') => {
                cursor.next();
                let inner = Self::parse(cursor, 0)?;
                cursor.expect(')', "`)`")?;
                // So that (a < b) < c is not the chain a < b < c.
                Ok(match inner {
                    Self::Compare(..) => {
                        Self::Binary(Operator::And, Box::new(inner), Box::new(Self::Integer(1)))
                    }
                    inner => inner,
                })
            }
            Kind::Word(name) => {
                cursor.next();
                if !cursor.mark('(') {
                    return Ok(match name.as_str() {
                        "True" => Self::Integer(1),
                        "False" => Self::Integer(0),
                        _ => Self::Name(name),
                    });
                }
                let mut arguments = Vec::new();
                while !cursor.mark(')') {
                    arguments.push(Self::parse(cursor, 0)?);
                    if *cursor.peek() != Kind::Mark(')') {
                        cursor.expect(',', "`,` or `)`")?;
                    }
                }
                Ok(Self::Call(name, arguments))
            }
            _ => Err(cursor.expected("a number, a name or `(`")),
        }
    }

    /// Its value; `look_up` returns the values of names.
    ///
    /// # Errors
    /// A name is unknown, a text is in the wrong place, or the arithmetic fails.
    pub fn evaluate(&self, look_up: &dyn Fn(&str) -> Option<i64>) -> Result<i128, EvaluationError> {
        let value = |term: &Self| term.evaluate(look_up);
        match self {
            Self::Integer(value) => Ok((*value).into()),
            Self::Name(name) => look_up(name)
                .map(i128::from)
                .ok_or_else(|| EvaluationError::Unknown(name.clone())),
            Self::Text(_) => Err(EvaluationError::Kind),
            Self::Unary(Operator::Not, inner) => Ok((value(inner)? == 0).into()),
            Self::Unary(_, inner) => value(inner)?
                .checked_neg()
                .ok_or(EvaluationError::Arithmetic),
            // The right side is evaluated only if the left does not decide.
            Self::Binary(Operator::And, left, right) => {
                Ok((value(left)? != 0 && value(right)? != 0).into())
            }
            Self::Binary(Operator::Or, left, right) => {
                Ok((value(left)? != 0 || value(right)? != 0).into())
            }
            Self::Binary(operator, left, right) => binary(*operator, value(left)?, value(right)?),
            Self::Compare(first, rest) => {
                let mut left = value(first)?;
                for (operator, right) in rest {
                    let right = value(right)?;
                    if !compare(*operator, left, right) {
                        return Ok(0);
                    }
                    left = right;
                }
                Ok(1)
            }
            Self::Call(name, arguments) => {
                let arguments: Vec<i128> = arguments.iter().map(value).collect::<Result<_, _>>()?;
                match (name.as_str(), arguments.as_slice()) {
                    ("abs", [number]) => number.checked_abs().ok_or(EvaluationError::Arithmetic),
                    ("min", [first, rest @ ..]) => Ok(rest.iter().fold(*first, |a, b| a.min(*b))),
                    ("max", [first, rest @ ..]) => Ok(rest.iter().fold(*first, |a, b| a.max(*b))),
                    ("abs" | "min" | "max", _) => Err(EvaluationError::Kind),
                    _ => Err(EvaluationError::Unknown(name.clone())),
                }
            }
        }
    }
}

fn binary(operator: Operator, left: i128, right: i128) -> Result<i128, EvaluationError> {
    match operator {
        Operator::BitOr => Some(left | right),
        Operator::BitAnd => Some(left & right),
        Operator::Plus => left.checked_add(right),
        Operator::Minus => left.checked_sub(right),
        Operator::Times => left.checked_mul(right),
        Operator::Divide => left.checked_div_euclid(right),
        Operator::Remainder => left.checked_rem_euclid(right),
        _ => return Ok(compare(operator, left, right).into()),
    }
    .ok_or(EvaluationError::Arithmetic)
}

fn compare(operator: Operator, left: i128, right: i128) -> bool {
    match operator {
        Operator::Equal => left == right,
        Operator::Unequal => left != right,
        Operator::Less => left < right,
        Operator::LessOrEqual => left <= right,
        Operator::Greater => left > right,
        Operator::GreaterOrEqual => left >= right,
        _ => false,
    }
}

/// The next operator, its precedence, and its number of tokens.
fn next_operator(cursor: &Cursor) -> Option<(Operator, u8, u8)> {
    let equals = *cursor.peek_second() == Kind::Mark('=');
    Some(match cursor.peek() {
        Kind::Word(word) if word == "or" => (Operator::Or, 0, 1),
        Kind::Word(word) if word == "and" => (Operator::And, 1, 1),
        Kind::Mark('=') if equals => (Operator::Equal, COMPARISON, 2),
        Kind::Mark('!') if equals => (Operator::Unequal, COMPARISON, 2),
        Kind::Mark('<') if equals => (Operator::LessOrEqual, COMPARISON, 2),
        Kind::Mark('>') if equals => (Operator::GreaterOrEqual, COMPARISON, 2),
        Kind::Mark('<') => (Operator::Less, COMPARISON, 1),
        Kind::Mark('>') => (Operator::Greater, COMPARISON, 1),
        Kind::Mark('|') => (Operator::BitOr, 4, 1),
        Kind::Mark('&') => (Operator::BitAnd, 5, 1),
        Kind::Mark('+') => (Operator::Plus, 6, 1),
        Kind::Mark('-') => (Operator::Minus, 6, 1),
        Kind::Mark('*') => (Operator::Times, 7, 1),
        Kind::Mark('/') => (Operator::Divide, 7, 1),
        Kind::Mark('%') => (Operator::Remainder, 7, 1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::lexer::code_tokens;
    use super::*;

    fn value(text: &str) -> Result<i128, EvaluationError> {
        let tokens = code_tokens(text, Position { line: 1, column: 1 }).unwrap();
        let all = assertions(&mut Cursor::new(tokens), text).unwrap();
        all[0].condition.evaluate(&|name| match name {
            "ten" => Some(10),
            _ => None,
        })
    }

    #[test]
    fn operators_bind_as_in_python() {
        for (text, expected) in [
            ("assert 1 + 2 * 3", 7),
            ("assert (1 + 2) * 3", 9),
            ("assert 7 - 2 - 1", 4),
            ("assert 1 < 2 < 3", 1),
            ("assert 1 < 3 < 2", 0),
            ("assert (3 > 2) > 0", 1),
            ("assert not 1 == 2", 1),
            ("assert 1 or 0 and 0", 1),
            ("assert 4 | 2 == 6", 1),
            ("assert -3 + ten", 7),
            ("assert ten - 3 == 7 and ten != 9", 1),
            ("assert abs(3 - ten) <= max(1, 7, 2)", 1),
            ("assert 7 / 2 % 2", 1),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_an_error() {
        assert_eq!(value("assert 1 / 0"), Err(EvaluationError::Arithmetic));
        assert_eq!(
            value("assert eleven"),
            Err(EvaluationError::Unknown("eleven".into()))
        );
        assert_eq!(value("assert 'text'"), Err(EvaluationError::Kind));
        // The left side decides.
        assert_eq!(value("assert 1 or 1 / 0"), Ok(1));
    }

    #[test]
    fn statements_and_messages() {
        let text = "assert a == 1, 'one' \\\n  ; assert b # not c\nassert d, d";
        let tokens = code_tokens(text, Position { line: 1, column: 1 }).unwrap();
        let all = assertions(&mut Cursor::new(tokens), text).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].message.as_deref(), Some("one"));
        assert_eq!(all[2].message.as_deref(), Some("d"));
        assert_eq!(all[2].position.line, 3);
        assert_eq!((&*all[0].text, &*all[2].text), ("a == 1", "d"));
    }
}
