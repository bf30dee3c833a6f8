//! The corpus' small expression language: parsed once, evaluated against whatever can look names up.
//!
//! ```text
//! assertion  = term [ ( "==" | "!=" | "<=" | ">=" | "<" | ">" ) term | [ "not" ] "in" term ] [ "until client sends" ]
//! term       = string | number | list | path
//! path       = step *( "." step )
//! step       = word [ "(" [ argument *( "," argument ) ] ")" ] [ "[" number "]" ]
//! argument   = [ word "=" ] term
//! ```
//!
//! A path alone must be true. "until client sends" is true of what is looked at once the input ran: it says which moment
//! counts where the client sends nothing more.

use serde_json::Value;

/// One parsed assertion.
#[derive(Debug, Clone, PartialEq)]
pub struct Assertion {
    left: Term,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Holds,
    Compare(Comparison, Term),
    In(Term),
    NotIn(Term),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    AtMost,
    AtLeast,
    Below,
    Above,
}

/// A value that stands there, or a path to one.
#[derive(Debug, Clone, PartialEq)]
pub enum Term {
    Literal(Value),
    Path(Vec<Step>),
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub name: String,
    pub arguments: Vec<(Option<String>, Term)>,
    pub index: Option<usize>,
}

/// Whatever knows what paths stand for.
pub trait Facts {
    /// The value of a path, or why there is none.
    fn look_up(&mut self, path: &[Step]) -> Result<Value, String>;
}

impl Assertion {
    /// Reads an assertion; the error says where it stops making sense.
    pub fn parse(text: &str) -> Result<Assertion, String> {
        let mut parser = Parser { text, at: 0 };
        let left = parser.term()?;
        let test = if parser.eat("==") {
            Test::Compare(Comparison::Equal, parser.term()?)
        } else if parser.eat("!=") {
            Test::Compare(Comparison::Unequal, parser.term()?)
        } else if parser.eat("<=") {
            Test::Compare(Comparison::AtMost, parser.term()?)
        } else if parser.eat(">=") {
            Test::Compare(Comparison::AtLeast, parser.term()?)
        } else if parser.eat("<") {
            Test::Compare(Comparison::Below, parser.term()?)
        } else if parser.eat(">") {
            Test::Compare(Comparison::Above, parser.term()?)
        } else if parser.eat("not in ") {
            Test::NotIn(parser.term()?)
        } else if parser.eat("in ") {
            Test::In(parser.term()?)
        } else {
            Test::Holds
        };
        parser.eat("until client sends");
        parser.end()?;
        Ok(Assertion { left, test })
    }

    /// Whether it holds; the error says what was there instead.
    pub fn check(&self, facts: &mut impl Facts) -> Result<(), String> {
        let left = self.left.value(facts)?;
        let holds = match &self.test {
            Test::Holds => left == Value::Bool(true),
            Test::Compare(how, right) => compare(&left, *how, &right.value(facts)?)?,
            Test::In(right) => contains(&right.value(facts)?, &left)?,
            Test::NotIn(right) => !contains(&right.value(facts)?, &left)?,
        };
        if holds { Ok(()) } else { Err(format!("it was {left}")) }
    }

    /// The names on the way of its path, joined by dots: what it is about.
    pub fn subject(&self) -> String {
        let of = |term: &Term| match term {
            Term::Path(steps) => steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join("."),
            Term::Literal(_) => String::new(),
        };
        match &self.test {
            Test::In(right) | Test::NotIn(right) => of(right),
            _ => of(&self.left),
        }
    }
}

impl Term {
    fn value(&self, facts: &mut impl Facts) -> Result<Value, String> {
        match self {
            Term::Literal(value) => Ok(value.clone()),
            Term::Path(path) => facts.look_up(path),
        }
    }

    /// The text of a literal string.
    pub fn as_str(&self) -> Option<&str> {
        if let Term::Literal(Value::String(text)) = self { Some(text) } else { None }
    }
}

fn compare(left: &Value, how: Comparison, right: &Value) -> Result<bool, String> {
    if let (Some(left), Some(right)) = (left.as_f64(), right.as_f64()) {
        return Ok(match how {
            Comparison::Equal => left == right,
            Comparison::Unequal => left != right,
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
            Comparison::Below => left < right,
            Comparison::Above => left > right,
        });
    }
    match how {
        Comparison::Equal => Ok(left == right),
        Comparison::Unequal => Ok(left != right),
        _ => Err(format!("{left} and {right} have no order")),
    }
}

