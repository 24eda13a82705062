//! The lines of a log of strace.

/// A line without its time.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Event<'a> {
    /// All of a call, or its beginning if it is `unfinished`: its name, and what follows the parenthesis.
    Call { name: &'a [u8], text: &'a [u8], unfinished: bool },
    /// The rest of a call that began earlier.
    Resumed { name: &'a [u8], text: &'a [u8] },
    /// The process has ended, or strace has let it go.
    Ended,
    /// The process goes on under this one's number.
    Superseded { by: u32 },
    /// A signal.
    Other,
}

/// The process (0 if it is not told), the time in nanoseconds since 1970, and what happened. `None`: a remark of strace itself.
pub(super) fn line(text: &[u8]) -> Result<Option<(u32, u64, Event<'_>)>, String> {
    if text.starts_with(b"strace: ") {
        return Ok(None);
    }
    let mut rest = text.trim_ascii();
    let mut pid = 0;
    if let Some(after) = rest.strip_prefix(b"[pid ") {
        let end = after.iter().position(|&byte| byte == b']').ok_or("not strace's output")?;
        pid = number(after[..end].trim_ascii()).ok_or("not strace's output")?;
        rest = after[end + 1..].trim_ascii_start();
    } else if let (word, after) = word(rest)
        && let Some(found) = number(word)
    {
        (pid, rest) = (found, after);
    }
    let (at, rest) = word(rest);
    let ns = time(at).ok_or("no time since 1970 here: run strace with -ttt")?;
    Ok(Some((pid, ns, event(rest).ok_or("not strace's output")?)))
}

fn event(text: &[u8]) -> Option<Event<'_>> {
    if text.starts_with(b"--- ") && text.ends_with(b" ---") {
        return Some(Event::Other);
    }
    if let Some(what) = text.strip_prefix(b"+++ ").and_then(|rest| rest.strip_suffix(b" +++")) {
        let by = what.strip_prefix(b"superseded by execve in pid ");
        return match by {
            Some(by) => Some(Event::Superseded { by: number(by)? }),
            None if what.starts_with(b"exited with ") || what.starts_with(b"killed by ") => Some(Event::Ended),
            None => None,
        };
    }
    if let Some(rest) = text.strip_prefix(b"<... ") {
        let (name, rest) = word(rest);
        // strace tells so of a call that it has come too late for.
        let text = rest.strip_prefix(b"resumed>")?;
        return (is_name(name)).then_some(Event::Resumed { name, text });
    }
    let open = text.iter().position(|&byte| byte == b'(')?;
    let (name, text) = (&text[..open], &text[open + 1..]);
    if !is_name(name) {
        return None;
    }
    if text.ends_with(b"<detached ...>") {
        return Some(Event::Ended);
    }
    // Of a thread that becomes its process: what it had begun ends where that goes on.
    let changed = text.strip_suffix(b" ...>").and_then(|text| {
        let at = text.windows(PID_CHANGED.len()).rposition(|window| window == PID_CHANGED)?;
        number::<u32>(&text[at + PID_CHANGED.len()..]).map(|_| &text[..at])
    });
    Some(match text.strip_suffix(b"<unfinished ...>").or(changed) {
        Some(text) => Event::Call { name, text: text.trim_ascii_end(), unfinished: true },
        None => Event::Call { name, text, unfinished: false },
    })
}

/// Before the number of the process that a thread has become.
const PID_CHANGED: &[u8] = b"<pid changed to ";
/// What a call returned that had ended when strace asked.
const UNAVAILABLE: &[u8] = b"<unavailable>";

/// Names of calls; strace writes `???` for one that it does not know.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|&byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_?".contains(&byte))
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

/// `1700000000.123456` in nanoseconds. Times before 1970-01-12 are not absolute ones.
fn time(word: &[u8]) -> Option<u64> {
    let point = word.iter().position(|&byte| byte == b'.')?;
    let (seconds, fraction) = (number::<u64>(&word[..point])?, &word[point + 1..]);
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let ns = number::<u64>(fraction)? * 10_u64.pow(9 - digits);
    (seconds >= 1_000_000).then(|| seconds.checked_mul(1_000_000_000)?.checked_add(ns))?
}

/// A number of digits alone.
pub(super) fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    text.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// A call's arguments and what it returned.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) arguments: Vec<&'a [u8]>,
    /// `None` if it did not return, or failed.
    pub(super) returned: Option<u64>,
    /// The file that the number returned stands for, if `-y` tells.
    pub(super) opened: Option<Vec<u8>>,
}

