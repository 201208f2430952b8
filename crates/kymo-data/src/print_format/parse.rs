//! From words to expressions.
//!
//! Nodes lie in one list and name their parts by index, so that dropping a long expression takes no
//! stack; [`super::MAX_DEPTH`] bounds what evaluating one takes.

use super::lex::{Token, tokens, unescaped};
use super::node::{Node, Operator};
use super::{MAX_DEPTH, PrintFormatError, eval};
use crate::tracing_data::{Format, known_bits_of_type};

/// Operators with their binding strength; the strongest have the largest.
const OPERATORS: [(&str, u8, Operator); 18] = [
    ("*", 10, u64::wrapping_mul),
    ("/", 10, |left, right| left.checked_div(right).unwrap_or(0)),
    ("%", 10, |left, right| left.checked_rem(right).unwrap_or(0)),
    ("+", 9, u64::wrapping_add),
    ("-", 9, u64::wrapping_sub),
    ("<<", 8, |left, right| shift(right).and_then(|bits| left.checked_shl(bits)).unwrap_or(0)),
    (">>", 8, |left, right| shift(right).and_then(|bits| left.checked_shr(bits)).unwrap_or(0)),
    ("<", 7, |left, right| u64::from(left < right)),
    ("<=", 7, |left, right| u64::from(left <= right)),
    (">", 7, |left, right| u64::from(left > right)),
    (">=", 7, |left, right| u64::from(left >= right)),
    ("==", 6, |left, right| u64::from(left == right)),
    ("!=", 6, |left, right| u64::from(left != right)),
    ("&", 5, |left, right| left & right),
    ("^", 4, |left, right| left ^ right),
    ("|", 3, |left, right| left | right),
    ("&&", 2, |left, right| u64::from(left != 0 && right != 0)),
    ("||", 1, |left, right| u64::from(left != 0 || right != 0)),
];

fn shift(bits: u64) -> Option<u32> {
    u32::try_from(bits).ok()
}

struct Parser<'a> {
    format: &'a Format,
    tokens: Vec<(usize, Token<'a>)>,
    at: usize,
    nodes: Vec<Node>,
    /// How deep each node is above its deepest part.
    depths: Vec<u16>,
    /// How deep the parser itself is.
    nesting: u16,
}

/// The format's text, its arguments, and the nodes that they are made of.
pub(super) type Parsed = (String, Vec<u32>, Vec<Node>);

pub(super) fn parse(format: &Format) -> Result<Parsed, PrintFormatError> {
    let tokens = tokens(&format.print_fmt)?;
    let mut parser = Parser { format, tokens, at: 0, nodes: Vec::new(), depths: Vec::new(), nesting: 0 };
    let text = parser.text()?;
    let mut arguments = Vec::new();
    while parser.takes(",") {
        arguments.push(parser.expression()?);
    }
    match parser.tokens.get(parser.at) {
        None => Ok((text, arguments, parser.nodes)),
        Some(_) => Err(parser.error("an argument goes on where it should end")),
    }
}

