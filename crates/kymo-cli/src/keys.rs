//! Keys, from the bytes that a terminal sends for them.
//!
//! A terminal sends one byte for most keys and several for others, which begin with that of the
//! Escape key. On a slow connection they arrive one by one: [`KeyDecoder`] holds what may be the
//! beginning of a longer one until more comes, or until its caller has waited long enough.

/// No key has more bytes; what is longer is none.
const MOST_BYTES: usize = 32;

/// A key, or several pressed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A letter, with Control held down.
    Ctrl(char),
    /// The arrow up.
    Up,
    /// The arrow down.
    Down,
    /// The arrow to the left.
    Left,
    /// The arrow to the right.
    Right,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the begin.
    Home,
    /// To the end.
    End,
    /// Enter.
    Enter,
    /// Escape.
    Esc,
    /// Tabulator.
    Tab,
    /// Tabulator, with Shift held down.
    BackTab,
    /// Backspace.
    Backspace,
    /// Delete.
    Delete,
    /// The first function key.
    F1,
}

/// Makes keys of bytes.
#[derive(Debug, Default)]
pub struct KeyDecoder {
    pending: Vec<u8>,
}

/// What bytes begin with.
enum Start {
    /// A key of so many bytes; `None`: one that means nothing here.
    Key(usize, Option<Key>),
    /// Perhaps a key that has more bytes.
    Part,
}

impl KeyDecoder {
    /// The keys that are complete now.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Start::Key(length, key) = start(&self.pending) {
            self.pending.drain(..length);
            keys.extend(key);
        }
        keys
    }

    /// Whether a key has begun that may have more bytes.
    pub fn has_part(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Nothing more came for a while: what is there was a key of its own, or none.
    pub fn end_part(&mut self) -> Option<Key> {
        let escape = self.pending == [0x1b];
        self.pending.clear();
        escape.then_some(Key::Esc)
    }
}

fn start(bytes: &[u8]) -> Start {
    let Some(&first) = bytes.first() else { return Start::Part };
    match first {
        0x1b => escaped(bytes),
        b'\r' | b'\n' => Start::Key(1, Some(Key::Enter)),
        b'\t' => Start::Key(1, Some(Key::Tab)),
        0x7f | 0x08 => Start::Key(1, Some(Key::Backspace)),
        1..=26 => Start::Key(1, Some(Key::Ctrl(char::from(first - 1 + b'a')))),
        0 | 28..=31 => Start::Key(1, None),
        _ => character(bytes),
    }
}

/// A character of UTF-8.
fn character(bytes: &[u8]) -> Start {
    let length = match bytes[0] {
        0..0x80 => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Start::Key(1, None),
    };
    let there = &bytes[..length.min(bytes.len())];
    match std::str::from_utf8(there) {
        Ok(text) => Start::Key(length, text.chars().next().map(Key::Char)),
        Err(error) if error.error_len().is_none() && there.len() < length => Start::Part,
        Err(_) => Start::Key(1, None),
    }
}

/// A key that begins with the byte of Escape.
fn escaped(bytes: &[u8]) -> Start {
    match (bytes.get(1), bytes.get(2)) {
        (None, _) | (Some(b'[' | b'O'), None) => Start::Part,
        // The function keys of the Linux console.
        (Some(b'['), Some(b'[')) => match bytes.get(3) {
            None => Start::Part,
            Some(key) => Start::Key(4, (*key == b'A').then_some(Key::F1)),
        },
        (Some(b'['), Some(_)) => {
            let end = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte));
            match end.map(|at| at + 2) {
                Some(end) if end < MOST_BYTES => Start::Key(end + 1, control(&bytes[2..end], bytes[end])),
                None if bytes.len() < MOST_BYTES => Start::Part,
                end => Start::Key(end.map_or(bytes.len(), |end| end + 1), None),
            }
        }
        (Some(b'O'), Some(b'P')) => Start::Key(3, Some(Key::F1)),
        (Some(b'O'), Some(b'M')) => Start::Key(3, Some(Key::Enter)),
        (Some(b'O'), Some(key)) => Start::Key(3, control(&[], *key)),
        // Escape, and another key just after it.
        (Some(_), _) => Start::Key(1, Some(Key::Esc)),
    }
}

/// A control sequence: its parameters, and its last byte.
fn control(parameters: &[u8], last: u8) -> Option<Key> {
    let number = parameters.split(|byte| *byte == b';').next().unwrap_or(&[]);
    Some(match (last, number) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'Z', _) => Key::BackTab,
        (b'~', b"3") => Key::Delete,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'~', b"11") => Key::F1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&[u8], Key); 19] = [
        (b"a", Key::Char('a')),
        ("é".as_bytes(), Key::Char('é')),
        ("漢".as_bytes(), Key::Char('漢')),
        (b"\x03", Key::Ctrl('c')),
        (b"\r", Key::Enter),
        (b"\t", Key::Tab),
        (b"\x7f", Key::Backspace),
        (b"\x1b[A", Key::Up),
        (b"\x1bOB", Key::Down),
        (b"\x1b[1;5C", Key::Right),
        (b"\x1b[D", Key::Left),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"\x1b[1~", Key::Home),
        (b"\x1bOF", Key::End),
        (b"\x1b[3~", Key::Delete),
        (b"\x1b[Z", Key::BackTab),
        (b"\x1bOP", Key::F1),
        (b"\x1b[[A", Key::F1),
    ];

    /// Checks what each key is, whether its bytes arrive together or one by one.
    #[test]
    fn keys_of_bytes() {
        let (mut all, mut expected) = (Vec::new(), Vec::new());
        for (bytes, key) in KEYS {
            assert_eq!(KeyDecoder::default().feed(bytes), [key], "{bytes:?}");
            let mut decoder = KeyDecoder::default();
            let slowly: Vec<Key> = bytes.iter().flat_map(|byte| decoder.feed(&[*byte])).collect();
            assert_eq!((slowly, decoder.has_part()), (vec![key], false), "{bytes:?}");
            all.extend_from_slice(bytes);
            expected.push(key);
        }
        assert_eq!(KeyDecoder::default().feed(&all), expected);
    }

    /// Checks that Escape alone is a key once nothing follows it, that a key after it is a key of
    /// its own, and that half of a longer key is none.
    #[test]
    fn escape_and_its_parts() {
        let mut decoder = KeyDecoder::default();
        assert!(decoder.feed(b"\x1b").is_empty() && decoder.has_part());
        assert_eq!((decoder.end_part(), decoder.has_part()), (Some(Key::Esc), false));
        assert_eq!(decoder.feed(b"\x1bq"), [Key::Esc, Key::Char('q')]);
        assert!(decoder.feed(b"\x1b[1;").is_empty());
        assert_eq!(decoder.end_part(), None);
        assert_eq!(decoder.feed(b"q"), [Key::Char('q')]);
    }

    /// Checks that what means nothing is passed over, however long, and the next key is seen.
    #[test]
    fn what_is_no_key() {
        let long = [b"\x1b[".as_slice(), &[b'1'; 500], b"q"].concat();
        for bytes in [b"\x1b[99~".as_slice(), b"\x1b[24;80R", b"\0", b"\xff", b"\xc3\xc3"] {
            let keys = KeyDecoder::default().feed(&[bytes, b"q"].concat());
            assert_eq!(keys.last(), Some(&Key::Char('q')), "{bytes:?}");
        }
        let mut decoder = KeyDecoder::default();
        decoder.feed(&long);
        assert!(!decoder.has_part(), "nothing of it waits for more");
    }
}