impl<'a> Call<'a> {
    /// Takes apart what follows the parenthesis. `None` if that is not as strace writes it.
    pub(super) fn parse(text: &'a [u8]) -> Option<Call<'a>> {
        let (arguments, rest) = separated(text, b')')?;
        let rest = rest.trim_ascii_start().strip_prefix(b"= ")?;
        let end = rest.iter().position(|byte| !b"-?0123456789abcdefx".contains(byte)).unwrap_or(rest.len());
        let (value, rest) = rest.split_at(end);
        let (opened, rest) = match rest.first() {
            Some(b'<') => {
                let (path, rest) = in_angles(rest)?;
                (Some(path), rest)
            }
            _ => (None, rest),
        };
        // " ENOENT (No such file or directory)", " (flags O_RDWR)", "(deleted)", " <0.000012>".
        if !(rest.is_empty() || rest.starts_with(b" ") || rest.starts_with(b"(")) {
            return None;
        }
        if let Some(at) = rest.iter().rposition(|&byte| byte == b'<').filter(|at| rest[*at..] != *UNAVAILABLE) {
            let took = rest[at + 1..].strip_suffix(b">")?;
            took.iter().all(|&byte| byte.is_ascii_digit() || byte == b'.').then_some(())?;
        }
        let returned = match value {
            b"?" => None,
            [b'0', b'x', hex @ ..] => Some(u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?),
            [b'-', failed @ ..] => number::<u64>(failed).map(|_| None)?,
            value => Some(number::<u64>(value)?),
        };
        Some(Call { arguments, returned, opened })
    }

    /// A call of one argument that has not returned.
    pub(super) fn begun(argument: &'a [u8]) -> Call<'a> {
        Call { arguments: vec![argument], returned: None, opened: None }
    }

    /// A descriptor among the arguments, and its file if `-y` tells.
    pub(super) fn descriptor(&self, at: usize) -> Option<(i32, Option<Vec<u8>>)> {
        let text = self.arguments.get(at)?;
        let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let fd = number(&text[..end])?;
        Some(match text.get(end) {
            Some(b'<') => (fd, Some(in_angles(&text[end..])?.0)),
            _ => (fd, None),
        })
    }

    /// A number among the arguments.
    pub(super) fn number(&self, at: usize) -> Option<u64> {
        number(self.arguments.get(at)?)
    }

    /// The number that a pointer among the arguments leads to, as in `[4096]`; `Some(None)` for `NULL`.
    pub(super) fn pointed(&self, at: usize) -> Option<Option<u64>> {
        let text = *self.arguments.get(at)?;
        if text == b"NULL" {
            return Some(None);
        }
        let inner = text.strip_prefix(b"[")?;
        let end = inner.iter().position(|byte| !byte.is_ascii_digit())?;
        Some(Some(number(&inner[..end])?))
    }

    /// Whether an argument has this among its flags.
    pub(super) fn has(&self, at: usize, flag: &str) -> bool {
        let text = self.arguments.get(at).copied().unwrap_or_default();
        text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').any(|word| word == flag.as_bytes())
    }

    /// Whether a process that a call makes shares the descriptors of its parent; from what follows the parenthesis.
    pub(super) fn shares(text: &[u8]) -> bool {
        text.windows(b"CLONE_FILES".len()).any(|window| window == b"CLONE_FILES")
    }

    /// A member of a structure among the arguments.
    pub(super) fn member(&self, name: &str) -> Option<u64> {
        let text = self.arguments.iter().find(|text| text.starts_with(b"{"))?;
        let at = text.windows(name.len()).position(|window| window == name.as_bytes())? + name.len();
        let end = text[at..].iter().position(|byte| !byte.is_ascii_digit())?;
        number(&text[at..at + end])
    }
}

/// The elements of a list, `[a, b]`, or the members of a structure, `{a, b}`.
pub(super) fn elements(text: &[u8]) -> Option<Vec<&[u8]>> {
    let (all, rest) = match text {
        [b'[', list @ ..] => separated(list, b']')?,
        [b'{', members @ ..] => separated(members, b'}')?,
        _ => return None,
    };
    rest.is_empty().then_some(all)
}

/// What commas separate up to a closing parenthesis or bracket, and what follows that.
fn separated(text: &[u8], end: u8) -> Option<(Vec<&[u8]>, &[u8])> {
    let (mut all, mut start, mut depth, mut at) = (Vec::new(), 0, 0_u32, 0);
    loop {
        match *text.get(at)? {
            b'"' => at += in_quotes(&text[at..])?,
            // What a descriptor stands for; elsewhere it is something else.
            b'<' if at > 0 && (text[at - 1].is_ascii_digit() || text[..at].ends_with(b"AT_FDCWD")) => {
                at = text.len() - in_angles(&text[at..])?.1.len() - 1;
            }
            b'(' | b'[' | b'{' => depth += 1,
            closing if depth == 0 && closing == end => {
                let last = text[start..at].trim_ascii();
                if !last.is_empty() || !all.is_empty() {
                    all.push(last);
                }
                return Some((all, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                all.push(text[start..at].trim_ascii());
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Where the quotation that begins here ends.
fn in_quotes(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// What stands in angle brackets here, and what follows them. strace writes those of the name itself as numbers.
fn in_angles(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut depth = 0_u32;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let mut name = unescaped(&text[1..at])?;
            if name.ends_with(b" (deleted)") {
                name.truncate(name.len() - b" (deleted)".len());
            }
            return Some((name, &text[at + 1..]));
        }
    }
    None
}

/// A text without the escapes that strace writes.
pub(super) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let (mut plain, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = text.get(at) {
        at += 1;
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        let escaped = *text.get(at)?;
        at += 1;
        plain.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'x' => {
                let hex = std::str::from_utf8(text.get(at..at + 2)?).ok()?;
                at += 2;
                u8::from_str_radix(hex, 16).ok()?
            }
            b'0'..=b'7' => {
                let digits = text[at - 1..].iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let value =
                    text[at - 1..at - 1 + digits].iter().fold(0_u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                at += digits - 1;
                u8::try_from(value).ok()?
            }
            other => other,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let call = |name: &'static str, text: &'static str, unfinished| Event::Call {
            name: name.as_bytes(),
            text: text.as_bytes(),
            unfinished,
        };
        for (text, pid, expected) in [
            ("1700000000.5 close(3</a>)   = 0 <0.1>", 0, call("close", "3</a>)   = 0 <0.1>", false)),
            ("12 1700000000.5 read(3</a>,  <unfinished ...>", 12, call("read", "3</a>,", true)),
            (
                "[pid   12] 1700000000.5 <... read resumed>\"\", 1) = 0",
                12,
                Event::Resumed { name: b"read", text: b"\"\", 1) = 0" },
            ),
            ("12    1700000000.5 +++ exited with 0 +++", 12, Event::Ended),
            ("12 1700000000.5 +++ killed by SIGKILL (core dumped) +++", 12, Event::Ended),
            ("12 1700000000.5 +++ superseded by execve in pid 13 +++", 12, Event::Superseded { by: 13 }),
            ("12 1700000000.5 --- SIGCHLD {si_signo=SIGCHLD} ---", 12, Event::Other),
            ("12 1700000000.5 read(0</dev/tty>,  <detached ...>", 12, Event::Ended),
        ] {
            assert_eq!(line(text.as_bytes()), Ok(Some((pid, 1_700_000_000_500_000_000, expected))), "{text}");
        }
        assert_eq!(line(b"strace: Process 7 attached"), Ok(None));
        for text in ["close(3) = 0", "12 13:00:00 close(3) = 0", "12 0.000001 close(3) = 0", "", "12"] {
            assert!(line(text.as_bytes()).unwrap_err().contains("-ttt"), "{text}");
        }
        for text in ["1700000000.5 hello", "1700000000.5 Hello(1) = 0", "[pid x] 1700000000.5 close(3) = 0"] {
            assert!(line(text.as_bytes()).unwrap_err().contains("not strace's"), "{text}");
        }
    }

    #[test]
    fn calls_are_taken_apart() {
        let call = Call::parse(br#"4</d/a\74b\303\274>, "x) = 7, \"y"..., 4096, 12) = 4095 <0.000010>"#).unwrap();
        assert_eq!((call.arguments.len(), call.returned, call.number(3)), (4, Some(4095), Some(12)));
        assert_eq!(call.descriptor(0), Some((4, Some("/d/a<b\u{fc}".as_bytes().to_vec()))));
        let call = Call::parse(br#"AT_FDCWD</home/u (x)>, "f", O_RDONLY|O_CLOEXEC) = 3</home/u/f>(deleted)"#).unwrap();
        assert_eq!((call.returned, call.opened.as_deref()), (Some(3), Some(&b"/home/u/f"[..])));
        assert!(call.has(2, "O_CLOEXEC") && !call.has(2, "O_CLO"));
        let call = Call::parse(b"5</a>, [100] => [200], 6</b>, NULL, 100, 0) = 100").unwrap();
        assert_eq!((call.pointed(1), call.pointed(3)), (Some(Some(100)), Some(None)));
        let call = Call::parse(b"3</a>, {st_mode=S_IFREG|0644, st_size=123, ...}) = 0").unwrap();
        assert_eq!((call.member("st_size="), call.member("st_dev=")), (Some(123), None));
        assert_eq!(Call::parse(b") = 12").unwrap().arguments.len(), 0);
        for failed in ["3) = -1 EBADF (Bad file descriptor) <0.1>", "3) = ? ERESTARTSYS (To be restarted)", "0) = ?"] {
            assert_eq!(Call::parse(failed.as_bytes()).unwrap().returned, None, "{failed}");
        }
        for wrong in
            ["3", "3)", "3) =", "3) = x", "3) = 12z", "3, \"a) = 1", "3) = 1 <0.1", "3]) = 1", "3) = 3</a", ") = -"]
        {
            assert!(Call::parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