fn contains(whole: &Value, part: &Value) -> Result<bool, String> {
    match (whole, part) {
        (Value::String(whole), Value::String(part)) => Ok(whole.contains(part.as_str())),
        (Value::Array(items), part) => Ok(items.contains(part)),
        _ => Err(format!("{whole} holds nothing")),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, word: &str) -> bool {
        self.skip_spaces();
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn word(&mut self) -> Result<String, String> {
        self.skip_spaces();
        let length =
            self.rest().find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest().len());
        if length == 0 {
            return Err(format!("a word is missing at {:?}", self.rest()));
        }
        let word = self.rest()[..length].to_owned();
        self.at += length;
        Ok(word)
    }

    fn term(&mut self) -> Result<Term, String> {
        self.skip_spaces();
        match self.rest().chars().next() {
            Some('\'') => {
                let inside = &self.rest()[1..];
                let length = inside.find('\'').ok_or("a string does not end")?;
                let text = inside[..length].to_owned();
                self.at += length + 2;
                Ok(Term::Literal(Value::String(text)))
            }
            Some('[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.eat("]") {
                    match self.term()? {
                        Term::Literal(item) => items.push(item),
                        Term::Path(_) => return Err("a list holds values only".into()),
                    }
                    self.eat(",");
                }
                Ok(Term::Literal(Value::Array(items)))
            }
            Some(c) if c.is_ascii_digit() => {
                let length = self
                    .rest()
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
                    .unwrap_or(self.rest().len());
                let number: f64 =
                    self.rest()[..length].parse().map_err(|_| format!("no number: {:?}", self.rest()))?;
                self.at += length;
                Ok(Term::Literal(number.into()))
            }
            _ => {
                let mut path = vec![self.step()?];
                while self.eat(".") {
                    path.push(self.step()?);
                }
                Ok(Term::Path(path))
            }
        }
    }

    fn step(&mut self) -> Result<Step, String> {
        let name = self.word()?;
        let mut step = Step { name, arguments: Vec::new(), index: None };
        if self.eat("(") {
            while !self.eat(")") {
                let before = self.at;
                let key = match self.word() {
                    Ok(word) if self.eat("=") => Some(word),
                    _ => {
                        self.at = before;
                        None
                    }
                };
                let value = self.term()?;
                step.arguments.push((key, value));
                self.eat(",");
            }
        }
        if self.eat("[") {
            step.index = Some(self.word()?.parse().map_err(|_| "an index is a number")?);
            if !self.eat("]") {
                return Err("an index does not end".into());
            }
        }
        Ok(step)
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip_spaces();
        if self.rest().is_empty() { Ok(()) } else { Err(format!("not understood: {:?}", self.rest())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows `n` (3), `s` ("abc"), `l` (["a"]), `yes`, and hands `call` its arguments back.
    struct Some3;

    impl Facts for Some3 {
        fn look_up(&mut self, path: &[Step]) -> Result<Value, String> {
            match path {
                [step] if step.name == "n" => Ok(3.into()),
                [step] if step.name == "s" => Ok("abc".into()),
                [step] if step.name == "l" => Ok(serde_json::json!(["a"])),
                [step] if step.name == "yes" => Ok(true.into()),
                [a, b] if a.name == "a" && a.index == Some(1) && b.name == "call" => {
                    let [(key, value)] = &b.arguments[..] else { return Err("one argument".into()) };
                    Ok(format!("{}{}", key.as_deref().unwrap_or(""), value.as_str().unwrap_or("")).into())
                }
                _ => Err("unknown".into()),
            }
        }
    }

    fn check(text: &str) -> Result<(), String> {
        Assertion::parse(text)?.check(&mut Some3)
    }

    #[test]
    fn what_holds_holds() {
        for text in [
            "n==3",
            "n<=3",
            "n<4",
            "n>=3",
            "n>2",
            "n!=4",
            "s=='abc'",
            "'b' in s",
            "'x' not in s",
            "'a' in l",
            "l==['a']",
            "yes",
            "n<20e6",
            "a[1].call(k='v')=='kv'",
            "a[1].call('v') == 'v'",
            "s=='abc' until client sends",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_does_not_hold_says_what_was_there() {
        for text in ["n==4", "n<3", "n>3", "s=='x'", "'b' not in s", "'x' in l", "n", "l==[]"] {
            assert!(check(text).unwrap_err().starts_with("it was "), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in ["", "n==", "n == 3 4", "f(", "'abc", "n[x]", "[n]==1", "s < 'x'", "unknown"] {
            let error = check(text).unwrap_err();
            assert!(!error.starts_with("it was "), "{text}: {error}");
        }
    }
}