impl<'a> Parser<'a> {
    fn error(&self, what: &'static str) -> PrintFormatError {
        let at = self.tokens.get(self.at).map_or(self.format.print_fmt.len(), |token| token.0);
        PrintFormatError::Syntax { at, what }
    }

    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|token| &token.1)
    }

    fn sign(&self, ahead: usize) -> Option<&'static str> {
        match self.tokens.get(self.at + ahead) {
            Some((_, Token::Sign(sign))) => Some(sign),
            _ => None,
        }
    }

    fn takes(&mut self, sign: &str) -> bool {
        let there = self.sign(0) == Some(sign);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, sign: &str, what: &'static str) -> Result<(), PrintFormatError> {
        if self.takes(sign) { Ok(()) } else { Err(self.error(what)) }
    }

    fn name(&mut self) -> Option<&'a str> {
        match self.tokens.get(self.at) {
            Some((_, Token::Name(name))) => {
                self.at += 1;
                Some(name)
            }
            _ => None,
        }
    }

    /// Texts that follow each other are one.
    fn text(&mut self) -> Result<String, PrintFormatError> {
        let mut all: Option<String> = None;
        while let Some(Token::Text(text)) = self.peek() {
            all.get_or_insert_default().push_str(text);
            self.at += 1;
        }
        all.ok_or_else(|| self.error("a text in quotes is missing"))
    }

    fn add(&mut self, node: Node, parts: &[u32]) -> Result<u32, PrintFormatError> {
        let depths = parts.iter().filter_map(|&part| self.depths.get(part as usize));
        let depth = 1 + depths.max().copied().unwrap_or(0);
        if depth > MAX_DEPTH {
            return Err(PrintFormatError::TooLarge);
        }
        let index = u32::try_from(self.nodes.len()).map_err(|_| PrintFormatError::TooLarge)?;
        self.nodes.push(node);
        self.depths.push(depth);
        Ok(index)
    }

    /// An expression with `? :` in it.
    fn expression(&mut self) -> Result<u32, PrintFormatError> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH {
            return Err(PrintFormatError::TooLarge);
        }
        let mut node = self.binary(1)?;
        if self.takes("?") {
            let first = self.expression()?;
            self.expect(":", "a `:` is missing")?;
            let second = self.expression()?;
            node = self.add(Node::Choice(node, first, second), &[node, first, second])?;
        }
        self.nesting -= 1;
        Ok(node)
    }

    fn binary(&mut self, weakest: u8) -> Result<u32, PrintFormatError> {
        let mut left = self.unary()?;
        while let Some(sign) = self.sign(0)
            && let Some(&(_, strength, operator)) = OPERATORS.iter().find(|entry| entry.0 == sign)
            && strength >= weakest
        {
            self.at += 1;
            let right = self.binary(strength + 1)?;
            left = self.add(Node::Binary(operator, left, right), &[left, right])?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<u32, PrintFormatError> {
        let make: fn(u32) -> Node = match self.sign(0) {
            Some("!") => Node::Not,
            Some("~") => Node::Complement,
            Some("-") => Node::Negative,
            // The address of a field is the field: what takes one reads its bytes.
            Some("+" | "&") => {
                self.at += 1;
                return self.deeper(Parser::unary);
            }
            Some("(") => return self.deeper(Parser::parenthesis),
            _ => return self.primary(),
        };
        self.at += 1;
        let operand = self.deeper(Parser::unary)?;
        self.add(make(operand), &[operand])
    }

    fn deeper(
        &mut self,
        parse: fn(&mut Self) -> Result<u32, PrintFormatError>,
    ) -> Result<u32, PrintFormatError> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH {
            return Err(PrintFormatError::TooLarge);
        }
        let node = parse(self)?;
        self.nesting -= 1;
        Ok(node)
    }

    /// A cast, or an expression in parentheses.
    fn parenthesis(&mut self) -> Result<u32, PrintFormatError> {
        self.expect("(", "a `(` is missing")?;
        if let Some((bits, pointee_bits)) = self.cast() {
            let operand = self.unary()?;
            return self.add(Node::Cast { bits, pointee_bits, operand }, &[operand]);
        }
        // `(REC)->field`
        if self.peek() == Some(&Token::Name("REC")) && self.sign(1) == Some(")") {
            self.at += 2;
            return self.record_field();
        }
        let inside = self.expression()?;
        self.expect(")", "a `)` is missing")?;
        self.elements(inside)
    }

    /// The bits that a cast keeps, and those of what it points to, when `TYPE)` and the start of an
    /// operand follow.
    fn cast(&mut self) -> Option<(u32, u32)> {
        let mut words = Vec::new();
        let mut at = self.at;
        while let Some((_, Token::Name(name))) = self.tokens.get(at) {
            words.push(*name);
            at += 1;
        }
        let mut stars = 0;
        while matches!(self.tokens.get(at), Some((_, Token::Sign("*")))) {
            stars += 1;
            at += 1;
        }
        let pointer = stars > 0;
        if words.is_empty() || words == ["REC"] || !matches!(self.tokens.get(at), Some((_, Token::Sign(")"))))
        {
            return None;
        }
        let operand = match self.tokens.get(at + 1)? {
            (_, Token::Name(_) | Token::Number(_) | Token::Text(_)) | (_, Token::Sign("(" | "~" | "!")) => {
                true
            }
            // `(x) - y` is a difference, unless x is a type.
            (_, Token::Sign("-" | "+" | "&" | "*")) => pointer || words.iter().any(|word| is_type_word(word)),
            _ => false,
        };
        if !operand {
            return None;
        }
        self.at = at + 1;
        let bits = bits_of_type(&words);
        Some((if pointer { 64 } else { bits }, if stars > 1 { 64 } else { bits }))
    }

    fn primary(&mut self) -> Result<u32, PrintFormatError> {
        let node = match self.peek() {
            Some(Token::Number(number)) => Node::Number(*number),
            Some(Token::Text(_)) => {
                let text = self.text()?;
                return self.add(Node::Text(text), &[]);
            }
            Some(Token::Name("REC")) => {
                self.at += 1;
                return self.record_field();
            }
            Some(Token::Name(_)) if matches!(self.tokens.get(self.at + 1), Some((_, Token::Sign("(")))) => {
                let function = self.deeper(Parser::function)?;
                return self.elements(function);
            }
            Some(Token::Name(_)) => {
                // Names may have several words, such as `struct x`.
                let mut words = Vec::new();
                while let Some(word) = self.name() {
                    words.push(word);
                }
                return self.add(Node::Name(words.join(" ")), &[]);
            }
            _ => return Err(self.error("a value is missing")),
        };
        self.at += 1;
        self.add(node, &[])
    }

    /// `->field`, after what stands for the record.
    fn record_field(&mut self) -> Result<u32, PrintFormatError> {
        self.expect("->", "a `->` is missing")?;
        let name = self.name().ok_or_else(|| self.error("the name of a field is missing"))?;
        let field = self.field(name)?;
        let field = self.add(Node::Field(field), &[])?;
        self.elements(field)
    }

    /// `[index]` after an array, as often as it stands there.
    fn elements(&mut self, mut array: u32) -> Result<u32, PrintFormatError> {
        while self.takes("[") {
            let index = self.expression()?;
            self.expect("]", "a `]` is missing")?;
            let mut bits = None;
            // A cast before the brackets tells what the elements are.
            while let Some(Node::Cast { pointee_bits, operand, .. }) = self.nodes.get(array as usize) {
                bits.get_or_insert(*pointee_bits);
                array = *operand;
            }
            array = self.add(Node::Element { array, index, bits }, &[array, index])?;
        }
        Ok(array)
    }

    fn field(&self, name: &str) -> Result<usize, PrintFormatError> {
        let found = self.format.fields.iter().position(|field| field.name == name);
        found.ok_or_else(|| PrintFormatError::UnknownField(name.to_owned()))
    }

    fn function(&mut self) -> Result<u32, PrintFormatError> {
        let name = self.name().unwrap_or_default();
        self.expect("(", "a `(` is missing")?;
        let node = match name {
            "__get_str" | "__get_rel_str" => Node::DynamicText(self.dynamic()?, self.constant_index()?),
            "__get_bitmask" | "__get_rel_bitmask" => Node::Bitmask(self.dynamic()?),
            "__get_cpumask" | "__get_rel_cpumask" => Node::CpuList(self.dynamic()?),
            "__get_dynamic_array" | "__get_rel_dynamic_array" | "__get_sockaddr" | "__get_rel_sockaddr" => {
                Node::DynamicArray(self.dynamic()?)
            }
            "__get_dynamic_array_len" | "__get_rel_dynamic_array_len" => Node::DynamicLength(self.dynamic()?),
            "__print_flags" | "__print_flags_u64" => {
                let value = self.expression()?;
                self.expect(",", "a `,` is missing")?;
                let delimiter = unescaped(&self.text()?);
                let names = self.names()?;
                self.expect(")", "a `)` is missing")?;
                return self.add(Node::Flags { value, delimiter, names }, &[value]);
            }
            "__print_symbolic" | "__print_symbolic_u64" => {
                let value = self.expression()?;
                let names = self.names()?;
                self.expect(")", "a `)` is missing")?;
                return self.add(Node::Symbols { value, names }, &[value]);
            }
            "__print_hex" | "__print_hex_str" => {
                let (data, length) = (self.expression()?, self.next_argument()?);
                self.expect(")", "a `)` is missing")?;
                let spaced = name == "__print_hex";
                return self.add(Node::Hex { data, length, spaced }, &[data, length]);
            }
            "__print_array" => {
                let (data, count, element_bytes) =
                    (self.expression()?, self.next_argument()?, self.next_argument()?);
                self.expect(")", "a `)` is missing")?;
                return self.add(Node::Array { data, count, element_bytes }, &[data, count, element_bytes]);
            }
            "__builtin_expect" => {
                let value = self.expression()?;
                self.next_argument()?;
                self.expect(")", "a `)` is missing")?;
                return Ok(value);
            }
            "sizeof" => Node::Number(self.size()?),
            _ => return Err(PrintFormatError::UnknownFunction(name.to_owned())),
        };
        self.expect(")", "a `)` is missing")?;
        self.add(node, &[])
    }

    fn next_argument(&mut self) -> Result<u32, PrintFormatError> {
        self.expect(",", "a `,` is missing")?;
        self.expression()
    }

    fn dynamic(&mut self) -> Result<usize, PrintFormatError> {
        let name = self.name().ok_or_else(|| self.error("the name of a field is missing"))?;
        self.field(name)
    }

    /// `[NUMBER]`, if it stands there: probes with an array of texts write `__get_str(names[1])`.
    fn constant_index(&mut self) -> Result<usize, PrintFormatError> {
        if !self.takes("[") {
            return Ok(0);
        }
        let index = match self.peek() {
            Some(Token::Number(number)) => usize::try_from(*number).ok(),
            _ => None,
        };
        let index = index.ok_or_else(|| self.error("the index of a text is no number"))?;
        self.at += 1;
        self.expect("]", "a `]` is missing")?;
        Ok(index)
    }

    /// `, { VALUE, "NAME" }` as often as it stands there. `None`: a name that is no number.
    fn names(&mut self) -> Result<Vec<(Option<u64>, String)>, PrintFormatError> {
        let mut names = Vec::new();
        while self.takes(",") {
            self.expect("{", "a `{` is missing")?;
            if self.takes("}") {
                continue;
            }
            let value = self.expression()?;
            self.expect(",", "a `,` is missing")?;
            // The end of a list may have no name: `{ -1, 0 }`.
            let text = match self.peek() {
                Some(Token::Text(_)) => unescaped(&self.text()?),
                _ => self.expression().map(|_| String::new())?,
            };
            self.expect("}", "a `}` is missing")?;
            names.push((eval::constant(&self.nodes, value), text));
        }
        Ok(names)
    }

    /// The bytes of a type or a field.
    fn size(&mut self) -> Result<u64, PrintFormatError> {
        if self.name() == Some("REC") {
            self.expect("->", "a `->` is missing")?;
            let name = self.name().ok_or_else(|| self.error("the name of a field is missing"))?;
            let field = self.field(name)?;
            return Ok(self.format.fields.get(field).map_or(0, |field| field.size as u64));
        }
        self.at -= 1;
        let mut words = Vec::new();
        while let Some(word) = self.name() {
            words.push(word);
        }
        let mut pointer = false;
        while self.takes("*") {
            pointer = true;
        }
        match words.as_slice() {
            _ if pointer => Ok(8),
            [] | ["struct" | "union", ..] => Err(self.error("the size of a structure is not known")),
            words => Ok(u64::from(bits_of_type(words) / 8)),
        }
    }
}

fn is_type_word(word: &str) -> bool {
    const WORDS: &str =
        "unsigned signed long int short char struct union enum bool void u8 s8 u16 s16 u32 s32 u64 s64";
    WORDS.split(' ').any(|known| known == word) || word.starts_with("__") || word.ends_with("_t")
}

/// The bits of a type; those of a type that is not known are all 64.
fn bits_of_type(words: &[&str]) -> u32 {
    known_bits_of_type(words).unwrap_or(64)
}
