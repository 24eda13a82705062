//! The syntax of AGIOS's configuration file, which is that of libconfig: `name = value;` and groups `name : { ... };`.
//! Arrays and lists are read over, as AGIOS has none.

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List,
}

/// A setting: its groups and name joined with dots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) path: String,
    pub(crate) value: Value,
    pub(crate) line: usize,
}

/// Groups within groups that make sense to anybody.
const DEPTH_MAX: usize = 32;

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

/// Reads a file's text.
///
/// # Errors
/// The line and what is wrong there.
pub(crate) fn read(text: &str) -> Result<Vec<Setting>, (usize, String)> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut settings = Vec::new();
    reader.group(&mut Vec::new(), &mut settings).map_err(|what| (reader.line, what))?;
    Ok(settings)
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn skip_space(&mut self) -> Result<(), String> {
        loop {
            let trimmed = self.rest.trim_start();
            self.take(self.rest.len() - trimmed.len());
            let comment = if self.rest.starts_with('#') || self.rest.starts_with("//") {
                self.rest.find('\n').unwrap_or(self.rest.len())
            } else if self.rest.starts_with("/*") {
                self.rest.find("*/").ok_or("the comment is not closed")? + 2
            } else {
                return Ok(());
            };
            self.take(comment);
        }
    }

    fn eat(&mut self, mark: char) -> Result<bool, String> {
        self.skip_space()?;
        let found = self.rest.starts_with(mark);
        if found {
            self.take(mark.len_utf8());
        }
        Ok(found)
    }

    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-+.*".contains(c)));
        self.take(end.unwrap_or(self.rest.len()))
    }

    /// Settings until the group's end, or at the top until the end of the text.
    fn group(&mut self, path: &mut Vec<String>, settings: &mut Vec<Setting>) -> Result<(), String> {
        if path.len() > DEPTH_MAX {
            return Err("groups are nested too deeply".to_owned());
        }
        loop {
            self.skip_space()?;
            if self.rest.is_empty() {
                return if path.is_empty() {
                    Ok(())
                } else {
                    Err(format!("the group {} is not closed", path.join(".")))
                };
            }
            if self.eat('}')? {
                return if path.is_empty() { Err("'}' without a group".to_owned()) } else { Ok(()) };
            }
            let line = self.line;
            let name = self.word();
            if name.is_empty() {
                let found: String = self.rest.chars().take(1).collect();
                return Err(format!("expected a name, found {found:?}"));
            }
            if !self.eat('=')? && !self.eat(':')? {
                return Err(format!("expected '=' after {name}"));
            }
            path.push(name.to_owned());
            if self.eat('{')? {
                self.group(path, settings)?;
            } else {
                let value = self.value()?;
                settings.push(Setting { path: path.join("."), value, line });
            }
            path.pop();
            if !self.eat(';')? {
                self.eat(',')?;
            }
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        self.skip_space()?;
        match self.rest.chars().next() {
            Some('"') => self.text(),
            Some(open @ ('[' | '(')) => {
                let close = if open == '[' { ']' } else { ')' };
                let end = self.rest.find(close).ok_or_else(|| format!("expected {close:?}"))?;
                self.take(end + 1);
                Ok(Value::List)
            }
            _ => {
                let word = self.word();
                scalar(word).ok_or_else(|| format!("{word:?} is not a value"))
            }
        }
    }

    /// Strings side by side are one.
    fn text(&mut self) -> Result<Value, String> {
        let mut text = String::new();
        while self.eat('"')? {
            loop {
                let next = self.rest.chars().next().ok_or("the string is not closed")?;
                self.take(next.len_utf8());
                match next {
                    '"' => break,
                    '\\' => {
                        let escaped = self.rest.chars().next().ok_or("the string is not closed")?;
                        self.take(escaped.len_utf8());
                        text.push(match escaped {
                            'n' => '\n',
                            't' => '\t',
                            other => other,
                        });
                    }
                    other => text.push(other),
                }
            }
        }
        Ok(Value::Text(text))
    }
}

fn scalar(word: &str) -> Option<Value> {
    if word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false") {
        return Some(Value::Bool(word.eq_ignore_ascii_case("true")));
    }
    let digits = word.trim_end_matches(['L', 'l']);
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return i64::from_str_radix(hex, 16).ok().map(Value::Number);
    }
    digits.parse().ok().map(Value::Number).or_else(|| digits.parse().ok().map(Value::Float))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_comments_and_values() {
        let text = "# one\nlibrary_options : { // two\n trace = false ; /* three\n */ name = \"a\" \"b\\\"\";\n n = 0x10L, l = (1, 2);\n};\nx=2.5";
        let setting = |path: &str, value, line| Setting { path: path.to_owned(), value, line };
        let expected = [
            setting("library_options.trace", Value::Bool(false), 3),
            setting("library_options.name", Value::Text("ab\"".to_owned()), 4),
            setting("library_options.n", Value::Number(16), 5),
            setting("library_options.l", Value::List, 5),
            setting("x", Value::Float(2.5), 7),
        ];
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn errors_have_their_line() {
        for (text, line) in
            [("a = 1;\nb", 2), ("g : {\n a = 1;\n", 3), ("\n}", 2), ("a = ;", 1), ("a = \"x", 1), ("/*", 1)]
        {
            assert_eq!(read(text).unwrap_err().0, line, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z=:{};\"\\\\/*# \n0-9.(\\[-]{0,60}", other in "\\PC{0,30}") {
            let _ = read(&text);
            let _ = read(&other);
        }
    }
}
